"""A table while the server runs: writes, lookups, counts, and the views that scans read."""

from __future__ import annotations

import shutil
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from streaming_server.engine.base_choice import bases_of, noting_errors, via_of
from streaming_server.engine.bucket_check import BucketCheck
from streaming_server.engine.bucket_steps import apply_rows, get_within, step_rows, total_bytes
from streaming_server.engine.catching_up import DEFAULT_CATCH_UP, CatchingUp
from streaming_server.engine.executor import all_ended
from streaming_server.engine.index_builds import IndexBuilds, IndexContext
from streaming_server.engine.live_bucket import LiveBucket, durable, figures_of, held
from streaming_server.engine.log_opening import LogOpening
from streaming_server.engine.pinning import Pinning
from streaming_server.engine.prepare import KeyEncoder, PreparedRows, prepare, read_request, rows_by_bucket, widen
from streaming_server.scan.base_view import sort_overlays
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.scan.explaining import explain
from streaming_server.scan.held_view import HeldView, whole_indexes
from streaming_server.scan.index_lookup import chosen_index, read_through_index
from streaming_server.scan.opening import open_scan
from streaming_server.storage.index_codec import IndexCodec
from streaming_server.storage.row_codec import RowCodec
from table_model.errors import InvalidRequest, RequestTooLarge
from table_model.limits import MAX_LOOKUP_KEYS, MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from protos.scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.engine.catching_up import CatchUpLimits
    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.index_builds import IndexStatus
    from streaming_server.engine.live_bucket import BucketFigures
    from streaming_server.scan.log_plan import LogPlan, OpenedLog
    from streaming_server.scan.log_token import LogPosition
    from streaming_server.scan.opening import OpenedScan, ReadPlan
    from streaming_server.scan.registry import Abortable
    from streaming_server.storage.bucket import Bucket, BucketState
    from streaming_server.storage.rocks import RocksResources
    from table_model.errors import ScanKvError
    from table_model.schema import TableDefinition


class LiveTable:
    """One table of a running server. Bound to the server's event loop.

    Attributes:
        definition: The table's current definition.
        codec: Encodes rows of its current schema and decodes those of all its schemas.
        index_codecs: Encodes and decodes the entries of its indexes, by their ids.
        buckets: Its buckets, by number.
        path: Its directory.
        pinning: Takes the views that pinned snapshots keep.
    """

    def __init__(
        self,
        definition: TableDefinition,
        path: Path,
        resources: RocksResources,
        executor: StorageExecutor,
        log_holds: Callable[[int], Mapping[str, int]] = lambda _: {},
        catch_up: CatchUpLimits = DEFAULT_CATCH_UP,
    ) -> None:
        """Opens nothing yet.

        Args:
            definition: The table's current definition.
            path: Its directory.
            resources: Shared by all buckets of the process.
            executor: Runs what blocks.
            log_holds: Gives from where on a bucket's changelog is kept, and for whom.
            catch_up: When and how streams of changes catch up.
        """
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
                indexes=lambda: list(self.index_codecs),
                on_unbuilt=self._builds.wake,
                log_holds=partial(log_holds, number),
            )
            for number in range(definition.buckets)
        ]
        self.pinning = Pinning(self.buckets, executor)

    def altered(self, definition: TableDefinition) -> None:
        """Goes on with a newer definition; scans that run keep theirs.

        What it changes in the indexes is done in the background, in every bucket. A write that has begun with the old
        definition has its bucket's mutex, so it is done before.
        """
        changed = definition.indexes != self.definition.indexes
        self.definition = definition
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

    async def upsert(self, data: bytes, schema_id: int) -> tuple[int, dict[int, int]]:
        """Writes the rows of an Arrow IPC stream made for a schema of the table (0: the current one).

        Returns once all of it is durable: the number of rows, and the next log offset of each bucket touched. The data
        is checked whole before anything is written.

        Raises:
            SchemaMismatch, InvalidKey, InvalidRequest, RequestTooLarge: What is wrong, with column and row.
            DataLoss: A bucket is damaged.
        """
        codec, definition, indexes = self.codec, self.definition, self.index_codecs.values()
        if schema_id not in (0, *(schema.id for schema in definition.schemas)):
            raise InvalidRequest(f"table {definition.name} has no schema {schema_id}: open the table anew")

        def check() -> tuple[int, list[PreparedRows]]:
            asked = definition.schema_at(schema_id).arrow if schema_id else codec.schema
            batch = widen(read_request(data, asked), codec.schema)
            return batch.num_rows, prepare(batch, self._keys, codec, keys_only=False, indexes=indexes)

        return await self._write(*await self._executor.run(check))

    async def delete(self, data: bytes) -> tuple[int, dict[int, int]]:
        """Deletes the rows whose keys are in an Arrow IPC stream; otherwise as `upsert`."""

        def check() -> tuple[int, list[PreparedRows]]:
            batch = read_request(data, self.definition.key_schema)
            return batch.num_rows, prepare(batch, self._keys, self.codec, keys_only=True)

        return await self._write(*await self._executor.run(check))

    async def _write(self, rows: int, parts: list[PreparedRows]) -> tuple[int, dict[int, int]]:
        # A damaged bucket is found before anything is written to the others.
        async with held([self.buckets[part.bucket] for part in parts]):
            pass
        offsets = await all_ended(map(self._write_bucket, parts))
        return rows, {part.bucket: offset for part, offset in zip(parts, offsets, strict=True)}

    async def _write_bucket(self, part: PreparedRows) -> int:
        live, done, offset = self.buckets[part.bucket], 0, 0
        while done < len(part.keys):
            async with live.mutex:
                bucket = await live.opened()
                indexes = list(self.index_codecs.values())
                step = step_rows(bucket.state, len(indexes))
                await live.run(apply_rows, live, bucket, part.slice(done, step), self.codec, indexes)
                offset = bucket.state.log_offset
            done += step
        await live.wait_durable(offset)
        return offset

    async def lookup(self, data: bytes, columns: Sequence[str] | None) -> tuple[pa.RecordBatch, bytes]:
        """The rows whose keys are in an Arrow IPC stream.

        Returns the rows found, in the order of their keys, and a byte for each key: 1 when found, else 0. What is shown
        is durable.

        Raises:
            RequestTooLarge: Too many keys, or too much to return.
            SchemaMismatch, InvalidKey, InvalidRequest, DataLoss: As for `upsert`.
        """
        batch = await self._executor.run(read_request, data, self.definition.key_schema)
        if batch.num_rows > MAX_LOOKUP_KEYS:
            raise RequestTooLarge(f"{batch.num_rows} keys in one lookup; the limit is {MAX_LOOKUP_KEYS}: ask for fewer")
        self.codec.decoder(columns)
        encoded, numbers = self._keys.encode(self._keys.canonical(batch))
        values: list[bytes | None] = []
        order = [np.zeros(0, np.int64)]
        room = MAX_REQUEST_BYTES
        for number, places in rows_by_bucket(numbers):
            order.append(places)
            rows = await self._lookup_bucket(self.buckets[number], encoded.take(pa.array(places)).to_pylist(), room)
            room -= total_bytes(rows)
            values += rows
        stored = pa.array(values, pa.binary()).take(pa.array(np.argsort(np.concatenate(order))))
        found = stored.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8).tobytes()
        return self.codec.decoder(columns).decode(stored.drop_null()), found

    async def _lookup_bucket(self, live: LiveBucket, keys: list[bytes], room: int) -> list[bytes | None]:
        async with live.mutex:
            bucket = await live.opened()
            rows = await live.run(get_within, bucket, keys, room)
            offset = bucket.state.log_offset
        await live.wait_durable(offset)
        return rows

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
        return _view_of(states)

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
            return _view_of({live.number: bucket.state for live, bucket in opened})

    async def open_view(self, plan: ReadPlan) -> OpenedScan:
        """A view of the buckets that a plan names, at one instant, durable.

        The caller closes its source.

        Raises:
            InvalidRequest, SchemaMismatch: A bucket or column does not exist; the resume token does not fit.
            DataLoss: A bucket is damaged.
        """
        chosen = self._chosen(plan.buckets)
        codec, reader = self.codec, plan.reader(self.codec, self._keys.codec)
        async with held(chosen) as opened:
            if codec is not self.codec:
                codec, reader = self.codec, plan.reader(self.codec, self._keys.codec)
            # From here to the end of the block every mutex is held, so that nothing is written: this is the instant.
            buckets = {live.number: bucket for live, bucket in opened}
            states = {number: bucket.state for number, bucket in buckets.items()}
            view = _view_of(states)
            if plan.limit != 0:
                reader = await read_through_index(reader, self._held_view(opened))
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
                self._catch_up,
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
        definition, reader = self.definition, plan.reader(self.codec, self._keys.codec)
        choice = chosen_index(reader, self.index_codecs.values())
        if choice is not None:
            async with held(chosen) as opened:
                choice = chosen_index(reader, self._held_view(opened).indexes)
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
            view=_view_of({live.number: bucket.state for live, bucket in opened}),
            buckets=filled,
            indexes=whole_indexes(self.index_codecs.values(), ready),
            on_error=self._noted,
            check=check,
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
        figures = [await figures_of(live) for live in self.buckets]
        return figures, [self._builds.status(index, figures) for index in self.definition.indexes]

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
                await mutexes.enter_async_context(bucket.mutex)
            # Views are opened with the mutexes held, so there are no others than these.
            for source in list(self._sources):
                source.abort(reason)
            for bucket in self.buckets:
                await bucket.close()

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


def _view_of(states: Mapping[int, BucketState]) -> View:
    return View(
        {number: state.log_offset for number, state in states.items()},
        time.time_ns() // 1000,
        total_rows(state.rows for state in states.values()),
    )
