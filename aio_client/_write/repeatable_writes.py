"""Writes that may be repeated: each carries an identity, by which the server applies it once."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aio_client._transport.retry import PASSING_ERRORS, with_retries
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.transport import Method, Transport

Request: TypeAlias = write_pb2.UpsertRequest | write_pb2.DeleteRequest
"""One write."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def _uptime() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


async def write_until_answered(
    transport: Transport, request: Request, clock: Callable[[], float] = _uptime
) -> write_pb2.WriteResponse:
    """Makes a write that has an identity, again and again until it is answered, for the operation timeout.

    Args:
        transport: The client's connection.
        request: The write; changed only in how old it is.
        clock: Seconds that nobody sets. Rule: how old a request is must not depend on the wall clock, since the server
            takes an old one that it does not know for one that it may have forgotten.

    Raises:
        ConnectionFailed: There was no answer. The write may have been applied, and may yet be.
        ScanKvError: What the server said.
    """
    first = clock()

    def method() -> Method[Any, write_pb2.WriteResponse]:
        # Called when the request is sent: what it has waited in this client is part of its age. Rounded up, so that a
        # request is never told to be younger than it is.
        request.writer.sent_millis_ago = math.ceil(max(0.0, clock() - first) * 1000)
        writes = transport.services.writes
        return writes.Delete if isinstance(request, write_pb2.DeleteRequest) else writes.Upsert

    async def attempt(deadline: float) -> write_pb2.WriteResponse:
        return await transport.attempt(method, request, deadline=deadline)

    return await with_retries(
        attempt,
        timeout=transport.config.operation_timeout,
        retries=lambda error: isinstance(error, PASSING_ERRORS),
    )
