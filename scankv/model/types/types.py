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
    """Refuses names of columns and struct fields that are not UTF-8, which pyarrow finds only when it reads them.

    Encloses code that decodes nothing but names.

    Raises:
        SchemaMismatch: A name in Arrow data from outside is not valid UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise SchemaMismatch("the name of a column or struct field is not valid UTF-8") from error


@names_must_be_text()
def storable_type(type_: pa.DataType, column: str | None = None) -> pa.DataType:
    """Finds the normal form of a type: the type that a table has when it is asked for this one.

    Strings and binaries of any layout become `string` and `binary`, lists of any layout `list<item: ...>`, dictionaries
    and run-end encoded types their values, smaller decimals `decimal128`. Names of list items and map entries and all
    metadata are dropped; NOT NULL of nested fields is kept.

    Args:
        type_: Any Arrow type.
        column: The column that has it, for the message.

    Raises:
        SchemaMismatch: A table cannot hold values of that type; the message says what to use.
    """
    try:
        return _normal(type_, 0)
    except _NotStorableError as error:
        where = "" if column is None else f'column "{column}": '
        raise SchemaMismatch(f"{where}{error}", column=column) from None


def is_key_type(type_: pa.DataType) -> bool:
    """Whether a column of this normal type can be in a key: every storable type but list, struct and map."""
    return not pat.is_nested(type_) and is_storable(type_)


def is_storable(type_: pa.DataType) -> bool:
    """Whether the type is a normal form, so that a table can hold it as it is."""
    try:
        return bool(_normal(type_, 0) == type_)
    except _NotStorableError:
        return False


def check_field_name(name: str, kind: str = "column") -> None:
    """Refuses a name that no column or struct field can have.

    Raises:
        SchemaMismatch: The name is empty, over 128 characters, or has characters that cannot be printed.
    """
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:40] + "..."
        raise SchemaMismatch(
            f'{kind} "{shown}": a name must have between 1 and {MAX_NAME_LENGTH} characters', column=shown
        )
    if not name.isprintable():
        raise SchemaMismatch(f"{kind} {name!a}: a name must have printable characters only", column=ascii(name))


def check_unique(names: Iterable[str], complaint: str, error: type[InvalidRequest] = SchemaMismatch) -> None:
    """Refuses column names of which one occurs twice, with `error` and the message `column "x" <complaint>`."""
    twice = find_duplicate(names)
    if twice is not None:
        raise error(f'column "{twice}" {complaint}', column=twice)


def find_duplicate(names: Iterable[str]) -> str | None:
    """The first name that occurs twice, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def parse_schema(text: str) -> pa.Schema:
    """Reads the text form of columns: `player string, score int64 not null`.

    Types are written as pyarrow prints them (`timestamp[us, tz=UTC]`, `decimal128(10, 2)`, `list<item: string>`,
    `struct<a: int64, b: string not null>`, `map<string, int64>`) or in SQL's words (`bigint`, `integer`, `smallint`,
    `tinyint`, `real`, `text`, `varchar(20)` whose length means nothing, `boolean`, `blob`, `date`, `time`,
    `timestamp` = `timestamp[us]`, `timestamptz` = `timestamp[us, tz=UTC]`, `decimal(10, 2)`, `numeric`). The case of
    types and of `not null` does not matter. A column name that is no plain word stands in double quotes.

    Returns:
        A schema of normal types, without metadata.

    Raises:
        InvalidRequest: The text cannot be read; the message names the position and what was expected there.
        SchemaMismatch: A name is used twice or cannot be one, or a type cannot be stored.
    """
    fields = parse_fields(text)
    for field in fields:
        check_field_name(field.name)
    check_unique([field.name for field in fields], "exists twice; column names are unique")
    return pa.schema([pa.field(f.name, storable_type(f.type, f.name), f.nullable) for f in fields])


def format_schema(schema: pa.Schema) -> str:
    """Writes columns in the text form that `parse_schema` reads back into the same storable schema."""
    return ", ".join(_format_field(field, " ") for field in schema)


def format_type(type_: pa.DataType) -> str:
    """Writes a storable type as pyarrow prints it, with quotes and `not null` wherever `parse_schema` needs them."""
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


def _normal(type_: pa.DataType, depth: int) -> pa.DataType:
    if depth > MAX_NESTING:
        raise _NotStorableError(f"types are nested more than {MAX_NESTING} levels deep")
    if pat.is_dictionary(type_) or pat.is_run_end_encoded(type_):
        return _normal(type_.value_type, depth + 1)
    if pat.is_nested(type_):
        return _normalize_nested(type_, depth + 1)
    return _normal_scalar(type_)


def _normal_scalar(type_: pa.DataType) -> pa.DataType:
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
        value = pa.field("value", _normal(type_.item_type, depth), type_.item_field.nullable)
        return pa.map_(_normal(type_.key_type, depth), value)
    if pat.is_struct(type_):
        return pa.struct([pa.field(f.name, _normal(f.type, depth), f.nullable) for f in _checked_fields(type_)])
    if pat.is_union(type_):
        raise _NotStorableError(f"{type_} cannot be stored; use a struct with one nullable field for each type")
    return pa.list_(pa.field("item", _normal(type_.value_type, depth), type_.value_field.nullable))


def _checked_fields(type_: pa.StructType) -> list[pa.Field]:
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
