"""Encodes and decodes single rows of a table without Arrow, whose fixed costs are a hundred times those of one row."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from scankv.model.errors import InvalidKey, InvalidRequest, RequestTooLarge, SchemaMismatch
from scankv.model.limits import MAX_ROW_BYTES
from scankv.model.rows.key_values import KeyValues, has_key_values
from scankv.model.rows.row_layout import HEADER, ROW_FORMAT
from scankv.model.rows.row_values import DamagedRowError, NotExactError, RowValues, exact_class, has_row_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.tables.columns import ColumnDefinition, Schema
    from scankv.model.tables.schema import TableDefinition

Values: TypeAlias = tuple[Any, ...]
"""The value of each column of a row, in the order of the current schema. Rows that are stored or merged also have the
values of the hidden columns, after the others."""

_Source: TypeAlias = "tuple[int | None, Any, Callable[[Any], Any]]"
"""Where a column of a row comes from: its place in the row of an older schema, or the value that such rows have; and
the conversion of the value at that place."""


class SingleRowCodec:
    """Encodes and decodes single rows and keys of a table, to the same bytes as the codecs for columns. Immutable.

    Args:
        definition: The table, for which `has_single_rows` is true.
    """

    def __init__(self, definition: TableDefinition) -> None:
        schema = definition.schema.arrow
        self.schema: Final = schema
        self._definition = definition
        self._keys = KeyValues(definition.key_schema.types)
        self.key_places = [schema.get_field_index(name) for name in definition.primary_key]
        self._required = [(place, field.name) for place, field in enumerate(schema) if not field.nullable]
        self._row_type = pa.struct(list(schema))
        self._change_type = pa.struct(list(definition.change_schema_at(definition.schema.id)))
        self.hidden: Final = len(definition.hidden_columns(definition.schema))
        # The last value of stored rows is then the time of the last write, which `Values` do not have.
        self.has_write_time: Final = definition.write_time(definition.schema) is not None
        self.stores_hidden: Final = self.hidden > 0 or self.has_write_time
        # Generated on first use, because most tables have one schema in use, and generating takes a millisecond.
        self._by_schema: dict[tuple[int, bool], RowValues] = {}
        self._sources: dict[tuple[int, bool], list[_Source]] = {}

    def encode(self, values: Values) -> bytes:
        """Returns the stored form of values with those of hidden columns.

        Raises:
            NotExactError: A value does not fit its column.
        """
        stored = (*values, None) if self.has_write_time else values
        return self._values_of(self._definition.schema, hidden=True).encode(stored)

    def decode(self, row: bytes) -> Values:
        """Decodes a stored row of any schema of the table, with hidden columns.

        Raises:
            NotExactError: The row has a value that Python does not have, such as a time in year 10,000, or is damaged.
                The codec for columns tells which.
        """
        try:
            values = self._decode(row, stored=True)
            return values[:-1] if self.has_write_time else values
        except (DamagedRowError, ValueError, OverflowError) as error:
            raise NotExactError from error

    def read(self, row: bytes, number: int) -> tuple[bytes, Values]:
        """Reads a row that a client sends. Returns its encoded key and its values.

        Args:
            row: The row, in the format of stored rows. Nothing in it is trusted.
            number: The number of the row in its request, for errors.

        Raises:
            InvalidRequest: The bytes are not a row of the table.
            SchemaMismatch: A value is null in a NOT NULL column.
            InvalidKey: The key is too long.
            RequestTooLarge: The row is too large.
        """
        if len(row) > MAX_ROW_BYTES:
            raise RequestTooLarge(
                f"row {number} takes {len(row)} bytes; the limit of a row is {MAX_ROW_BYTES}: store large values "
                "elsewhere",
                row=number,
            )
        try:
            values = self._decode(row, stored=False)
        except (DamagedRowError, NotExactError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"row {number} is not an encoded row of the table: {error}", row=number) from error
        for place, name in self._required:
            if values[place] is None:
                raise SchemaMismatch(f'column "{name}", row {number}: it is NOT NULL', column=name, row=number)
        return self.encode_key(values, number), values

    def is_same(self, one: Values, stored: bytes | None, other: Values, value: bytes) -> bool:
        """Returns whether two rows have equal columns, apart from hidden ones, given also as they are stored."""
        if stored == value:
            return True
        current = self._definition.schema
        header = self._values_of(current, hidden=False).header
        if not self.stores_hidden and stored is not None and stored.startswith(header):
            return False
        # Encoded again, because rows of an older schema have other bytes for the same values.
        encode, width = self._values_of(current, hidden=False).encode, len(self.schema)
        return encode(one[:width]) == encode(other[:width])

    def check_required(self, values: Values) -> None:
        """Raises NotExactError if a NOT NULL column is null."""
        if any(values[place] is None for place, _ in self._required):
            raise NotExactError

    def key_values(self, values: Values) -> Values:
        """Returns the key columns of a row; the others are null."""
        places = frozenset(self.key_places)
        return tuple(value if place in places else None for place, value in enumerate(values))

    def read_key(self, key: bytes, number: int) -> Values:
        """Returns the key columns of an encoded key that a client sends, by their places in a row; the rest is null.

        Raises:
            InvalidKey: The bytes are not a key of the table.
        """
        try:
            parts = self._keys.decode(key)
        except NotExactError as error:
            raise InvalidKey(f"key {number} is not an encoded key of the table", row=number) from error
        values: list[Any] = [None] * (len(self.schema) + self.hidden)
        for place, part in zip(self.key_places, parts, strict=True):
            values[place] = part
        return tuple(values)

    def to_batch(self, rows: Sequence[Values]) -> pa.RecordBatch:
        """Returns rows as a batch of the current schema, without hidden columns."""
        return _to_batch(rows, self._row_type)

    def to_changes(self, rows: Sequence[Values]) -> pa.RecordBatch:
        """Returns rows as a batch of the columns that the changelog records, without hidden columns.

        Raises:
            NotExactError: Arrow does not convert a value.
        """
        try:
            return _to_batch(rows, self._change_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise NotExactError from error

    def to_key_batch(self, rows: Sequence[Values]) -> pa.RecordBatch:
        """Returns the key columns of rows as a batch."""
        return self.to_batch(rows).select(list(self._definition.primary_key))

    def encode_key(self, values: Values, number: int) -> bytes:
        """Returns the encoded key of a row, which has this number in its request. Raises InvalidKey."""
        try:
            return self._keys.encode([values[place] for place in self.key_places])
        except NotExactError as error:
            raise InvalidKey(
                f"row {number}: its key is too long, or has a type that encoded rows cannot have: send Arrow data",
                row=number,
            ) from error

    def _decode(self, row: bytes, *, stored: bool) -> Values:
        """Decodes a stored row, with hidden columns; or one that a client sends, without them."""
        current = self._definition.schema
        values = self._values_of(current, hidden=stored)
        if row.startswith(values.header):
            return values.decode(row)
        if len(row) < HEADER.size:
            raise DamagedRowError(f"it has {len(row)} bytes")
        format_, flags, schema_id = HEADER.unpack_from(row)
        schema = next((each for each in self._definition.schemas if each.id == schema_id), None)
        if (format_, flags) != (ROW_FORMAT, 0) or schema is None:
            raise DamagedRowError(f"it has format {format_}, flags {flags} and schema {schema_id}")
        old = self._values_of(schema, hidden=stored).decode(row)
        sources = self._sources.get((schema_id, stored))
        if sources is None:
            sources = self._sources[schema_id, stored] = self._sources_of(schema, stored=stored)
        return tuple([constant if place is None else convert(old[place]) for place, constant, convert in sources])

    def _sources_of(self, schema: Schema, *, stored: bool) -> list[_Source]:
        """Returns where each column comes from in rows of an older schema."""
        columns = self._columns(schema, hidden=stored)
        places = {column.id: place for place, column in enumerate(columns)}
        sources: list[_Source] = []
        for column in self._columns(self._definition.schema, hidden=stored):
            place = places.get(column.id)
            default = column.initial_default if stored else column.write_default
            constant = None if default is None else default.as_py()
            convert = _unchanged if place is None else _widening(columns[place].type, column.type)
            sources.append((place, constant, convert))
        return sources

    def _columns(self, schema: Schema, *, hidden: bool) -> Sequence[ColumnDefinition]:
        if not hidden:
            return schema.columns
        write_time = self._definition.write_time(schema)
        merged = (*schema.columns, *self._definition.hidden_columns(schema))
        return merged if write_time is None else (*merged, write_time)

    def _values_of(self, schema: Schema, *, hidden: bool) -> RowValues:
        key = (schema.id, hidden and self.stores_hidden)
        known = self._by_schema.get(key)
        if known is None:
            types = [column.type for column in self._columns(schema, hidden=hidden)]
            if not has_row_values(types):
                raise NotExactError  # It had a nested column, which was dropped.
            known = self._by_schema[key] = RowValues(schema.id, types)
        return known


def _unchanged(value: Any) -> Any:  # noqa: ANN401  # a value of any column
    return value


def _widening(old: pa.DataType, new: pa.DataType) -> Callable[[Any], Any]:
    """Returns a function that converts the Python value of a column to a wider type."""
    if old != new and pa.types.is_date32(old):
        return lambda date: None if date is None else dt.datetime.combine(date, dt.time())
    return _unchanged  # Python has one type each of integers, floats and decimals.


def _to_batch(rows: Sequence[Values], type_: pa.StructType) -> pa.RecordBatch:
    width = type_.num_fields
    # One conversion of all columns takes half the time of one for each, and tuples take half the time of dictionaries.
    visible = rows if not rows or len(rows[0]) == width else [row[:width] for row in rows]
    return pa.RecordBatch.from_struct_array(pa.array(visible, type_))


def has_single_rows(definition: TableDefinition) -> bool:
    """Returns whether rows of the table can be encoded one by one: not with nested or inexact columns."""
    schema = definition.schema
    types = [column.type for column in (*schema.columns, *definition.hidden_columns(schema))]
    return has_key_values(definition.key_schema.types) and all(exact_class(type_) is not None for type_ in types)
