"""One net change for each key of a stretch of a changelog: what a reader that is far behind asks for.

The stretch is read once. Of each key only the first and the last change matter, so each step keeps only those, and
shares them out by the key to partitions, which lie on disk where they do not fit into memory; then each partition is
small enough to be grouped at once. The same stretch in as many partitions gives the same changes in the same order, so
that a stream can go on in the middle of it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from streaming_server.scan.changes.log_token import NetPosition
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.records import LogRecord

    Kinds = np.ndarray[tuple[int], np.dtype[np.uint8]]
    Places = np.ndarray[tuple[int], np.dtype[np.int64]]

T = TypeVar("T")

STEP_CHANGES: Final = 32_768
STEP_BYTES: Final = 8 << 20
_MAX_PARTITIONS: Final = 256
# Grouping a partition takes several times its size.
_SHARE: Final = 8
# With a seed: the keys of one bucket are alike in the hash that chose it.
_hash: Final = partial(xxh3_64_intdigest, seed=1)
_SPILLED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class NetRows:
    """Some net changes, in order: the kind, offset and commit time of each, and its row."""

    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    offsets: Places
    commit_micros: Places
    rows: pa.RecordBatch

    def slice(self, start: int, count: int) -> NetRows:
        """Some of them."""
        stop = start + count
        return NetRows(
            self.kinds[start:stop],
            self.offsets[start:stop],
            self.commit_micros[start:stop],
            self.rows.slice(start, count),
        )


class Stretch(Protocol):
    """Reads a stretch of a changelog."""

    async def read(self, start: int, end: int) -> Sequence[LogRecord]:
        """The next changes from an offset on and before another, some ten thousand; keeps the event loop free."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs work in a thread, whose end is waited for, also by a caller that is cancelled."""


class NetChanges:
    """The net changes of one bucket from an offset up to another.

    Args:
        stretch: Reads the changes.
        start: The offset of the first one.
        position: Where it ends, and how many were given before. `partitions` 0: as many as it takes.
        keys_of: The encoded primary keys of rows.
        widened: Rows of an older schema with the columns of the newest one that occurs.
        encoded: Rows as bytes, equal for equal rows.
        directory: Where partitions are put that do not fit.
        memory_bytes: How much memory it takes, about.
        before_images: Whether there are rows before the changes. Otherwise the last change of each key is the net one.
    """

    def __init__(
        self,
        stretch: Stretch,
        start: int,
        position: NetPosition,
        *,
        keys_of: Callable[[pa.RecordBatch], pa.Array],
        widened: Callable[[pa.RecordBatch], pa.RecordBatch],
        encoded: Callable[[pa.RecordBatch], pa.Array],
        directory: Path,
        memory_bytes: int,
        before_images: bool = True,
    ) -> None:
        self._before_images = before_images
        self.position = position
        self.changes_read = 0
        self._stretch = stretch
        self._start = start
        self._keys_of = keys_of
        self._widened = widened
        self._encoded = encoded
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._ready: deque[NetRows] = deque()
        self._skip = position.given
        self._wanted = asyncio.Event()
        self._done = False

    @property
    def is_done(self) -> bool:
        """Whether all net changes were given."""
        return self._done and not self._ready

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._ready)

    def take(self, max_rows: int) -> NetRows:
        """The next net changes; a row before and the row after it stay together."""
        rows = self._ready.popleft()
        if len(rows.kinds) > max_rows:
            count = max_rows - int(max_rows > 1 and rows.kinds[max_rows - 1] == RowKind.UPDATE_BEFORE)
            self._ready.appendleft(rows.slice(count, len(rows.kinds) - count))
            rows = rows.slice(0, count)
        position = self.position
        self.position = NetPosition(position.end, position.partitions, position.given + len(rows.kinds))
        self._wanted.set()
        return rows

    async def run(self, more: Callable[[], None]) -> None:
        """Reads the stretch and makes its net changes, a partition ahead of what is taken; calls `more` for each.

        Raises:
            DiskFull: There is no space for what does not fit into memory.
            ScanKvError: What reading the changes raises.
        """
        with translate_disk_errors(self._directory):
            await self._run(more)

    async def _run(self, more: Callable[[], None]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="net-", dir=self._directory))
        partitions: _Partitions | None = None
        try:
            async for batch in self._reduced():
                if partitions is None:
                    partitions = _Partitions(directory, self._partitions_for(batch), self._memory_bytes // 2)
                await self._stretch.run(partitions.add, batch)
            for number in range(self.position.partitions if partitions is not None else 0):
                assert partitions is not None
                rows = await self._stretch.run(self._net, partitions, number)
                if rows is not None:
                    self._ready.append(rows)
                    more()
                    while self._ready:
                        self._wanted.clear()
                        await self._wanted.wait()
            self._done = True
            more()
        finally:
            if partitions is not None:
                partitions.close()
            shutil.rmtree(directory, ignore_errors=True)

    async def _reduced(self) -> AsyncIterator[pa.RecordBatch]:
        place, end = self._start, self.position.end
        while count_of(place) < count_of(end):
            records = await self._stretch.read(place, end)
            last = records[-1]
            place = last.offset + len(last.changes)
            self.changes_read = count_of(place) - count_of(self._start)
            yield await self._stretch.run(self._first_and_last, records)

    def _first_and_last(self, records: Sequence[LogRecord]) -> pa.RecordBatch:
        """Of each key in some records the first and the last change, with its place."""
        rows = pa.concat_batches([self._widened(record.changes.rows) for record in records])
        kinds = np.concatenate([record.changes.kinds for record in records])
        offsets = np.concatenate([record.offset + np.arange(len(record.changes)) for record in records])
        times = np.concatenate([record.commit_micros for record in records])
        keys = self._keys_of(rows)
        first, last = _ends_of_each(keys)
        kept = pa.array(np.union1d(first, last) if self._before_images else np.sort(last))
        columns = [
            keys,
            pa.array(kinds),
            pa.array(offsets),
            pa.array(times),
            pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema)),
        ]
        return pa.RecordBatch.from_arrays(columns, ["key", "kind", "offset", "time", "row"]).take(kept)

    def _partitions_for(self, first: pa.RecordBatch) -> int:
        """How many partitions it takes, by what the first step is like; noted, for whoever goes on."""
        if not self.position.partitions:
            changes = count_of(self.position.end) - count_of(self._start)
            size = first.nbytes * changes // max(self.changes_read, 1)
            partitions = min(max(1, -(-size * _SHARE // self._memory_bytes)), _MAX_PARTITIONS)
            self.position = NetPosition(self.position.end, partitions, self.position.given)
        return self.position.partitions

    def _net(self, partitions: _Partitions, number: int) -> NetRows | None:
        """The net changes of a partition in the order of the last change of each key; None for none that are new."""
        changes = partitions.read(number)
        if changes is None:
            return None
        batch = changes.combine_chunks().to_batches()[0]
        rows = pa.RecordBatch.from_struct_array(batch.column("row"))
        kinds = batch.column("kind").to_numpy()
        first, last = _ends_of_each(batch.column("key"))
        order = np.argsort(last)  # the order of the log, however it was read
        first, last = first[order], last[order]
        net, places, ends = kinds[last], last, last
        if self._before_images:
            net, places, ends = self._changes_between(rows, kinds, first, last)
        found = NetRows(
            net,
            batch.column("offset").to_numpy()[ends],
            batch.column("time").to_numpy()[ends],
            rows.take(pa.array(places)),
        )
        skipped = min(self._skip, len(net))
        self._skip -= skipped
        return found.slice(skipped, len(net) - skipped) if skipped < len(net) else None

    def _changes_between(
        self, rows: pa.RecordBatch, kinds: Kinds, first: Places, last: Places
    ) -> tuple[Kinds, Places, Places]:
        """The net changes of keys by the first and last change of each: their kinds, rows, and the last changes."""
        was = (kinds[first] == RowKind.UPDATE_BEFORE) | (kinds[first] == RowKind.DELETE)
        is_ = (kinds[last] == RowKind.UPDATE_AFTER) | (kinds[last] == RowKind.INSERT)
        same = was & is_
        encoded = self._encoded(rows)
        same[same] = pc.equal(encoded.take(pa.array(first[same])), encoded.take(pa.array(last[same]))).to_numpy(
            zero_copy_only=False
        )
        was &= ~same
        is_ &= ~same
        count = was.astype(np.int64) + is_
        starts = np.cumsum(count) - count
        places, net = np.empty(int(count.sum()), np.int64), np.empty(int(count.sum()), np.uint8)
        places[starts[was]], net[starts[was]] = first[was], np.where(is_[was], RowKind.UPDATE_BEFORE, RowKind.DELETE)
        after = starts[is_] + was[is_]
        places[after], net[after] = last[is_], np.where(was[is_], RowKind.UPDATE_AFTER, RowKind.INSERT)
        return net, places, np.repeat(last, count)


class NetReader(Protocol):
    """Makes the net changes of stretches of a table's changelogs."""

    changes: int
    """How far behind a bucket must be."""

    def net_changes(self, bucket: int, start: int, position: NetPosition) -> NetChanges:
        """Those of one bucket from an offset on."""

    @property
    def definition(self) -> TableDefinition:
        """The table whose current columns their rows have."""


class _Partitions:
    """Changes shared out by their keys; in memory as long as they fit, else in files."""

    def __init__(self, directory: Path, count: int, memory_bytes: int) -> None:
        self._directory = directory
        self._count = count
        self._memory_bytes = memory_bytes
        self._kept: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        self._kept_bytes = 0
        self._writers: list[pa.ipc.RecordBatchStreamWriter | None] = [None] * count

    def add(self, batch: pa.RecordBatch) -> None:
        """Shares changes out."""
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
                writer = self._writers[number] = pa.ipc.new_stream(str(path), parts[0].schema, options=_SPILLED)
            writer.write_batch(pa.concat_batches(parts))
            parts.clear()
        self._kept_bytes = 0

    def read(self, number: int) -> pa.Table | None:
        """The changes of a partition, in the order of the log; None for none."""
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
        """Closes the files, which are of no more use."""
        for writer in filter(None, self._writers):
            # It writes the end of the stream, for which there may be no space.
            with suppress(OSError):
                writer.close()


def _ends_of_each(keys: pa.BinaryArray) -> tuple[Places, Places]:
    """For each key the places of its first and of its last occurrence, in the order of the first."""
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy()
    places = np.arange(len(codes))
    first, last = np.empty(len(encoded.dictionary), np.int64), np.empty(len(encoded.dictionary), np.int64)
    # Where a code repeats, the last assignment stays.
    last[codes] = places
    first[codes[::-1]] = places[::-1]
    return first, last
