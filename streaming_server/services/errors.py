"""Converts a `ScanKvError` to a gRPC status with a typed detail. No other module does this."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scankv.model.errors import InternalError, InvalidRequest, ScanKvError, UnknownField
from streaming_server.current_call import CURRENT_CALL
from streaming_server.storage.files.disk_space import refusal_of_write, resource_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from google.protobuf.message import Message

# The metadata key of google.rpc.Status, by convention of all gRPC languages.
_DETAILS_KEY = "grpc-status-details-bin"
# In bytes of UTF-8. A status is sent as metadata, whose size gRPC limits.
_MAX_TEXT, _MAX_DETAIL, _MAX_DETAILS = 1000, 100, 8
# A predicate may have 1,000 nodes, and takes about four messages for each.
_MAX_MESSAGES = 10_000

_log = logging.getLogger(__name__)


def map_errors(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> AbstractAsyncContextManager[None]:
    """Runs one call in the block: refuses unknown fields first, and ends the call with a status for every error.

    An error that is not a `ScanKvError` is a bug. The client gets an incident id, and nothing of the error's text.
    """
    return _ErrorMapping(request, context)


def map_write_errors(
    request: Message, context: grpc.aio.ServicerContext[Any, Any]
) -> AbstractAsyncContextManager[None]:
    """Like `map_errors`, for a call that writes rows: a full or failing disk is always `DiskFull` or `DiskFailed`."""
    return _WriteErrorMapping(request, context)


class _ErrorMapping(AbstractAsyncContextManager[None]):
    # Not a generator, because every call runs this, and contextlib's class for generators takes three times as long.
    __slots__ = ("_context", "_request")

    def __init__(self, request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._request = request
        self._context = context

    async def __aenter__(self) -> None:
        try:
            refuse_unknown_fields(self._request)
        except Exception as error:
            await self._end(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if isinstance(error, Exception):
            await self._end(error)
        return None

    async def _end(self, error: Exception) -> NoReturn:
        """Ends the call with the status of an error, by an exception."""
        if isinstance(error, ScanKvError):
            await end_with(self._context, error)
        if isinstance(error, grpc.aio.BaseError):
            # The client is gone. Without a running write, gRPC cancels the handler, so a failed write ends it the same
            # way. Returning instead would make gRPC answer a call that no longer exists.
            raise asyncio.CancelledError from error
        name = type(self._request).__name__
        if isinstance(error, OSError):
            shortage = resource_error(error, os.fsdecode(error.filename) if error.filename else "the data directory")
            if shortage is not None:
                _log.warning("%s: %s", name, error)
                await end_with(self._context, shortage)
        incident = uuid.uuid4().hex[:12]
        _log.error("incident %s in %s", incident, name, exc_info=error)
        internal = InternalError(f"the server failed; its log has the cause as incident {incident}", incident=incident)
        await end_with(self._context, internal)


class _WriteErrorMapping(_ErrorMapping):
    __slots__ = ()

    async def _end(self, error: Exception) -> NoReturn:
        await super()._end(refusal_of_write(error) if isinstance(error, ScanKvError) else error)


async def end_with(context: grpc.aio.ServicerContext[Any, Any], error: ScanKvError) -> NoReturn:
    """Ends a call with the status of an error. Raises the exception by which gRPC ends handlers."""
    if (call := CURRENT_CALL.get()) is not None:
        call.error = error.reason
    status = status_of(error)
    metadata = ((_DETAILS_KEY, status.SerializeToString()),)
    await context.abort(grpc.StatusCode[error.code], status.message, trailing_metadata=metadata)


def status_of(error: ScanKvError) -> status_pb2.Status:
    """Returns the status of an error: its code, its message, and an ErrorInfo with reason and details. Below 4 KiB."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason,
        domain="scankv",
        metadata={name: _cut(value, _MAX_DETAIL) for name, value in list(error.details.items())[:_MAX_DETAILS]},
    )
    details = [_pack(info)]
    if error.retry_after is not None:
        seconds = int(error.retry_after)
        delay = duration_pb2.Duration(seconds=seconds, nanos=int((error.retry_after - seconds) * 1e9))
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    code: int = grpc.StatusCode[error.code].value[0]
    return status_pb2.Status(code=code, message=_cut(error.message, _MAX_TEXT), details=details)


def _cut(text: str, limit: int) -> str:
    return text.encode()[:limit].decode(errors="ignore")


def _pack(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def refuse_unknown_fields(message: Message) -> None:
    """Checks that neither a message nor any message in it has an unknown field.

    Raises:
        UnknownField: A field is unknown.
        InvalidRequest: The message contains more messages than any valid request.
    """
    _refuse_unknown_fields(message, iter(range(_MAX_MESSAGES)))


def _refuse_unknown_fields(message: Message, left: Iterator[int]) -> None:
    if next(left, None) is None:
        raise InvalidRequest(
            f"the request contains more than {_MAX_MESSAGES:,} nested messages, the limit: ask for less"
        )
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise UnknownField(
            f"{message.DESCRIPTOR.name} has field {unknown[0].field_number}, which this server does not know, because "
            "it is older than the client: upgrade the server"
        )
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else (value,):
                _refuse_unknown_fields(part, left)
