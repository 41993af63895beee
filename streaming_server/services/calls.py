"""Measures every call: how many run, how long they take by method and status, and which of them are slow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from streaming_server.access.forwarded_peers import ForwardedPeers
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL, CurrentCall
from streaming_server.histogram import Histogram
from streaming_server.services.call_spans import end_span, start_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scankv.model.tracing import Tracer

_log = logging.getLogger(__name__)

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_EXPLAIN_SECONDS = 5.0
_GRPC = "grpc."

MOST_SLOW_CALLS: Final = 100
"""How many slow calls are remembered."""
# What a client may make large: the name of a table that does not exist, and a plan with many columns.
_MOST_TABLE = 200
_MOST_PLAN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """A call that kept the server busy for long. Immutable.

    Attributes:
        method: Its method, as `SERVICE/METHOD`.
        table: The name of the table that it reads, shortened. Empty: it reads no table.
        ended_at: When it ended, as by `time.monotonic`.
        seconds: How long it took.
        waited_seconds: For how long it waited for its client or for changes.
        code: The name of its status.
        plan: How it read the table, shortened. Empty: it is no scan or query.
        request_id: The id by which the log has it.
        peer: The address of its client.
    """

    method: str
    table: str
    ended_at: float
    seconds: float
    waited_seconds: float
    code: str
    plan: str
    request_id: str
    peer: str


class Calls:
    """The calls of a server, measured from their beginning to their end. Bound to the event loop.

    Args:
        slow_seconds: A call that keeps the server busy for longer is logged. 0: no call is.
        tracer: Makes a span for each call. None: calls are not traced.
        forwarded: Says for whom a call of a gateway is made. None: the server has no gateway.

    Attributes:
        running: The number of calls that run now, by method.
        seconds: The durations of the calls that have ended, by method and the name of their status.
        ended: The number of calls that have ended, without calls of the health and reflection services.
        slow: The latest slow calls, in the order in which they were logged.
    """

    def __init__(
        self, slow_seconds: float, tracer: Tracer | None = None, forwarded: ForwardedPeers | None = None
    ) -> None:
        self.running: Counter[str] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}
        self.ended = 0
        self.slow: deque[LoggedCall] = deque(maxlen=MOST_SLOW_CALLS)
        self._slow_seconds = slow_seconds
        self._tracer = tracer
        self._forwarded = forwarded or ForwardedPeers()
        self._logging: set[asyncio.Task[None]] = set()

    def measure(self, method: str, handler: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
        """Returns a handler that does the same, and is measured as calls of a method, `SERVICE/METHOD`."""
        method = method.removeprefix("scankv.v1.")
        running, clock, client_of = self.running, time.perf_counter, self._forwarded.client_of
        watches_health = method.startswith(_GRPC)
        tracer = None if watches_health else self._tracer

        async def measured(stream: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
            began = clock()
            metadata = CALL_METADATA.get()
            call = CurrentCall(method, metadata, client_of(context.peer(), metadata))
            call.may_last = watches_health
            CURRENT_CALL.set(call)
            span = None if tracer is None else start_span(tracer, call, call.metadata)
            running[method] += 1
            code = "OK"
            try:
                return await handler(stream, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except BaseException:
                code = _name_of(context.code())
                raise
            finally:
                running[method] -= 1
                if span is not None:
                    end_span(span, call, code)
                self._end(call, code, clock() - began)

        return measured

    def _end(self, call: CurrentCall, code: str, seconds: float) -> None:
        if call.on_end is not None:
            on_end, call.on_end = call.on_end, None
            on_end(code, seconds)
        if not call.method.startswith(_GRPC):
            self.ended += 1
        histogram = self.seconds.get((call.method, code))
        if histogram is None:
            histogram = self.seconds[call.method, code] = Histogram()
        histogram.observe(seconds)
        if self._slow_seconds and seconds - call.waited_seconds > self._slow_seconds and not call.may_last:
            # In a task of its own, because the call may have been cancelled, and its client should not wait.
            task = asyncio.create_task(self._log_slow(call, code, seconds))
            self._logging.add(task)
            task.add_done_callback(self._logging.discard)
        else:
            # gRPC may keep the call for some time, and a plan may have a large predicate.
            call.explain = None

    async def _log_slow(self, call: CurrentCall, code: str, seconds: float) -> None:
        plan, ended_at = None, time.monotonic()
        if call.explain is not None:
            try:
                async with asyncio.timeout(_EXPLAIN_SECONDS):
                    plan = await call.explain()
            except Exception as error:
                # The table may have been dropped in the meantime.
                plan = f"unknown: {type(error).__name__}"
        _log.warning(
            "slow call of %s: table %s, %.3f s, of which %.3f s waiting for the client or for changes, status %s, "
            "plan: %s",
            call.method,
            call.table or "none",
            seconds,
            call.waited_seconds,
            code,
            plan or "none",
            extra={
                "method": call.method,
                "table": call.table,
                "seconds": round(seconds, 6),
                "waited_seconds": round(call.waited_seconds, 6),
                "code": code,
                "plan": plan,
                "peer": call.client,
            },
        )
        self.slow.append(
            LoggedCall(
                method=call.method,
                table=call.table[:_MOST_TABLE],
                ended_at=ended_at,
                seconds=seconds,
                waited_seconds=call.waited_seconds,
                code=code,
                plan=(plan or "")[:_MOST_PLAN],
                request_id=call.request_id,
                peer=call.client,
            )
        )


def _name_of(code: grpc.StatusCode | int | None) -> str:
    if isinstance(code, grpc.StatusCode):
        return code.name
    # 0 is the status before any is set: the handler failed without one.
    return _CODES.get(code, "UNKNOWN") if code else "UNKNOWN"
