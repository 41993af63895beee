"""A table while the server runs: writes, lookups, counts, and the views that scans read."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from scankv.model.changes.log_offsets import check_incarnation
from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_LOOKUP_KEYS
from streaming_server.engine.bucket.bucket_check import BucketCheck
from streaming_server.engine.bucket.key_encoder import KeyEncoder, rows_by_bucket
from streaming_server.engine.bucket.live_bucket import LiveBucket, durable, held
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.engine.changelog.compacted_catch_up import DEFAULT_CATCH_UP, CatchingUp
from streaming_server.engine.changelog.log_opening import LogOpening
from streaming_server.engine.columnar.base_choice import bases_of, noting_errors, via_of
from streaming_server.engine.indexes.index_builds import IndexBuilds, IndexContext
from streaming_server.engine.merging.engine import Engines
from streaming_server.engine.merging.preparing import (
    CHANGE_TYPE_FIELD,
    MERGE,
    prepare_delete,
    prepare_upsert,
    request_schema,
)
from streaming_server.engine.snapshots.pinning import Pinning
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.transactions.undo import Undoing
from streaming_server.engine.writes.lookups import looked_up
from streaming_server.engine.writes.writing import NO_TERMS, WriteScope, Writing
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.scan.columnar.base_view import sort_overlays
from streaming_server.scan.execution.explain import explain
from streaming_server.scan.execution.open_scan import open_scan
from streaming_server.scan.rows.index_lookup import chosen_index, plan_reads, plan_reads_in, read_through_index
from streaming_server.scan.rows.locked_view import HeldView, whole_indexes
from streaming_server.storage.files.disk_use import DiskUse, table_files
from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import BucketFigures
    from streaming_server.engine.changelog.compacted_catch_up import CatchUpLimits
    from streaming_server.engine.functions.installed import Installed
    from streaming_server.engine.indexes.index_builds import IndexStatus
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.undo import Undone
    from streaming_server.engine.writes.column_locks import TableLocks
    from streaming_server.engine.writes.writing import WriteTerms
    from streaming_server.scan.admission.live_scans import Abortable
    from streaming_server.scan.changes.log_plan import LogPlan, OpenedLog
    from streaming_server.scan.changes.log_token import LogPosition
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.storage.bucket.bucket import Bucket, BucketState
    from streaming_server.storage.bucket.writer_states import WriterLimits
    from streaming_server.storage.files.disk_use import BucketFiles
    from streaming_server.storage.rocks.store import RocksResources


Then: TypeAlias = "Callable[[list[bytes], list[bytes | None]], Awaitable[list[bytes | None]]]"


class LiveTable:
    """One table of a running server. Bound to the server's event loop.

    Attributes:
        definition: The table's current definition.
        codec: Encodes rows of its current schema and decodes those of all its schemas.
        index_codecs: Encodes and decodes the entries of its indexes, by their ids.
        buckets: Its buckets, by number.
        path: Its directory.
        pinning: Takes the views that pinned snapshots keep.
        locks: The locks on its columns.
        clock: The server's.
    """

    def __init__(
        self,
        definition: TableDefinition,
        path: Path,
        resources: RocksResources,
        executor: StorageExecutor,
        log_holds: Callable[[int], Mapping[str, int]] = lambda _: {},
        catch_up: CatchUpLimits = DEFAULT_CATCH_UP,
        *,
        clock: ServerClock,
        locks: TableLocks,
        writer_limits: WriterLimits,
        installed: Installed = MappingProxyType({}),
    ) -> None:
        """Opens nothing yet.

        Args:
            definition: The table's current definition.
            path: Its directory.
            resources: Shared by all buckets of the process.
            executor: Runs what blocks.
            log_holds: Gives from where on a bucket's changelog is kept, and for whom.
            catch_up: When and how streams of changes catch up.
            clock: The server's.
            locks: The locks on its columns.
            writer_limits: What bounds the writers of each bucket.
            installed: The aggregate functions that the server has from other packages.
        """
        self._installed = installed
        self.clock = clock
        self._engines: Engines | None = None
        self.locks = locks
        self._catch_up = catch_up
        # What a crash left behind.
        shutil.rmtree(path / "catching-up", ignore_errors=True)
        self.definition = definition
        self.codec = RowCodec(definition)
        self.index_codecs = _index_codecs(definition)
        self.path = path
        self._keys = KeyEncoder(definition)
        self._executor = executor
        self._sources: WeakSet[Abortable] = WeakSet()
        self._listeners: set[Callable[[], None]] = set()
        self._builds = IndexBuilds(lambda: IndexContext(self.codec, self._keys.codec, self.index_codecs))
        self.buckets = [
            LiveBucket(
                number,
                path / "buckets" / f"{number:04}",
                definition.name,
                compression=definition.options.compression,
                resources=resources,
                executor=executor,
                clock=clock,
                mark_seconds=definition.options.log_retention_seconds / 100,
                indexes=lambda: list(self.index_codecs),
                on_unbuilt=self._builds.wake,
                log_holds=partial(log_holds, number),
                writer_limits=writer_limits,
            )
            for number in range(definition.buckets)
        ]
        self.pinning = Pinning(self.buckets, executor, clock)

    def altered(self, definition: TableDefinition) -> None:
        """Goes on with a newer definition; scans that run keep theirs.

        What it changes in the indexes is done in the background, in every bucket. A write that has begun with the old
        definition has its bucket's mutex, so it is done before.
        """
        changed = definition.indexes != self.definition.indexes
        self.definition = definition
        self._engines = None
        self.codec = RowCodec(definition)
        self.index_codecs = _index_codecs(definition)
        if changed:
            for live in self.buckets:
                self._builds.wake(live)
        self._tell()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called whenever more is durable, or the table is altered or closed. All buckets are open.

        It is called until the function returned is called.
        """
        self._listeners.add(listener)
        stops = [live.on_durable(listener) for live in self.buckets]

        def stop() -> None:
            self._listeners.discard(listener)
            for each in stops:
                each()

        return stop

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    async def upsert(
        self, data: bytes, schema_id: int, terms: WriteTerms = NO_TERMS, kind: WriteKind = MERGE
    ) -> tuple[int, dict[int, int]]:
        """Writes the rows of an Arrow IPC stream made for a schema of the table (0: the current one).

        Returns once all of it is durable: the number of rows, and the next log offset of each bucket touched. The data
        is checked whole before anything is written; but whether a merge has a result shows when it is made, up to
        8,192 keys of a bucket at once.

        Raises:
            SchemaMismatch, InvalidKey, InvalidRequest, RequestTooLarge: What is wrong, with column and row.
            WriterFenced, WriterExpired, TooManyWriters, ColumnLocked, WriteConflict, PositionExpired,
            PositionOutOfRange: The terms forbid it: see `Writing`.
            DataLoss: A bucket is damaged.
        """
        check = self.upsert_check(data, schema_id, kind)
        return await self._write(*await self._executor.run(check), terms, kind.columns or None)

    def upsert_check(
        self, data: bytes, schema_id: int, kind: WriteKind
    ) -> Callable[[], tuple[int, list[PreparedRows]]]:
        """Gives what checks an upsert, in a thread: how many rows it has, and the rows by bucket, ascending.

        Raises:
            InvalidRequest: The table has no such schema.
        """
        codec, definition, indexes = self.codec, self.definition, self.index_codecs.values()
        if schema_id not in (0, *(schema.id for schema in definition.schemas)):
            raise InvalidRequest(f"table {definition.name} has no schema {schema_id}: open the table anew")

        engines = self.engines

        def check() -> tuple[int, list[PreparedRows]]:
            asked = request_schema(definition, schema_id, kind)
            batch = read_request(data, asked, CHANGE_TYPE_FIELD)
            types = batch.column(len(asked)) if batch.num_columns > len(asked) else None
            rows = batch.select(range(len(asked)))
            return batch.num_rows, prepare_upsert(rows, self._keys, codec, engines, kind, indexes, types)

        return check

    async def delete(
        self, data: bytes, terms: WriteTerms = NO_TERMS, kind: WriteKind = MERGE
    ) -> tuple[int, dict[int, int]]:
        """Deletes the rows, or columns of the rows, whose keys are in an Arrow IPC stream; otherwise as `upsert`."""
        return await self._write(*await self._executor.run(self.delete_check(data, kind)), terms, kind.columns or None)

    def delete_check(self, data: bytes, kind: WriteKind) -> Callable[[], tuple[int, list[PreparedRows]]]:
        """The same as `upsert_check` for a delete."""
        codec = self.codec

        def check() -> tuple[int, list[PreparedRows]]:
            batch = read_request(data, codec.definition.key_schema)
            return batch.num_rows, prepare_delete(batch, self._keys, codec, kind)

        return check

    def request_keys(self, data: bytes, schema_id: int, *, upsert: bool) -> list[tuple[int, pa.Array]]:
        """The encoded keys of an upsert of whole rows, or of a delete, that was checked: by bucket, each once. Blocks.

        Raises:
            InvalidRequest: As when it was checked.
        """
        if upsert:
            asked = request_schema(self.codec.definition, schema_id, MERGE)
            batch = read_request(data, asked, CHANGE_TYPE_FIELD)
            # Without change types every row counts, and need not be encoded to tell.
            if batch.num_columns == len(asked):
                encoded, buckets = self._keys.encode(self._keys.canonical(batch))
                return [(number, encoded.take(pa.array(rows)).unique()) for number, rows in rows_by_bucket(buckets)]
        check = self.upsert_check(data, schema_id, MERGE) if upsert else self.delete_check(data, MERGE)
        return [(part.bucket, part.keys) for part in check()[1]]

    @property
    def engines(self) -> Engines:
        """What merges rows of the current definition. Raises InvalidRequest where the server lacks a function of it."""
        if self._engines is None:
            self._engines = Engines(self.definition, self._installed)
        return self._engines

    async def _write(
        self, rows: int, parts: list[PreparedRows], terms: WriteTerms, columns: Collection[str] | None = None
    ) -> tuple[int, dict[int, int]]:
        """Writes what was checked; `columns` are those that it may change, None all."""
        if terms.unchanged_since is not None:
            of_offsets = terms.unchanged_since.table_incarnation
            check_incarnation(of_offsets, self.definition.name, self.definition.incarnation)
        scope = WriteScope(
            buckets=self.buckets,
            current=lambda: (self.codec, list(self.index_codecs.values()), self.engines),
            keys=self._keys,
            admitted=partial(self.locks.admitted, columns, terms.column_locks),
        )
        return rows, await Writing(parts, terms, scope).run()

    async def open_writer(self, writer: str) -> tuple[int, int]:
        """Begins a new epoch of a writer in every bucket, durably: the epoch, and the sequence to go on with.

        Raises:
            TooManyWriters: The writer is new, and there are as many as there may be.
            DataLoss: A bucket is damaged.
        """
        async with held(self.buckets) as opened:
            known = [await live.run(bucket.writers.get, writer) for live, bucket in opened]
            for (live, bucket), state in zip(opened, known, strict=True):
                if state is None:
                    await live.run(bucket.writers.make_room, writer)
            epoch = 1 + max(0 if state is None else state.epoch for state in known)
            sequence = max(0 if state is None else state.next_sequence for state in known)
            for live, bucket in opened:
                await live.run(bucket.open_writer, writer, epoch, sequence)
        await all_ended(live.wait_written() for live in self.buckets)
        return epoch, sequence

    async def undo(
        self, writer: str, offsets: LogOffsets, column_locks: frozenset[str] = frozenset()
    ) -> tuple[Undone, dict[int, int]]:
        """Takes back what a writer that was opened has done behind some offsets: see `Undoing`, and its errors."""
        undoing = Undoing(self, writer, column_locks, self._executor)
        log_offsets = await undoing.run(offsets)
        return undoing.undone, log_offsets

    async def lookup(
        self, data: bytes, columns: Sequence[str] | None, then: Then | None = None
    ) -> tuple[pa.RecordBatch, bytes, dict[int, int]]:
        """The rows whose keys are in an Arrow IPC stream.

        Returns the rows found, in the order of their keys, and a byte for each key: 1 when found, else 0; and by bucket
        the log offset that it is as of. What is shown is durable.

        Args:
            data: The Arrow IPC stream.
            columns: The columns to return. None: all.
            then: Makes other rows of those found, given encoded keys and stored rows (None: no row).

        Raises:
            RequestTooLarge: Too many keys, or too much to return.
            SchemaMismatch, InvalidKey, InvalidRequest, DataLoss: As for `upsert`.
        """
        batch = await self._executor.run(read_request, data, self.definition.key_schema)
        if batch.num_rows > MAX_LOOKUP_KEYS:
            raise RequestTooLarge(f"{batch.num_rows} keys in one lookup; the limit is {MAX_LOOKUP_KEYS}: ask for fewer")
        self.codec.decoder(columns)
        encoded, numbers = self._keys.encode(self._keys.canonical(batch))
        places = rows_by_bucket(numbers)
        keys = {number: encoded.take(pa.array(rows)).to_pylist() for number, rows in places}
        found, offsets = await looked_up(self.buckets, keys)
        if then is not None:
            found = await then([key for number, _ in places for key in keys[number]], found)
        order = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in places)])
        stored = pa.array(found, pa.binary()).take(pa.array(np.argsort(order)))
        is_there = stored.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8).tobytes()
        return self.codec.decoder(columns).decode(stored.drop_null()), is_there, offsets

    async def count(self, numbers: Sequence[int] | None) -> tuple[int | None, dict[int, int]]:
        """The rows of some buckets (None: all) at one instant, and each bucket's next log offset; durable.

        Reads no rows: None where their number is not known, because writes did not read those that were there.
        """
        chosen = self._chosen(numbers)
        async with held(chosen) as opened:
            states = {live.number: bucket.state for live, bucket in opened}
        offsets = await durable(self.buckets, states)
        return total_rows(state.rows for state in states.values()), offsets

    def view_in_memory(self, numbers: Sequence[int] | None) -> View | None:
        """What some buckets (None: all) hold now, durable or not, without awaiting; None when one of them is not open.

        Everything that was acknowledged before is in it. It is no view of one instant, as `open_view` gives one: but if
        it is equal to what was one before, then nothing has changed since.

        Raises:
            InvalidRequest: A bucket does not exist.
        """
        states: dict[int, BucketState] = {}
        for live in self._chosen(numbers):
            state = live.state
            if state is None:
                return None
            states[live.number] = state
        return self._view_of(states)

    async def view_now(self, numbers: Sequence[int] | None) -> View:
        """The same, but opens buckets that are not open.

        Raises:
            InvalidRequest: A bucket does not exist.
            DataLoss: A bucket is damaged and cannot be opened.
        """
        view = self.view_in_memory(numbers)
        if view is not None:
            return view
        async with held(self._chosen(numbers)) as opened:
            return self._view_of({live.number: bucket.state for live, bucket in opened})

    async def open_view(self, plan: ReadPlan) -> OpenedScan:
        """A view of the buckets that a plan names, at one instant, durable.

        The caller closes its source.

        Raises:
            InvalidRequest, SchemaMismatch: A bucket or column does not exist; the resume token does not fit.
            DataLoss: A bucket is damaged.
        """
        chosen = self._chosen(plan.buckets)
        codec = self.codec
        indexes = list(self.index_codecs.values())
        reader, choices = await plan_reads_in(self._executor.run, plan, codec, self._keys.codec, indexes)
        async with held(chosen) as opened:
            if codec is not self.codec:
                codec = self.codec
                reader, choices = plan_reads(plan, codec, self._keys.codec, self.index_codecs.values())
            # From here to the end of the block every mutex is held, so that nothing is written: this is the instant.
            buckets = {live.number: bucket for live, bucket in opened}
            states = {number: bucket.state for number, bucket in buckets.items()}
            view = self._view_of(states)
            if plan.limit != 0:
                reader = await read_through_index(reader, choices, self._held_view(opened))
            bases = bases_of(plan, reader, opened)
            on_error = noting_errors({live.number: live for live, _ in opened}, bases)
            scan = open_scan(plan, codec.definition, reader, view, "", buckets.__getitem__, on_error, bases)
            self._sources.add(scan.source)
        try:
            await durable(self.buckets, states)
            await sort_overlays(bases, self._executor.run)
        except BaseException:
            scan.source.close()
            raise
        return scan

    async def open_log(self, plan: LogPlan, owner: str, committed: LogPosition | None = None) -> OpenedLog:
        """A stream of changes of the buckets that a plan names, which may begin with their rows as of now; durable.

        The caller closes its source.

        Args:
            plan: What is asked for.
            owner: Names its hold on the changes.
            committed: Where the consumer stands that it is of. None: it is of none, or of one that begins.

        Raises:
            PositionExpired, PositionOutOfRange: The changes that it starts with are not there.
            InvalidRequest, SchemaMismatch: A bucket or column does not exist; the resume token does not fit.
            DataLoss: A bucket is damaged.
        """
        async with held(self._chosen(plan.buckets)) as opened:
            buckets = {live.number: (live, bucket) for live, bucket in opened}
            catching_up = CatchingUp(
                {live.number: live for live, _ in opened},
                lambda: self.definition,
                self._keys.encoded,
                self._catch_up if plan.net_behind is None else replace(self._catch_up, changes=plan.net_behind),
                self.path / "catching-up",
            )
            opening = LogOpening(
                plan,
                self.codec,
                self._keys,
                buckets,
                owner,
                lambda: self.definition,
                committed,
                catching_up=catching_up,
                clock=self.clock,
            )
            log = await opening.open()
            states = {number: bucket.state for number, (_, bucket) in buckets.items()}
            self._sources.add(log.source)
        try:
            await durable(self.buckets, states)
            await sort_overlays(opening.bases, self._executor.run)
        except BaseException:
            log.source.close()
            raise
        return log

    async def explain(self, plan: ReadPlan) -> ExplainScanResponse:
        """What `open_view` would read for a plan; opens the buckets where an index might tell it, and reads nothing.

        Raises:
            InvalidRequest, SchemaMismatch, DataLoss: As `open_view`.
        """
        chosen = self._chosen(plan.buckets)
        definition, choice = self.definition, None
        reader, choices = plan_reads(plan, self.codec, self._keys.codec, self.index_codecs.values())
        if choices:
            async with held(chosen) as opened:
                choice = chosen_index(choices, self._held_view(opened).indexes)
        numbers = [live.number for live in chosen]
        return explain(plan, definition, reader, numbers, choice, via_of(plan, reader, choice is not None, chosen))

    @asynccontextmanager
    async def held_view(self, check: Callable[[], None]) -> AsyncIterator[HeldView]:
        """All buckets at one instant, with nothing written to them for the length of the block; durable at its end.

        Keep the block short.

        Args:
            check: Raises why nothing more may be read.

        Raises:
            DataLoss: A bucket is damaged.
        """
        async with held(self.buckets) as opened:
            states = {live.number: bucket.state for live, bucket in opened}
            yield self._held_view(opened, check)
        await durable(self.buckets, states)

    def _held_view(
        self, opened: Sequence[tuple[LiveBucket, Bucket]], check: Callable[[], None] = lambda: None
    ) -> HeldView:
        """Open buckets whose mutexes are held for as long as this is used."""
        filled = {live.number: bucket for live, bucket in opened if bucket.state.rows != 0}
        ready = [bucket.state.ready_indexes for bucket in filled.values()]
        return HeldView(
            codec=self.codec,
            keys=self._keys.codec,
            view=self._view_of({live.number: bucket.state for live, bucket in opened}),
            buckets=filled,
            indexes=whole_indexes(self.index_codecs.values(), ready),
            on_error=self._noted,
            check=check,
        )

    def _view_of(self, states: Mapping[int, BucketState]) -> View:
        return View(
            {number: state.log_offset for number, state in states.items()},
            self.clock.commit_micros(),
            total_rows(state.rows for state in states.values()),
        )

    def _noted(self, number: int, error: ScanKvError) -> ScanKvError:
        return self.buckets[number].noted(error)

    def opens(self, source: Abortable) -> None:
        """Sees to it that a source that reads a bucket is ended before the table is closed. Hold the bucket's mutex."""
        self._sources.add(source)

    @property
    def keys(self) -> KeyEncoder:
        """Encodes the keys of its rows."""
        return self._keys

    async def statistics(self) -> tuple[list[BucketFigures], list[IndexStatus]]:
        """What is known of each bucket, one after another, and how far each index is built."""
        figures = [await live.figures() for live in self.buckets]
        return figures, [self._builds.status(index, figures) for index in self.definition.indexes]

    async def disk_use(self) -> tuple[DiskUse, dict[int, BucketFiles]]:
        """What the table takes on disk, and each of its buckets. Opens nothing; reads directories in a thread."""
        files = await self._executor.run(table_files, self.path)
        known = {live.number: live.family_bytes for live in self.buckets}
        use = DiskUse.of_table(files, {number: each for number, each in known.items() if each is not None})
        return use, dict(files.buckets)

    async def open_check(self, number: int) -> BucketCheck:
        """A check of one bucket as of now; the caller runs it. Raises DataLoss when the bucket cannot be opened."""
        live = self.buckets[number]
        async with live.mutex:
            bucket = await live.opened()
            check = BucketCheck(number, bucket, self.codec, self._keys, self.index_codecs, live.noted)
            self._sources.add(check)
        return check

    async def close(self, reason: ScanKvError) -> None:
        """Refuses whatever begins from now on, ends every scan, and closes the buckets; `reason` is told to all."""
        for bucket in self.buckets:
            bucket.refuse(reason)
        self._tell()
        await self._builds.close()
        await self.pinning.close(reason)
        async with AsyncExitStack() as mutexes:
            for bucket in self.buckets:
                # Beside a gate that is closed for good, because a transaction could not be written.
                await mutexes.enter_async_context(bucket.mutex.beside_gate())
            # Views are opened with the mutexes held, so there are no others than these.
            for source in list(self._sources):
                source.abort(reason)
            # Closing syncs, and lets others have the interpreter lock: several at once take a fraction of the time.
            await all_ended(bucket.close() for bucket in self.buckets)

    def _chosen(self, numbers: Sequence[int] | None) -> list[LiveBucket]:
        if numbers is None:
            return self.buckets
        for number in numbers:
            if not 0 <= number < len(self.buckets):
                raise InvalidRequest(
                    f"table {self.definition.name} has no bucket {number}: there are 0 to {len(self.buckets) - 1}",
                    bucket=number,
                )
        if len(set(numbers)) != len(numbers):
            raise InvalidRequest("a bucket is asked for twice")
        return [self.buckets[number] for number in sorted(numbers)]


def _index_codecs(definition: TableDefinition) -> dict[int, IndexCodec]:
    return {index.id: IndexCodec(definition, index) for index in definition.indexes}
