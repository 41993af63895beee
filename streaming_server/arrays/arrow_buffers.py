"""Converts Arrow arrays to raw bytes and back, without loops over values."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.rows.row_layout import fixed_width

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Mask = npt.NDArray[np.bool_]
    Offsets = npt.NDArray[np.signedinteger]

_LONG_BYTES: Final = 512


def valid_mask(array: pa.Array) -> Mask | None:
    """Returns a mask that is true where a value is not null. None: no value is null."""
    if array.null_count == 0:
        return None
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def validity_buffer(mask: Mask | None) -> pa.Buffer | None:
    """Returns the Arrow validity bitmap of a mask. None, which means no nulls, for None or an all-true mask."""
    if mask is None or mask.all():
        return None
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def fixed_bytes(array: pa.Array) -> Bytes:
    """Returns the values of a fixed-width array as a matrix with `len(array)` rows of bytes, zeros where null.

    With zeros for nulls, equal rows have equal bytes, by which an upsert that changes nothing is recognised.
    """
    width = fixed_width(array.type)
    assert width is not None
    count = len(array)
    data = array.buffers()[1]
    if data is None:
        return np.zeros((count, width), np.uint8)
    raw = np.frombuffer(data, np.uint8)
    if pa.types.is_boolean(array.type):
        first_byte, first_bit = divmod(array.offset, 8)
        bits = np.unpackbits(raw[first_byte:], bitorder="little", count=first_bit + count)
        values = bits[first_bit:].reshape(count, 1)
    else:
        values = raw[array.offset * width : (array.offset + count) * width].reshape(count, width)
    mask = valid_mask(array)
    return values if mask is None else np.where(mask[:, None], values, np.uint8(0))


def fixed_array(type_: pa.DataType, values: Bytes, mask: Mask | None) -> pa.Array:
    """Returns the array for which `fixed_bytes` would return `values`, which are contiguous: `len * width` bytes."""
    if pa.types.is_boolean(type_):
        count = len(values)
        data = pa.py_buffer(np.packbits(values.reshape(-1), bitorder="little"))
    else:
        width = fixed_width(type_)
        assert width is not None
        count = values.size // width
        data = pa.py_buffer(values)
    return pa.Array.from_buffers(type_, count, [validity_buffer(mask), data])


def var_offsets(array: pa.Array) -> Offsets:
    """Returns the `len(array) + 1` offsets (int32) of a string or binary array into its data."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    raw = np.frombuffer(array.buffers()[1], np.int32)
    return raw[array.offset : array.offset + len(array) + 1]


def as_binary(array: pa.Array) -> pa.Array:
    """Returns a string or binary array as a binary array with empty values instead of nulls."""
    binary = array.cast(pa.binary())
    return pc.fill_null(binary, b"") if binary.null_count else binary


def binary_from_values(values: list[bytes]) -> pa.Array:
    """Returns a binary array of values. Arrow copies long ones several times, since it does not know their sum."""
    if not values or len(values[0]) < _LONG_BYTES:
        return pa.array(values, pa.binary())
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return binary_from_ranges(pa.py_buffer(b"".join(values)), offsets)


def binary_from_ranges(data: pa.Buffer | None, offsets: Offsets) -> pa.Array:
    """Returns a binary array of n values from one buffer and n + 1 offsets into it."""
    return pa.Array.from_buffers(
        pa.binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets.astype(np.int32, copy=False)), data or pa.py_buffer(b"")],
    )


def binary_from_matrix(matrix: Bytes) -> pa.Array:
    """Returns a binary array with one value for each row of a matrix of bytes."""
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int64) if width else np.zeros(count + 1, np.int64)
    return binary_from_ranges(pa.py_buffer(np.ascontiguousarray(matrix)), offsets)


def slice_values(values: pa.Array, starts: Offsets, ends: Offsets) -> pa.Array:
    """Returns a compact binary array of the bytes `starts[i]..ends[i]` of the data buffer of `values`.

    The ranges must ascend and not overlap. Interleaved, starts and ends are the offsets of an array whose even values
    are the ranges and whose odd values are the gaps between them. So one `take` of the even values copies all of it.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    interleaved = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), values.buffers()[2]])
    return interleaved.take(_every_second(count))


@lru_cache(maxsize=16)
def _every_second(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def data_bytes(array: pa.Array) -> Bytes:
    """Returns the bytes of all values of a binary array, one after another."""
    offsets = var_offsets(array)
    data = array.buffers()[2] if len(array) else None
    if data is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def columnless_batch(rows: int) -> pa.RecordBatch:
    """Returns a batch with `rows` rows and no columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None], children=[]))
