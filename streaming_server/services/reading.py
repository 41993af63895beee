"""Opens views for scans, and reads them to the end for calls with a single response."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from scankv.model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS
from scankv.model.names import tablet_number
from streaming_server.current_call import CURRENT_CALL
from streaming_server.engine.bucket.call_point import check_is_recent, check_point
from streaming_server.scan.admission.live_scans import RegisteredScan, part_id
from streaming_server.scan.columnar.base_view import BASE_CHUNK_BYTES, BASE_CHUNK_ROWS
from streaming_server.scan.execution.explain import plan_text
from streaming_server.scan.versions import version_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from scankv.model.tables.schema import TableDefinition
    from scankv.v1 import scan_pb2
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.chunk_turns import ChunkTurns
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import VersionSource
    from streaming_server.scan.chunk_source import Chunk, View
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.queries.result_cache import Computation
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.services.query_request import QueryRequest

# A chunk of a few columns of a base takes a fraction of this, and a turn has a cost, so several chunks share a turn.
_SECONDS_A_TURN = 0.001


Request: TypeAlias = "scan_pb2.ScanKvRequest | QueryRequest"
"""A request that names a table, and optionally a snapshot of it."""


class RowSink(Protocol):
    """Consumes the rows of a view for a result."""

    @property
    def most_rows(self) -> int:
        """The most rows to add at once, so that `add` takes about a millisecond."""

    @property
    def is_due(self) -> bool:
        """Whether `settle` should be called before more rows are added."""

    def add(self, chunk: Chunk) -> None:
        """Adds the next rows, at most `most_rows`."""

    def settle(self) -> None:
        """Reduces the added rows to their smallest form. May take long, so call it in a thread."""


@asynccontextmanager
async def open_view(
    tables: Tables, table: LiveTable | None, request: Request, plan: ReadPlan
) -> AsyncIterator[OpenedScan]:
    """Opens the view that a request reads, for the length of the block: of a table, or of a snapshot (None).

    Raises:
        Unavailable: The table was altered after the call began at another process, or the call began too long ago.
    """
    async with AsyncExitStack() as stack:
        if table is None:
            reading = tables.snapshots.reading(request.snapshot.snapshot_id, request.table, plan.buckets)
            opened = await (await stack.enter_async_context(reading)).open_scan(plan)
        else:
            opened = await table.reads.open_view(plan)
        stack.callback(opened.source.close)
        if table is not None:
            check_point(opened.definition)
            check_is_recent(table.state.clock)
        yield opened


def live_table_of(tables: Tables, request: Request) -> LiveTable | None:
    """Returns the table that a request reads as of now; None if it reads a snapshot. Raises TableNotFound."""
    return None if request.HasField("snapshot") else tables.table(request.table)


def definition_of(tables: Tables, request: Request) -> TableDefinition:
    """Returns the definition of the table that a request reads, as of its snapshot if it names one. Opens nothing.

    Raises:
        TableNotFound: The table does not exist.
        SnapshotLost: The snapshot does not exist.
        InvalidRequest: The snapshot is of another table.
    """
    if not request.HasField("snapshot"):
        return tables.table(request.table).definition
    if tables.owns(request.table):
        tables.table(request.table)
    return tables.snapshots.definition(request.snapshot.snapshot_id, request.table)


def borrow_view(tables: Tables, request: Request) -> AbstractAsyncContextManager[None]:
    """Lets this worker read the snapshot of any table that a request names, for the length of the block.

    Raises:
        TableNotFound, SnapshotLost, InvalidRequest: As when the owner reads it.
        PermissionDenied: The caller may not read the snapshot.
        Unavailable: The owner does not run, or does not answer.
    """
    if not request.HasField("snapshot"):
        return nullcontext()
    return tables.borrow_view(request.table, request.snapshot.snapshot_id)


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """The current version of what a request reads. Immutable.

    Attributes:
        version: The version.
        again: Returns the version at the time of the call, from memory. None: unknown.
        source: Notifies of changes of the version.
        ticks: Whether the version may change without a notification, because rows expire.
    """

    version: bytes
    again: Callable[[], bytes | None]
    source: VersionSource
    ticks: bool = False


async def current_version_of(tables: Tables, request: Request, buckets: Sequence[int] | None) -> CurrentVersion:
    """Returns the current version of what a request reads in some buckets (None: all). Opens closed buckets.

    Does not await anything after it has read the version.

    Raises:
        TableNotFound, SnapshotLost, InvalidRequest, DataLoss: As when the request is executed.
    """
    if request.HasField("snapshot"):
        definition, view = await current_view_of(tables, request, buckets)
        pinned = version_of(definition, view.log_offsets, view.micros, view.rows)
        lease = tables.snapshots.lease(request.snapshot.snapshot_id, request.table)
        return CurrentVersion(pinned, lambda: None if lease.ended else pinned, lease)
    table = tables.table(request.table)
    again = partial(table.reads.version_in_memory, buckets)
    version = again()
    if version is None:
        view = await table.reads.view_now(buckets)
        version = version_of(table.definition, view.log_offsets, view.micros, view.rows)
    return CurrentVersion(version, again, table.state, ticks=table.definition.expiry is not None)


async def current_view_of(
    tables: Tables, request: Request, buckets: Sequence[int] | None
) -> tuple[TableDefinition, View]:
    """Returns the table that a request reads, and the current view of some of its buckets (None: all).

    Raises:
        TableNotFound, SnapshotLost, InvalidRequest, DataLoss: As when the request is executed.
    """
    if request.HasField("snapshot"):
        definition = definition_of(tables, request)
        return definition, tables.snapshots.view(request.snapshot.snapshot_id, request.table, buckets)
    table = tables.table(request.table)
    view = await table.reads.view_now(buckets)
    return table.definition, view


class WholeView:
    """Reads a view from its beginning to its end, or to the limit of its plan.

    Attributes:
        definition: The table as of the view.
        log_offsets: For every bucket, the offset of the first change that is not in the view.
        version: The version of the view. Empty if the view may not be durable.
    """

    def __init__(self, opened: OpenedScan, scan: RegisteredScan, turns: ChunkTurns) -> None:
        self._turns = turns
        self.definition = opened.definition
        self.log_offsets = opened.source.view.log_offsets
        view = opened.source.view
        self.version = b""
        if opened.has_version:
            self.version = version_of(self.definition, self.log_offsets, view.micros, view.rows)
        self._source = opened.source
        self._scan = scan
        large = opened.large_chunks
        room = (BASE_CHUNK_ROWS, BASE_CHUNK_BYTES) if large else (DEFAULT_CHUNK_ROWS, DEFAULT_CHUNK_BYTES)
        self._room = opened.room(*room)
        self._left, self._is_selective = opened.limit, opened.selective

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return self._source.rows_scanned

    async def read(self, consumer: RowSink) -> None:
        """Passes all rows to a sink, chunk by chunk on the event loop. Other tasks run in between.

        Raises:
            DataLoss: The view is damaged, and the sink has only a part of the rows.
            ScanKvError: The error that ended the scan, or an error of the sink.
        """
        source, began = self._source, time.thread_time()
        max_rows, max_bytes = self._room
        most = min(max_rows, consumer.most_rows)
        while self._left != 0:
            # A source that filters rows cannot know how many to read to find so many.
            room = most if self._left is None or self._is_selective else min(most, self._left), max_bytes
            while not source.prefetch(*room):
                began = await self._yield_to_others()
            if (chunk := source.next_chunk(*room)) is None:
                break
            self._scan.rows_scanned = source.rows_scanned
            if self._left is not None:
                self._left = max(0, self._left - chunk.batch.num_rows)
            if time.thread_time() - began >= _SECONDS_A_TURN:
                began = await self._yield_to_others()
            consumer.add(chunk)
            if consumer.is_due:
                await asyncio.to_thread(consumer.settle)
            if time.thread_time() - began >= _SECONDS_A_TURN:
                began = await self._yield_to_others()
        self._scan.rows_scanned = source.rows_scanned

    async def _yield_to_others(self) -> float:
        """Returns when the next step may begin, with the processor time then."""
        await asyncio.sleep(0)
        await self._turns.wait()
        return time.thread_time()


def explain_if_slow(tables: Tables, request: Request, plan: ReadPlan) -> None:
    """Lets the log describe the plan of the current call if the call turns out to be slow."""
    # Not the request, which may be large, and which a finished call should not keep.
    name = request.table
    snapshot_id = request.snapshot.snapshot_id if request.HasField("snapshot") else None

    async def describe() -> str:
        if snapshot_id is None:
            return plan_text(await tables.table(name).reads.explain(plan))
        # The call is over, and so is its loan.
        async with (
            tables.borrow_view(name, snapshot_id),
            tables.snapshots.reading(snapshot_id, name, plan.buckets) as reader,
        ):
            return plan_text(await reader.explain(plan))

    if (call := CURRENT_CALL.get()) is not None:
        call.explain = describe


@asynccontextmanager
async def open_complete_view(
    tables: Tables,
    registry: ScanRegistry,
    request: QueryRequest,
    plan: ReadPlan,
    peer: str,
    computation: Computation,
    *,
    scan_id: str = "",
) -> AsyncIterator[WholeView]:
    """Opens the view of a scan for the length of the block, in which it is admitted, listed and ended like a scan.

    Args:
        tables: The tables of the server.
        registry: Admits, lists and ends the scan.
        request: Names the table, and optionally a snapshot of it.
        plan: The rows and columns to read.
        peer: The client's address.
        computation: Notified when the view is taken, and of its version.
        scan_id: The query about a table with tablets that this scan is a part of. Empty: none.

    Raises:
        ScanKvError: As `ScanKv`.
    """
    table, definition = live_table_of(tables, request), definition_of(tables, request)
    scan = RegisteredScan(
        table=request.table,
        buckets=tuple(sorted(plan.buckets or definition.own_buckets)),
        snapshot_id=request.snapshot.snapshot_id,
        peer=peer,
        scan_id=part_id(scan_id, tablet_number(request.table)),
    )
    with registry.call(scan):
        explain_if_slow(tables, request, plan)
        async with registry.admit(scan):
            computation.begin_view()
            async with open_view(tables, table, request, plan) as opened:
                scan.hold(opened.source)
                view = WholeView(opened, scan, registry.turns)
                computation.set_view_version(view.version)
                yield view
