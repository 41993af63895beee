"""Stores list, struct and map columns in rows: each Arrow child buffer's slice for a row is one segment.

A *segment* is one binary value per row. The values of a segment, joined over the rows of a chunk, are exactly the bytes
of one Arrow child buffer, so neither direction looks at single values. The segments of a type are, in this order:

    fixed width      values
    string, binary   lengths (u32 each), bytes
    list             lengths (u32 each), validity of the elements (one byte each), then the segments of the element type
    struct           for each field: validity (one byte each), then the segments of the field's type
    map              as list of struct of key and value

The row's null bitmap has the validity of the column itself; every level below has a segment for its validity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss
from scankv.model.rows.row_layout import fixed_width, map_storage
from scankv.model.types.nested import map_as_list
from streaming_server.arrays.arrow_buffers import (
    as_binary,
    binary_from_ranges,
    data_bytes,
    fixed_array,
    fixed_bytes,
    valid_mask,
    validity_buffer,
    var_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.arrays.arrow_buffers import Bytes, Mask, Offsets


def shred(array: pa.Array) -> Iterator[pa.Array]:
    """Yields the segments of a nested column: binary arrays of `len(array)` values, without nulls."""
    yield from _shred(array, np.arange(len(array) + 1, dtype=np.int64))


def assemble(type_: pa.DataType, rows: int, mask: Mask | None, segments: Iterator[pa.Array]) -> pa.Array:
    """Reassembles the nested column of `rows` rows from the segments that `shred` made.

    Raises:
        DataLoss: The segments contradict each other.
    """
    return _assemble(type_, rows, mask, segments)


def _shred(array: pa.Array, row_ends: Offsets) -> Iterator[pa.Array]:
    """Yields the segments of elements; row i has the elements `array[row_ends[i]:row_ends[i + 1]]`."""
    type_ = array.type
    width = fixed_width(type_)
    if width is not None:
        yield _segment(fixed_bytes(array), row_ends)
    elif pa.types.is_struct(type_):
        for child in array.flatten():
            yield _validity_segment(child, row_ends)
            yield from _shred(child, row_ends)
    elif pa.types.is_map(type_):
        yield from _shred(map_as_list(array), row_ends)
    elif pa.types.is_list(type_):
        lengths = _lengths(pc.list_value_length(array))
        child, child_ends = array.flatten(), _cumulate(lengths)[row_ends]
        yield _segment(lengths.view(np.uint8).reshape(-1, 4), row_ends)
        yield _validity_segment(child, child_ends)
        yield from _shred(child, child_ends)
    else:
        binary = as_binary(array)
        offsets = var_offsets(binary)
        yield _segment(np.diff(offsets).astype("<u4").view(np.uint8).reshape(-1, 4), row_ends)
        yield binary_from_ranges(binary.buffers()[2] if len(binary) else None, offsets[row_ends])


def _segment(values: Bytes, row_ends: Offsets) -> pa.Array:
    return binary_from_ranges(pa.py_buffer(np.ascontiguousarray(values)), row_ends * values.shape[1])


def _validity_segment(array: pa.Array, row_ends: Offsets) -> pa.Array:
    mask = valid_mask(array)
    valid = np.ones(len(array), np.uint8) if mask is None else mask.astype(np.uint8)
    return _segment(valid.reshape(-1, 1), row_ends)


def _lengths(lengths: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    filled: np.ndarray[tuple[int], np.dtype[np.uint32]] = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    return filled.astype("<u4")


def _cumulate(lengths: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Offsets:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _assemble(type_: pa.DataType, count: int, mask: Mask | None, segments: Iterator[pa.Array]) -> pa.Array:
    width = fixed_width(type_)
    if width is not None:
        return fixed_array(type_, _expect(next(segments), count, width), mask)
    if pa.types.is_struct(type_):
        children = [_assemble_child(field.type, count, segments) for field in type_]
        return pa.Array.from_buffers(type_, count, [validity_buffer(mask)], children=children)
    if pa.types.is_map(type_):
        storage = _assemble(map_storage(type_), count, mask, segments)
        entries = storage.values
        if entries.null_count or entries.field(0).null_count:
            # Arrow does not raise for such a map: it crashes the process.
            raise DataLoss("a map is damaged: it has a null key")
        return pa.Array.from_buffers(type_, count, storage.buffers()[:2], children=[entries])
    lengths = _expect(next(segments), count, 4).view("<u4")
    ends = _cumulate(lengths)
    offsets = pa.py_buffer(ends.astype(np.int32))
    if pa.types.is_list(type_):
        child = _assemble_child(type_.value_type, int(ends[-1]), segments)
        return pa.Array.from_buffers(type_, count, [validity_buffer(mask), offsets], children=[child])
    data = _expect(next(segments), int(ends[-1]), 1)
    return pa.Array.from_buffers(type_, count, [validity_buffer(mask), offsets, pa.py_buffer(data)])


def _assemble_child(type_: pa.DataType, count: int, segments: Iterator[pa.Array]) -> pa.Array:
    valid = _expect(next(segments), count, 1)
    return _assemble(type_, count, valid.astype(np.bool_), segments)


def _expect(segment: pa.Array, count: int, width: int) -> Bytes:
    data = data_bytes(segment)
    if data.size != count * width:
        raise DataLoss(f"a nested value is damaged: it has {data.size:,} bytes instead of {count * width:,}")
    return data
