"""Which types Delta Lake has, and the schema of a table in its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import UsageError
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORBIDDEN: Final = set(" ,;{}()\n\t=")
"""Characters that no column has: https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Column Mapping"."""
_UTC: Final = pa.timestamp("us", "UTC")
_NO_ZONE: Final = pa.timestamp("us")
_WIDENED: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
_PRIMITIVE: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    _UTC: "timestamp",
    _NO_ZONE: "timestamp_ntz",
}


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns of a table with the types that a Delta table has for them.

    Unsigned integers become the next larger signed ones, uint64 becomes decimal(20, 0), and float16 becomes float.
    Timestamps become those in microseconds; the instants of those with a time zone stay, the zone does not.

    Raises:
        UsageError: Delta Lake cannot hold a column. The message names it.
    """
    names: dict[str, str] = {}
    for field in schema:
        other = names.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise _refused(field.name, f'the name differs from "{other}" in case only: rename one of them')
    return pa.schema([pa.field(each.name, _delta_type(each, each.name), each.nullable) for each in schema])


def has_times_without_zone(schema: pa.Schema) -> bool:
    """Returns whether a schema of Delta types needs the table feature `timestampNtz`."""
    return any(type_ == _NO_ZONE for field in schema for type_ in _walk(field.type))


def schema_json(schema: pa.Schema) -> dict[str, Any]:
    """Returns a schema of Delta types in the form of the log."""
    return {"type": "struct", "fields": [_field_json(field) for field in schema]}


def _delta_type(field: pa.Field, column: str) -> pa.DataType:
    type_ = field.type
    if _FORBIDDEN & set(field.name):
        raise _refused(column, f'the name "{field.name}" has a character that Delta Lake does not allow: rename it')
    if pat.is_struct(type_):
        return pa.struct([pa.field(each.name, _delta_type(each, column), each.nullable) for each in type_.fields])
    if pat.is_map(type_):
        key, value = _delta_type(type_.key_field, column), _delta_type(type_.item_field, column)
        return pa.map_(key, pa.field("value", value, type_.item_field.nullable))
    if pat.is_list(type_):
        item = type_.value_field
        return pa.list_(pa.field("element", _delta_type(item, column), item.nullable))
    return _scalar_type(type_, column)


def _scalar_type(type_: pa.DataType, column: str) -> pa.DataType:
    if type_ in _WIDENED:
        return _WIDENED[type_]
    if pat.is_timestamp(type_):
        if type_.unit == "ns":
            raise _refused(column, "Delta Lake has microseconds, not nanoseconds: use timestamp[us]")
        return _NO_ZONE if type_.tz is None else _UTC
    if pat.is_decimal128(type_):
        if not 0 <= type_.scale <= type_.precision:
            raise _refused(
                column, "the scale of a decimal must be between 0 and its precision in Delta Lake: use such a decimal"
            )
        return type_
    if type_ in _PRIMITIVE:
        return type_
    raise _refused(column, f"Delta Lake has no type for {format_type(type_)}: use an integer, a timestamp or text")


def _refused(column: str, why: str) -> UsageError:
    return UsageError(f'column "{column}" cannot be published: {why}', column=column)


def _walk(type_: pa.DataType) -> Iterator[pa.DataType]:
    yield type_
    if pat.is_map(type_):
        yield from _walk(type_.key_type)
        yield from _walk(type_.item_type)
    elif pat.is_nested(type_):
        for place in range(type_.num_fields):
            yield from _walk(type_.field(place).type)


def _field_json(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type_json(field.type), "nullable": field.nullable, "metadata": {}}


def _type_json(type_: pa.DataType) -> str | dict[str, Any]:
    if pat.is_struct(type_):
        return {"type": "struct", "fields": [_field_json(field) for field in type_.fields]}
    if pat.is_map(type_):
        key, value = _type_json(type_.key_type), _type_json(type_.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": type_.item_field.nullable}
    if pat.is_list(type_):
        item = type_.value_field
        return {"type": "array", "elementType": _type_json(item.type), "containsNull": item.nullable}
    if pat.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _PRIMITIVE[type_]
