"""OpenTelemetry in the tests' own process, with its SDK and spans that are kept in memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


class FinishedSpans:
    """The spans of this process that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str, kind: str | None = None) -> list[ReadableSpan]:
        """Returns the spans of a name, of one kind if it is given, in the order of their ends."""
        return [span for span in self.all if span.name == name and (kind is None or span.kind.name == kind)]

    def one(self, name: str, kind: str | None = None) -> ReadableSpan:
        """Returns the only span of a name."""
        (span,) = self.named(name, kind)
        return span

    def children(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [span for span in self.all if is_child(span, parent)]

    def text(self) -> str:
        """Returns everything that leaves the process with the spans."""
        return "\n".join(span.to_json() for span in self.all)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    found, context = span.parent, parent.get_span_context()
    if found is None or context is None:
        return False
    return (found.trace_id, found.span_id) == (context.trace_id, context.span_id)


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


@contextmanager
def traced_process() -> Iterator[FinishedSpans]:
    """Configures OpenTelemetry for the length of the block, which a process can otherwise do only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield FinishedSpans(exporter)
    finally:
        provider.shutdown()
        trace._TRACER_PROVIDER = None
        trace._TRACER_PROVIDER_SET_ONCE = Once()
