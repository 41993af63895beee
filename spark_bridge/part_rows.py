"""The rows of one part, as a task of Spark takes them."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from aio_client import sync
from aio_client._sync.read_ahead import gather
from spark_bridge.casting import cast_rows
from spark_bridge.executions import Execution
from spark_bridge.frozen_worker import freeze_worker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator

    import pyarrow as pa

    from aio_client import Client, ScanStream
    from spark_bridge.parts import Part


def read_part(part: Part, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a part, as batches of up to about 65,536 rows in exactly the types of `schema`.

    Closing the generator, or dropping it, ends the scan, and everything that belongs to it is free when that returns.

    Raises:
        SnapshotLost: What it reads is gone; the message says what to do.
        SchemaMismatch: A value does not fit Spark's type exactly; or the table is not the one that was planned with.
        ScanKvError: As `scankv.ScanStream`, which survives a restart of the server.
    """
    freeze_worker()
    execution = Execution.current()
    with (
        sync.connect(**asdict(part.config)) as client,
        client.read_ahead(lambda asynchronous: _batches(asynchronous, part, schema, execution)) as batches,
    ):
        yield from batches


async def _batches(
    client: Client, part: Part, schema: pa.Schema, execution: Execution
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with part.opened(client, execution) as stream:
        shape = part.shape(stream, schema.names)
        async with aclosing(gather(_shaped(stream, shape))) as gathered:
            async for rows in gathered:
                yield cast_rows(rows, schema)


async def _shaped(
    stream: ScanStream, shape: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> AsyncIterator[pa.RecordBatch]:
    async for rows in stream:
        yield shape(rows)
