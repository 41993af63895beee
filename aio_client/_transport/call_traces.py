"""The spans of calls: one for each operation, whose attempts are events."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from scankv.model.errors import ScanKvError
from scankv.model.tracing import ERROR_TYPE, RPC_STATUS, TracedSpan, error_type

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from google.protobuf.message import Message

    from scankv.model.tracing import Tracer

_Result = TypeVar("_Result")

ATTEMPTS = "scankv.attempts"

_methods: dict[tuple[type[Message], bool], str] = {}


def start_call(
    tracer: Tracer, address: str, request: type[Message], table: str, *, streams: bool = False
) -> TracedSpan:
    """Starts the span of a call.

    Args:
        tracer: The program's tracer.
        address: The server, as `host:port`.
        request: The type of the request, which identifies the method.
        table: The name of the table; empty for a call about no table.
        streams: Whether the answer is a stream.
    """
    host, _, port = address.rpartition(":")
    method = method_of(request, streams=streams)
    return tracer.start(
        method,
        "client",
        table=table,
        rpc__system__name="grpc",
        rpc__method=method,
        server__address=host.strip("[]"),
        server__port=int(port),
    )


@contextmanager
def trace_call(tracer: Tracer, address: str, request: Message, *, streams: bool = False) -> Iterator[CallAttempts]:
    """Makes the span of a call current for the length of the block, and ends it with the block."""
    span = start_call(tracer, address, type(request), getattr(request, "table", ""), streams=streams)
    attempts, code = CallAttempts(span), "OK"
    with span.active():
        try:
            yield attempts
        except ScanKvError as error:
            code = error.code
            raise
        except BaseException:
            code = "CANCELLED"
            raise
        finally:
            span.set({RPC_STATUS: code, ATTEMPTS: attempts.count})


class CallAttempts:
    """The attempts of one call, as events of its span."""

    def __init__(self, span: TracedSpan) -> None:
        self._span = span
        self.count = 0

    def counting(self, attempt: Callable[[float], Awaitable[_Result]]) -> Callable[[float], Awaitable[_Result]]:
        """Returns a function that does the same as `attempt`, and records its failures."""

        async def counted(deadline: float) -> _Result:
            self.count += 1
            try:
                return await attempt(deadline)
            except ScanKvError as error:
                record_failure(self._span, self.count, error)
                raise

        return counted


def record_failure(span: TracedSpan, attempt: int, error: ScanKvError) -> None:
    """Records that an attempt has failed. The event has no message, which may contain values of rows."""
    span.add_event("attempt failed", {"scankv.attempt": attempt, ERROR_TYPE: error_type(error)})


def method_of(request: type[Message], *, streams: bool) -> str:
    """Returns the method that takes a type of requests, as `package.Service/Method`."""
    found = _methods.get((request, streams))
    if found is None:
        wanted = request.DESCRIPTOR.full_name
        (found,) = (
            f"{service.full_name}/{method.name}"
            for service in request.DESCRIPTOR.file.services_by_name.values()
            for method in service.methods
            if method.input_type.full_name == wanted and method.server_streaming is streams
        )
        _methods[request, streams] = found
    return found
