"""The errors for statuses of calls: those of the server have a typed detail, those of gRPC or of a proxy do not."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scankv.model.errors import (
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ProtocolViolation,
    RequestTooLarge,
    ScanKvError,
    Unavailable,
    error_for_reason,
)

_ERROR_OF_STATUS: Final[dict[str, type[ScanKvError]]] = {
    "UNAVAILABLE": Unavailable,
    # A server that stops at once cancels its calls. A proxy resets them, which gRPC reports as INTERNAL.
    "CANCELLED": Unavailable,
    "INTERNAL": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "RESOURCE_EXHAUSTED": RequestTooLarge,
    "INVALID_ARGUMENT": InvalidRequest,
    "DATA_LOSS": DataLoss,
    "UNIMPLEMENTED": ProtocolViolation,
}


def error_of_status(status: str, said: str, address: str, timeout: float) -> ScanKvError:
    """Returns the error for the status of a call.

    Args:
        status: The name of the status.
        said: The text that came with it.
        address: The server.
        timeout: The seconds that the call had.
    """
    cls = _ERROR_OF_STATUS.get(status, InternalError)
    return cls(_message_of(cls, said, address, timeout), address=address)


def typed_error_of(data: bytes) -> ScanKvError | None:
    """Returns the error that a serialized google.rpc.Status of the server describes. None: it describes none."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        status = status_pb2.Status.FromString(data)
    except DecodeError:
        return None
    for detail in status.details:
        if not detail.Unpack(info):
            detail.Unpack(retry)
    cls = error_for_reason(info.reason) if info.domain == "scankv" else None
    if cls is None:
        return None
    wait = retry.retry_delay.ToTimedelta().total_seconds()
    typed = cls(status.message, retry_after=wait or None)
    typed.details.update(info.metadata)
    return typed


def _message_of(cls: type[ScanKvError], said: str, address: str, timeout: float) -> str:
    if cls is Unavailable:
        return f"no ScanKV server answers at {address}: {said}"
    if cls is DeadlineExceeded:
        return f"the ScanKV server at {address} did not answer within {readable_seconds(timeout)} s"
    if cls is RequestTooLarge:
        return f"a message between here and {address} is over its limit: {said}"
    if cls is ProtocolViolation:
        return f"{address} does not know this call; is it a ScanKV server of this version? It says: {said}"
    return f"the ScanKV server at {address} failed: {said}"


def readable_seconds(timeout: float) -> str:
    """Seconds for messages, rounded to a readable number of digits."""
    return f"{round(timeout, 2) or timeout:g}"
