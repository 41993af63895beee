"""Repeats writes safely: each has an identity, by which the server applies it once."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aio_client._transport.retry import PASSING_ERRORS
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_client._transport.transport import Method, Transport

Request: TypeAlias = write_pb2.UpsertRequest | write_pb2.DeleteRequest
"""A write that carries the identity of its writer."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def _uptime() -> float:
    """Returns seconds on a clock that cannot be set, and that also counts while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


async def write_until_answered(
    transport: Transport, request: Request, clock: Callable[[], float] = _uptime
) -> write_pb2.WriteResponse:
    """Sends a write with an identity, and repeats it until it is answered, for the operation timeout.

    The age of a request must not depend on the wall clock: the server refuses an old request that it does not know,
    because it may have forgotten that it applied it.

    Args:
        transport: The client's connection.
        request: The write. The function sets its `sent_millis_ago`.
        clock: Seconds on a clock that cannot be set.

    Raises:
        ConnectionFailed: No answer came. The write may have been applied, or may still be applied.
        ScanKvError: The server's error.
    """
    return await transport.retry(
        write_attempts(transport, request, clock), request, retries=lambda error: isinstance(error, PASSING_ERRORS)
    )


def write_attempts(
    transport: Transport, request: Request, clock: Callable[[], float] = _uptime
) -> Callable[[float], Awaitable[write_pb2.WriteResponse]]:
    """Returns a function that sends a write once, by the deadline given. For `Transport.retry`.

    The age of the write counts from now. Calls of the function must not overlap. See `write_until_answered`.
    """
    first = clock()

    def method() -> Method[Any, write_pb2.WriteResponse]:
        # Called when the request is sent, because the time that it waits in this client is part of its age. Rounded up,
        # because a request that seems younger than it is could be applied twice.
        request.writer.sent_millis_ago = math.ceil(max(0.0, clock() - first) * 1000)
        writes = transport.services.writes
        return writes.Delete if isinstance(request, write_pb2.DeleteRequest) else writes.Upsert

    async def attempt(deadline: float) -> write_pb2.WriteResponse:
        return await transport.attempt(method, request, deadline=deadline)

    return attempt
