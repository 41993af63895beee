"""Views that calls read: opened for scans, and read to their end for calls with one answer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from streaming_server.scan.registry import LiveScan
from streaming_server.services.scan_request import read_plan
from table_model.expressions import bind
from table_model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc
    import pyarrow as pa

    from protos.scankv.v1 import scan_pb2
    from streaming_server.engine.live_table import LiveTable
    from streaming_server.engine.tables import Tables
    from streaming_server.scan.opening import OpenedScan, ReadPlan
    from streaming_server.scan.registry import ScanRegistry
    from table_model.schema import TableDefinition

# Turns of the event loop between chunks. A call takes several, so with one it would wait for as many chunks.
_TURNS = 4


class Consumer(Protocol):
    """Takes the rows of a view, and keeps what it needs of them."""

    @property
    def is_due(self) -> bool:
        """Whether `settle` is to be called."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows. Takes a few milliseconds at most."""

    def settle(self) -> None:
        """Brings what was taken into its smallest form. May take long, in a thread."""


@asynccontextmanager
async def opened_view(
    tables: Tables, table: LiveTable, request: scan_pb2.ScanKvRequest, plan: ReadPlan
) -> AsyncIterator[OpenedScan]:
    """The view of a table that a request names, open for the length of the block."""
    async with AsyncExitStack() as stack:
        if request.HasField("snapshot"):
            reading = tables.snapshots.reading(request.snapshot.snapshot_id, request.table, plan.buckets)
            opened = (await stack.enter_async_context(reading)).open_scan(plan)
        else:
            opened = await table.open_view(plan)
        stack.callback(opened.source.close)
        yield opened


def definition_of(tables: Tables, request: scan_pb2.ScanKvRequest) -> TableDefinition:
    """The table that a request reads, as of its snapshot where it names one; nothing is opened.

    Raises:
        TableNotFound, SnapshotLost, InvalidRequest: There is none.
    """
    definition = tables.table(request.table).definition
    if request.HasField("snapshot"):
        return tables.snapshots.definition(request.snapshot.snapshot_id, request.table)
    return definition


class WholeView:
    """A view that is read from its beginning to its end.

    Attributes:
        definition: The table as of the view.
        log_offsets: For every bucket, the offset of the first change that is not in it.
    """

    def __init__(self, opened: OpenedScan, scan: LiveScan) -> None:
        self.definition = opened.definition
        self.log_offsets = opened.source.view.log_offsets
        self._source = opened.source
        self._scan = scan

    async def read(self, consumer: Consumer) -> None:
        """Hands all rows to a consumer, chunk by chunk on the event loop, others having their turn in between.

        Raises:
            DataLoss: The view is damaged; what was handed over is not the whole.
            ScanKvError: Whatever ended the scan, or was raised by the consumer.
        """
        source = self._source
        while (chunk := source.next_chunk(DEFAULT_CHUNK_ROWS, DEFAULT_CHUNK_BYTES)) is not None:
            self._scan.rows_scanned = source.rows_scanned
            consumer.add(chunk.batch)
            if consumer.is_due:
                await asyncio.to_thread(consumer.settle)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        self._scan.rows_scanned = source.rows_scanned


@asynccontextmanager
async def whole_view(
    tables: Tables,
    registry: ScanRegistry,
    request: scan_pb2.ScanKvRequest,
    context: grpc.aio.ServicerContext[Any, Any],
    *,
    stored_rows: bool = False,
) -> AsyncIterator[WholeView]:
    """What a request would scan, for the length of the block, in which it is admitted, listed and ended as a scan is.

    Args:
        tables: What is read.
        registry: Admits, lists and ends it.
        request: What would be scanned.
        context: Of the call that reads it.
        stored_rows: Whether the rows as they are stored are one more column.

    Raises:
        ScanKvError: As `ScanKv`.
    """
    plan, table = replace(read_plan(request), stored_rows=stored_rows), tables.table(request.table)
    if plan.where is not None:  # refused before it is a scan
        bind(plan.where, definition_of(tables, request).schema.arrow)
    scan = LiveScan(
        table=request.table,
        buckets=tuple(sorted(plan.buckets or range(len(table.buckets)))),
        snapshot_id=request.snapshot.snapshot_id,
        peer=context.peer(),
    )
    with registry.call(scan):
        async with registry.admitted(scan), opened_view(tables, table, request, plan) as opened:
            scan.hold(opened.source)
            yield WholeView(opened, scan)
