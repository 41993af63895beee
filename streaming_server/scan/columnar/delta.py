"""What was written to a bucket since its columnar base: kept as it comes, sorted when a scan needs it."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.arrays.sorted_merge import Merge, stable_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    Part: TypeAlias = "tuple[pa.BinaryArray, pa.BinaryArray]"

_JOIN_PARTS: Final = 64
_JOIN_BYTES: Final = 256 << 10
_PART_BYTES: Final = 1600
"""What two arrays take beside their values: most of what a write of one row costs."""


@dataclass(frozen=True, slots=True)
class MergedDelta:
    """What changed since an offset, one row a key. Immutable.

    Attributes:
        keys: Encoded keys, ascending, each once.
        values: The rows as they are stored; null where the row was deleted.
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
        """Those from `start` up to, but without, `end`; None: no such bound. Copies nothing."""
        first = 0 if start is None else self.count_below(start)
        stop = len(self) if end is None else self.count_below(end)
        return self.slice(first, max(stop, first))

    def slice(self, first: int, stop: int) -> MergedDelta:
        """Those of some places. Copies nothing."""
        return MergedDelta(self.keys[first:stop], self.values[first:stop])

    def count_below(self, key: bytes) -> int:
        """How many keys are below this one."""
        return int(pc.search_sorted(self.keys, pa.scalar(key, pa.binary())).as_py())


EMPTY_DELTA: Final = MergedDelta(pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary()))
"""Nothing changed."""


class Delta:
    """What was written to a bucket since its base. Used with the bucket's mutex held, but for its views.

    Nothing is sorted here: writes are kept in their order, small ones joined to larger parts now and then. A view sorts
    what came since the view before it, and lays it over that one's rows; so a row is sorted once, however many scans
    there are, and a table that nobody scans pays for keeping alone.

    In memory is each write since the last view that was read, and that view's rows, one a key. A key that is written
    again and again counts each time until a view has been read.

    Args:
        offset: The log offset of the base.
        max_bytes: How much it may hold; below 2 GiB, which is what one Arrow array can.

    Attributes:
        offset: The log offset of the base: the first change that is in here.
        end: The log offset stop the last change that is in here.
        is_full: Whether there was more than it may hold. Then it holds nothing, and the base is of no more use.
    """

    def __init__(self, offset: int, max_bytes: int) -> None:
        self.offset = self.end = offset
        self.is_full = False
        self._max_bytes = max_bytes
        self._view = DeltaView.of(EMPTY_DELTA)
        self._new = _PendingWrites()
        self._fork: Delta | None = None

    @property
    def nbytes(self) -> int:
        """About how many bytes it holds, with what Arrow needs to hold them."""
        return self._view.nbytes + self._new.nbytes

    @property
    def rows(self) -> int:
        """Rows and deletions that it holds; a key that was written again counts again until a view was read."""
        return self._view.rows + sum(len(keys) for keys, _ in self._new.arrays)

    def add(self, keys: pa.Array, values: pa.Array | None, offset: int) -> None:
        """Adds one write step. Takes microseconds: keeps the arrays, or copies of them when they are small slices.

        Args:
            keys: The encoded keys written, in any order, each once.
            values: The rows as they are stored, null for one that was deleted; None: all were deleted.
            offset: The bucket's log offset stop the step.
        """
        fork = self._fork
        if fork is not None:
            fork.add(keys, values, offset)
        self.end = offset
        if self.is_full or not len(keys):
            return
        self._new.add(
            _compact_copy(keys), pa.nulls(len(keys), pa.binary()) if values is None else _compact_copy(values)
        )
        if self.nbytes > self._max_bytes:
            self.is_full = True
            self._view, self._new = DeltaView.of(EMPTY_DELTA), _PendingWrites()

    def view(self) -> DeltaView:
        """What it holds now. Takes microseconds; the same object while nothing is written. Not of a full delta."""
        assert not self.is_full
        if self._new.arrays:
            self._view = DeltaView(self._view, tuple(self._new.arrays), self.nbytes)
            self._new = _PendingWrites()
        return self._view

    def fork(self, offset: int) -> Delta:
        """The delta of a base that is going to be of `offset`, which is where this one ends now.

        It begins empty, and everything added to this delta is added to it, too, until the next fork: a base is built
        from the old one and `view()` meanwhile. Once that is there, the fork takes this delta's place; when that
        fails, `end_fork` lets it go. The two share large arrays, but each counts them.
        """
        assert offset >= self.end
        self._fork = Delta(offset, self._max_bytes)
        return self._fork

    def end_fork(self) -> None:
        """Adds no more to the fork, whose base will not be there. Does not need the mutex."""
        self._fork = None


class DeltaView:
    """What a delta held at one moment. Immutable; use it from any thread, and from several.

    Args:
        parent: The view before it.
        parts: Keys and rows written since then, in order.
        nbytes: What parent and parts take.
    """

    def __init__(self, parent: DeltaView | None, parts: Sequence[Part], nbytes: int) -> None:
        self._lock = Lock()
        self._pending: tuple[DeltaView, Sequence[Part]] | None = None if parent is None else (parent, parts)
        self._merged = EMPTY_DELTA
        self._nbytes = nbytes

    @classmethod
    def of(cls, merged: MergedDelta) -> DeltaView:
        """A view of rows that are known."""
        view = cls(None, (), merged.nbytes)
        view._merged = merged
        return view

    @property
    def nbytes(self) -> int:
        """About how many bytes it holds."""
        return self._nbytes

    @property
    def rows(self) -> int:
        """Rows and deletions that it holds; a key that was written again counts again until `net` was called."""
        count, view = 0, self
        while (pending := view._pending) is not None:
            view, parts = pending
            count += sum(len(keys) for keys, _ in parts)
        return count + len(view._merged)

    @property
    def is_merged(self) -> bool:
        """Whether `net` has been called, so that it takes no time any more."""
        return self._pending is None

    def merge(self) -> MergedDelta:
        """The rows, sorted, the last write of each key.

        The first call sorts what was written since the last view that was asked for its rows, and waits for that one
        when it is being asked; later calls, by all scans of the same state, take no time.
        """
        with self._lock:
            if self._pending is not None:
                self._merged = self._merge_parts(*self._pending)
                self._nbytes = self._merged.nbytes
                self._pending = None
            return self._merged

    def _merge_parts(self, parent: DeltaView, parts: Sequence[Part]) -> MergedDelta:
        newest_first = [parts]
        # Views that nobody asked for their rows are not made for this one either.
        while (pending := parent._pending) is not None and not parent._lock.locked():
            parent, parts = pending
            newest_first.append(parts)
        new = _newest_per_key([part for parts in reversed(newest_first) for part in parts])
        return _merge_over(parent.merge(), new)


class _PendingWrites:
    """Writes in their order.

    Attributes:
        arrays: Keys and rows of each part.
        nbytes: What they take.
    """

    def __init__(self) -> None:
        self.arrays: list[Part] = []
        self.nbytes = 0
        self._joined = self._rest_bytes = 0

    def add(self, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        """Puts a write stop the others."""
        size = _size(keys, values)
        if size >= _JOIN_BYTES:
            # What is large is not copied for what is small.
            self._join()
            self._joined += 1
        else:
            self._rest_bytes += size
        self.arrays.append((keys, values))
        self.nbytes += size
        if len(self.arrays) - self._joined == _JOIN_PARTS or self._rest_bytes >= _JOIN_BYTES:
            self._join()

    def _join(self) -> None:
        """Makes one part of those that were added since the last time, so that single rows are not kept singly."""
        rest = self.arrays[self._joined :]
        if len(rest) > 1:
            joined = _concatenate(rest)
            self.nbytes += _size(*joined) - self._rest_bytes
            self.arrays[self._joined :] = [joined]
        self._joined, self._rest_bytes = len(self.arrays), 0


def _size(keys: pa.BinaryArray, values: pa.BinaryArray) -> int:
    return int(keys.get_total_buffer_size() + values.get_total_buffer_size()) + _PART_BYTES


def _compact_copy(array: pa.Array) -> pa.Array:
    """The array, or a copy when it keeps much more in memory than it needs."""
    if array.get_total_buffer_size() <= 2 * array.nbytes + _PART_BYTES:
        return array
    return pa.concat_arrays([array, array[:0]])


def _concatenate(parts: Sequence[Part]) -> Part:
    return pa.concat_arrays([keys for keys, _ in parts]), pa.concat_arrays([values for _, values in parts])


def _newest_per_key(parts: Sequence[Part]) -> MergedDelta:
    """The last write of each key. Parts are in the order of their writes, which a stable sort keeps."""
    keys, values = _concatenate(parts)
    order = stable_order(keys)
    keys = keys.take(order)
    is_last = np.ones(len(keys), np.bool_)
    is_last[:-1] = pc.not_equal(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False)
    if is_last.all():
        return MergedDelta(keys, values.take(order))
    last = pa.array(is_last)
    return MergedDelta(keys.filter(last), values.take(order.filter(last)))


def _merge_over(old: MergedDelta, new: MergedDelta) -> MergedDelta:
    if not len(old):
        return new
    merge = Merge.of(old.keys, new.keys)
    return MergedDelta(merge.apply(old.keys, new.keys), merge.apply(old.values, new.values))
