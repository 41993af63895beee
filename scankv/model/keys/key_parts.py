"""Decodes keys into columns and values, and formats keys and ranges of keys as readable text."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.keys.key_codec import NOT_NULL_MARK, NULL_MARK, KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_TEXT: Final = 200


def leading_columns(
    key: bytes, types: Sequence[pa.DataType], nullable: Sequence[bool] = ()
) -> tuple[list[bytes], bytes]:
    """Splits an encoded key, or a bound of a key range, into its leading complete columns and the remaining bytes.

    Nothing remains of a complete key. Never raises: the remaining bytes begin where no complete column follows.

    Args:
        key: The encoded key or bound.
        types: The types of the columns.
        nullable: Whether each column is nullable, which only columns of an index can be. Default: no column is.
    """
    columns = []
    for type_, has_mark in zip(types, chain(nullable, repeat(False)), strict=False):
        width = _column_width(key, type_, has_mark=has_mark)
        if width is None or len(key) < width:
            break
        columns.append(key[:width])
        key = key[width:]
    return columns, key


def shared_columns(key_range: KeyRange, codec: KeyCodec) -> list[bytes]:
    """Returns the encodings of the leading columns that are the same in all keys of a range."""
    columns, _ = leading_columns(key_range.start or b"", codec.types, codec.nullable)
    shared: list[bytes] = []
    for column in columns:
        within = KeyRange.under(b"".join(shared) + column)
        if key_range & within != key_range:
            break
        shared.append(column)
    return shared


def is_one_value(start: bytes, end: bytes | None, codec: KeyCodec, position: int) -> bool:
    """Returns whether the range from `start` to `end` is exactly one value of the column at `position`."""
    if end != KeyRange.under(start).end:
        return False
    columns, rest = leading_columns(
        start, codec.types[position : position + 1], codec.nullable[position : position + 1]
    )
    return bool(columns) and not rest


def keys_within(key_range: KeyRange, codec: KeyCodec) -> KeyRanges:
    """Returns a range as a list, and as a single key if the range contains only one."""
    start = key_range.start
    if start is not None and key_range.end == KeyRange.under(start).end:
        columns, rest = leading_columns(start, codec.types)
        if len(columns) == len(codec.types) and not rest:
            return KeyRanges.of_keys([start])
    return KeyRanges.of(key_range)


def range_text(key_range: KeyRange, codec: KeyCodec) -> str:
    """Formats a range as `c = 'p1' and k > 3`, or with tuples if a bound has several columns.

    A bound that cannot be decoded is shown as bytes.
    """
    if key_range.is_empty:
        return "no keys"
    shared = shared_columns(key_range, codec)
    texts = [_equal_text(shared, codec)] if shared else []
    if len(shared) < len(codec.types):
        prefix, rest = b"".join(shared), _columns_after(codec, len(shared))
        start, end = (key_range.start or b"")[len(prefix) :], key_range.end
        texts += _bound_texts(start, None if end == KeyRange.under(prefix).end else (end or b"")[len(prefix) :], rest)
    return " and ".join(texts) or "all keys"


def _columns_after(codec: KeyCodec, count: int) -> KeyCodec:
    """Returns the codec of the columns after the first `count`."""
    return KeyCodec(codec.types[count:], codec.names[count:], codec.nullable[count:])


def point_text(key: bytes, codec: KeyCodec) -> str:
    """Formats one key as `k = 3`, or with tuples if the key has several columns."""
    columns, rest = leading_columns(key, codec.types, codec.nullable)
    return f"key = 0x{_shorten(key.hex())}" if rest or not columns else _equal_text(columns, codec)


def _equal_text(columns: Sequence[bytes], codec: KeyCodec) -> str:
    """Formats the values of leading columns, with nulls after the other values."""
    values, nulls = {}, []
    for name, column, value, has_mark in zip(
        codec.names, columns, _values(columns, codec), codec.nullable, strict=False
    ):
        if has_mark and column == NULL_MARK:
            nulls.append(f"{name} is null")
        else:
            values[name] = value
    equal = [_format_comparison(tuple(values), tuple(values.values()), "=")] if values else []
    return " and ".join([*equal, *nulls])


def _bound_texts(start: bytes, end: bytes | None, codec: KeyCodec) -> list[str]:
    """Formats the bounds of the first columns of a codec; returns no text for a range of all values and null."""
    has_lower = start not in (b"", NOT_NULL_MARK[: codec.nullable[0]])
    if not codec.nullable[0]:
        texts = [_bound_text(start, codec, ">=", ">")] if has_lower else []
        return texts if end is None else [*texts, _bound_text(end, codec, "<", "<=")]
    name = codec.names[0]
    if end is None or end == KeyRange.under(NULL_MARK).end:
        return [f"({_bound_text(start, codec, '>=', '>')} or {name} is null)"] if has_lower else []
    if end == NULL_MARK:
        return [_bound_text(start, codec, ">=", ">") if has_lower else f"{name} is not null"]
    upper = _bound_text(end, codec, "<", "<=")
    return [_bound_text(start, codec, ">=", ">"), upper] if has_lower else [upper]


def _bound_text(end: bytes, codec: KeyCodec, at: str, beyond: str) -> str:
    """Formats a bound of a range.

    A bound is complete columns, or the first bytes after them (the last byte increased by one, or a zero byte
    appended), or ends within a text.
    """
    columns, rest = leading_columns(end, codec.types, codec.nullable)
    type_ = codec.types[len(columns)] if len(columns) < len(codec.types) else None
    mark = NOT_NULL_MARK if type_ is not None and codec.nullable[len(columns)] else b""
    if rest and type_ is not None and not _is_text(type_) and rest.startswith(mark):
        # No key is shorter than the types of its columns, so appended zero bytes do not change the range.
        end += bytes(len(mark) + _fixed_width(type_) - len(rest))
    text = _complete_text(end, codec, at)
    if text is None and end.endswith(b"\0"):
        text = _complete_text(end[:-1], codec, beyond)
    if text is None and end:
        text = _complete_text(end[:-1] + bytes([max(end[-1], 1) - 1]), codec, beyond)
    if text is not None:
        return text
    if type_ is not None and _is_text(type_) and rest.startswith(mark):
        values = [*_values(columns, codec), f"{_text_value(rest[len(mark) :], type_)}..."]
        return _format_comparison(codec.names[: len(values)], values, at)
    return f"key {at} 0x{_shorten(end.hex())}"


def _complete_text(key: bytes, codec: KeyCodec, operator: str) -> str | None:
    """Formats bytes that are complete columns with nothing after them; returns None for other bytes."""
    columns, rest = leading_columns(key, codec.types, codec.nullable)
    values = _values(columns, codec)
    return None if rest or not columns else _format_comparison(codec.names[: len(values)], values, operator)


def _format_comparison(names: Sequence[str], values: Sequence[str], operator: str) -> str:
    if len(values) == 1:
        return f"{names[0]} {operator} {values[0]}"
    return f"({', '.join(names)}) {operator} ({', '.join(values)})"


def _values(columns: Sequence[bytes], codec: KeyCodec) -> list[str]:
    return [
        _value_text(column, type_, has_mark=has_mark)
        for column, type_, has_mark in zip(columns, codec.types, codec.nullable, strict=False)
    ]


def _value_text(column: bytes, type_: pa.DataType, *, has_mark: bool) -> str:
    if has_mark and column == NULL_MARK:
        return "null"
    plain = column[len(NOT_NULL_MARK) :] if has_mark else column
    return _text_value(plain[:-2], type_) if _is_text(type_) else _fixed_value(plain, type_)


def _text_value(escaped: bytes, type_: pa.DataType) -> str:
    plain = escaped.replace(b"\x00\xff", b"\x00")
    return _shorten(repr(plain.decode(errors="replace") if pa.types.is_string(type_) else plain))


def decode_column(encoded: bytes, type_: pa.DataType) -> pa.Scalar:
    """Decodes one column that is not nullable and that `KeyCodec` has encoded. Raises ArrowInvalid for other bytes."""
    if _is_text(type_):
        return pa.scalar(encoded[:-2].replace(b"\x00\xff", b"\x00"), pa.binary()).cast(type_)
    if pa.types.is_boolean(type_):
        return pa.scalar(encoded != b"\x00")
    sign = 1 << (len(encoded) * 8 - 1)
    bits = int.from_bytes(encoded)
    if pa.types.is_floating(type_):
        bits = bits ^ sign if bits & sign else bits ^ (2 * sign - 1)
    elif not pa.types.is_unsigned_integer(type_):
        bits ^= sign
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(bits.to_bytes(len(encoded), "little"))])[0]


def _fixed_value(encoded: bytes, type_: pa.DataType) -> str:
    """Formats a fixed-width column that `KeyCodec` has encoded."""
    if pa.types.is_boolean(type_):
        return str(encoded != b"\x00").lower()
    try:
        text: str = decode_column(encoded, type_).cast(pa.string()).as_py()
    except pa.ArrowException:  # a time out of its range, or a type without a text form
        return f"0x{encoded.hex()}"
    return f"'{text}'" if pa.types.is_temporal(type_) else text


def column_width(type_: pa.DataType) -> int | None:
    """Returns the bytes of an encoded column that is not nullable. None: they depend on the value."""
    return None if _is_text(type_) else _fixed_width(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _fixed_width(type_: pa.DataType) -> int:
    """Returns the bytes of a column that is neither string nor binary; a bool has one."""
    return max(1, int(type_.bit_width) // 8)


def _column_width(key: bytes, type_: pa.DataType, *, has_mark: bool) -> int | None:
    """Returns the bytes of a column at the start of a key, or None if its end is missing."""
    if has_mark:
        if key.startswith(NULL_MARK):
            return len(NULL_MARK)
        if not key.startswith(NOT_NULL_MARK):
            return None
        key = key[len(NOT_NULL_MARK) :]
    width = _text_width(key) if _is_text(type_) else _fixed_width(type_)
    return width and width + has_mark


def _text_width(key: bytes) -> int | None:
    """Returns the bytes of a string or binary column at the start of a key, or None if its end is missing."""
    zero = key.find(b"\x00")
    while zero >= 0 and key[zero + 1 : zero + 2] == b"\xff":
        zero = key.find(b"\x00", zero + 2)
    return zero + 2 if zero >= 0 and key[zero + 1 : zero + 2] == b"\x00" else None


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
