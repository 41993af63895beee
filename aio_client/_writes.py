"""Writes that may be repeated: each carries an identity, by which the server applies it once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

from aio_client._retry import PASSING_ERRORS, with_retries
from protos.scankv.v1 import write_pb2

if TYPE_CHECKING:
    from aio_client._transport import Method, Transport

Request: TypeAlias = write_pb2.UpsertRequest | write_pb2.DeleteRequest
"""One write."""


async def write_until_answered(transport: Transport, request: Request) -> write_pb2.WriteResponse:
    """Makes a write that has an identity, again and again until it is answered, for the operation timeout.

    Args:
        transport: The client's connection.
        request: The write; changed only in how old it is.

    Raises:
        ConnectionFailed: There was no answer. The write may have been applied, and may yet be.
        ScanKvError: What the server said.
    """
    # Two clocks: one stops while the machine sleeps, the other may be set.
    first, first_of_day = time.monotonic(), time.time()

    def method() -> Method[Any, write_pb2.WriteResponse]:
        # Called when the request is sent: what it has waited in this client is part of its age.
        age = max(time.monotonic() - first, time.time() - first_of_day)
        request.writer.sent_millis_ago = max(0, round(age * 1000))
        writes = transport.services.writes
        return writes.Delete if isinstance(request, write_pb2.DeleteRequest) else writes.Upsert

    async def attempt(deadline: float) -> write_pb2.WriteResponse:
        return await transport.attempt(method, request, deadline=deadline)

    return await with_retries(
        attempt,
        timeout=transport.config.operation_timeout,
        retries=lambda error: isinstance(error, PASSING_ERRORS),
    )
