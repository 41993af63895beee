"""The spans of planning, tasks and commits, which continue the trace of the program that runs a query.

Spark plans a query, and runs its tasks, in other processes than the program. Only text gets there: the `traceparent` of
W3C, in an option of the program and in what Spark pickles for its tasks. A process makes spans if OpenTelemetry is
configured in it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import TaskContext

from scankv.model.tracing import find_tracer, headers_of_traceparent, traceparent_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.model.tracing import TracedSpan


def start_span(work: str, table: str, traceparent: str | None) -> TracedSpan | None:
    """Starts the span of some work of Spark. None if OpenTelemetry is not configured in this process.

    Args:
        work: What is done, such as `read`.
        table: The name of the table.
        traceparent: The parent. None: the current span.
    """
    tracer = find_tracer()
    if tracer is None:
        return None
    parent = None if traceparent is None else tracer.parent(headers_of_traceparent(traceparent))
    span = tracer.start(f"scankv.spark.{work}", "internal", table=table, parent=parent)
    if (task := TaskContext.get()) is not None:
        span.set({"scankv.spark.stage": task.stageId(), "scankv.spark.partition": task.partitionId()})
    return span


@contextmanager
def work_span(work: str, table: str, traceparent: str | None) -> Iterator[str | None]:
    """Makes the span of some work current for the length of the block.

    Yields:
        The `traceparent` that later work of the same query continues: the given one; else that of the span that is
        current before the block, or of the span of this work. None if OpenTelemetry is not configured.
    """
    tracer = find_tracer()
    span = start_span(work, table, traceparent)
    if tracer is None or span is None:
        yield traceparent
        return
    later = traceparent or traceparent_of(tracer.headers()) or traceparent_of(span.headers)
    with span.active():
        yield later
