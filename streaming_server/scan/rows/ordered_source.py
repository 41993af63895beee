"""The rows of a table in the order of their keys over all its buckets: a merge of cursors, in bounded memory."""

from __future__ import annotations

import time
from bisect import bisect_left
from copy import copy
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from scankv.model.errors import DataLoss, ScanKvError
from streaming_server.arrays.sorted_merge import stable_order
from streaming_server.scan.chunk_source import Chunk, Position
from streaming_server.storage.cursors.range_reader import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streaming_server.scan.chunk_source import Cursor, View
    from streaming_server.scan.rows.row_representations import OrderedForm

_SINGLE_ROWS: Final = 128
_NO_KEYS: Final = pa.nulls(0, pa.binary())

T = TypeVar("T")
Parts: TypeAlias = "Sequence[tuple[int, pa.Array]]"
"""Rows by bucket."""


class OrderedSource:
    """A `ChunkSource` over the cursors of a view that gives the rows of all buckets in one order.

    Every bucket is read some rows ahead. What is not behind the last row read of any of them can be given: those rows
    are sorted by their encoded keys, and decoded at once. The first 128 rows are merged one by one instead, each bucket
    one row ahead, so that a small limit reads no more rows than itself and the buckets.

    In memory are, of each bucket, at most one and a half times its share of a chunk in rows and bytes, but for a single
    longer row: the share is a chunk divided by the buckets that have not ended. All together are less than three
    chunks, in their form.

    Args:
        form: In which the rows are held, which is that in which the cursors give them.
        schema_id: The version of the table's schema that the batches have.
        view: What is read.
        cursors: A cursor for each bucket that has rows to read, all of one instant and in one direction.
        position: Where the source goes on. None at the beginning.
        on_error: Told of every error a cursor raises, with its bucket; gives the error to raise.
        reverse: Whether the rows descend.
        singly: Whether to begin row by row.
    """

    def __init__(
        self,
        form: OrderedForm,
        schema_id: int,
        view: View,
        cursors: Mapping[int, Cursor],
        position: Position | None,
        on_error: Callable[[int, ScanKvError], ScanKvError],
        *,
        reverse: bool,
        singly: bool = True,
    ) -> None:
        self.schema = form.schema
        self.schema_id = schema_id
        self.view = view
        self._form = form
        self._position = position
        self._on_error = on_error
        self._reverse = reverse
        self._runs = [_Run(bucket, cursor, form, reverse, on_error) for bucket, cursor in sorted(cursors.items())]
        self._single_rows = _SINGLE_ROWS if singly else 0
        self._aborted: ScanKvError | None = None

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return sum(run.rows_scanned for run in self._runs)

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """The next chunk. Raises DataLoss for damage, and the error given to `abort`."""
        if self._aborted is not None:
            raise copy(self._aborted)
        if self._single_rows > 0:
            merged = self._merge_singly(min(max_rows, self._single_rows), max_bytes)
        else:
            merged = self._merge(max_rows, max_bytes)
        if merged is None:
            return None
        self._single_rows -= len(merged.rows)
        if merged.last_key is not None:
            self._position = Position(0, merged.last_key)
        return Chunk(0, self._told_where(self._form.decode, merged.rows, merged.parts))

    def position(self) -> Position | None:
        """How far the chunks given so far reach, in all buckets."""
        return self._position

    def abort(self, error: ScanKvError) -> None:
        """Frees the cursors now; whoever asks for the next chunk gets the error."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Frees the cursors, and what was read ahead."""
        for run in self._runs:
            run.close()

    def _merge_singly(self, max_rows: int, max_bytes: int) -> _Merged | None:
        """The next rows, with no bucket read further than one row."""
        began = time.thread_time()
        for run in self._runs:
            while run.last_key is None and not run.ended:
                run.add_single()
                if time.thread_time() - began > STEP_SECONDS:
                    return _Merged(self._form.nothing, None, [])
        parts: list[tuple[int, pa.Array]] = []
        last_key = b""
        # It asks a run for its next row only when the one before was taken and another one is wanted.
        for (last_key, _), run in merge(*map(self._singly, self._runs), key=itemgetter(0), reverse=self._reverse):
            if not len(run.keys):
                # Of this bucket it is only known that there are no rows up to here.
                return _Merged(pa.concat_arrays([self._form.nothing, *(rows for _, rows in parts)]), last_key, parts)
            parts.append((run.bucket, run.take(1)))
            max_bytes -= parts[-1][1].nbytes
            if len(parts) == max_rows or max_bytes <= 0 or time.thread_time() - began > 5 * STEP_SECONDS:
                break
        return _Merged(pa.concat_arrays([rows for _, rows in parts]), last_key, parts) if parts else None

    def _singly(self, run: _Run) -> Iterator[tuple[tuple[bytes, bool], _Run]]:
        """The first key of a run, each time anew: whoever gets it takes its row before asking again.

        Where it gives no row, the key is how far the bucket was read, behind the rows of others with the same key.
        """
        while len(run.keys) or not run.ended:
            if len(run.keys):
                yield (run.keys[0].as_py(), self._reverse), run
            else:
                run.add_single()
                if not len(run.keys) and not run.ended:
                    assert run.last_key is not None
                    yield (run.last_key, not self._reverse), run

    def _merge(self, max_rows: int, max_bytes: int) -> _Merged | None:
        """The next rows: those that are not behind the last row read of a bucket that may have more."""
        reading = [run for run in self._runs if not run.ended]
        if reading:
            self._read_ahead(reading, max(1, max_rows // len(reading)), max(1, max_bytes // len(reading)))
        reached = [run.last_key for run in self._runs if not run.ended]
        ends = [key for key in reached if key is not None]
        if len(ends) < len(reached):
            return _Merged(self._form.nothing, None, [])
        cutoff = (max if self._reverse else min)(ends, default=None)
        ready = [(run, run.count_to(cutoff)) for run in self._runs]
        keys = pa.concat_arrays([run.keys[:count] for run, count in ready])
        if not len(keys):
            return None if cutoff is None else _Merged(self._form.nothing, cutoff, [])
        order = stable_order(keys)  # of runs, each in order, most integers take a fraction of what others do
        order = (order[::-1] if self._reverse else order)[:max_rows]
        rows = pa.concat_arrays([run.rows[:count] for run, count in ready]).take(order)
        if cutoff is None or len(order) < len(keys):
            cutoff = keys[order[-1].as_py()].as_py()
        return _Merged(rows, cutoff, [(run.bucket, run.take(run.count_to(cutoff))) for run in self._runs])

    def _read_ahead(self, runs: Sequence[_Run], rows: int, size: int) -> None:
        """Reads at most so many rows, and bytes, of each bucket of which no more than half of either is there."""
        read: list[tuple[_Run, pa.Array]] = []
        began = time.thread_time()
        for run in runs:
            # Where many rows were deleted, a bucket takes as long as a chunk: then the others come next time.
            if time.thread_time() - began > 2 * STEP_SECONDS:
                break
            if run.has_at_most(rows // 2, size // 2):
                read.append((run, run.next_rows(rows, size)))
        parts = [(run.bucket, new) for run, new in read]
        # For all of them at once: a step of one bucket may be small.
        keys = self._told_where(self._form.keys_of, pa.concat_arrays([new for _, new in read]), parts) if read else ()
        place = 0
        for run, new in read:
            run.add(keys[place : place + len(new)], new)
            place += len(new)

    def _told_where(self, read: Callable[[pa.Array], T], rows: pa.Array, parts: Parts) -> T:
        """Reads rows of several buckets. Raises DataLoss, with the bucket that has the damage."""
        try:
            return read(rows)
        except DataLoss:
            for bucket, part in parts:
                try:
                    read(part)
                except DataLoss as error:
                    raise self._on_error(bucket, error) from error
            raise


class _Merged(NamedTuple):
    """Rows in their order, the key up to which that is all, and the same rows by bucket; None: not known yet."""

    rows: pa.Array
    last_key: bytes | None
    parts: Parts


class _Run:
    """What was read ahead of one bucket, with its keys.

    Attributes:
        bucket: Its number.
        keys: The encoded keys, in the order of the scan.
        rows: The rows.
        last_key: The key up to which the bucket was read; None before that, not meaningful once it has ended.
        ended: Whether there are no more rows than these.
    """

    def __init__(
        self,
        bucket: int,
        cursor: Cursor,
        form: OrderedForm,
        reverse: bool,
        on_error: Callable[[int, ScanKvError], ScanKvError],
    ) -> None:
        self.bucket = bucket
        self.keys, self.rows = _NO_KEYS, form.nothing
        self.last_key: bytes | None = None
        self.ended = False
        self._cursor = cursor
        self._form = form
        self._reverse = reverse
        self._on_error = on_error

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return self._cursor.rows_scanned

    def add_single(self) -> None:
        """Reads the next row, if it is found in one step."""
        if len(row := self.next_rows(1, 1)):
            # Of a single row the cursor tells the key in a fraction of the time.
            self.add(pa.array([self.last_key], pa.binary()), row)

    def has_at_most(self, rows: int, size: int) -> bool:
        """Whether there are no more rows and bytes than these."""
        return not len(self.keys) or (len(self.keys) <= rows and self.rows.nbytes <= size)

    def next_rows(self, rows: int, size: int) -> pa.Array:
        """Reads the next rows, which `add` takes when their keys are known; perhaps none. Raises DataLoss."""
        try:
            values = self._cursor.next_rows(rows, size)
            if values is None:
                self._cursor.close()
                self.ended = True
                return self._form.nothing
            last_key = self._cursor.last_key
        except ScanKvError as error:
            raise self._on_error(self.bucket, error) from error.__cause__
        assert last_key is not None
        self.last_key = last_key
        return self._form.held(values)

    def add(self, keys: pa.Array, rows: pa.Array) -> None:
        """Puts rows behind those that are there."""
        self.keys = pa.concat_arrays([self.keys, keys])
        self.rows = pa.concat_arrays([self.rows, rows])

    def count_to(self, key: bytes | None) -> int:
        """How many of the rows are not behind a key; all of them for None."""
        if key is None or not len(self.keys):
            return len(self.keys)
        is_behind = key.__gt__ if self._reverse else key.__lt__
        return bisect_left(range(len(self.keys)), True, key=lambda place: is_behind(self.keys[place].as_py()))

    def take(self, count: int) -> pa.Array:
        """Takes the first rows out."""
        rows = self.rows[:count]
        self.keys, self.rows = self.keys[count:], self.rows[count:]
        return rows

    def close(self) -> None:
        """Frees the cursor and the rows."""
        self._cursor.close()
        self.keys, self.rows = _NO_KEYS, self._form.nothing
        self.ended = True
