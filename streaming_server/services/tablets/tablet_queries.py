"""The share of one tablet in a query about its table: a count, groups or first rows, which the table's owner joins."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from scankv.model.errors import InvalidRequest, ScanKvError
from scankv.v1 import lookup_pb2, worker_pb2
from streaming_server.engine.bucket.call_point import CURRENT_POINT, check_point
from streaming_server.engine.bucket.holds import open_again
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.scan.queries.first_rows import collector_of
from streaming_server.scan.queries.result_cache import CachedResult, Computation
from streaming_server.services.indexed_top_n import indexed_top_n
from streaming_server.services.isolation import reads_latest
from streaming_server.services.lookup import query_digest
from streaming_server.services.query_request import bind_aggregate, bind_count, bind_top_n
from streaming_server.services.reading import current_version_of, definition_of, open_complete_view
from streaming_server.services.scan_request import bucket_numbers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.services.lookup import LookupService
    from streaming_server.services.query_request import QueryRequest

_Send: TypeAlias = "Callable[[worker_pb2.QueryTabletResponse], Awaitable[None]]"

_PART_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TabletShare:
    """The share of a tablet. The view that it comes from is durable, unless it has no version. Immutable."""

    version: bytes
    result: worker_pb2.QueriedResult
    state: bytes = b""

    def cached(self) -> CachedResult:
        return CachedResult(self.version, self.state, self.result.SerializeToString())

    @classmethod
    def of(cls, cached: CachedResult) -> TabletShare:
        result = worker_pb2.QueriedResult.FromString(cached.first_caller_fields)
        result.ClearField("rows_scanned")
        return cls(cached.version, result, cached.response)


@dataclass(frozen=True, slots=True)
class TabletQueries:
    """Computes the shares of the tablets of this process in queries. Bound to the event loop.

    Args:
        tables: The tables and tablets.
        registry: Admits, lists and ends what reads complete views, as it does scans.
        results: Keeps the latest share of each query.
        waiting: Holds calls until a version changes.
        lookups: Counts rows without reading them.
    """

    tables: Tables
    registry: ScanRegistry
    results: ResultCache
    waiting: WaitingCalls
    lookups: LookupService

    async def version(self, request: worker_pb2.WatchTabletRequest) -> bytes:
        """Returns the version of a tablet once it differs from the version that the caller knows, or after a time."""
        clock = asyncio.get_running_loop().time
        until = clock() + request.wait_millis / 1000
        asked = lookup_pb2.CountRequest(table=request.tablet)
        if request.HasField("snapshot"):
            asked.snapshot.CopyFrom(request.snapshot)
        if request.wait_millis and (point := CURRENT_POINT.get()) is not None:
            # Rows expire while the call waits.
            CURRENT_POINT.set(replace(point, is_alone=True))
        while True:
            current = await current_version_of(self.tables, asked, bucket_numbers(request.buckets))
            left = until - clock()
            if current.version != request.known_version or left <= 0:
                return current.version
            # The owner of the table counts the calls that wait, and refuses more than the limit.
            await self.waiting.wait_for_change(current, left, is_counted=False)

    async def answer(self, request: worker_pb2.QueryTabletRequest, peer: str, scan_id: str, send: _Send) -> None:
        """Sends the share of a tablet in a query. Raises as the query.

        Args:
            request: The query.
            peer: The address of its caller.
            scan_id: The id by which it is listed: all of its shares have the same one.
            send: Sends a message.
        """
        kind = request.WhichOneof("query")
        if kind is None:
            raise InvalidRequest("the request has no query that this server knows")
        query: Any = getattr(request, kind)
        key = b"share " + query_digest(query)
        latest = reads_latest(query)

        async def opened(version: bytes) -> None:
            check_point(definition_of(self.tables, query))
            await send(worker_pb2.QueryTabletResponse(view=worker_pb2.QueriedView(version=version)))

        share = None if latest else await self._known_share(query, key)
        if share is None:
            share = await self._compute(query, peer, scan_id, opened)
            # A share that takes no read of rows is not worth keeping.
            if not latest and share.result.rows_scanned:
                self.results.add(key, share.cached())
        else:
            await opened(share.version)
        for start in range(0, len(share.state), _PART_BYTES):
            await send(worker_pb2.QueryTabletResponse(state=share.state[start : start + _PART_BYTES]))
        await send(worker_pb2.QueryTabletResponse(result=share.result))

    async def _known_share(self, query: QueryRequest, key: bytes) -> TabletShare | None:
        """Returns an earlier share if nothing has changed up to the instant of the hold; without a hold, up to now."""
        if not self.results.has(key):
            return None
        buckets = bucket_numbers(query.buckets) if isinstance(query, lookup_pb2.CountRequest) else None
        if query.HasField("snapshot"):
            version: bytes | None = (await current_version_of(self.tables, query, buckets)).version
        else:
            table = self.tables.table(query.table)
            async with lock_buckets(table.state.select_buckets(buckets)):
                version = table.reads.version_in_memory(buckets)
            open_again()
        known = self.results.find(key, version)
        return None if known is None else TabletShare.of(known)

    async def _compute(
        self, query: QueryRequest, peer: str, scan_id: str, opened: Callable[[bytes], Awaitable[None]]
    ) -> TabletShare:
        """Computes a share. Calls `opened` with the version of its view as soon as that is open."""
        if isinstance(query, lookup_pb2.CountRequest):
            return await self._count(query, peer, scan_id, opened)
        if isinstance(query, lookup_pb2.AggregateRequest):
            return await self._aggregate(query, peer, scan_id, opened)
        return await self._top_n(query, peer, scan_id, opened)

    async def _count(
        self, query: lookup_pb2.CountRequest, peer: str, scan_id: str, opened: Callable[[bytes], Awaitable[None]]
    ) -> TabletShare:
        if not query.HasField("where"):
            answer = await self.lookups.count_all(query)
            if answer is not None:
                await opened(answer.version)
                result = worker_pb2.QueriedResult(rows=answer.rows, log_offsets=answer.log_offsets)
                return TabletShare(answer.version, result)
            open_again()
        bound = bind_count(query, definition_of(self.tables, query))
        unshared = Computation(lambda: None)
        async with open_complete_view(
            self.tables, self.registry, query, bound.plan, peer, unshared, scan_id=scan_id
        ) as view:
            await opened(view.version)
            await view.read(bound.result)
        result = worker_pb2.QueriedResult(
            rows=bound.result.rows, log_offsets=view.log_offsets, rows_scanned=view.rows_scanned
        )
        return TabletShare(view.version, result)

    async def _aggregate(
        self, query: lookup_pb2.AggregateRequest, peer: str, scan_id: str, opened: Callable[[bytes], Awaitable[None]]
    ) -> TabletShare:
        bound = bind_aggregate(query, definition_of(self.tables, query))
        unshared = Computation(lambda: None)
        async with open_complete_view(
            self.tables, self.registry, query, bound.plan, peer, unshared, scan_id=scan_id
        ) as view:
            await opened(view.version)
            await view.read(bound.result)
        state = await asyncio.to_thread(lambda: _ipc_of(bound.result.state()))
        result = worker_pb2.QueriedResult(log_offsets=view.log_offsets, rows_scanned=view.rows_scanned)
        return TabletShare(view.version, result, state)

    async def _top_n(
        self, query: lookup_pb2.TopNRequest, peer: str, scan_id: str, opened: Callable[[bytes], Awaitable[None]]
    ) -> TabletShare:
        bound = bind_top_n(query, definition_of(self.tables, query))
        unshared = Computation(lambda: None)
        found = await indexed_top_n(self.tables, self.registry, bound, peer, unshared, scan_id=scan_id)
        if found is not None:
            await opened(found.version)
            result = worker_pb2.QueriedResult(
                log_offsets=found.log_offsets, rows_scanned=found.found.scanned, index=found.found.index
            )
            return await _of_first_rows(found.version, result, found.found.first_rows)
        # The search through an index may have ended before it found enough.
        open_again()
        async with open_complete_view(
            self.tables, self.registry, query, bound.plan, peer, unshared, scan_id=scan_id
        ) as view:
            await opened(view.version)
            top = collector_of(bound.result, bound.plan, view.definition)
            await view.read(top)
            result = worker_pb2.QueriedResult(log_offsets=view.log_offsets, rows_scanned=view.rows_scanned)
        return await _of_first_rows(view.version, result, top.first_rows)


async def _of_first_rows(
    version: bytes,
    result: worker_pb2.QueriedResult,
    first_rows: Callable[[], tuple[pa.RecordBatch, ScanKvError | None]],
) -> TabletShare:
    def read() -> tuple[bytes, ScanKvError | None]:
        rows, error = first_rows()
        return _ipc_of(pa.table(rows)), error

    state, error = await asyncio.to_thread(read)
    result.has_too_many_ties = isinstance(error, InvalidRequest)
    result.has_too_large_ties = error is not None and not result.has_too_many_ties
    return TabletShare(version, result, state)


def _ipc_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
