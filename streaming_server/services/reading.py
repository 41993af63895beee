"""Opens views for scans, and reads them to the end for calls with a single response."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from scankv.model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS
from streaming_server.scan.admission.live_scans import RegisteredScan
from streaming_server.scan.columnar.base_view import BASE_CHUNK_BYTES, BASE_CHUNK_ROWS
from streaming_server.scan.versions import version_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from scankv.model.tables.schema import TableDefinition
    from scankv.v1 import scan_pb2
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import VersionSource
    from streaming_server.scan.chunk_source import Chunk, View
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.queries.result_cache import Computation
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.services.query_request import QueryRequest

# Turns of the event loop between chunks. A call takes several, so with one it would wait for as many chunks.
_TURNS = 4
# Chunks of a few columns of a base take a fraction of this, and a turn is not for nothing.
_SECONDS_A_TURN = 0.001


Request: TypeAlias = "scan_pb2.ScanKvRequest | QueryRequest"
"""A request that names a table, and optionally a snapshot of it."""


class RowSink(Protocol):
    """Takes the rows of a view, and keeps what its result needs."""

    @property
    def is_due(self) -> bool:
        """Whether `settle` is to be called."""

    def add(self, chunk: Chunk) -> None:
        """Takes the next rows. Takes a few milliseconds at most."""

    def settle(self) -> None:
        """Reduces what was taken to its smallest form. May take long, in a thread."""


@asynccontextmanager
async def opened_view(tables: Tables, table: LiveTable, request: Request, plan: ReadPlan) -> AsyncIterator[OpenedScan]:
    """The view of a table that a request names, open for the length of the block."""
    async with AsyncExitStack() as stack:
        if request.HasField("snapshot"):
            reading = tables.snapshots.reading(request.snapshot.snapshot_id, request.table, plan.buckets)
            opened = await (await stack.enter_async_context(reading)).open_scan(plan)
        else:
            opened = await table.reads.open_view(plan)
        stack.callback(opened.source.close)
        yield opened


def definition_of(tables: Tables, request: Request) -> TableDefinition:
    """The table that a request reads, as of its snapshot where it names one; nothing is opened.

    Raises:
        TableNotFound, SnapshotLost, InvalidRequest: There is none.
    """
    definition = tables.table(request.table).definition
    if request.HasField("snapshot"):
        return tables.snapshots.definition(request.snapshot.snapshot_id, request.table)
    return definition


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """What a request would read now, as far as it is known in memory. Immutable.

    Attributes:
        definition: The table.
        view: Its buckets.
        again: The version that they have when it is called; None when that is not known without awaiting.
        source: Tells when that may be another one.
    """

    definition: TableDefinition
    view: View
    again: Callable[[], bytes | None]
    source: VersionSource

    @property
    def version(self) -> bytes:
        """The version of the view."""
        return version_of(self.definition, self.view.log_offsets)


async def current_of(tables: Tables, request: Request, buckets: Sequence[int] | None) -> CurrentVersion:
    """What a request for some buckets (None: all) would read now. Awaits only where a bucket is not open.

    Raises:
        TableNotFound, SnapshotLost, InvalidRequest, DataLoss: As when it is read.
    """
    table = tables.table(request.table)
    if request.HasField("snapshot"):
        definition = definition_of(tables, request)
        lease = tables.snapshots.lease(request.snapshot.snapshot_id, request.table)
        view = tables.snapshots.view(request.snapshot.snapshot_id, request.table, buckets)
        pinned = version_of(definition, view.log_offsets)
        return CurrentVersion(definition, view, lambda: None if lease.ended else pinned, lease)

    def again() -> bytes | None:
        view = table.reads.view_in_memory(buckets)
        return None if view is None else version_of(table.definition, view.log_offsets)

    view = await table.reads.view_now(buckets)
    return CurrentVersion(table.definition, view, again, table.state)


class WholeView:
    """Reads a view from its beginning to its end.

    Attributes:
        definition: The table as of the view.
        log_offsets: For every bucket, the offset of the first change that is not in it.
        version: Names what it shows.
    """

    def __init__(self, opened: OpenedScan, scan: RegisteredScan) -> None:
        self.definition = opened.definition
        self.log_offsets = opened.source.view.log_offsets
        self.version = version_of(self.definition, self.log_offsets)
        self._source = opened.source
        self._scan = scan
        large = opened.large_chunks
        room = (BASE_CHUNK_ROWS, BASE_CHUNK_BYTES) if large else (DEFAULT_CHUNK_ROWS, DEFAULT_CHUNK_BYTES)
        self._room = opened.room(*room)

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return self._source.rows_scanned

    async def read(self, consumer: RowSink) -> None:
        """Passes all rows to a sink, chunk by chunk on the event loop. Other tasks run in between.

        Raises:
            DataLoss: The view is damaged; what was handed over is not the whole.
            ScanKvError: Whatever ended the scan, or was raised by the consumer.
        """
        source, room, began = self._source, self._room, time.perf_counter()
        while (chunk := source.next_chunk(*room)) is not None:
            self._scan.rows_scanned = source.rows_scanned
            consumer.add(chunk)
            if consumer.is_due:
                await asyncio.to_thread(consumer.settle)
            if time.perf_counter() - began >= _SECONDS_A_TURN:
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                began = time.perf_counter()
        self._scan.rows_scanned = source.rows_scanned


@asynccontextmanager
async def whole_view(
    tables: Tables,
    registry: ScanRegistry,
    request: QueryRequest,
    plan: ReadPlan,
    peer: str,
    computation: Computation,
) -> AsyncIterator[WholeView]:
    """What a request would scan, for the length of the block, in which it is admitted, listed and ended as a scan is.

    Args:
        tables: What is read.
        registry: Admits, lists and ends it.
        request: Names the table and its snapshot.
        plan: What to read.
        peer: The client that reads it.
        computation: Gets the version of the view, and when it was taken.

    Raises:
        ScanKvError: As `ScanKv`.
    """
    table = tables.table(request.table)
    scan = RegisteredScan(
        table=request.table,
        buckets=tuple(sorted(plan.buckets or range(len(table.buckets)))),
        snapshot_id=request.snapshot.snapshot_id,
        peer=peer,
    )
    with registry.call(scan):
        async with registry.admit(scan):
            computation.begin_view()
            async with opened_view(tables, table, request, plan) as opened:
                scan.hold(opened.source)
                view = WholeView(opened, scan)
                computation.set_view_version(view.version)
                yield view
