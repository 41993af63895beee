"""Errors as `application/problem+json` (RFC 9457), and the one mapping from gRPC codes to statuses of HTTP."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from starlette.responses import Response

from scankv.model.errors import (
    DiskFull,
    RequestTooLarge,
    ScanKvError,
    UsageError,
)

_STATUS: Final = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# Errors whose code says less than their class.
_STATUS_OF_CLASS: Final = ((UsageError, 400), (RequestTooLarge, 413), (DiskFull, 507))
_MEDIA_TYPE: Final = "application/problem+json"


class HttpRefusal(Exception):
    """A request that the gateway refuses by itself.

    Attributes:
        status: The status of the answer.
        reason: Machine-readable reason, as in `ScanKvError.reason`.
        message: What is wrong, what is allowed, and what to do.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers or {}


def bad_request(message: str) -> HttpRefusal:
    """Returns the refusal of a request whose parameters are wrong."""
    return HttpRefusal(400, "INVALID_REQUEST", message)


def status_of(error: ScanKvError) -> int:
    """Returns the status of HTTP for an error of the server or the client."""
    for kind, status in _STATUS_OF_CLASS:
        if isinstance(error, kind):
            return status
    return _STATUS.get(error.code, 500)


def problem_of(error: Exception) -> dict[str, Any]:
    """Returns the fields of the problem. Those of an unexpected error say nothing about its cause."""
    if isinstance(error, HttpRefusal):
        return _problem(error.status, error.reason, error.message)
    if isinstance(error, ScanKvError):
        problem = _problem(status_of(error), error.reason, error.message)
        problem["code"] = error.code
        if error.details:
            problem["metadata"] = error.details
        if error.retry_after is not None:
            problem["retry_after"] = error.retry_after
        return problem
    return _problem(500, "INTERNAL", "the gateway has failed; its log has the cause")


def problem_response(error: Exception) -> Response:
    """Returns the answer for an error."""
    problem = problem_of(error)
    headers = dict(error.headers) if isinstance(error, HttpRefusal) else {}
    if problem["status"] == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="scankv"'
    after = problem.get("retry_after")
    if after is None and problem["status"] == 503:
        after = 1.0
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    return Response(json.dumps(problem) + "\n", problem["status"], headers, _MEDIA_TYPE)


def _problem(status: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": reason.replace("_", " ").capitalize(),
        "status": status,
        "detail": message,
        "reason": reason,
    }
