"""Net changes: one for each key in the backlog of a changelog, for readers that are far behind.

The backlog is read once. Only the first and the last change of each key matter, so each step keeps only those and
hash-partitions them by key. Partitions that do not fit into memory are spilled to disk. Then each partition is small
enough to be grouped at once. The same backlog with the same number of partitions gives the same changes in the same
order, so a stream can resume in the middle of it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from streaming_server.scan.changes.log_token import NetPosition
    from streaming_server.storage.changelog.records import LogRecord

    Kinds = np.ndarray[tuple[int], np.dtype[np.uint8]]
    Integers = np.ndarray[tuple[int], np.dtype[np.int64]]

T = TypeVar("T")

STEP_CHANGES: Final = 32_768
STEP_BYTES: Final = 8 << 20
_MAX_PARTITIONS: Final = 256
# Grouping a partition takes several times its size.
_MEMORY_FACTOR: Final = 8
# Seeded, because the unseeded hash has chosen the bucket, so it would not distribute the keys of one bucket evenly.
_hash: Final = partial(xxh3_64_intdigest, seed=1)
_SPILL_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class NetChangeBatch:
    """Net changes in order: row kind, offset and commit time of each, and its row."""

    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    offsets: Integers
    commit_micros: Integers
    rows: pa.RecordBatch

    def slice(self, start: int, count: int) -> NetChangeBatch:
        stop = start + count
        return NetChangeBatch(
            self.kinds[start:stop],
            self.offsets[start:stop],
            self.commit_micros[start:stop],
            self.rows.slice(start, count),
        )


class BacklogReader(Protocol):
    """Reads the backlog of a changelog."""

    async def read(self, start: int, end: int) -> Sequence[LogRecord]:
        """Reads the next changes between two offsets, at most `STEP_CHANGES`, without blocking the event loop."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs work in a thread and waits for its end, even if the caller is cancelled."""


class NetChanges:
    """The net changes of one bucket between two offsets.

    Args:
        reader: Reads the changes.
        start: The offset of the first change.
        position: Where the backlog ends, and how many net changes were returned before. `partitions` 0: as many as
            needed.
        keys_of: Returns the encoded primary keys of rows.
        rows_of: Returns the rows of a record with the columns of the position's schema version.
        encode: Returns rows as bytes, equal for equal rows.
        directory: Where partitions are spilled.
        memory_bytes: Approximate memory to use.
        before_images: Whether the changelog has the rows before changes. Otherwise the last change of each key is its
            net change.
    """

    def __init__(
        self,
        reader: BacklogReader,
        start: int,
        position: NetPosition,
        *,
        keys_of: Callable[[pa.RecordBatch], pa.Array],
        rows_of: Callable[[LogRecord], pa.RecordBatch],
        encode: Callable[[pa.RecordBatch], pa.Array],
        directory: Path,
        memory_bytes: int,
        before_images: bool = True,
    ) -> None:
        self._before_images = before_images
        self.position = position
        self.changes_read = 0
        self._reader = reader
        self._start = start
        self._keys_of = keys_of
        self._rows_of = rows_of
        self._encode = encode
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._ready: deque[NetChangeBatch] = deque()
        self._to_skip = position.given
        self._wanted = asyncio.Event()
        self._done = False

    @property
    def is_done(self) -> bool:
        """Whether all net changes were returned."""
        return self._done and not self._ready

    @property
    def is_ready(self) -> bool:
        """Whether `take` has net changes to return."""
        return bool(self._ready)

    def take(self, max_rows: int) -> NetChangeBatch:
        """Returns the next net changes. An update before and its update after stay together."""
        # At least two, since an update before and its update after stay together.
        max_rows = max(max_rows, 2)
        rows = self._ready.popleft()
        if len(rows.kinds) > max_rows:
            count = max_rows - int(rows.kinds[max_rows - 1] == RowKind.UPDATE_BEFORE)
            self._ready.appendleft(rows.slice(count, len(rows.kinds) - count))
            rows = rows.slice(0, count)
        position = self.position
        self.position = replace(position, given=position.given + len(rows.kinds))
        self._wanted.set()
        return rows

    async def run(self, on_progress: Callable[[], None]) -> None:
        """Reads the backlog and computes its net changes, one partition ahead of `take`.

        Calls `on_progress` when a partition is ready, and at the end.

        Raises:
            DiskFull: There is no disk space for the spilled partitions.
            ScanKvError: Reading the changes failed.
        """
        with translate_disk_errors(self._directory):
            await self._run(on_progress)

    async def _run(self, on_progress: Callable[[], None]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="net-", dir=self._directory))
        partitions: _HashPartitions | None = None
        try:
            async for batch in self._first_and_last_changes():
                if partitions is None:
                    partitions = _HashPartitions(
                        directory, self._choose_partition_count(batch), self._memory_bytes // 2
                    )
                await self._reader.run(partitions.add, batch)
            for number in range(self.position.partitions if partitions is not None else 0):
                assert partitions is not None
                rows = await self._reader.run(self._net_changes_of, partitions, number)
                if rows is not None:
                    self._ready.append(rows)
                    on_progress()
                    while self._ready:
                        self._wanted.clear()
                        await self._wanted.wait()
            self._done = True
            on_progress()
        finally:
            if partitions is not None:
                partitions.close()
            shutil.rmtree(directory, ignore_errors=True)

    async def _first_and_last_changes(self) -> AsyncIterator[pa.RecordBatch]:
        offset, end = self._start, self.position.end
        while count_of(offset) < count_of(end):
            records = await self._reader.read(offset, end)
            last = records[-1]
            offset = last.offset + len(last.changes)
            self.changes_read = count_of(offset) - count_of(self._start)
            yield await self._reader.run(self._keep_first_and_last, records)

    def _keep_first_and_last(self, records: Sequence[LogRecord]) -> pa.RecordBatch:
        """Returns the first and the last change of each key in some records, in log order."""
        rows = pa.concat_batches([self._rows_of(record) for record in records])
        kinds = np.concatenate([record.changes.kinds for record in records])
        offsets = np.concatenate([record.offset + np.arange(len(record.changes)) for record in records])
        times = np.concatenate([record.commit_micros for record in records])
        keys = self._keys_of(rows)
        first, last = _first_and_last_of_each_key(keys)
        kept = pa.array(np.union1d(first, last) if self._before_images else np.sort(last))
        columns = [
            keys,
            pa.array(kinds),
            pa.array(offsets),
            pa.array(times),
            pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema)),
        ]
        return pa.RecordBatch.from_arrays(columns, ["key", "kind", "offset", "time", "row"]).take(kept)

    def _choose_partition_count(self, first: pa.RecordBatch) -> int:
        """Estimates the partitions from the first step. The position keeps the number, for streams that resume."""
        if not self.position.partitions:
            changes = count_of(self.position.end) - count_of(self._start)
            size = first.nbytes * changes // max(self.changes_read, 1)
            partitions = min(max(1, -(-size * _MEMORY_FACTOR // self._memory_bytes)), _MAX_PARTITIONS)
            self.position = replace(self.position, partitions=partitions)
        return self.position.partitions

    def _net_changes_of(self, partitions: _HashPartitions, number: int) -> NetChangeBatch | None:
        """Returns the net changes of a partition by each key's last change; None if all were returned before."""
        changes = partitions.read(number)
        if changes is None:
            return None
        batch = changes.combine_chunks().to_batches()[0]
        rows = pa.RecordBatch.from_struct_array(batch.column("row"))
        kinds = batch.column("kind").to_numpy()
        first, last = _first_and_last_of_each_key(batch.column("key"))
        order = np.argsort(last)  # log order, whatever steps the log was read in
        first, last = first[order], last[order]
        net, indices, ends = kinds[last], last, last
        if self._before_images:
            net, indices, ends = self._net_from_first_and_last(rows, kinds, first, last)
        found = NetChangeBatch(
            net,
            batch.column("offset").to_numpy()[ends],
            batch.column("time").to_numpy()[ends],
            rows.take(pa.array(indices)),
        )
        skipped = min(self._to_skip, len(net))
        self._to_skip -= skipped
        return found.slice(skipped, len(net) - skipped) if skipped < len(net) else None

    def _net_from_first_and_last(
        self, rows: pa.RecordBatch, kinds: Kinds, first: Integers, last: Integers
    ) -> tuple[Kinds, Integers, Integers]:
        """Returns the kinds, rows and last changes of the net changes, given the first and last change of each key."""
        was = (kinds[first] == RowKind.UPDATE_BEFORE) | (kinds[first] == RowKind.DELETE)
        is_ = (kinds[last] == RowKind.UPDATE_AFTER) | (kinds[last] == RowKind.INSERT)
        same = was & is_
        encoded = self._encode(rows)
        same[same] = pc.equal(encoded.take(pa.array(first[same])), encoded.take(pa.array(last[same]))).to_numpy(
            zero_copy_only=False
        )
        was &= ~same
        is_ &= ~same
        count = was.astype(np.int64) + is_
        starts = np.cumsum(count) - count
        indices, net = np.empty(int(count.sum()), np.int64), np.empty(int(count.sum()), np.uint8)
        indices[starts[was]], net[starts[was]] = first[was], np.where(is_[was], RowKind.UPDATE_BEFORE, RowKind.DELETE)
        after = starts[is_] + was[is_]
        indices[after], net[after] = last[is_], np.where(was[is_], RowKind.UPDATE_AFTER, RowKind.INSERT)
        return net, indices, np.repeat(last, count)


class NetChangesFactory(Protocol):
    """Creates the net changes of the backlogs of a table."""

    lag_threshold: int
    """A bucket with a longer backlog is read as net changes."""

    def net_changes(self, bucket: int, start: int, position: NetPosition) -> NetChanges:
        """Returns the net changes of one bucket from an offset on. Their position names the schema of their rows."""


class _HashPartitions:
    """Changes partitioned by the hash of their keys: in memory as long as they fit, then in files."""

    def __init__(self, directory: Path, count: int, memory_bytes: int) -> None:
        self._directory = directory
        self._count = count
        self._memory_bytes = memory_bytes
        self._kept: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        self._kept_bytes = 0
        self._writers: list[pa.ipc.RecordBatchStreamWriter | None] = [None] * count

    def add(self, batch: pa.RecordBatch) -> None:
        hashes = np.fromiter(map(_hash, batch.column("key").to_pylist()), np.uint64, batch.num_rows)
        numbers = hashes % np.uint64(self._count)
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(self._count + 1))
        sorted_ = batch.take(pa.array(order))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            part = sorted_.slice(bounds[number], bounds[number + 1] - bounds[number])
            self._kept[number].append(part)
        self._kept_bytes += sorted_.nbytes
        if self._kept_bytes > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        for number, parts in enumerate(self._kept):
            if not parts:
                continue
            writer = self._writers[number]
            if writer is None:
                path = self._directory / f"{number:04}"
                writer = self._writers[number] = pa.ipc.new_stream(str(path), parts[0].schema, options=_SPILL_OPTIONS)
            writer.write_batch(pa.concat_batches(parts))
            parts.clear()
        self._kept_bytes = 0

    def read(self, number: int) -> pa.Table | None:
        """Returns the changes of a partition in log order; None if it is empty."""
        parts = self._kept[number]
        writer = self._writers[number]
        if writer is None:
            self._kept[number] = []
            return pa.Table.from_batches(parts) if parts else None
        writer.close()
        self._writers[number] = None
        with pa.OSFile(str(self._directory / f"{number:04}")) as file:
            spilled = pa.ipc.open_stream(file).read_all()
        self._kept[number] = []
        return pa.concat_tables([spilled, pa.Table.from_batches(parts, schema=spilled.schema)])

    def close(self) -> None:
        """Closes the spilled files."""
        for writer in filter(None, self._writers):
            # close() writes the end of the stream, for which there may be no disk space.
            with suppress(OSError):
                writer.close()


def _first_and_last_of_each_key(keys: pa.BinaryArray) -> tuple[Integers, Integers]:
    """Returns the indices of the first and last occurrence of each key, in the order of the first."""
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy()
    indices = np.arange(len(codes))
    first, last = np.empty(len(encoded.dictionary), np.int64), np.empty(len(encoded.dictionary), np.int64)
    # Where a code repeats, the last assignment wins.
    last[codes] = indices
    first[codes[::-1]] = indices[::-1]
    return first, last
