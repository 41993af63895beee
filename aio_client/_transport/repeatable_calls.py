"""Calls that may be made any number of times, repeated while the server is away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from aio_client._transport.retry import PASSING_ERRORS, with_retries
from scankv.model.changes.log_offsets import LogOffsets
from scankv.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from aio_client._transport.transport import Method, Transport

_Request = TypeVar("_Request", bound="Message")
_Response = TypeVar("_Response")


async def commit_position(
    transport: Transport, table: str, consumer_id: str, fence: int, token: bytes = b"", rows_position: bytes = b""
) -> LogOffsets:
    """Commits the position of a token for a consumer's stream. Returns the committed offsets.

    Args:
        transport: The client's connections.
        table: The table.
        consumer_id: The consumer.
        fence: The fence of the stream.
        token: The token.
        rows_position: Instead of a token, how far rows were read elsewhere.

    Raises:
        ConsumerFenced: The stream no longer has the consumer.
    """
    request = consumer_pb2.CommitPositionRequest(
        table=table, consumer_id=consumer_id, fence=fence, resume_token=token, rows_position=rows_position
    )
    response = await call_again(transport, lambda: transport.services.consumers.CommitPosition, request)
    return LogOffsets.of(response.log_offsets, response.table_incarnation)


async def call_again_and_wait(
    transport: Transport, method: Callable[[Any], Method[_Request, _Response]], request: _Request, wait: float
) -> _Response:
    """Like `call_again`, for a call that may wait at the server. It delays no other calls of the client.

    Args:
        transport: The client's connections.
        method: Returns the call from the services of a connection.
        request: The request.
        wait: For how many seconds the server may wait before it answers.
    """

    async def attempt(deadline: float) -> _Response:
        timeout = min(wait + transport.config.attempt_timeout, max(0.001, deadline - time.monotonic()))
        return await transport.call_and_wait(method, request, timeout)

    timeout = wait + transport.config.operation_timeout
    return await with_retries(attempt, timeout=timeout, retries=lambda error: isinstance(error, PASSING_ERRORS))


async def call_again(
    transport: Transport, method: Callable[[], Method[_Request, _Response]], request: _Request
) -> _Response:
    """Makes a call repeatedly until it is answered, for the operation timeout."""

    async def attempt(deadline: float) -> _Response:
        return await transport.attempt(method, request, deadline=deadline)

    return await transport.retry(attempt, request, retries=lambda error: isinstance(error, PASSING_ERRORS))
