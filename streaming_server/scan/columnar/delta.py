"""The delta of a bucket: the writes since its columnar base. Writes are kept in order and merged on demand."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.arrays.sorted_merge import Merge, stable_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scankv.model.keys.key_range import KeyRange

    Part: TypeAlias = "tuple[pa.BinaryArray, pa.BinaryArray]"

_MOST_BYTES: Final = 2**31 - 1
"""The most bytes of one Arrow array of keys or rows."""
_JOIN_PARTS: Final = 64
_JOIN_BYTES: Final = 256 << 10
_PART_BYTES: Final = 1600
"""The memory of two Arrow arrays in addition to their values, which is most of the memory of a one-row write."""


@dataclass(frozen=True, slots=True)
class MergedDelta:
    """A delta with one row per key, sorted by key. Immutable.

    Attributes:
        keys: Encoded keys, ascending and distinct.
        values: The stored rows. Null marks a deleted row.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and rows."""
        return int(self.keys.nbytes + self.values.nbytes)

    def between(self, start: bytes | None, end: bytes | None) -> MergedDelta:
        """Returns the rows from `start` up to, but excluding, `end`. None means unbounded. Copies nothing."""
        first = 0 if start is None else self.count_below(start)
        stop = len(self) if end is None else self.count_below(end)
        return self.slice(first, max(stop, first))

    def without(self, ranges: Iterable[KeyRange]) -> MergedDelta:
        """Returns the rows whose keys are in none of some ranges."""
        kept = np.ones(len(self), np.bool_)
        for keys in ranges:
            first = 0 if keys.start is None else self.count_below(keys.start)
            kept[first : len(self) if keys.end is None else self.count_below(keys.end)] = False
        if kept.all():
            return self
        mask = pa.array(kept)
        return MergedDelta(self.keys.filter(mask), self.values.filter(mask))

    def slice(self, first: int, stop: int) -> MergedDelta:
        """Returns the rows at the indices from `first` up to `stop`. Copies nothing."""
        return MergedDelta(self.keys[first:stop], self.values[first:stop])

    def count_below(self, key: bytes) -> int:
        """Returns the number of keys below `key`."""
        return int(pc.search_sorted(self.keys, pa.scalar(key, pa.binary())).as_py())


EMPTY_DELTA: Final = MergedDelta(pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary()))


class Delta:
    """The writes to a bucket since its columnar base was built. Hold the bucket's mutex to use it, not its views.

    The delta keeps writes in their order and occasionally joins small ones into larger parts. It never sorts. A view
    sorts the writes since the previous view and merges them with the rows of that view. So each row is sorted once,
    however many scans there are, and a table that is never scanned does not pay for sorting.

    In memory are the rows of the last merged view, one per key, and every write since. A key that is overwritten
    repeatedly counts once per write until a view is merged.

    Args:
        offset: The log offset of the base.

    Attributes:
        offset: The log offset of the base: the first change in the delta.
        end: The log offset after the last change in the delta.
        deleted_ranges: The ranges whose rows were deleted at once since the base. The delta has no rows for that: it
            belongs to the base without these ranges.
    """

    def __init__(self, offset: int) -> None:
        self.offset = self.end = offset
        self.deleted_ranges: tuple[KeyRange, ...] = ()
        self._view = DeltaView.of(EMPTY_DELTA)
        self._new = _PendingWrites()
        self._fork: Delta | None = None

    @property
    def nbytes(self) -> int:
        """Approximate bytes held, including Arrow's overhead and the fork."""
        return self._view.nbytes + self._new.nbytes + (0 if self._fork is None else self._fork.nbytes)

    @property
    def rows(self) -> int:
        """Rows and deletions held. A key that was overwritten counts once per write until a view is merged."""
        return self._view.rows + self._new.rows

    @property
    def unmerged_rows(self) -> int:
        """Rows and deletions that the next scan would have to sort and merge."""
        return self._view.unmerged_rows + self._new.rows

    @property
    def forked(self) -> Delta | None:
        """The fork to which writes are added, too."""
        return self._fork

    def add(self, keys: pa.Array, values: pa.Array | None, offset: int) -> None:
        """Adds one write step in microseconds. Keeps the arrays, or copies of small slices of large arrays.

        Args:
            keys: The encoded keys, distinct, in any order.
            values: The stored rows, null for a deleted row. None: all rows were deleted.
            offset: The log offset of the bucket after the step.

        Raises:
            OverflowError: The delta would no longer fit an Arrow array, or its fork would not.
        """
        fork = self._fork
        if fork is not None:
            fork.add(keys, values, offset)
        self.end = offset
        if not len(keys):
            return
        if self._view.nbytes + self._new.nbytes + keys.nbytes + (0 if values is None else values.nbytes) > _MOST_BYTES:
            raise OverflowError(f"the delta has {self.nbytes:,} bytes, and at most {_MOST_BYTES:,} fit")
        self._new.add(
            _compact_copy(keys), pa.nulls(len(keys), pa.binary()) if values is None else _compact_copy(values)
        )

    def delete_ranges(self, ranges: Sequence[KeyRange], offset: int) -> None:
        """Removes all rows in some ranges in microseconds, because the bucket has deleted its rows there.

        Args:
            ranges: The ranges.
            offset: The log offset of the bucket after the deletion.
        """
        if self._fork is not None:
            self._fork.delete_ranges(ranges, offset)
        self.end = offset
        self.deleted_ranges = (*self.deleted_ranges, *ranges)
        view = self.view()
        self._view = DeltaView(view, (), view.nbytes, without=ranges)

    def view(self) -> DeltaView:
        """Returns a view of the current delta. Takes microseconds.

        Returns the same object until something is written.
        """
        if self._new.arrays:
            self._view = DeltaView(self._view, tuple(self._new.arrays), self._view.nbytes + self._new.nbytes)
            self._new = _PendingWrites()
        return self._view

    @property
    def latest_view(self) -> DeltaView | None:
        """The view that `view` would return. None if it would create one."""
        return None if self._new.arrays else self._view

    def fork(self, offset: int) -> Delta:
        """Starts the delta of a new base at `offset`, where this delta ends now.

        The fork starts empty. Until the next fork, everything added to this delta is added to the fork as well, while
        the new base is built from the old base and `view()`. When the new base is ready, the fork replaces this delta.
        If the build fails, call `end_fork`. The two deltas share large arrays, but each counts them.
        """
        assert offset >= self.end
        self._fork = Delta(offset)
        return self._fork

    def end_fork(self) -> None:
        """Stops adding to the fork, because its base was not built. Does not need the mutex."""
        self._fork = None


class DeltaView:
    """A delta at one instant. Immutable and thread-safe.

    Args:
        parent: The previous view.
        parts: Keys and rows written since the previous view, in order.
        nbytes: Bytes of parent and parts.
        without: The ranges whose rows in the previous view were deleted before these writes.
    """

    def __init__(
        self, parent: DeltaView | None, parts: Sequence[Part], nbytes: int, without: Sequence[KeyRange] = ()
    ) -> None:
        self._lock = Lock()
        self._without = without
        self._pending: tuple[DeltaView, Sequence[Part]] | None = None if parent is None else (parent, parts)
        self._merged = EMPTY_DELTA
        self._nbytes = nbytes

    @classmethod
    def of(cls, merged: MergedDelta) -> DeltaView:
        """Creates a view of rows that are merged already."""
        view = cls(None, (), merged.nbytes)
        view._merged = merged
        return view

    @property
    def nbytes(self) -> int:
        """Approximate bytes held."""
        return self._nbytes

    @property
    def rows(self) -> int:
        """Rows and deletions held. A key that was overwritten counts once per write until `merge` is called."""
        view = self
        while (pending := view._pending) is not None:
            view = pending[0]
        return self.unmerged_rows + len(view._merged)

    @property
    def unmerged_rows(self) -> int:
        """Rows and deletions that `merge` has to sort and merge."""
        count, view = 0, self
        while (pending := view._pending) is not None:
            view, parts = pending
            count += sum(len(keys) for keys, _ in parts)
        return count

    @property
    def is_merged(self) -> bool:
        """Whether `merge` has been called and returns immediately."""
        return self._pending is None

    def merge(self) -> MergedDelta:
        """Returns the last write of each key, sorted.

        The first call sorts what was written since the last merged view, and waits if another thread is merging that
        view. Later calls, by all scans of the same state, return immediately.
        """
        with self._lock:
            if self._pending is not None:
                self._merged = self._merge_parts(*self._pending)
                self._nbytes = self._merged.nbytes
                self._pending = None
            return self._merged

    def _merge_parts(self, parent: DeltaView, parts: Sequence[Part]) -> MergedDelta:
        newest_first = [(self._without, parts)]
        # Skip intermediate views that were never merged, because no scan needs their rows.
        while (pending := parent._pending) is not None and not parent._lock.locked():
            newest_first.append((parent._without, pending[1]))
            parent = pending[0]
        merged = parent.merge()
        new: list[Part] = []
        for without, parts in reversed(newest_first):
            if without:
                merged, new = _merge_over(merged, new).without(without), []
            new += parts
        return _merge_over(merged, new)


class _PendingWrites:
    """Writes in their order.

    Attributes:
        arrays: Keys and rows of each part.
        rows: Rows and deletions of all parts.
        nbytes: Bytes of all parts.
    """

    def __init__(self) -> None:
        self.arrays: list[Part] = []
        self.rows = self.nbytes = 0
        self._joined = self._rest_bytes = 0

    def add(self, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        size = _size(keys, values)
        if size >= _JOIN_BYTES:
            # Later joins do not include this part: they would copy a large part for the sake of small ones.
            self._join()
            self._joined += 1
        else:
            self._rest_bytes += size
        self.arrays.append((keys, values))
        self.rows += len(keys)
        self.nbytes += size
        if len(self.arrays) - self._joined == _JOIN_PARTS or self._rest_bytes >= _JOIN_BYTES:
            self._join()

    def _join(self) -> None:
        """Joins the parts added since the last join, so that single rows do not keep an array each."""
        rest = self.arrays[self._joined :]
        if len(rest) > 1:
            joined = _concatenate(rest)
            self.nbytes += _size(*joined) - self._rest_bytes
            self.arrays[self._joined :] = [joined]
        self._joined, self._rest_bytes = len(self.arrays), 0


def _size(keys: pa.BinaryArray, values: pa.BinaryArray) -> int:
    return int(keys.get_total_buffer_size() + values.get_total_buffer_size()) + _PART_BYTES


def _compact_copy(array: pa.Array) -> pa.Array:
    """Returns the array, or a copy if the array keeps much more memory alive than it needs."""
    if array.get_total_buffer_size() <= 2 * array.nbytes + _PART_BYTES:
        return array
    return pa.concat_arrays([array, array[:0]])


def _concatenate(parts: Sequence[Part]) -> Part:
    return pa.concat_arrays([keys for keys, _ in parts]), pa.concat_arrays([values for _, values in parts])


def _newest_per_key(parts: Sequence[Part]) -> MergedDelta:
    """Returns the last write of each key. `parts` are in write order, which the stable sort keeps."""
    keys, values = _concatenate(parts)
    order = stable_order(keys)
    keys = keys.take(order)
    is_last = np.ones(len(keys), np.bool_)
    is_last[:-1] = pc.not_equal(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False)
    if is_last.all():
        return MergedDelta(keys, values.take(order))
    last = pa.array(is_last)
    return MergedDelta(keys.filter(last), values.take(order.filter(last)))


def _merge_over(old: MergedDelta, parts: Sequence[Part]) -> MergedDelta:
    """Returns old rows with the writes since, in write order."""
    if not parts:
        return old
    new = _newest_per_key(parts)
    if not len(old):
        return new
    merge = Merge.of(old.keys, new.keys)
    return MergedDelta(merge.apply(old.keys, new.keys), merge.apply(old.values, new.values))
