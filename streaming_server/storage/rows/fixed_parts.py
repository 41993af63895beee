"""The fixed part of each row of a chunk: its header, null bitmap, slots of fixed width, and the ends of its segments.

Rows differ in length, so their fixed parts lie scattered in the data of the chunk. Copied into a matrix, all of their
numbers are cheap to read. A decoder of few columns of wide rows reads the numbers that it needs in place instead, so
that its work does not grow with the other columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow.compute as pc

from scankv.model.errors import DataLoss
from scankv.model.rows.row_layout import HEADER
from streaming_server.arrays.arrow_buffers import var_offsets

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from scankv.model.rows.row_layout import RowLayout, Slot
    from streaming_server.arrays.arrow_buffers import Bytes, Mask, Offsets

_HEADER_BITS: Final = (1 << 8 * HEADER.size) - 1
_NUMBERS: Final = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "c16"}
_COPIED_BYTES: Final = 64
"""Copying so many bytes of each row takes about as long as reading one of its numbers in place."""


class FixedParts(Protocol):
    """The fixed parts of rows that have at least the length of those of one layout. Immutable."""

    def numbers(self, at: int, width: int) -> npt.NDArray[Any]:
        """Returns the `width` bytes at one position of each row as a number. The array need not be contiguous."""

    def has_header(self) -> bool:
        """Whether all rows begin with the header of the layout, and so have this layout."""

    def check_ends(self) -> None:
        """Raises DataLoss unless each row is as long as its columns."""

    def valid(self, slot: Slot) -> Mask | None:
        """Returns a mask that is true where a column is not null. None: no value is null."""

    def values(self, slot: Slot) -> Bytes:
        """Returns the bytes of a column of fixed width, contiguous."""

    def segment(self, number: int) -> tuple[Offsets, Offsets]:
        """Returns where a segment of each row begins and ends in the data of the chunk. Raises DataLoss."""


def fixed_parts(values: pa.Array, lengths: Offsets, layout: RowLayout, columns: int) -> FixedParts:
    """Returns the fixed parts of stored rows, in the form from which so many columns are read fastest.

    Args:
        values: The rows.
        lengths: Their lengths, of which none may be less than `layout.fixed_bytes`.
        layout: The layout that the rows seem to have.
        columns: The number of columns to read.
    """
    is_wide = layout.fixed_bytes > _COPIED_BYTES * (columns + 1)
    return (PartsInPlace if is_wide and len(lengths) else CopiedParts)(values, lengths, layout)


def fixed_matrix(values: pa.Array, width: int) -> Bytes:
    """Returns the first `width` bytes of every value as a matrix. No value may be shorter."""
    head = pc.binary_slice(values, 0, width)
    data = head.buffers()[2] if len(head) else None
    return np.frombuffer(data or b"", np.uint8, count=len(head) * width).reshape(len(head), width)


class PartsInPlace:
    """Fixed parts of at least one row, read in place. See `FixedParts`."""

    def __init__(self, values: pa.Array, lengths: Offsets, layout: RowLayout) -> None:
        self._data = np.frombuffer(values.buffers()[2], np.uint8)
        self._starts = var_offsets(values)[:-1].astype(np.int64)
        self._lengths = lengths
        self._layout = layout

    def numbers(self, at: int, width: int) -> npt.NDArray[Any]:
        everywhere = np.ndarray((len(self._data) - width + 1,), _NUMBERS[width], self._data, strides=(1,))
        return everywhere[self._starts + at]

    def has_header(self) -> bool:
        return _all_equal(self.numbers(0, 8), self._layout.header)

    def check_ends(self) -> None:
        _check_lengths(self._end(self._layout.segments), self._lengths)

    def valid(self, slot: Slot) -> Mask | None:
        return _valid(self.numbers(*_byte_of(self._layout, slot)), slot)

    def values(self, slot: Slot) -> Bytes:
        assert slot.width is not None
        return self.numbers(slot.start, slot.width).view(np.uint8)

    def segment(self, number: int) -> tuple[Offsets, Offsets]:
        start, end = self._end(number), self._end(number + 1)
        if ((start < self._layout.fixed_bytes) | (end < start) | (end > self._lengths)).any():
            raise _overlap()
        return self._starts + start, self._starts + end

    def _end(self, segments: int) -> Offsets:
        """Returns the end of the first `segments` segments of each row."""
        if segments == 0:
            return np.full(len(self._starts), self._layout.fixed_bytes, np.int32)
        return self.numbers(self._layout.ends_start + 4 * (segments - 1), 4).view(np.int32)


class CopiedParts:
    """Fixed parts as the rows of a matrix. See `FixedParts`."""

    def __init__(self, values: pa.Array, lengths: Offsets, layout: RowLayout) -> None:
        self._matrix = fixed_matrix(values, layout.fixed_bytes)
        self._starts = var_offsets(values)[:-1]
        self._lengths = lengths
        self._layout = layout

    def numbers(self, at: int, width: int) -> npt.NDArray[Any]:
        count, stride = self._matrix.shape
        if count == 0:
            return np.zeros(0, _NUMBERS[width])
        return np.ndarray((count,), _NUMBERS[width], self._matrix, offset=at, strides=(stride,))

    def has_header(self) -> bool:
        return _all_equal(self.numbers(0, 8).copy(), self._layout.header)

    def check_ends(self) -> None:
        ends = self._ends
        if (ends[1:] < ends[:-1]).any():
            raise _overlap()
        _check_lengths(ends[-1], self._lengths)

    def valid(self, slot: Slot) -> Mask | None:
        if self._without_nulls >> slot.index & 1:
            return None
        return _valid(self.numbers(*_byte_of(self._layout, slot)), slot)

    def values(self, slot: Slot) -> Bytes:
        assert slot.width is not None
        # Copies numbers of the slot's width, which is faster than bytes.
        return self.numbers(slot.start, slot.width).copy().view(np.uint8)

    def segment(self, number: int) -> tuple[Offsets, Offsets]:
        return self._starts + self._ends[number], self._starts + self._ends[number + 1]

    @cached_property
    def _ends(self) -> npt.NDArray[np.int32]:
        """The bounds of the segments in each row: segment k is from `[k]` to `[k + 1]`."""
        layout, (count, stride) = self._layout, self._matrix.shape
        ends = np.empty((layout.segments + 1, count), np.int32)
        ends[0] = layout.fixed_bytes
        if count and layout.segments:
            ends[1:] = np.ndarray((layout.segments, count), "<i4", self._matrix, layout.ends_start, (4, stride))
        return ends

    @cached_property
    def _without_nulls(self) -> int:
        """The columns that are null in no row, as a bit mask."""
        layout, bits, done = self._layout, 0, 0
        for width in (8, 4, 2, 1):  # numbers as wide as possible: single bytes would take ten times as long
            while done + width <= layout.bitmap_bytes:
                numbers = self.numbers(layout.bitmap_start + done, width)
                bits |= int(np.bitwise_and.reduce(numbers)) << 8 * done
                done += width
        return bits


def _all_equal(begins: npt.NDArray[np.uint64], header: bytes) -> bool:
    """Whether all rows begin with this header: the AND and the OR over all rows both equal it."""
    # No row is shorter than these numbers: bitmap and a column follow the header.
    if len(begins) == 0:
        return True
    in_all, in_any = (int(each.reduce(begins)) & _HEADER_BITS for each in (np.bitwise_and, np.bitwise_or))
    return in_all == in_any == int.from_bytes(header, "little")


def _byte_of(layout: RowLayout, slot: Slot) -> tuple[int, int]:
    """Returns the position and width of the byte of the null bitmap that has the bit of a column."""
    return layout.bitmap_start + slot.index // 8, 1


def _valid(bitmaps: Bytes, slot: Slot) -> Mask:
    mask: Mask = (bitmaps & (1 << slot.index % 8)) != 0
    return mask


def _overlap() -> DataLoss:
    return DataLoss("a stored row is damaged: its columns overlap")


def _check_lengths(ends: Offsets, lengths: Offsets) -> None:
    if (ends != lengths).any():
        raise DataLoss("a stored row is damaged: its length is not the length of its columns")
