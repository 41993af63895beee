"""Writes that may be repeated: each carries an identity, by which the server applies it once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from aio_client._retry import with_retries
from protos.scankv.v1 import write_pb2
from table_model.errors import DeadlineExceeded, ServerDraining, Unavailable

if TYPE_CHECKING:
    from aio_client._transport import Transport

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

    async def attempt(deadline: float) -> write_pb2.WriteResponse:
        now = time.monotonic()
        age = max(now - first, time.time() - first_of_day)
        request.writer.sent_millis_ago = max(0, round(age * 1000))
        timeout = max(0.0, min(transport.config.attempt_timeout, deadline - now))
        # Asked for each time, because it belongs to a connection, which may be replaced.
        writes = transport.services.writes
        if isinstance(request, write_pb2.DeleteRequest):
            return await transport.call(writes.Delete, request, timeout=timeout)
        return await transport.call(writes.Upsert, request, timeout=timeout)

    return await with_retries(
        attempt,
        timeout=transport.config.operation_timeout,
        retries=lambda error: isinstance(error, Unavailable | DeadlineExceeded | ServerDraining),
    )
