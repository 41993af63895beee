"""An encoded key taken apart again: its columns, their values, and a range of keys as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from table_model.key_codec import NOT_NULL_MARK, NULL_MARK
from table_model.key_range import KeyRange
from table_model.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from table_model.key_codec import KeyCodec

_LONGEST_TEXT: Final = 200


def leading_columns(key: bytes, types: Sequence[pa.DataType]) -> tuple[list[bytes], bytes]:
    """The encodings of the columns that a key, or the end of a range of keys, begins with, and what is left of it.

    A whole key leaves nothing. Never raises: the left part begins where no whole column follows.
    """
    columns = []
    for type_ in types:
        width = _text_width(key) if _is_text(type_) else _fixed_width(type_)
        if width is None or len(key) < width:
            break
        columns.append(key[:width])
        key = key[width:]
    return columns, key


def is_one_value(start: bytes, end: bytes | None, codec: KeyCodec, position: int) -> bool:
    """Whether the encodings of one column from `start` up to, but without, `end` are exactly one."""
    if end != KeyRange.under(start).end or not start:
        return False
    if codec.nullable[position]:
        if start == NULL_MARK:
            return True
        start = start[len(NOT_NULL_MARK) :]
    columns, rest = leading_columns(start, codec.types[position : position + 1])
    return bool(columns) and not rest


def keys_within(key_range: KeyRange, codec: KeyCodec) -> KeyRanges:
    """A range as a list: of one single key, where it has room for no other."""
    start = key_range.start
    if start is not None and key_range.end == KeyRange.under(start).end:
        columns, rest = leading_columns(start, codec.types)
        if len(columns) == len(codec.types) and not rest:
            return KeyRanges.of_keys([start])
    return KeyRanges.of(key_range)


def range_text(key_range: KeyRange, codec: KeyCodec) -> str:
    """A range as `k >= 3 and k < 9`, or with tuples where the key has several columns; bytes where no value fits."""
    if key_range.is_empty:
        return "no keys"
    bounds = []
    if key_range.start is not None:
        bounds.append(_bound_text(key_range.start, codec, ">=", ">"))
    if key_range.end is not None:
        bounds.append(_bound_text(key_range.end, codec, "<", "<="))
    return " and ".join(bounds) or "all keys"


def point_text(key: bytes, codec: KeyCodec) -> str:
    """One key as `k = 3`, or with tuples where the key has several columns."""
    return _whole_text(key, codec, "=") or f"key = 0x{_shortened(key.hex())}"


def _bound_text(end: bytes, codec: KeyCodec, at: str, beyond: str) -> str:
    """The end of a range.

    It is one of: the beginning of keys, column by column; the first bytes behind such, which end with a byte more or
    with a zero byte; or a text that has no end.
    """
    columns, rest = leading_columns(end, codec.types)
    if rest and len(columns) < len(codec.types) and not _is_text(codec.types[len(columns)]):
        # No column is shorter than its type, so that zero bytes make no difference.
        end += bytes(_fixed_width(codec.types[len(columns)]) - len(rest))
    text = _whole_text(end, codec, at)
    if text is None and end.endswith(b"\0"):
        text = _whole_text(end[:-1], codec, beyond)
    if text is None and end:
        text = _whole_text(end[:-1] + bytes([max(end[-1], 1) - 1]), codec, beyond)
    if text is not None:
        return text
    if len(columns) < len(codec.types) and _is_text(codec.types[len(columns)]):
        return _compared(codec, [*_values(columns, codec), f"{_text_value(rest, codec.types[len(columns)])}..."], at)
    return f"key {at} 0x{_shortened(end.hex())}"


def _whole_text(key: bytes, codec: KeyCodec, operator: str) -> str | None:
    """Text for what is whole columns and nothing else, otherwise None."""
    columns, rest = leading_columns(key, codec.types)
    return None if rest or not columns else _compared(codec, _values(columns, codec), operator)


def _compared(codec: KeyCodec, values: Sequence[str], operator: str) -> str:
    names = codec.names[: len(values)]
    if len(values) == 1:
        return f"{names[0]} {operator} {values[0]}"
    return f"({', '.join(names)}) {operator} ({', '.join(values)})"


def _values(columns: Sequence[bytes], codec: KeyCodec) -> list[str]:
    return [
        _text_value(column[:-2], type_) if _is_text(type_) else _fixed_value(column, type_)
        for column, type_ in zip(columns, codec.types, strict=False)
    ]


def _text_value(escaped: bytes, type_: pa.DataType) -> str:
    plain = escaped.replace(b"\x00\xff", b"\x00")
    return _shortened(repr(plain.decode(errors="replace") if pa.types.is_string(type_) else plain))


def _fixed_value(encoded: bytes, type_: pa.DataType) -> str:
    """Undoes what `KeyCodec` does to a column of fixed width."""
    if pa.types.is_boolean(type_):
        return str(encoded != b"\x00").lower()
    sign = 1 << (len(encoded) * 8 - 1)
    bits = int.from_bytes(encoded)
    if pa.types.is_floating(type_):
        bits = bits ^ sign if bits & sign else bits ^ (2 * sign - 1)
    elif not pa.types.is_unsigned_integer(type_):
        bits ^= sign
    stored = pa.py_buffer(bits.to_bytes(len(encoded), "little"))
    try:
        text: str = pa.Array.from_buffers(type_, 1, [None, stored]).cast(pa.string())[0].as_py()
    except pa.ArrowException:  # a time out of its range, or a type without a text form
        return f"0x{encoded.hex()}"
    return f"'{text}'" if pa.types.is_temporal(type_) else text


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _fixed_width(type_: pa.DataType) -> int:
    """Bytes of a column that is neither; a bool has one."""
    return max(1, int(type_.bit_width) // 8)


def _text_width(key: bytes) -> int | None:
    """Bytes of a string or binary column at the beginning of a key, None when its end is not there."""
    zero = key.find(b"\x00")
    while zero >= 0 and key[zero + 1 : zero + 2] == b"\xff":
        zero = key.find(b"\x00", zero + 2)
    return zero + 2 if zero >= 0 and key[zero + 1 : zero + 2] == b"\x00" else None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
