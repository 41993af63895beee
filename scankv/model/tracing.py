"""Spans of OpenTelemetry, for programs that have configured it. The only module that uses OpenTelemetry.

Rule: *no span has rows, keys, predicates, tokens or messages of errors*, because spans are kept by other systems.

The names of attributes are those of OpenTelemetry's semantic conventions for RPC and databases, where they have one.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
DB_SYSTEM: Final = "db.system.name"
DB_TABLE: Final = "db.collection.name"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

_OWN_NAME: Final = "scankv"
_PARENT: Final = "traceparent"
_HEADERS: Final = (_PARENT, "tracestate")
_MAX_TABLE_NAME: Final = 200  # characters; the name in a request may be made up

Attributes: TypeAlias = "Mapping[str, str | int | float | bool]"
TraceContext: TypeAlias = "Context"
Headers: TypeAlias = tuple[tuple[str, str], ...]
"""The W3C trace context of a span as names and values: `traceparent`, and `tracestate` if the span has one."""


def find_tracer() -> Tracer | None:
    """Returns the tracer of the program; None if the program has not configured OpenTelemetry.

    Imports OpenTelemetry only if the program has already done so. To be called once for each client, server or task.
    """
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracer(provider)


class Tracer:
    """Makes spans with the program's tracer provider. Thread-safe; not picklable."""

    def __init__(self, provider: TracerProvider) -> None:
        from importlib import metadata

        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._kinds = {
            "client": trace.SpanKind.CLIENT,
            "server": trace.SpanKind.SERVER,
            "internal": trace.SpanKind.INTERNAL,
        }
        # Without baggage: the server has no use for it, and it may have what must not leave the program.
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer(_OWN_NAME, metadata.version(_OWN_NAME))
        self._context = context

    def start(
        self,
        name: str,
        kind: Literal["client", "server", "internal"],
        *,
        table: str = "",
        parent: TraceContext | None = None,
        **attributes: str | int,
    ) -> TracedSpan:
        """Starts a span.

        Args:
            name: The name of the span.
            kind: Whether the span is the client's or the server's side of a call, or neither.
            table: The name of the table, if there is one.
            parent: The context of the parent. None: the current context.
            **attributes: Other attributes by name, in which `__` stands for a dot.
        """
        named: dict[str, str | int] = {DB_SYSTEM: _OWN_NAME}
        if table:
            named[DB_TABLE] = table[:_MAX_TABLE_NAME]
        named |= {key.replace("__", "."): value for key, value in attributes.items()}
        return TracedSpan(self, self._tracer.start_span(name, parent, self._kinds[kind], named))

    def current(self) -> TraceContext:
        """Returns the current context, for `parent` of `start` and for `within`."""
        return self._context.get_current()

    def headers(self) -> Headers:
        """Returns the trace context of the current span; empty without one."""
        return self.headers_of(None)

    def headers_of(self, context: TraceContext | None) -> Headers:
        """Returns the trace context of the span in a context. None: in the current one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context)
        return tuple(carrier.items())

    def parent(self, given: Any) -> TraceContext:  # noqa: ANN401  # metadata of gRPC, or our own headers
        """Returns the context of the trace context in metadata. It has no span if the metadata have no valid one."""
        carrier = {name: value for name, value in given or () if name in _HEADERS and isinstance(value, str)}
        return self._propagator.extract(carrier, self._context.Context())

    @contextmanager
    def within(self, context: TraceContext) -> Iterator[None]:
        """Makes a context current for the length of the block. Must end in the same task or thread."""
        token = self._context.attach(context)
        try:
            yield
        finally:
            self._context.detach(token)

    def activate(self, context: TraceContext) -> None:
        """Makes a context current until the end of the present task."""
        self._context.attach(context)


class TracedSpan:
    """One span. Thread-safe. What is done after its end has no effect."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        """Called by `Tracer.start`."""
        self._tracer = tracer
        self._span = span

    @property
    def context(self) -> TraceContext:
        """A context in which this span is current."""
        from opentelemetry import trace

        return trace.set_span_in_context(self._span, self._tracer.current())

    @property
    def headers(self) -> Headers:
        """The trace context of this span, to be sent to those that continue the trace."""
        return self._tracer.headers_of(self.context)

    @property
    def ids(self) -> tuple[str, str]:
        """The trace id and the span id, as hexadecimal digits."""
        found = self._span.get_span_context()
        return f"{found.trace_id:032x}", f"{found.span_id:016x}"

    def set(self, attributes: Attributes) -> None:
        """Sets attributes."""
        self._span.set_attributes(attributes)

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Adds an event that happens now."""
        self._span.add_event(name, attributes)

    def end(self, error: str | None = None) -> None:
        """Ends the span. Does nothing if it has ended.

        Args:
            error: The kind of error with which the work has ended. None: with none.
        """
        if not self._span.is_recording():
            return
        if error is not None:
            from opentelemetry import trace

            self._span.set_attribute(ERROR_TYPE, error)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    def activate(self) -> None:
        """Makes the span current until the end of the present task."""
        self._tracer.activate(self.context)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Ends the span after the block, with the block's error."""
        error: str | None = None
        try:
            yield
        except GeneratorExit:  # The caller of a generator wants no more, which is no error.
            raise
        except BaseException as raised:
            error = error_type(raised)
            raise
        finally:
            self.end(error)

    @contextmanager
    def active(self) -> Iterator[None]:
        """See `ended`. Also makes the span current for the length of the block."""
        with self.ended(), self._tracer.within(self.context):
            yield


def error_type(error: BaseException) -> str:
    """Returns the kind of an error: its reason if it is one of ours, else the name of its class."""
    return str(getattr(error, "reason", "") or type(error).__name__)


def traceparent_of(headers: Headers) -> str | None:
    """Returns the `traceparent` of a trace context, which is all that processes of Spark pass on. None without one."""
    return next((value for name, value in headers if name == _PARENT), None)


def headers_of_traceparent(traceparent: str | None) -> Headers:
    """Returns the trace context of a `traceparent`."""
    return () if traceparent is None else ((_PARENT, traceparent),)
