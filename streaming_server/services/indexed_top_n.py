"""Top-N through an index: a short read of a locked view, where a scan would read every row."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.names import tablet_number
from streaming_server.scan.admission.live_scans import RegisteredScan, part_id
from streaming_server.scan.queries.indexed_top_n import choose_order, find_top_by_index
from streaming_server.scan.read_plan import is_cheap_to_plan
from streaming_server.scan.versions import version_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from scankv.model.tables.schema import TableDefinition
    from scankv.v1 import lookup_pb2
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.queries.indexed_top_n import FoundRows, OrderChoice
    from streaming_server.scan.queries.result_cache import Computation
    from streaming_server.scan.queries.top_n import TopNSpec
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.rows.locked_view import LockedView
    from streaming_server.services.query_request import BoundQuery

_QUICK_ROWS: Final = 1000
"""Rows that are found in a few milliseconds, without admission and without being listed as a scan."""


@dataclass(frozen=True, slots=True)
class IndexedAnswer:
    """The result of a read through an index of one view. Immutable.

    Attributes:
        found: The rows.
        version: The version of the view. Empty if the view may not be durable.
        log_offsets: For every bucket, the offset of the first change that is not in the view.
    """

    found: FoundRows
    version: bytes
    log_offsets: Mapping[int, int]


async def indexed_top_n(
    tables: Tables,
    registry: ScanRegistry,
    query: BoundQuery[lookup_pb2.TopNRequest, TopNSpec],
    peer: str,
    computation: Computation,
    *,
    scan_id: str = "",
) -> IndexedAnswer | None:
    """Computes a top-N query through an index. Returns None if no index fits, or if a scan is faster.

    The query is admitted, listed and ended like a scan, unless it takes only a few milliseconds.

    Args:
        tables: The tables of the server.
        registry: Admits, lists and ends longer queries, and counts the rows read.
        query: The query.
        peer: The client's address.
        computation: Notified when the view is taken, and of its version.
        scan_id: The query about a table with tablets that this scan is a part of. Empty: none.

    Raises:
        ScanKvError: As `find_top_by_index` and `ScanKv`.
    """
    request, spec, definition = query.request, query.result, query.definition
    if not _may_have_index(query):
        return None
    scan = RegisteredScan(
        table=request.table,
        buckets=tuple(definition.own_buckets),
        snapshot_id=request.snapshot.snapshot_id,
        peer=peer,
        scan_id=part_id(scan_id, tablet_number(request.table)),
    )
    async with AsyncExitStack() as stack:
        if query.plan.where is not None or definition.expiry is not None or spec.with_ties or spec.n > _QUICK_ROWS:
            stack.enter_context(registry.call(scan))
            await stack.enter_async_context(registry.admit(scan))
        computation.begin_view()

        def check() -> None:
            if scan.ended is not None:
                raise copy(scan.ended)

        async with _locked_view(tables, request, check, latest=query.plan.latest) as locked:
            definition, view = locked.codec.definition, locked.view
            version = b"" if query.plan.latest else version_of(definition, view.log_offsets, view.micros, view.rows)
            computation.set_view_version(version)
            found = await _find_top(spec, query.plan.as_of(view.micros), locked)
        if found is None:
            return None
        if scan.admitted_at is None:
            registry.count_rows(request.table, found.scanned)
        else:
            scan.rows_scanned = found.scanned
        return IndexedAnswer(found, version, locked.view.log_offsets)


async def choose_index(
    tables: Tables, query: BoundQuery[lookup_pb2.TopNRequest, TopNSpec]
) -> tuple[OrderChoice, TableDefinition] | None:
    """Returns the index through which `indexed_top_n` would answer now, and the table as of then. Reads no entries.

    None: no index fits.

    Raises:
        ScanKvError: As `indexed_top_n`.
    """
    if not _may_have_index(query):
        return None
    async with _locked_view(tables, query.request, lambda: None, latest=query.plan.latest) as locked:
        choice = await _choose_order(query.result, query.plan.as_of(locked.view.micros), locked)
        return None if choice is None else (choice, locked.codec.definition)


def _may_have_index(query: BoundQuery[lookup_pb2.TopNRequest, TopNSpec]) -> bool:
    definition = query.definition
    return any(definition.entry_columns(index)[-1] == query.result.by for index in definition.indexes)


async def _find_top(spec: TopNSpec, plan: ReadPlan, locked: LockedView) -> FoundRows | None:
    choice = await _choose_order(spec, plan, locked)
    return None if choice is None else await find_top_by_index(spec, choice, locked)


async def _choose_order(spec: TopNSpec, plan: ReadPlan, locked: LockedView) -> OrderChoice | None:
    asked = spec, plan.bound_to(locked.codec), locked.keys, locked.indexes
    if is_cheap_to_plan(plan.where):
        return choose_order(*asked)
    choice = await asyncio.to_thread(choose_order, *asked)
    locked.check()
    return choice


@asynccontextmanager
async def _locked_view(
    tables: Tables, request: lookup_pb2.TopNRequest, check: Callable[[], None], *, latest: bool
) -> AsyncIterator[LockedView]:
    """Locks the view that a request reads for the length of the block. See `TableReads.lock_view`."""
    if not request.HasField("snapshot"):
        async with tables.table(request.table).reads.lock_view(check, latest=latest) as locked:
            yield locked
        return
    snapshot_id = request.snapshot.snapshot_id
    async with tables.snapshots.reading(snapshot_id, request.table, None) as reader:
        yield reader.locked_view(check)
