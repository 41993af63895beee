"""Converts rows of one schema version to another: columns are found by id, widened, and added with their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.errors import DataLoss, SchemaMismatch
from scankv.model.types.default_values import repeat_default
from scankv.model.types.widening import widen_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.columns import ColumnDefinition, Schema
    from scankv.model.tables.schema import TableDefinition


def initial_values(column: ColumnDefinition, count: int) -> pa.Array:
    """Returns what a column has in `count` rows that were written before it was added."""
    return _constant(column.initial_default, column.type, count)


def widened(stored: pa.Array, column: ColumnDefinition) -> pa.Array:
    """Returns stored values of a column, which may have a narrower type, in the column's type. Raises DataLoss.

    The error does not contain Arrow's, which shows the value: the server sends it to the client.
    """
    try:
        return widen_values(stored, column.type)
    except pa.ArrowInvalid as error:
        raise DataLoss(f'column "{column.name}": a stored value is out of the range of {column.type}') from error


def convert(rows: pa.RecordBatch, old: Schema, new: Schema) -> pa.RecordBatch:
    """Returns stored rows of a schema version as rows of another version.

    Columns that the other version lacks are dropped, and those that it adds have their initial defaults.

    Args:
        rows: All columns of `old`, in its order. They may be nullable where the schema's are not, as in changes.
        old: Their schema version.
        new: The other version.
    """
    if old.id == new.id:
        return rows
    places = {column.id: place for place, column in enumerate(old.columns)}
    nullable = {column.id: field.nullable for column, field in zip(old.columns, rows.schema, strict=True)}
    arrays = [
        widened(rows.column(places[column.id]), column)
        if column.id in places
        else initial_values(column, rows.num_rows)
        for column in new.columns
    ]
    fields = [pa.field(column.name, column.type, nullable.get(column.id, column.nullable)) for column in new.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def convert_written(rows: pa.RecordBatch, old: Schema, new: Schema) -> pa.RecordBatch:
    """Returns complete rows that a client writes with an older schema version as rows of the current version.

    Columns that were added since have their write defaults.

    Args:
        rows: All columns of `old`, in its order.
        old: Their schema version.
        new: The current version.

    Raises:
        SchemaMismatch: The type of a column has changed since, and cannot hold a value.
    """
    if old.id == new.id:
        return rows
    places = {column.id: place for place, column in enumerate(old.columns)}
    arrays = [
        _widened_row(rows.column(places[column.id]), column)
        if column.id in places
        else _constant(column.write_default, column.type, rows.num_rows)
        for column in new.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=new.arrow)


def convert_columns(rows: pa.RecordBatch, old: Schema, new: Schema) -> pa.RecordBatch:
    """Returns some columns of rows of a schema version, found by name, as columns of another version.

    Those that the other version lacks are dropped. The others are in its order. Raises SchemaMismatch, as
    `convert_written` does.
    """
    if old.id == new.id:
        return rows
    given = {old.column(name).id: place for place, name in enumerate(rows.schema.names)}
    columns = [column for column in new.columns if column.id in given]
    arrays = [_widened_row(rows.column(given[column.id]), column) for column in columns]
    fields = [pa.field(column.name, column.type, rows.schema.field(given[column.id]).nullable) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def converted_names(names: Sequence[str], definition: TableDefinition, schema_id: int) -> tuple[str, ...]:
    """Returns the current names of columns of a schema version, without those that were dropped since."""
    old, new = definition.schema_at(schema_id), definition.schema
    if old.id == new.id:
        return tuple(names)
    ids = [old.column(name).id for name in names]
    return tuple(new.by_id[id_].name for id_ in ids if id_ in new.by_id)


def _widened_row(written: pa.Array, column: ColumnDefinition) -> pa.Array:
    """Returns written values in the column's type. Raises SchemaMismatch, without the value, as `widened` does."""
    try:
        return widen_values(written, column.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f'column "{column.name}": a value is out of the range of {column.type}, which is now the type of the '
            "column: write another value",
            column=column.name,
        ) from error


def _constant(value: pa.Scalar | None, type_: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, type_) if value is None else repeat_default(value, count)
