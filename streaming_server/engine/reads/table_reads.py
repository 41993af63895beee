"""The reads of one table: views for scans, lookups by key, counts, and explanations of scans."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_ENCODED_KEYS, MAX_LOOKUP_KEYS
from scankv.model.tables.expiry import tick_of
from streaming_server.engine.bucket.call_point import now_of
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_durable, wait_until_readable
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.engine.columnar.base_adoption import adopt_bases
from streaming_server.engine.columnar.base_choice import choose_live_read_path
from streaming_server.engine.reads.scan_choice import ScanOpening
from streaming_server.engine.reads.visible_rows import VisibleRows
from streaming_server.engine.writes.lookups import lookup_rows
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.scan.columnar.base_view import consider_bases
from streaming_server.scan.execution.explain import explain
from streaming_server.scan.read_plan import ReadPath
from streaming_server.scan.resume_token import time_of_token
from streaming_server.scan.rows.index_choice import plan_reads, plan_reads_off_loop
from streaming_server.scan.rows.locked_view import LockedView, complete_indexes
from streaming_server.scan.versions import version_of
from streaming_server.storage.rows.key_encoder import rows_by_bucket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_state import BucketState

_QUICK_KEYS: Final = 64
"""So few keys are looked up in one turn of the event loop, which takes less than a millisecond."""

MergeFoundRows: TypeAlias = "Callable[[list[bytes], list[bytes | None]], Awaitable[list[bytes | None]]]"


class EncodedLookup(NamedTuple):
    """What `TableReads.get` finds. All of it is durable, unless `latest` was asked for.

    Attributes:
        rows: The rows found, in the order of their keys, as rows of the current schema without hidden columns.
        is_there: A byte for each key, 1 if it was found, else 0.
        offsets: The log offset at which each bucket was read.
        buckets: The bucket of each key.
        schema_id: The id of the schema of the rows.
    """

    rows: list[bytes]
    is_there: bytes
    offsets: dict[int, int]
    buckets: list[int]
    schema_id: int


class TableReads:
    """Reads of one table. Bound to the server's event loop.

    Args:
        table: The table.
    """

    def __init__(self, table: TableState) -> None:
        self._table = table
        # The version of all buckets that was computed last, and of what.
        self._version: tuple[TableDefinition, dict[int, int], int, int | None, bytes] | None = None
        self._visible_rows = VisibleRows()

    async def open_view(self, plan: ReadPlan) -> OpenedScan:
        """Opens a view, as of one instant, of the buckets that a plan names. The caller closes its source.

        The view is durable, unless the plan asks for what is applied.

        Raises:
            InvalidRequest, SchemaMismatch: A bucket or column does not exist; the resume token does not fit.
            DataLoss: A bucket is damaged.
        """
        table = self._table
        chosen, codec = table.select_buckets(plan.buckets), table.codec
        # A scan that resumes leaves out the rows that had expired for its first part.
        resumed = time_of_token(plan.resume_token) if plan.resume_token else plan.expired_at
        plan = plan.as_of(now_of(table.clock) if resumed is None else resumed)
        reader, choices = await plan_reads_off_loop(table.executor.run, plan, codec)
        if consider_bases(plan, reader).base:
            await self._adopt_bases(plan, chosen)
        with ExitStack() as on_failure:
            async with lock_buckets(chosen, latest=plan.latest) as opened:
                # All mutexes are held until the end of the block, so nothing is written: this is the instant of the
                # view.
                view = table.view_of({live.number: bucket.state for live, bucket in opened})
                timed = plan if resumed is not None else plan.as_of(view.micros)
                if codec is not table.codec or (
                    codec.definition.expiry is not None and timed.now_micros != plan.now_micros
                ):
                    codec, plan = table.codec, timed
                    reader, choices = plan_reads(plan, codec)
                opening = ScanOpening(table=table, plan=plan, opened=opened, to_close=on_failure)
                lookup = opening.lookup(reader, choices, partial(self._lock_view, opened))
                scans = await opening.scans(reader, lookup, view)
            if not plan.latest:
                await wait_until_readable(table.buckets, view.log_offsets)
            scan = await scans.choose(table.executor.run)
            on_failure.pop_all()
        return scan

    async def _adopt_bases(self, plan: ReadPlan, chosen: Sequence[LiveBucket]) -> None:
        columnar = plan.read_path is ReadPath.COLUMNAR
        # The adoption waits for running writes with their syncs, so it is left to other reads.
        if columnar or not plan.latest:
            await adopt_bases(self._table, chosen, however_long=columnar)

    async def explain(self, plan: ReadPlan) -> ExplainScanResponse:
        """Explains what `open_view` would read. Reads no rows, but the same entries of an index.

        Opens buckets only if an index may find the keys, if the scan would look for bases on disk, or to count the
        partitions of a partitioned table.

        Raises:
            InvalidRequest, SchemaMismatch, DataLoss: As `open_view`.
        """
        table = self._table
        chosen = table.select_buckets(plan.buckets)
        definition, lookup, partitions = table.definition, None, set[bytes]()
        plan = plan.as_of(now_of(table.clock))
        reader, choices = plan_reads(plan, table.codec)
        if consider_bases(plan, reader).base:
            await self._adopt_bases(plan, chosen)
        with ExitStack() as to_close:
            if choices or definition.partition_by:
                async with lock_buckets(chosen, latest=plan.latest) as opened:
                    opening = ScanOpening(table=table, plan=plan, opened=opened, to_close=to_close)
                    lookup = opening.lookup(reader, choices, partial(self._lock_view, opened))
                    for live, bucket in opened if definition.partition_by else ():
                        partitions |= (await live.run(bucket.partitions.within, b"")).keys()
            if lookup is not None:
                await lookup.read(keeps=False)
        numbers = [live.number for live in chosen]
        read_path = choose_live_read_path(plan, reader, chosen)
        return explain(plan, definition, reader, numbers, lookup, read_path, partitions)

    async def lookup(
        self,
        data: bytes,
        columns: Sequence[str] | None,
        then: MergeFoundRows | None = None,
        *,
        latest: bool = False,
    ) -> tuple[pa.RecordBatch, bytes, dict[int, int]]:
        """Looks up the rows whose keys are in an Arrow IPC stream.

        Args:
            data: The Arrow IPC stream.
            columns: The columns to return. None: all.
            then: Replaces the rows found, given encoded keys and stored rows (None: no row).
            latest: As for `lookup_rows`.

        Returns:
            The rows found, in the order of their keys; a byte for each key, 1 if it was found, else 0; and the log
            offset at which each bucket was read. All of it is durable, unless `latest`.

        Raises:
            RequestTooLarge: Too many keys, or too much to return.
            SchemaMismatch, InvalidKey, InvalidRequest, DataLoss: As for an upsert.
        """
        table = self._table
        table.definition.require_key("its rows are not found by a key: scan it with a filter")
        batch = await table.executor.run(read_request, data, table.definition.key_schema)
        if batch.num_rows > MAX_LOOKUP_KEYS:
            raise RequestTooLarge(
                f"the lookup has {batch.num_rows:,} keys; the limit is {MAX_LOOKUP_KEYS:,}: ask for fewer"
            )
        # Refuse unknown columns before anything is read.
        table.codec.rows.decoder(columns)
        encoded, numbers = table.codec.keys.encode(table.codec.keys.canonicalize(batch))
        places = rows_by_bucket(numbers)
        keys = {number: encoded.take(pa.array(rows)).to_pylist() for number, rows in places}
        await _yield_after(batch.num_rows)
        found, offsets = await lookup_rows(table.buckets, keys, latest=latest)
        await _yield_after(batch.num_rows)
        found = self._without_expired(found)
        if then is not None:
            found = self._without_expired(await then([key for number, _ in places for key in keys[number]], found))
        order = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in places)])
        stored = pa.array(found, pa.binary()).take(pa.array(np.argsort(order)))
        is_there = stored.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8).tobytes()
        await _yield_after(batch.num_rows)
        return table.codec.rows.decoder(columns).decode(stored.drop_null()), is_there, offsets

    async def get(self, keys: Sequence[bytes], *, latest: bool = False) -> EncodedLookup:
        """Looks up the rows of few encoded keys, without Arrow.

        Args:
            keys: The keys, in any order. Bytes that are no key of the table have no row.
            latest: As for `lookup_rows`.

        Raises:
            RequestTooLarge: Too many keys, or too much to return.
            DataLoss: As for `lookup`.
        """
        if len(keys) > MAX_ENCODED_KEYS:
            raise RequestTooLarge(
                f"the lookup has {len(keys):,} encoded keys; the limit is {MAX_ENCODED_KEYS:,}: send them as Arrow data"
            )
        table = self._table
        table.definition.require_key("its rows are not found by a key: scan it with a filter")
        buckets = list(map(table.codec.keys.bucket_of, keys))
        places: dict[int, list[int]] = {}
        for place, number in enumerate(buckets):
            places.setdefault(number, []).append(place)
        wanted = {number: [keys[place] for place in places[number]] for number in sorted(places)}
        found, offsets = await lookup_rows(table.buckets, wanted, latest=latest)
        found = self._without_expired(found)
        rows: list[bytes | None] = [None] * len(keys)
        for place, row in zip(chain.from_iterable(places[number] for number in wanted), found, strict=True):
            rows[place] = row
        is_there = bytes(row is not None for row in rows)
        codec = table.codec
        visible = self._visible_rows.encode(codec, [row for row in rows if row is not None])
        return EncodedLookup(visible, is_there, offsets, buckets, codec.definition.schema.id)

    def _without_expired(self, rows: list[bytes | None]) -> list[bytes | None]:
        """Returns stored rows with None in place of those that have expired by now. Raises DataLoss."""
        table = self._table
        if table.definition.expiry is None:
            return rows
        return table.codec.rows.without_expired(rows, now_of(table.clock))

    async def count(self, numbers: Sequence[int] | None, *, latest: bool = False) -> tuple[int | None, dict[int, int]]:
        """Counts the rows of some buckets (None: all) in a view of one instant, which is durable unless `latest`.

        Reads no rows. Returns the number, None if unknown because writes did not read the rows that they replaced; and
        the next log offset of each bucket.
        """
        async with lock_buckets(self._table.select_buckets(numbers), latest=latest) as opened:
            states = {live.number: bucket.state for live, bucket in opened}
        if latest:
            offsets = {number: state.log_offset for number, state in states.items()}
        else:
            offsets = await wait_until_durable(self._table.buckets, states)
        return total_rows(state.rows for state in states.values()), offsets

    def view_in_memory(self, numbers: Sequence[int] | None) -> View | None:
        """Returns the view of some buckets (None: all) now, durable or not; None if a bucket is not open.

        It has all acknowledged writes. Unlike the view of `open_view`, it is not of one instant. But if it equals an
        earlier view of one instant, nothing has changed since then.

        Raises:
            InvalidRequest: A bucket does not exist.
        """
        states: dict[int, BucketState] = {}
        for live in self._table.select_buckets(numbers):
            state = live.state
            if state is None:
                return None
            states[live.number] = state
        return self._table.view_of(states)

    def version_in_memory(self, numbers: Sequence[int] | None) -> bytes | None:
        """Returns the version of `view_in_memory`; None if a bucket is not open.

        Raises:
            InvalidRequest: A bucket does not exist.
        """
        offsets: dict[int, int] = {}
        counts: list[int | None] = []
        for live in self._table.select_buckets(numbers):
            state = live.state
            if state is None:
                return None
            offsets[live.number] = state.log_offset
            counts.append(state.rows)
        rows = total_rows(counts)
        definition, known = self._table.definition, self._version
        micros = now_of(self._table.clock)
        tick = 0 if definition.expiry is None else tick_of(micros)
        if known is not None and known[0] is definition and known[1:4] == (offsets, tick, rows):
            return known[4]
        version = version_of(definition, offsets, micros, rows)
        if numbers is None:
            self._version = definition, offsets, tick, rows, version
        return version

    async def view_now(self, numbers: Sequence[int] | None) -> View:
        """Returns the same as `view_in_memory`, but opens closed buckets.

        Raises:
            InvalidRequest: A bucket does not exist.
            DataLoss: A bucket is damaged and cannot be opened.
        """
        view = self.view_in_memory(numbers)
        if view is not None:
            return view
        async with lock_buckets(self._table.select_buckets(numbers)) as opened:
            return self._table.view_of({live.number: bucket.state for live, bucket in opened})

    @asynccontextmanager
    async def lock_view(self, check: Callable[[], None], *, latest: bool = False) -> AsyncIterator[LockedView]:
        """Locks all buckets for the length of the block. Yields their view.

        The view is durable at the end of the block, unless `latest`. Keep the block short.

        Args:
            check: Raises if nothing more may be read.
            latest: Whether to lock what is applied, durable or not, and maybe a part of a transaction.

        Raises:
            DataLoss: A bucket is damaged.
        """
        async with lock_buckets([*self._table.buckets], latest=latest) as opened:
            states = {live.number: bucket.state for live, bucket in opened}
            yield self._lock_view(opened, check)
        if not latest:
            await wait_until_durable(self._table.buckets, states)

    def _lock_view(
        self, opened: Sequence[tuple[LiveBucket, Bucket]], check: Callable[[], None] = lambda: None
    ) -> LockedView:
        """Returns a view of open buckets. The caller holds their mutexes while it uses the view."""
        table = self._table
        filled = {live.number: bucket for live, bucket in opened if bucket.state.rows != 0}
        ready = [bucket.state.ready_indexes for bucket in filled.values()]
        return LockedView(
            codec=table.codec.rows,
            keys=table.codec.key_codec,
            view=table.view_of({live.number: bucket.state for live, bucket in opened}),
            buckets=filled,
            indexes=complete_indexes(table.codec.indexes.values(), ready),
            on_error=self._record_error,
            check=check,
        )

    def _record_error(self, number: int, error: ScanKvError) -> ScanKvError:
        return self._table.buckets[number].record_error(error)


async def _yield_after(keys: int) -> None:
    """Gives other tasks a turn of the event loop after a step over many keys."""
    if keys > _QUICK_KEYS:
        await asyncio.sleep(0)
