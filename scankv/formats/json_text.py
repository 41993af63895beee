"""Converts Arrow arrays to JSON and back, column by column, without a Python object for each row or value.

Strings become JSON strings, numbers JSON numbers (decimals with all their digits), lists arrays, and structs objects. A
map becomes a list of `{"key": ..., "value": ...}`. All other values become the string that `scalar_text` defines. JSON
has no number for some floats; they become the bare words `NaN`, `Infinity` and `-Infinity`, as in Python's `json`.

Many readers, such as JavaScript, read every number as a float64. For them there is *portable* JSON: integers beyond
2^53 - 1, decimals, and floats that JSON has no number for are strings, so no reader changes a value.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.types as pat

from scankv.formats.bounds import check_json_levels, check_json_names
from scankv.formats.exact_floats import (
    InexactNumberError,
    check_json,
    has_infinity,
    has_large_float,
    has_many_digits,
    may_have_changed,
)
from scankv.formats.scalar_text import concatenate, scalars_from_text, scalars_to_text
from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

_CONTROL: Final = {chr(code): f"\\u{code:04x}" for code in range(0x20)} | {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_READER_WORDS: Final = re.compile(r"^JSON parse error: | in row [0-9]+$")
_TOO_BIG: Final = "Number too big"
_NOT_AN_OBJECT: Final = re.compile(r"Column\(\) changed from object to (\w+)")
_LARGEST_EXACT: Final = 2**53 - 1
_SHOWN_BYTES: Final = 8
"""How many bytes are shown before and after one that is wrong."""
_NON_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_lines(batch: pa.RecordBatch, *, portable: bool = False) -> pa.Buffer:
    """Returns the rows of a batch as JSON objects, one per line, each line with its newline."""
    objects = _objects(batch.schema.names, batch.columns, len(batch), portable=portable)
    lines = pc.binary_join_element_wise(objects, "\n", "")
    return concatenate(lines)


def to_json(column: pa.Array, *, portable: bool = False) -> pa.StringArray:
    """Returns the JSON text of every value; a null becomes the text `null`."""
    type_ = column.type
    if pat.is_map(type_):
        entry = pa.struct([pa.field("key", type_.key_type, nullable=False), pa.field("value", type_.item_type)])
        texts = _lists(column.cast(pa.list_(entry)), portable=portable)
    elif pat.is_struct(type_):
        texts = _objects([field.name for field in type_.fields], column.flatten(), len(column), portable=portable)
    elif pat.is_nested(type_):
        texts = _lists(column, portable=portable)
    elif portable and pat.is_decimal(type_):
        texts = _strings(column.cast(pa.string()))
    elif portable and pat.is_integer(type_) and type_.bit_width == 64:
        texts = _portable_integers(column)
    elif pat.is_boolean(type_) or pat.is_integer(type_) or pat.is_decimal(type_):
        texts = column.cast(pa.string())
    elif pat.is_floating(type_):
        texts = _floats(column, portable=portable)
    else:
        texts = _strings(scalars_to_text(column))
    return pc.if_else(column.is_valid(), texts, "null")


def from_json(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Returns the values of JSON texts; a null text becomes a null value.

    Raises:
        ValueError: A text is not JSON, or not a value of the type.
    """
    if len(texts) == 0:
        return pa.nulls(0, type_)
    lines = pc.binary_join_element_wise('{"value":', pc.fill_null(texts, "null"), "}\n", "")
    try:
        # A text may have line breaks between its tokens.
        values = _read(concatenate(lines), pa.schema([("value", type_)]), "error", lambda: lines).column(0)
    except InexactNumberError as error:
        raise error.within() from error
    if len(values) != len(texts):
        raise ValueError("a text has more than one JSON value")
    return values


def read_json_lines(
    data: bytes | pa.Buffer, schema: pa.Schema, *, other_fields: Literal["error", "ignore"] = "error"
) -> pa.RecordBatch:
    """Reads lines of JSON objects. A field that an object does not have is null.

    Args:
        data: Complete lines, with at least one object.
        schema: The names and types of the columns to return, in order.
        other_fields: Whether fields that the schema does not have are an error or are ignored.

    Raises:
        ValueError: A line is not a JSON object, has another field, or has a value of another type.
        InexactNumberError: A float would be another number.
    """
    return _read(data, schema, other_fields, lambda: _rows_of_lines(data))


def _read(
    data: bytes | pa.Buffer, schema: pa.Schema, other_fields: str, objects: Callable[[], pa.Array]
) -> pa.RecordBatch:
    """See `read_json_lines`. `objects` returns the text of each object, if numbers must be checked."""
    wire = pa.schema([pa.field(field.name, wire_type(field.type)) for field in schema])
    try:
        table = _parse(data, explicit_schema=wire, unexpected_field_behavior=other_fields)
    except _TooBigError:
        _check_numbers(objects(), schema, all_objects=True)
        raise
    columns = [_from_wire(table.column(f.name).combine_chunks(), f.type) for f in schema]
    changed = {f: column for f, column in zip(schema, columns, strict=True) if may_have_changed(column)}
    if changed:
        texts = objects()
        # Two objects in one line are two rows.
        if len(texts) == len(table):
            texts = texts.filter(pa.array(np.logical_or.reduce([has_large_float(each) for each in changed.values()])))
        _check_numbers(texts, pa.schema(list(changed)), all_objects=any(map(has_infinity, columns)))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _rows_of_lines(data: bytes | pa.Buffer) -> pa.BinaryArray:
    return pa.array([line for line in bytes(data).split(b"\n") if line.strip()], pa.binary())


def absent_in_json_lines(data: bytes, field: pa.Field, values: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns which objects do not have a field at all, as opposed to a null in it.

    Args:
        data: The lines.
        field: The field.
        values: What `read_json_lines` has read in the field.
    """
    is_null: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    if not is_null.any():
        return is_null
    # pyarrow reads null for both. With another value in place of each null, only absent fields are read as null.
    type_, value = _stand_in(field.type)
    given, count = _null_pattern(field.name, escaped=b"\\u" in data).subn(rb"\g<1>" + value, data)
    if not count:
        return is_null
    table = _parse(given, explicit_schema=pa.schema([(field.name, type_)]), unexpected_field_behavior="ignore")
    absent: npt.NDArray[np.bool_] = table.column(0).is_null().to_numpy(zero_copy_only=False)
    return absent


def _null_pattern(name: str, *, escaped: bool) -> re.Pattern[bytes]:
    """Returns a pattern of a name and a null after it, with the name in its first group.

    It also matches inside other fields and their names, where a replacement does not matter.
    """
    texts = [json.dumps(character, ensure_ascii=False)[1:-1] for character in name]
    # A slash may have a backslash before it.
    characters = [r"\\?/" if text == "/" else re.escape(text) for text in texts]
    if escaped:
        units = [character.encode("utf-16-be").hex() for character in name]
        escapes = ["".join(f"\\\\u{each[i : i + 4]}" for i in range(0, len(each), 4)) for each in units]
        text = "".join(f"(?:{c}|(?i:{e}))" for c, e in zip(characters, escapes, strict=True))
    else:
        text = "".join(characters)
    return re.compile(rf'("{text}"\s*:\s*)null'.encode())


def _stand_in(type_: pa.DataType) -> tuple[pa.DataType, bytes]:
    """Returns a type that reads the values of a field without what is nested in them, and a value of it as JSON."""
    if pat.is_struct(type_):
        return pa.struct([]), b"{}"
    if pat.is_map(type_):
        return pa.list_(pa.struct([])), b"[]"
    if pat.is_nested(type_):
        return pa.list_(_stand_in(type_.value_type)[0]), b"[]"
    wire = wire_type(type_)
    return wire, b'"x"' if pat.is_string(wire) else b"true" if pat.is_boolean(wire) else b"0"


def infer_json_lines(data: bytes) -> pa.Table:
    """Reads lines of JSON objects, with the columns and types that pyarrow infers.

    Raises:
        ValueError: A line is not a JSON object, or not UTF-8, or no type can hold all values of a field.
        BeyondBoundsError: The lines are nested too deeply, or have too many fields.
    """
    try:
        data.decode()  # pyarrow accepts names in any encoding, and cannot show them then.
    except UnicodeDecodeError as error:
        shown = data[max(0, error.start - _SHOWN_BYTES) : error.end + _SHOWN_BYTES]
        raise ValueError(f"{shown!r} is not UTF-8: convert the file to UTF-8") from error
    check_json_names(data)
    return _parse(data, unexpected_field_behavior="infer") if data.strip() else pa.schema([]).empty_table()


class _TooBigError(ValueError):
    """pyarrow refuses a number that is too big, and does not say which."""


def _check_numbers(objects: pa.Array, schema: pa.Schema, *, all_objects: bool = False) -> None:
    """Raises InexactNumberError if JSON objects have numbers that the floats of a schema change."""
    # Python's parser, which keeps the digits, is slow. Most objects that need it are found by their many digits.
    all_objects |= any(type_ in (pa.float16(), pa.float32()) for type_ in _leaf_types(schema.types))
    for text in objects.cast(pa.binary()).to_pylist():
        if all_objects or has_many_digits(text):
            check_json(text, schema)


def _leaf_types(types: Iterable[pa.DataType]) -> Iterator[pa.DataType]:
    for type_ in types:
        if pat.is_nested(type_):
            yield from _leaf_types(type_.field(place).type for place in range(type_.num_fields))
        else:
            yield type_


def _parse(data: bytes | pa.Buffer, **options: object) -> pa.Table:
    check_json_levels(bytes(data))
    # A single block with all lines, because pyarrow refuses an object that crosses the end of a block.
    read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        return pyarrow.json.read_json(pa.BufferReader(data), read_options, pyarrow.json.ParseOptions(**options))
    except pa.ArrowInvalid as error:
        reason = _READER_WORDS.sub("", str(error))
        if reason.startswith(_TOO_BIG):
            raise _TooBigError("has a number beyond the range of double") from error
        if found := _NOT_AN_OBJECT.fullmatch(reason):
            raise ValueError(f"the line is a JSON {found[1]}, not an object") from error
        raise ValueError(reason) from error


def _objects(names: list[str], columns: list[pa.Array], rows: int, *, portable: bool) -> pa.StringArray:
    if not columns:
        return pa.repeat("{}", rows)
    parts: list[pa.Array | str] = []
    for name, column in zip(names, columns, strict=True):
        parts += [
            f"{',' if parts else '{'}{_strings(pa.array([name]))[0].as_py()}:",
            to_json(column, portable=portable),
        ]
    return pc.binary_join_element_wise(*parts, "}", "")


def _lists(column: pa.Array, *, portable: bool) -> pa.StringArray:
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    items = pa.ListArray.from_arrays(offsets, to_json(column.flatten(), portable=portable))
    return pc.binary_join_element_wise("[", pc.binary_join(items, ","), "]", "")


def _floats(column: pa.Array, *, portable: bool) -> pa.StringArray:
    texts = column.cast(pa.string())
    for text, word in _NON_FINITE.items():
        texts = pc.if_else(pc.equal(texts, text), f'"{word}"' if portable else word, texts)
    return texts


def _portable_integers(column: pa.Array) -> pa.StringArray:
    texts = column.cast(pa.string())
    is_large = pc.greater(column, pa.scalar(_LARGEST_EXACT, column.type))
    if not pat.is_unsigned_integer(column.type):
        is_large = pc.or_(is_large, pc.less(column, pa.scalar(-_LARGEST_EXACT, column.type)))
    return pc.if_else(is_large, _strings(texts), texts)


def _strings(texts: pa.StringArray) -> pa.StringArray:
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        for character, escape in _CONTROL.items():
            texts = pc.replace_substring(texts, character, escape)
    return pc.binary_join_element_wise('"', texts, '"', "")


def wire_type(type_: pa.DataType) -> pa.DataType:
    """Returns the type that pyarrow's JSON reader reads, and that `_from_wire` converts to this type."""
    if pat.is_map(type_):
        return pa.list_(pa.struct([("key", wire_type(type_.key_type)), ("value", wire_type(type_.item_type))]))
    if pat.is_struct(type_):
        return pa.struct([(field.name, wire_type(field.type)) for field in type_.fields])
    if pat.is_nested(type_):
        return pa.list_(wire_type(type_.value_type))
    if pat.is_float16(type_):
        return pa.float64()
    if pat.is_decimal(type_) and type_.scale < 0:
        # pyarrow's reader counts two digits in 1E+1, too many for decimal128(1, -1).
        return pa.decimal256(76, 0)
    if pat.is_boolean(type_) or pat.is_integer(type_) or pat.is_floating(type_) or pat.is_decimal(type_):
        return type_
    return pa.string()


def _from_wire(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type == type_:
        return column
    if pat.is_float16(type_) or pat.is_decimal(type_):
        return column.cast(type_)
    if not pat.is_nested(type_):
        return scalars_from_text(column, type_)
    mask = column.is_null() if column.null_count else None
    if pat.is_struct(type_):
        children = zip(column.flatten(), type_.fields, strict=True)
        return pa.StructArray.from_arrays(
            [_from_wire(child, field.type) for child, field in children], fields=list(type_.fields), mask=mask
        )
    if pat.is_map(type_):
        keys, items = column.values.flatten()
        arrays = _from_wire(keys, type_.key_type), _from_wire(items, type_.item_type)
        return pa.MapArray.from_arrays(column.offsets, *arrays, type=type_, mask=mask)
    return pa.ListArray.from_arrays(column.offsets, _from_wire(column.values, type_.value_type), type=type_, mask=mask)
