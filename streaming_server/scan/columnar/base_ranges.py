"""Reads a columnar base and its merged delta side by side, one row range at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.tables.expiry import WRITE_TIME
from streaming_server.arrays.arrow_buffers import var_offsets
from streaming_server.arrays.sorted_merge import Merge
from streaming_server.scan.columnar.delta import EMPTY_DELTA, MergedDelta

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from scankv.model.keys.key_range import KeyRange
    from streaming_server.storage.columnar.columnar_base import ColumnarBase

    Indices: TypeAlias = npt.NDArray[np.int64]

_MAX_DELTA_ROWS: Final = 8192
"""The most delta rows of a row range. They are decoded, and 32,768 of them would hold the event loop too long."""
_BLOCK_ROWS: Final = 4096
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of the base, and the delta rows that are merged into them.

    Attributes:
        rows: Rows of the base. The delta may replace or delete some of them.
        keys: Returns the encoded key of the base row at an index.
        all_keys: Returns the encoded keys of all base rows.
        write_times: Returns the times of their last write, if the base has them.
        block: Delta rows without deletions: those of this range, and of some ranges after it.
        first: Where the delta rows of this range start in `block`.
        stop: Where they end.
        indices: The merged rows in their order: indices into `rows`, and from `len(rows)` on into the delta rows. None:
            all `rows`.
        end: A key up to which the range reaches, for a range without rows.
        whole_batch: The number of the batch of the base that `rows` is. None: `rows` is not a complete batch.
        replaced: `Merge.replaced`, if the range has all rows of that merge.
    """

    rows: pa.RecordBatch
    keys: Callable[[int], bytes]
    all_keys: Callable[[], pa.BinaryArray]
    write_times: Callable[[], pa.TimestampArray]
    block: MergedDelta
    first: int
    stop: int
    indices: Indices | None
    end: bytes
    whole_batch: int | None = None
    replaced: Indices | None = None

    def __len__(self) -> int:
        return self.rows.num_rows if self.indices is None else len(self.indices)

    def with_indices(self, indices: Indices) -> RowRange:
        """Returns the same range with other merged rows."""
        return replace(self, indices=indices, whole_batch=None, replaced=None)

    def take(self, indices: Indices) -> RowRange:
        """Returns the range restricted to some of its merged rows."""
        return self.with_indices(indices if self.indices is None else self.indices[indices])

    def split(self, rows: int) -> tuple[RowRange, RowRange | None]:
        """Returns the range of the first rows, and that of the remaining rows (None: no rows remain)."""
        if self.indices is None or len(self) <= rows:
            return self, None
        return self.with_indices(self.indices[:rows]), self.with_indices(self.indices[rows:])

    def encoded_keys(self) -> pa.BinaryArray:
        """Returns the encoded keys of the merged rows. Raises DataLoss."""
        below = self.all_keys()
        if self.indices is None:
            return below
        above = self.block.keys.slice(self.first, self.stop - self.first)
        return Merge(self.rows.num_rows, self.indices).apply(below, above)

    def last_key(self) -> bytes:
        """Returns the encoded key of the last merged row."""
        if not len(self):
            return self.end
        below = self.rows.num_rows
        index = below - 1 if self.indices is None else int(self.indices[-1])
        return self.keys(index) if index < below else _key_at(self.block.keys, self.first + index - below)


@dataclass(frozen=True, slots=True)
class _DeltaBlock:
    """Consecutive delta rows, without the deletions.

    Attributes:
        first: Where the block starts in the delta.
        stop: Where it ends.
        rows: Its rows, without deletions.
        before: For each delta row of the block, and for its end, the number of `rows` before it.
    """

    first: int
    stop: int
    rows: MergedDelta
    before: Indices

    @classmethod
    def of(cls, delta: MergedDelta, first: int, stop: int) -> _DeltaBlock:
        part = delta.slice(first, stop)
        alive = part.values.is_valid()
        before = np.zeros(len(part) + 1, np.int64)
        np.cumsum(alive.to_numpy(zero_copy_only=False), out=before[1:])
        if part.values.null_count:
            part = MergedDelta(part.keys.filter(alive), part.values.filter(alive))
        return cls(first, stop, part, before)


class RowRanges:
    """Cuts a base and its merged delta into row ranges.

    Rows of the base are numbered as if they were one table. Those from `_low` up to `_high` are still to be read. The
    same holds for the rows of the delta.

    Args:
        base: The columnar base.
        delta: The merged delta.
        key_range: The keys to read.
        reverse: Whether to read in descending order.
        may_match: Whether a batch of the base may contain requested rows.
    """

    def __init__(
        self,
        base: ColumnarBase,
        delta: MergedDelta,
        key_range: KeyRange,
        reverse: bool,
        may_match: Callable[[int], bool],
    ) -> None:
        self._base = base
        self._reverse = reverse
        self._may_match = may_match
        self._batch: tuple[int, pa.RecordBatch] | None = None
        self._batch_keys: tuple[int, pa.BinaryArray] | None = None
        self._starts = [0, *accumulate(base.rows_in(number) for number in range(len(base)))]
        self._low = 0 if key_range.start is None else self._count_below(key_range.start)
        self._high = self._starts[-1] if key_range.end is None else self._count_below(key_range.end)
        self._delta = delta.between(key_range.start, key_range.end)
        if key_range.is_empty:
            self._high, self._delta = self._low, EMPTY_DELTA
        self._delta_low, self._delta_high = 0, len(self._delta)
        self._block = _DeltaBlock(0, 0, EMPTY_DELTA, np.zeros(1, np.int64))

    def next(self, max_rows: int, max_bytes: int) -> RowRange | None:
        """Returns the next row range, None at the end.

        It has at most `max_rows` rows of the base and as many of the delta (8,192 at most), and about `max_bytes` of
        either.
        """
        self._skip_batches()
        first, stop = self._next_base_rows(max_rows, max_bytes)
        delta_first, delta_stop = self._delta_beside(first, stop)
        if first == stop and delta_first == delta_stop:
            return None
        few_first, few_stop = self._fitting_delta(delta_first, delta_stop, min(max_rows, _MAX_DELTA_ROWS), max_bytes)
        if (few_first, few_stop) != (delta_first, delta_stop):
            delta_first, delta_stop = few_first, few_stop
            first, stop = self._base_before_delta(first, stop, delta_first, delta_stop)
        row_range = self._range_of(first, stop, delta_first, delta_stop)
        if self._reverse:
            self._high, self._delta_high = first, delta_first
        else:
            self._low, self._delta_low = stop, delta_stop
        return row_range

    def _skip_batches(self) -> None:
        """Skips batches of the base that cannot match. The delta rows between them are read as insertions."""
        while self._low < self._high:
            number = self._batch_of(self._high - 1 if self._reverse else self._low)
            if self._may_match(number):
                return
            if self._reverse:
                self._high = max(self._low, self._starts[number])
            else:
                self._low = min(self._high, self._starts[number + 1])

    def _next_base_rows(self, max_rows: int, max_bytes: int) -> tuple[int, int]:
        """Returns the bounds of the next rows of the base, all of one batch."""
        if self._low == self._high:
            return self._low, self._high
        number = self._batch_of(self._high - 1 if self._reverse else self._low)
        first, stop = max(self._low, self._starts[number]), min(self._high, self._starts[number + 1])
        count = min(stop - first, max_rows)
        if count == self._base.rows_in(number) and self._base.bytes_in(number) <= max_bytes:
            return first, stop
        # A batch has at most 2 MiB, unless it is one row. Repeat if the rows at this end are longer than average.
        while count > 1:
            size = self._rows(stop - count if self._reverse else first, count).nbytes
            if size <= max_bytes:
                break
            count = max(1, min(count - 1, count * max_bytes // size))
        return (stop - count, stop) if self._reverse else (first, first + count)

    def _delta_beside(self, first: int, stop: int) -> tuple[int, int]:
        """Returns the bounds of the next delta rows, up to the base row that follows the given base rows."""
        if self._delta_low == self._delta_high:
            return self._delta_low, self._delta_high
        if self._reverse:
            if first == self._low:
                return self._delta_low, self._delta_high
            # Exclude the key of that base row: a delta row with the same key replaces the base row.
            return self._delta.count_below(self._key(first - 1) + b"\0"), self._delta_high
        if stop == self._high:
            return self._delta_low, self._delta_high
        return self._delta_low, self._delta.count_below(self._key(stop))

    def _fitting_delta(self, first: int, stop: int, max_rows: int, max_bytes: int) -> tuple[int, int]:
        """Returns the bounds of as many of the given delta rows as one range may have, at least one."""
        if stop - first <= 1:
            return first, stop
        offsets = var_offsets(self._delta.values)
        if self._reverse:
            fitting = int(np.searchsorted(offsets[: stop + 1], offsets[stop] - max_bytes))
            return min(stop - 1, max(first, stop - max_rows, fitting)), stop
        fitting = int(np.searchsorted(offsets[: stop + 1], offsets[first] + max_bytes, side="right")) - 1
        return first, max(first + 1, min(stop, first + max_rows, fitting))

    def _base_before_delta(self, first: int, stop: int, delta_first: int, delta_stop: int) -> tuple[int, int]:
        """Returns the bounds of the given base rows, cut at the delta row that follows the given delta rows."""
        if first == stop:
            return first, stop
        if self._reverse:
            number = self._count_below(_key_at(self._delta.keys, delta_first - 1) + b"\0")
            return min(stop, max(first, number)), stop
        return first, max(first, min(stop, self._count_below(_key_at(self._delta.keys, delta_stop))))

    def _range_of(self, first: int, stop: int, delta_first: int, delta_stop: int) -> RowRange:
        count = stop - first
        rows = self._rows(first, count)

        def key(index: int) -> bytes:
            return self._key(first + index)

        all_keys, times = partial(self._keys, first, count), partial(self._write_times, first, count)
        delta = self._delta.slice(delta_first, delta_stop)
        end = self._end_key(first, stop, delta)
        if not len(delta):
            if self._reverse:
                return RowRange(
                    rows, key, all_keys, times, EMPTY_DELTA, 0, 0, np.arange(count - 1, -1, -1, dtype=np.int64), end
                )
            number = self._batch_of(first)
            is_whole = count == self._base.rows_in(number) and self._base.has_message(number)
            whole_batch = number if is_whole else None
            return RowRange(rows, key, all_keys, times, EMPTY_DELTA, 0, 0, None, end, whole_batch)
        kept = delta.values.is_valid().to_numpy(zero_copy_only=False) if delta.values.null_count else None
        merge = Merge.of(self._keys(first, count), delta.keys, kept)
        block = self._block_containing(delta_first, delta_stop)
        return RowRange(
            rows,
            key,
            all_keys,
            times,
            block.rows,
            int(block.before[delta_first - block.first]),
            int(block.before[delta_stop - block.first]),
            merge.places[::-1] if self._reverse else merge.places,
            end,
            replaced=None if self._reverse else merge.replaced,
        )

    def _block_containing(self, first: int, stop: int) -> _DeltaBlock:
        """Returns a block with the given delta rows, which are the next ones to be read."""
        if not self._block.first <= first <= stop <= self._block.stop:
            more = self._fitting_delta(self._delta_low, self._delta_high, _BLOCK_ROWS, _BLOCK_BYTES)
            self._block = _DeltaBlock.of(self._delta, min(first, more[0]), max(stop, more[1]))
        return self._block

    def _end_key(self, first: int, stop: int, delta: MergedDelta) -> bytes:
        """Returns a key up to which the bucket has been read, even if the merge leaves none of these rows."""
        if first < stop:
            return self._key(first if self._reverse else stop - 1)
        return _key_at(delta.keys, 0 if self._reverse else len(delta) - 1)

    def _batch_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1

    def _rows(self, first: int, count: int) -> pa.RecordBatch:
        if not count:
            return pa.RecordBatch.from_pylist([], schema=self._base.schema)
        number = self._batch_of(first)
        if self._batch is None or self._batch[0] != number:
            self._batch = number, self._base.batch(number)
        return self._batch[1].slice(first - self._starts[number], count)

    def _keys(self, first: int, count: int) -> pa.BinaryArray:
        if not count:
            return EMPTY_DELTA.keys
        number = self._batch_of(first)
        return self._keys_of(number).slice(first - self._starts[number], count)

    def _write_times(self, first: int, count: int) -> pa.TimestampArray:
        if not count:
            return pa.array([], WRITE_TIME)
        number = self._batch_of(first)
        return self._base.write_times(number).slice(first - self._starts[number], count)

    def _keys_of(self, number: int) -> pa.BinaryArray:
        """Returns the encoded keys of a batch. Consecutive calls mostly ask for the same batch."""
        if self._batch_keys is None or self._batch_keys[0] != number:
            self._batch_keys = number, self._base.keys(number)
        return self._batch_keys[1]

    def _key(self, number: int) -> bytes:
        """Returns the encoded key of a base row. For the first and last row of a batch, the keys need not be read."""
        batch = self._batch_of(number)
        if number == self._starts[batch]:
            return self._base.first_keys[batch]
        if number == self._starts[batch + 1] - 1:
            return self._base.last_keys[batch]
        return _key_at(self._keys_of(batch), number - self._starts[batch])

    def _count_below(self, key: bytes) -> int:
        """Returns the number of base rows with a lower key."""
        batch = bisect_left(self._base.last_keys, key)
        if batch == len(self._base) or key <= self._base.first_keys[batch]:
            return self._starts[batch]
        found = pc.search_sorted(self._keys_of(batch), pa.scalar(key, pa.binary()))
        return self._starts[batch] + int(found.as_py())


def _key_at(keys: pa.BinaryArray, index: int) -> bytes:
    key: bytes = keys[index].as_py()
    return key
