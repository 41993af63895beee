"""A table while the server runs: writes, lookups, counts, and the views that scans read."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from streaming_server.engine.executor import all_ended
from streaming_server.engine.last_row import merge_delete, merge_upsert
from streaming_server.engine.live_bucket import LiveBucket, durable, held
from streaming_server.engine.pinning import Pinning
from streaming_server.engine.prepare import KeyEncoder, PreparedRows, prepare, read_request, rows_by_bucket, widen
from streaming_server.scan.chunk_source import View
from streaming_server.scan.explaining import explain
from streaming_server.scan.opening import open_scan
from streaming_server.storage.row_codec import RowCodec
from table_model.errors import DataLoss, InvalidRequest, RequestTooLarge
from table_model.limits import MAX_LOOKUP_KEYS, MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from protos.scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.scan.chunk_source import ChunkSource
    from streaming_server.scan.opening import OpenedScan, ReadPlan
    from streaming_server.storage.bucket import Bucket, BucketState
    from streaming_server.storage.rocks import RocksResources
    from table_model.errors import ScanKvError
    from table_model.schema import TableDefinition

MAX_BATCH_ROWS = 10_000
_STEP_BYTES = 32 * 1024 * 1024


class LiveTable:
    """One table of a running server. Bound to the server's event loop.

    Attributes:
        definition: The table's current definition.
        codec: Encodes rows of its current schema and decodes those of all its schemas.
        buckets: Its buckets, by number.
        path: Its directory.
        pinning: Takes the views that pinned snapshots keep.
    """

    def __init__(
        self, definition: TableDefinition, path: Path, resources: RocksResources, executor: StorageExecutor
    ) -> None:
        self.definition = definition
        self.codec = RowCodec(definition)
        self.path = path
        self._keys = KeyEncoder(definition)
        self._executor = executor
        self._sources: WeakSet[ChunkSource] = WeakSet()
        self.buckets = [
            LiveBucket(
                number,
                path / "buckets" / f"{number:04}",
                definition.name,
                compression=definition.options.compression,
                resources=resources,
                executor=executor,
            )
            for number in range(definition.buckets)
        ]
        self.pinning = Pinning(self.buckets, executor)

    def altered(self, definition: TableDefinition) -> None:
        """Goes on with a newer definition; scans that run keep theirs."""
        self.definition = definition
        self.codec = RowCodec(definition)

    async def upsert(self, data: bytes, schema_id: int) -> tuple[int, dict[int, int]]:
        """Writes the rows of an Arrow IPC stream made for a schema of the table (0: the current one).

        Returns once all of it is durable: the number of rows, and the next log offset of each bucket touched. The data
        is checked whole before anything is written.

        Raises:
            SchemaMismatch, InvalidKey, InvalidRequest, RequestTooLarge: What is wrong, with column and row.
            DataLoss: A bucket is damaged.
        """
        codec, definition = self.codec, self.definition
        if schema_id not in (0, *(schema.id for schema in definition.schemas)):
            raise InvalidRequest(f"table {definition.name} has no schema {schema_id}: open the table anew")

        def check() -> tuple[int, list[PreparedRows]]:
            asked = definition.schema_at(schema_id).arrow if schema_id else codec.schema
            batch = widen(read_request(data, asked), codec.schema)
            return batch.num_rows, prepare(batch, self._keys, codec, keys_only=False)

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
                step = _step_rows(bucket.state)
                await live.run(_apply, bucket, part.slice(done, step), self.codec)
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
            room -= _total_bytes(rows)
            values += rows
        stored = pa.array(values, pa.binary()).take(pa.array(np.argsort(np.concatenate(order))))
        found = stored.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8).tobytes()
        return self.codec.decoder(columns).decode(stored.drop_null()), found

    async def _lookup_bucket(self, live: LiveBucket, keys: list[bytes], room: int) -> list[bytes | None]:
        async with live.mutex:
            bucket = await live.opened()
            rows = await live.run(_get_within, bucket, keys, room)
            offset = bucket.state.log_offset
        await live.wait_durable(offset)
        return rows

    async def count(self, numbers: Sequence[int] | None) -> tuple[int, dict[int, int]]:
        """The rows of some buckets (None: all) at one instant, and each bucket's next log offset; durable."""
        chosen = self._chosen(numbers)
        async with held(chosen) as opened:
            states = {live.number: bucket.state for live, bucket in opened}
        offsets = await durable(self.buckets, states)
        return sum(state.rows for state in states.values()), offsets

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
            # From here to the end of the block nothing awaits and every mutex is held: this is the instant.
            buckets = {live.number: bucket for live, bucket in opened}
            states = {number: bucket.state for number, bucket in buckets.items()}
            scan = open_scan(
                plan,
                codec.definition,
                reader,
                _view_of(states),
                "",
                buckets.__getitem__,
                lambda number, error: self.buckets[number].noted(error),
            )
            self._sources.add(scan.source)
        try:
            await durable(self.buckets, states)
        except BaseException:
            scan.source.close()
            raise
        return scan

    def explain(self, plan: ReadPlan) -> ExplainScanResponse:
        """What `open_view` would read for a plan. Opens nothing. Raises InvalidRequest or SchemaMismatch."""
        chosen = [bucket.number for bucket in self._chosen(plan.buckets)]
        return explain(plan, self.definition, plan.reader(self.codec, self._keys.codec), chosen)

    async def statistics(self) -> list[tuple[LiveBucket, BucketState | None, int]]:
        """For each bucket its state and its bytes on disk; no state where the bucket is damaged."""
        result: list[tuple[LiveBucket, BucketState | None, int]] = []
        for live in self.buckets:
            async with live.mutex:
                try:
                    bucket = await live.opened()
                except DataLoss:
                    result.append((live, None, 0))
                else:
                    result.append((live, bucket.state, bucket.disk_bytes()))
        return result

    async def close(self, reason: ScanKvError) -> None:
        """Refuses whatever begins from now on, ends every scan, and closes the buckets; `reason` is told to all."""
        for bucket in self.buckets:
            bucket.refuse(reason)
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


def _view_of(states: Mapping[int, BucketState]) -> View:
    return View(
        {number: state.log_offset for number, state in states.items()},
        time.time_ns() // 1000,
        sum(state.rows for state in states.values()),
    )


def _apply(bucket: Bucket, rows: PreparedRows, codec: RowCodec) -> None:
    """Merges rows into their bucket. Runs with the bucket's mutex held, so `codec` knows every schema stored there."""
    rows = rows.for_codec(codec)
    old = bucket.get(rows.keys.to_pylist())
    if rows.values is None:
        bucket.apply(merge_delete(old, rows.keys, codec))
    else:
        bucket.apply(merge_upsert(old, rows, row_deduplicate=codec.definition.options.row_deduplicate))


def _step_rows(state: BucketState) -> int:
    """How many rows may be read by key at once so that even the longest ones fit into memory."""
    return max(1, min(MAX_BATCH_ROWS, _STEP_BYTES // max(state.longest_row, 1)))


def _get_within(bucket: Bucket, keys: list[bytes], room: int) -> list[bytes | None]:
    rows: list[bytes | None] = []
    step = _step_rows(bucket.state)
    for start in range(0, len(keys), step):
        part = bucket.get(keys[start : start + step])
        rows += part
        room -= _total_bytes(part)
        if room < 0:
            raise RequestTooLarge(
                f"the rows found take more than {MAX_REQUEST_BYTES} bytes: ask for fewer keys at once"
            )
    return rows


def _total_bytes(rows: list[bytes | None]) -> int:
    return sum(map(len, filter(None, rows)))
