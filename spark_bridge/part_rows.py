"""Reads the rows of one part in a Spark task."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING

from aio_client import sync
from aio_client._scan.read_ahead import gather
from spark_bridge.casting import cast_rows
from spark_bridge.executions import Execution
from spark_bridge.frozen_worker import freeze_worker
from spark_bridge.spans import start_span

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator

    import pyarrow as pa

    from aio_client import Client, ScanStream
    from scankv.model.tracing import TracedSpan
    from spark_bridge.parts import Part


def read_part(part: Part, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    """Yields the rows of a part, in batches of up to about 65,536 rows with exactly the types of `schema`.

    Closing or dropping the generator ends the scan and frees everything that belongs to it before it returns.

    Raises:
        SnapshotLost: The snapshot to read is gone; the message says what to do.
        SchemaMismatch: Spark's type cannot hold a value exactly, or the table was recreated after planning.
        ScanKvError: As `scankv.ScanStream`, which survives a restart of the server.
    """
    freeze_worker()
    execution = Execution.current()
    span = start_span("read", part.spec.table, part.traceparent)
    with (
        nullcontext() if span is None else span.ended(),
        sync.Client(part.config) as client,
        client.read_ahead(lambda asynchronous: _batches(asynchronous, part, schema, execution, span)) as batches,
    ):
        yield from batches


async def _batches(
    client: Client, part: Part, schema: pa.Schema, execution: Execution, span: TracedSpan | None
) -> AsyncGenerator[pa.RecordBatch, None]:
    if span is not None:
        # Here and not around the generator of `read_part`, which leaves its context with each batch.
        span.activate()
    async with part.open_stream(client, execution) as stream:
        shape = part.make_shaper(stream, schema.names)
        async with aclosing(gather(_shape_batches(stream, shape))) as gathered:
            async for rows in gathered:
                yield cast_rows(rows, schema)


async def _shape_batches(
    stream: ScanStream, shape: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> AsyncIterator[pa.RecordBatch]:
    async for rows in stream:
        yield shape(rows)
