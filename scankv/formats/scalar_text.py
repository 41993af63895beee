"""Converts scalars to text and back, a complete array at a time.

Binary values become hexadecimal digits, and times ISO 8601 (instants in UTC, ending in `Z`; see `time_text`). Other
values become the text that pyarrow prints. A null value corresponds to a null text.
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.exact_floats import check_texts
from scankv.model import lazy_compute as pc
from scankv.model.types.casts import cast_exactly
from scankv.model.types.time_text import times_from_text, times_to_text


def scalars_to_text(column: pa.Array) -> pa.StringArray:
    """Returns the text of every value; a null stays null.

    Args:
        column: An array of a scalar type that a table can hold.
    """
    type_ = column.type
    if pat.is_string(type_):
        return column
    if pat.is_binary(type_):
        return _to_hex(column)
    if pat.is_date32(type_):
        return times_to_text(column)
    if pat.is_timestamp(type_):
        return times_to_text(column if type_.tz is None else column.cast(pa.timestamp(type_.unit, "UTC")))
    return column.cast(pa.string())


def scalars_from_text(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Returns the values of texts; a null stays null.

    White space around a value is ignored, except in strings.

    Raises:
        ValueError: A text is not a value of the type, or the type cannot hold it exactly; a float may be rounded.
        InexactNumberError: A number is too large for its float type, or has many digits of which the float loses some.
    """
    if pat.is_string(type_):
        return texts
    texts = pc.ascii_trim_whitespace(texts)
    if pat.is_binary(type_):
        return _from_hex(texts)
    if pat.is_time(type_):
        # pyarrow parses times of day only as part of timestamps.
        return pc.binary_join_element_wise("1970-01-01T", texts, "").cast(pa.timestamp(type_.unit)).cast(type_)
    if pat.is_date32(type_) or pat.is_timestamp(type_):
        return times_from_text(texts, type_)
    if pat.is_decimal(type_) and type_.scale < 0:
        # pyarrow counts the zeros that a negative scale leaves out, and then refuses decimals of 38 digits.
        return cast_exactly(texts.cast(pa.decimal256(76, 0)), type_)
    values = texts.cast(type_)
    if pat.is_floating(type_):
        check_texts(texts, values)
    return values


def concatenate(texts: pa.StringArray) -> pa.Buffer:
    """Returns the bytes of all texts, concatenated, without a copy."""
    return _values(texts)[1]


def _to_hex(column: pa.BinaryArray) -> pa.StringArray:
    offsets, data = _values(column)
    texts = pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets * 2), pa.py_buffer(binascii.hexlify(data)))
    return pc.if_else(column.is_valid(), texts, None)


def _from_hex(texts: pa.StringArray) -> pa.BinaryArray:
    offsets, data = _values(texts)
    if (offsets % 2).any():
        raise ValueError("hexadecimal text must have an even number of digits")
    values = pa.BinaryArray.from_buffers(
        pa.binary(), len(texts), [None, pa.py_buffer(offsets // 2), pa.py_buffer(binascii.unhexlify(data))]
    )
    return pc.if_else(texts.is_valid(), values, None)


def _values(column: pa.Array) -> tuple[np.ndarray, pa.Buffer]:
    """Returns the offsets of a string or binary array, starting at 0, and the bytes of its values."""
    _, offsets_buffer, data = column.buffers()
    if len(column) == 0 or data is None:
        return np.zeros(len(column) + 1, np.int32), pa.py_buffer(b"")
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    return offsets - offsets[0], data[int(offsets[0]) : int(offsets[-1])]
