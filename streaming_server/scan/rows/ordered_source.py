"""The rows of a table in key order over all its buckets: a merge of cursors, in bounded memory."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from copy import copy
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from scankv.model.errors import DataLoss, ScanKvError
from streaming_server.arrays.sorted_merge import stable_order
from streaming_server.scan.chunk_source import Chunk, ScanPosition
from streaming_server.storage.cursors.cursor import SLICE_SECONDS
from streaming_server.storage.cursors.range_reader import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streaming_server.scan.chunk_source import Cursor, View
    from streaming_server.scan.rows.row_representations import RowRepresentation

_SINGLE_ROWS: Final = 128
_NO_KEYS: Final = pa.nulls(0, pa.binary())

T = TypeVar("T")
Parts: TypeAlias = "Sequence[tuple[int, pa.Array]]"
"""Rows by bucket."""


class OrderedSource:
    """A `ChunkSource` over the cursors of a view that returns the rows of all buckets in one order.

    It reads some rows of every bucket ahead. Rows up to the least of the last keys read can be returned; they are
    sorted by encoded key and decoded together. The first 128 rows are merged one by one instead, with each bucket one
    row ahead, so that a small limit reads no more rows than the limit plus one per bucket.

    Memory holds, of each bucket, at most one and a half times its share of a chunk in rows and bytes, unless a single
    row is longer. The share is a chunk divided by the number of unfinished buckets. All buckets together hold less than
    three chunks, in their representation.

    Args:
        representation: The representation in which the cursors return the rows.
        schema_id: The version of the table's schema that the batches have.
        view: The view that is read.
        cursors: A cursor for each bucket with rows to read, all of one instant and in one direction.
        position: Where the source resumes. None: at the beginning.
        on_error: Called with each error of a cursor and its bucket. Returns the error to raise.
        reverse: Whether the rows descend.
        singly: Whether to start row by row.
    """

    def __init__(
        self,
        representation: RowRepresentation,
        schema_id: int,
        view: View,
        cursors: Mapping[int, Cursor],
        position: ScanPosition | None,
        on_error: Callable[[int, ScanKvError], ScanKvError],
        *,
        reverse: bool,
        singly: bool = True,
    ) -> None:
        self.schema = representation.schema
        self.schema_id = schema_id
        self.view = view
        self._representation = representation
        self._position = position
        self._on_error = on_error
        self._reverse = reverse
        self._runs = [
            _RowRun(bucket, cursor, representation, reverse, on_error) for bucket, cursor in sorted(cursors.items())
        ]
        self._single_rows = _SINGLE_ROWS if singly else 0
        # The time that merging one by one may take at once. A chunk of these rows may be a part of the 128 rows.
        self._single_seconds = 5 * STEP_SECONDS
        self._aborted: ScanKvError | None = None
        # The state of `prefetch`: the buckets still to be read for the next chunk, and then the merged rows.
        self._due: _DueRuns | None = None
        self._merged: _MergedRows | None = None

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage so far."""
        return sum(run.rows_scanned for run in self._runs)

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Does a part of the work of `next_chunk`. See `ChunkSource`."""
        if self._aborted is not None:
            raise copy(self._aborted)
        if self._single_rows > 0:
            self._single_seconds = SLICE_SECONDS
            return True
        if self._merged is not None:
            return True
        if self._due is None:
            self._due = self._runs_to_read(max_rows, max_bytes)
        if self._due.runs:
            self._read_ahead(self._due, SLICE_SECONDS)
            return False
        self._due = None
        self._merged = self._merge_ahead(max_rows)
        return self._merged is None

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """Returns the next chunk, None at the proven end. Raises DataLoss, and the error given to `abort`."""
        if self._aborted is not None:
            raise copy(self._aborted)
        if self._single_rows > 0:
            merged = self._merge_singly(min(max_rows, self._single_rows), max_bytes)
        else:
            merged = self._merged or self._merge(max_rows, max_bytes)
            self._merged = None
        if merged is None:
            return None
        self._single_rows -= len(merged.rows)
        if merged.last_key is not None:
            self._position = ScanPosition(0, merged.last_key)
        return Chunk(0, self._with_bucket_in_errors(self._representation.decode, merged.rows, merged.parts))

    def position(self) -> ScanPosition | None:
        """Returns how far the chunks returned so far reach, in all buckets. None: not known yet."""
        return self._position

    def abort(self, error: ScanKvError) -> None:
        """Closes the cursors now. The next call of `next_chunk` raises `error`."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Closes the cursors and drops the rows read ahead."""
        self._due = self._merged = None
        for run in self._runs:
            run.close()

    def _merge_singly(self, max_rows: int, max_bytes: int) -> _MergedRows | None:
        """Merges the next rows, and reads each bucket only one row ahead. None: no bucket has more rows."""
        began = time.thread_time()
        for run in self._runs:
            while run.last_key is None and not run.ended:
                run.add_single()
                if time.thread_time() - began > min(self._single_seconds, STEP_SECONDS):
                    return _MergedRows(self._representation.empty, None, [])
        parts: list[tuple[int, pa.Array]] = []
        last_key = b""
        # merge() reads the next row of a run only after the previous one was taken and another one is needed.
        for (last_key, _), run in merge(*map(self._singly, self._runs), key=itemgetter(0), reverse=self._reverse):
            if not len(run.keys):
                # The bucket is known to have no rows up to this key, and nothing more.
                return _MergedRows(
                    pa.concat_arrays([self._representation.empty, *(rows for _, rows in parts)]), last_key, parts
                )
            parts.append((run.bucket, run.take(1)))
            max_bytes -= parts[-1][1].nbytes
            if len(parts) == max_rows or max_bytes <= 0 or time.thread_time() - began > self._single_seconds:
                break
        return _MergedRows(pa.concat_arrays([rows for _, rows in parts]), last_key, parts) if parts else None

    def _singly(self, run: _RowRun) -> Iterator[tuple[tuple[bytes, bool], _RowRun]]:
        """Yields the first key of a run. The consumer takes the row before it asks for the next key.

        If the run has no row, the key is how far the bucket was read. It sorts after the rows of other runs with the
        same key.
        """
        while len(run.keys) or not run.ended:
            if len(run.keys):
                yield (run.keys[0].as_py(), self._reverse), run
            else:
                run.add_single()
                if not len(run.keys) and not run.ended:
                    assert run.last_key is not None
                    yield (run.last_key, not self._reverse), run

    def _merge(self, max_rows: int, max_bytes: int) -> _MergedRows | None:
        """Reads ahead and merges the next rows. None: no row remains."""
        self._read_ahead(self._due or self._runs_to_read(max_rows, max_bytes), 2 * STEP_SECONDS)
        self._due = None
        return self._merge_ahead(max_rows)

    def _merge_ahead(self, max_rows: int) -> _MergedRows | None:
        """Merges the rows read ahead, up to the key that all unfinished buckets have reached. None: no row remains."""
        reached = [run.last_key for run in self._runs if not run.ended]
        ends = [key for key in reached if key is not None]
        if len(ends) < len(reached):
            return _MergedRows(self._representation.empty, None, [])
        cutoff = (max if self._reverse else min)(ends, default=None)
        ready = [(run, run.count_to(cutoff)) for run in self._runs]
        keys = pa.concat_arrays([run.keys[:count] for run, count in ready])
        if not len(keys):
            return None if cutoff is None else _MergedRows(self._representation.empty, cutoff, [])
        order = stable_order(keys)  # runs are sorted already, which the stable sort exploits
        order = (order[::-1] if self._reverse else order)[:max_rows]
        rows = pa.concat_arrays([run.rows[:count] for run, count in ready]).take(order)
        if cutoff is None or len(order) < len(keys):
            cutoff = keys[order[-1].as_py()].as_py()
        return _MergedRows(rows, cutoff, [(run.bucket, run.take(run.count_to(cutoff))) for run in self._runs])

    def _runs_to_read(self, max_rows: int, max_bytes: int) -> _DueRuns:
        """Returns the buckets that have at most half of their share of the next chunk ahead."""
        reading = [run for run in self._runs if not run.ended]
        share = max(1, len(reading))
        rows, size = max(1, max_rows // share), max(1, max_bytes // share)
        return _DueRuns(deque(run for run in reading if run.has_at_most(rows // 2, size // 2)), rows, size)

    def _read_ahead(self, due: _DueRuns, seconds: float) -> None:
        """Reads ahead of some buckets, for about `seconds` of processor time."""
        read: list[tuple[_RowRun, pa.Array]] = []
        began = time.thread_time()
        spent = 0.0
        # Another bucket would take about as long as those before it.
        while due.runs and (not read or spent + spent / len(read) < seconds):
            # A bucket with many deleted rows takes as long as a chunk. The other buckets then wait for the next chunk.
            if due.seconds_spent + spent > 2 * STEP_SECONDS:
                due.runs.clear()
                break
            run = due.runs.popleft()
            read.append((run, run.next_rows(due.rows, due.size)))
            spent = time.thread_time() - began
        due.seconds_spent += time.thread_time() - began
        parts = [(run.bucket, new) for run, new in read]
        # Compute the keys of all buckets together, because the step of a single bucket may be small.
        keys = (
            self._with_bucket_in_errors(self._representation.keys_of, pa.concat_arrays([new for _, new in read]), parts)
            if read
            else ()
        )
        index = 0
        for run, new in read:
            run.add(keys[index : index + len(new)], new)
            index += len(new)

    def _with_bucket_in_errors(self, read: Callable[[pa.Array], T], rows: pa.Array, parts: Parts) -> T:
        """Calls `read` with rows of several buckets. Raises DataLoss that names the damaged bucket."""
        try:
            return read(rows)
        except DataLoss:
            for bucket, part in parts:
                try:
                    read(part)
                except DataLoss as error:
                    raise self._on_error(bucket, error) from error
            raise


@dataclass(slots=True)
class _DueRuns:
    """The buckets of which more rows are read for the next chunk.

    Attributes:
        runs: The buckets that have not been read yet.
        rows, size: The most rows and bytes to read of each.
        seconds_spent: The processor time that reading has taken so far.
    """

    runs: deque[_RowRun]
    rows: int
    size: int
    seconds_spent: float = 0.0


class _MergedRows(NamedTuple):
    """Merged rows, the key up to which they are complete (None: not known yet), and the same rows by bucket."""

    rows: pa.Array
    last_key: bytes | None
    parts: Parts


class _RowRun:
    """The rows read ahead of one bucket, with their keys.

    Attributes:
        bucket: The number of the bucket.
        keys: The encoded keys, in the order of the scan.
        rows: The rows.
        last_key: The key up to which the bucket was read. None before that; meaningless once the bucket has ended.
        ended: Whether the bucket has no more rows than these.
    """

    def __init__(
        self,
        bucket: int,
        cursor: Cursor,
        representation: RowRepresentation,
        reverse: bool,
        on_error: Callable[[int, ScanKvError], ScanKvError],
    ) -> None:
        self.bucket = bucket
        self.keys, self.rows = _NO_KEYS, representation.empty
        self.last_key: bytes | None = None
        self.ended = False
        self._cursor = cursor
        self._representation = representation
        self._reverse = reverse
        self._on_error = on_error

    @property
    def rows_scanned(self) -> int:
        return self._cursor.rows_scanned

    def add_single(self) -> None:
        """Reads the next row, if one step finds it."""
        if len(row := self.next_rows(1, 1)):
            # For a single row, the cursor knows the key without decoding.
            self.add(pa.array([self.last_key], pa.binary()), row)

    def has_at_most(self, rows: int, size: int) -> bool:
        return not len(self.keys) or (len(self.keys) <= rows and self.rows.nbytes <= size)

    def next_rows(self, rows: int, size: int) -> pa.Array:
        """Reads the next rows, possibly none. Pass them to `add` when their keys are known. Raises DataLoss."""
        try:
            values = self._cursor.next_rows(rows, size)
            if values is None:
                self._cursor.close()
                self.ended = True
                return self._representation.empty
            last_key = self._cursor.last_key
        except ScanKvError as error:
            raise self._on_error(self.bucket, error) from error.__cause__
        assert last_key is not None
        self.last_key = last_key
        return self._representation.to_array(values)

    def add(self, keys: pa.Array, rows: pa.Array) -> None:
        """Appends rows."""
        self.keys = pa.concat_arrays([self.keys, keys])
        self.rows = pa.concat_arrays([self.rows, rows])

    def count_to(self, key: bytes | None) -> int:
        """Returns the number of rows up to and including a key; all rows for None."""
        if key is None or not len(self.keys):
            return len(self.keys)
        is_after = key.__gt__ if self._reverse else key.__lt__
        return bisect_left(range(len(self.keys)), True, key=lambda index: is_after(self.keys[index].as_py()))

    def take(self, count: int) -> pa.Array:
        """Removes and returns the first rows."""
        rows = self.rows[:count]
        self.keys, self.rows = self.keys[count:], self.rows[count:]
        return rows

    def close(self) -> None:
        self._cursor.close()
        self.keys, self.rows = _NO_KEYS, self._representation.empty
        self.ended = True
