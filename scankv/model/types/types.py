"""The Arrow types that a table can store, their normal forms, and their text form."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import SchemaMismatch
from scankv.model.limits import MAX_COLUMNS, MAX_NAME_LENGTH, MAX_NESTING
from scankv.model.types.type_parser import is_plain_name, parse_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scankv.model.errors import InvalidRequest

_TIME_ZONE: Final = re.compile(r"[A-Za-z0-9_+\-/:]+")
_MAX_DECIMAL_DIGITS: Final = 38


@contextmanager
def names_must_be_text() -> Iterator[None]:
    """Raises SchemaMismatch for names of columns and struct fields that are not UTF-8.

    pyarrow raises UnicodeDecodeError when a name is read. The wrapped code must not decode any other text.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise SchemaMismatch("the name of a column or struct field is not valid UTF-8") from error


@names_must_be_text()
def storable_type(type_: pa.DataType, column: str | None = None) -> pa.DataType:
    """Returns the normal form of a type, which a table has for a column of this type.

    Strings and binaries of any layout become `string` and `binary`, and lists of any layout `list<item: ...>`.
    Dictionary and run-end encoded types become the type of their values, and smaller decimals `decimal128`. The names
    of list items and map entries and all metadata are dropped. NOT NULL of nested fields is kept.

    Args:
        type_: Any Arrow type.
        column: The column of this type, for the message.

    Raises:
        SchemaMismatch: A table cannot store values of the type. The message suggests another type.
    """
    try:
        return _normalize(type_, 0)
    except _NotStorableError as error:
        where = "" if column is None else f'column "{column}": '
        raise SchemaMismatch(f"{where}{error}", column=column) from None


def is_key_type(type_: pa.DataType) -> bool:
    """Returns whether a column of this normal type can be in a key: any storable type except list, struct and map."""
    return not pat.is_nested(type_) and is_storable(type_)


def is_storable(type_: pa.DataType) -> bool:
    """Returns whether the type is a normal form, which a table stores without change."""
    try:
        return bool(_normalize(type_, 0) == type_)
    except _NotStorableError:
        return False


def check_field_name(name: str, kind: str = "column") -> None:
    """Checks the name of a column or struct field.

    Raises:
        SchemaMismatch: The name is empty, longer than 128 characters, or has characters that cannot be printed.
    """
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:40] + "..."
        raise SchemaMismatch(
            f'{kind} "{shown}": a name must have between 1 and {MAX_NAME_LENGTH} characters', column=shown
        )
    if not name.isprintable():
        raise SchemaMismatch(f"{kind} {name!a}: a name must have printable characters only", column=ascii(name))


def check_unique(names: Iterable[str], complaint: str, error: type[InvalidRequest] = SchemaMismatch) -> None:
    """Raises `error` with the message `column "x" <complaint>` if a column name occurs twice."""
    twice = find_duplicate(names)
    if twice is not None:
        raise error(f'column "{twice}" {complaint}', column=twice)


def find_duplicate(names: Iterable[str]) -> str | None:
    """Returns the first name that occurs for the second time, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def parse_schema(text: str) -> pa.Schema:
    """Parses the text form of columns: `player string, score int64 not null`.

    Types are written as pyarrow prints them (`timestamp[us, tz=UTC]`, `decimal128(10, 2)`, `list<item: string>`,
    `struct<a: int64, b: string not null>`, `map<string, int64>`) or as in SQL (`bigint`, `integer`, `smallint`,
    `tinyint`, `real`, `text`, `varchar(20)`, whose length is ignored, `boolean`, `blob`, `date`, `time`,
    `timestamp` = `timestamp[us]`, `timestamptz` = `timestamp[us, tz=UTC]`, `decimal(10, 2)`, `numeric`). Types and
    `not null` are not case-sensitive. A column name that is not a plain word must be in double quotes.

    Returns:
        A schema of normal types, without metadata.

    Raises:
        InvalidRequest: The text cannot be parsed. The message has the position and what was expected there.
        SchemaMismatch: A name occurs twice or is not allowed, or a type cannot be stored.
    """
    fields = parse_fields(text)
    for field in fields:
        check_field_name(field.name)
    check_unique([field.name for field in fields], "exists twice; column names are unique")
    return pa.schema([pa.field(f.name, storable_type(f.type, f.name), f.nullable) for f in fields])


def format_schema(schema: pa.Schema) -> str:
    """Formats columns as text that `parse_schema` parses into the same storable schema."""
    return ", ".join(_format_field(field, " ") for field in schema)


def format_type(type_: pa.DataType) -> str:
    """Formats a storable type as pyarrow does, with quotes and `not null` where `parse_schema` needs them."""
    if pat.is_map(type_):
        return f"map<{format_type(type_.key_type)}, {format_type(type_.item_type)}{_null_text(type_.item_field)}>"
    if pat.is_struct(type_):
        return f"struct<{', '.join(_format_field(field, ': ') for field in type_.fields)}>"
    if pat.is_list(type_):
        return f"list<{_format_field(type_.value_field, ': ')}>"
    return str(type_)


def _format_field(field: pa.Field, separator: str) -> str:
    name = field.name if is_plain_name(field.name) else '"' + field.name.replace('"', '""') + '"'
    return f"{name}{separator}{format_type(field.type)}{_null_text(field)}"


def _null_text(field: pa.Field) -> str:
    return "" if field.nullable else " not null"


class _NotStorableError(Exception):
    """The reason why a type cannot be stored."""


def _normalize(type_: pa.DataType, depth: int) -> pa.DataType:
    if depth > MAX_NESTING:
        raise _NotStorableError(f"types are nested more than {MAX_NESTING} levels deep")
    if pat.is_dictionary(type_) or pat.is_run_end_encoded(type_):
        return _normalize(type_.value_type, depth + 1)
    if pat.is_nested(type_):
        return _normalize_nested(type_, depth + 1)
    return _normalize_scalar(type_)


def _normalize_scalar(type_: pa.DataType) -> pa.DataType:
    if pat.is_string(type_) or pat.is_large_string(type_) or pat.is_string_view(type_):
        return pa.string()
    if (
        pat.is_binary(type_)
        or pat.is_large_binary(type_)
        or pat.is_fixed_size_binary(type_)
        or pat.is_binary_view(type_)
    ):
        return pa.binary()
    if pat.is_decimal(type_):
        if type_.precision > _MAX_DECIMAL_DIGITS:
            raise _NotStorableError(
                f"{type_} cannot be stored; a decimal must have at most {_MAX_DECIMAL_DIGITS} digits"
            )
        if abs(type_.scale) > _MAX_DECIMAL_DIGITS:
            raise _NotStorableError(f"{type_} cannot be stored; its scale must be at most {_MAX_DECIMAL_DIGITS}")
        return pa.decimal128(type_.precision, type_.scale)
    if pat.is_timestamp(type_) and type_.tz is not None and not _TIME_ZONE.fullmatch(type_.tz):
        raise _NotStorableError(f"{type_.tz!a} is not the name of a time zone; use one such as UTC or +02:00")
    if (
        pat.is_integer(type_)
        or pat.is_floating(type_)
        or pat.is_boolean(type_)
        or pat.is_date32(type_)
        or pat.is_time(type_)
        or pat.is_timestamp(type_)
    ):
        return type_
    raise _NotStorableError(f"{type_} cannot be stored; {_instead(type_)}")


def _instead(type_: pa.DataType) -> str:
    if pat.is_date64(type_):
        return "use date32 or timestamp[ms]"
    if pat.is_duration(type_) or pat.is_interval(type_):
        return "use int64 with the unit in the column's name"
    if pat.is_null(type_):
        return "give the column the type that its values will have"
    if isinstance(type_, pa.BaseExtensionType):
        return f"use its storage type, {type_.storage_type}"
    return "use integers, floats, decimal128, bool, string, binary, dates, times, list, struct or map"


def _normalize_nested(type_: pa.DataType, depth: int) -> pa.DataType:
    if pat.is_map(type_):
        value = pa.field("value", _normalize(type_.item_type, depth), type_.item_field.nullable)
        return pa.map_(_normalize(type_.key_type, depth), value)
    if pat.is_struct(type_):
        return pa.struct([pa.field(f.name, _normalize(f.type, depth), f.nullable) for f in _check_fields(type_)])
    if pat.is_union(type_):
        raise _NotStorableError(f"{type_} cannot be stored; use a struct with one nullable field for each type")
    return pa.list_(pa.field("item", _normalize(type_.value_type, depth), type_.value_field.nullable))


def _check_fields(type_: pa.StructType) -> list[pa.Field]:
    fields = list(type_.fields)
    if not 1 <= len(fields) <= MAX_COLUMNS:
        raise _NotStorableError(f"a struct must have between 1 and {MAX_COLUMNS:,} fields, not {len(fields):,}")
    for field in fields:
        try:
            check_field_name(field.name, "struct field")
        except SchemaMismatch as error:
            raise _NotStorableError(error.message) from None
    twice = find_duplicate(field.name for field in fields)
    if twice is not None:
        raise _NotStorableError(f'a struct has two fields "{twice}"; give them different names')
    return fields
