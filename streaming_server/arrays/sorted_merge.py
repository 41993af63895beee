"""Rows laid over others by sorted key: where each row of the result comes from, and its columns. No loop over rows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.arrays.arrow_buffers import fixed_width, var_offsets

if TYPE_CHECKING:
    import numpy.typing as npt

    Places: TypeAlias = npt.NDArray[np.int64]
    Mask: TypeAlias = npt.NDArray[np.bool_]

_FEW_RUNS: Final = 100
_NUMBER_BYTES: Final = (1, 2, 4, 8)
_BITS: Final = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def stable_order(keys: pa.BinaryArray) -> pa.Array:
    """The order of keys by their bytes; of equal ones the order in which they are."""
    numbers = _numbers(keys)
    if numbers is not None:  # 2.5 times faster
        return pa.array(np.argsort(numbers, kind="stable"))
    return pc.array_sort_indices(keys)


class Merge:
    """Rows below, rows above, and what becomes of them. Immutable.

    Attributes:
        below: How many rows there are below.
        places: The result: places below, from 0, and places above, from `below` on.
        replaced: Where the result is the rows below but for some that are replaced: the places of these, of which those
            above are the new rows, in the same order. None: it is something else.
    """

    def __init__(self, below: int, places: Places, replaced: Places | None = None) -> None:
        self.below = below
        self.places = places
        self.replaced = replaced

    @classmethod
    def of(cls, keys: pa.BinaryArray, over: pa.BinaryArray, kept: Mask | None = None) -> Merge:
        """Lays rows over others, in the order of the keys. Takes a few milliseconds for 100,000 keys.

        Args:
            keys: The keys of the rows below, ascending, each once.
            over: The keys of the rows above, likewise: a row replaces the one below with the same key.
            kept: Which of those above are rows; the others only take away what is below, and have no place. None: all.
        """
        count = len(keys)
        places = np.arange(count, dtype=np.int64)
        at, same = _found(keys, over)
        above = np.arange(count, count + len(over), dtype=np.int64)
        if kept is not None:
            places[at[same & ~kept]] = -1
            above = above[: int(kept.sum())]
            at, same = at[kept], same[kept]
        places[at[same]] = above[same]
        if not same.all():
            places = np.insert(places, at[~same], above[~same])
        elif len(above) == len(over):
            return cls(count, places, at)
        return cls(count, places if kept is None else places[places >= 0])

    def apply(self, below: pa.Array, above: pa.Array) -> pa.Array:
        """One column of the result, of that column below and above."""
        if self._is_as_before(below, above):
            return below
        if not len(above):
            return pc.take(below, self._indices, boundscheck=False)
        if not len(below):
            return pc.take(above, self._indices, boundscheck=False)
        width = fixed_width(below.type)
        if width in _NUMBER_BYTES and not (pa.types.is_boolean(below.type) or below.null_count or above.null_count):
            if self.replaced is not None:
                values = _values(below, width).copy()
                values[self.replaced] = _values(above, width)
            else:
                # One pass over the values instead of two: those above have any value at first.
                values = _values(below, width).take(self.places, mode="clip")
                values[self._are_above] = _values(above, width)[self.places[self._are_above] - self.below]
            return pa.Array.from_buffers(below.type, len(values), [None, pa.py_buffer(values)], null_count=0)
        if self._runs is not None:
            parts = [
                below.slice(first, count) if first < self.below else above.slice(first - self.below, count)
                for first, count in self._runs
            ]
            return pa.concat_arrays(parts) if parts else below[:0]
        return pc.take(pa.concat_arrays([below, above]), self._indices, boundscheck=False)

    def _is_as_before(self, below: pa.Array, above: pa.Array) -> bool:
        """Whether the column is that below, to the last bit: most updates leave most columns as they are."""
        if self.replaced is None or pa.types.is_nested(below.type):
            return False
        before = below.take(pa.array(self.replaced))
        if pa.types.is_floating(below.type):  # -0.0 equals 0.0
            bits = _BITS[below.type.bit_width]
            before, above = before.view(bits), above.view(bits)
        return bool(before.equals(above))

    @cached_property
    def _indices(self) -> pa.Array:
        return pa.array(self.places)

    @cached_property
    def _are_above(self) -> Places:
        return np.flatnonzero(self.places >= self.below)

    @cached_property
    def _runs(self) -> list[tuple[int, int]] | None:
        """The stretches of the result that lie as they are below or above: first place and length; None: too many."""
        breaks = np.flatnonzero((np.diff(self.places) != 1) | (self.places[1:] == self.below)) + 1
        if len(breaks) >= _FEW_RUNS or not len(self.places):
            return None if len(self.places) else []
        starts = np.concatenate([np.zeros(1, np.int64), breaks])
        counts = np.diff(starts, append=len(self.places))
        return list(zip(self.places[starts].tolist(), counts.tolist(), strict=True))


def _found(keys: pa.BinaryArray, over: pa.BinaryArray) -> tuple[Places, Mask]:
    """For each key above: how many below are lower, and whether the next one there is the same."""
    numbers, sought = _numbers(keys), _numbers(over)
    if numbers is not None and sought is not None and len(numbers) and numbers.dtype == sought.dtype:
        at = np.searchsorted(numbers, sought)  # 4 times faster
        return at, numbers.take(at, mode="clip") == sought
    at = pc.search_sorted(keys, over).to_numpy(zero_copy_only=False).astype(np.int64)
    same = np.zeros(len(over), np.bool_)
    inside = np.flatnonzero(at < len(keys))
    if len(inside):
        equal = pc.equal(keys.take(pa.array(at[inside])), over.take(pa.array(inside)))
        same[inside] = equal.to_numpy(zero_copy_only=False)
    return at, same


def _numbers(keys: pa.BinaryArray) -> npt.NDArray[np.unsignedinteger[Any]] | None:
    """Keys that all have the length of an integer, as integers in the same order; None for others."""
    offsets = var_offsets(keys)
    width = int(offsets[1] - offsets[0]) if len(keys) else 0
    if width not in _NUMBER_BYTES or not (np.diff(offsets) == width).all():
        return None
    return np.frombuffer(keys.buffers()[2], f">u{width}", len(keys), int(offsets[0])).astype(f"u{width}")


def _values(array: pa.Array, width: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    return np.frombuffer(array.buffers()[1], f"u{width}", len(array), array.offset * width)
