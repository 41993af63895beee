"""Casts rows to the columns of a table without loss, and checks strictly whether rows have these columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.errors import SchemaMismatch, did_you_mean
from scankv.model.types.casts import cast_exactly
from scankv.model.types.layouts import plain_layout
from scankv.model.types.required import first_forbidden_null
from scankv.model.types.types import find_duplicate, format_type, names_must_be_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_VALUE = 40


@names_must_be_text()
def conform(batch: pa.RecordBatch, schema: pa.Schema, *, first_row: int = 0) -> pa.RecordBatch:
    """Casts rows to the columns of a table without loss.

    Columns are matched by name and returned in the order of the schema. Values are cast by `cast_exactly`.

    Args:
        batch: Rows with exactly the columns of the schema, in any order.
        schema: Storable columns, as in `Schema.arrow`.
        first_row: The index of the batch's first row in the caller's data, for messages.

    Returns:
        A batch with the given schema. Columns that already have the right type are not copied.

    Raises:
        SchemaMismatch: A column is missing, unknown or given twice; a value cannot be cast without loss; or a value is
            null in a NOT NULL column. The message names column, row, value and reason.
    """
    _check_names(batch.schema.names, schema)
    columns = []
    for field in schema:
        column = _cast(batch.column(field.name), field, first_row)
        _check_nulls(column, field, first_row)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@names_must_be_text()
def check_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Checks that rows have exactly the columns of a table. Like `conform`, but without casts.

    The batch must have been validated with `batch.validate(full=True)`.

    Args:
        batch: Rows from outside.
        schema: Storable columns, as in `Schema.arrow`.

    Returns:
        A batch with the given schema and the same arrays.

    Raises:
        SchemaMismatch: A column is missing, unknown or given twice, has another type, or is null although it is NOT
            NULL. The message names column and row, but no value, because the server sends it to the client.
    """
    check_columns(batch.schema, schema)
    columns = []
    for field in schema:
        column = batch.column(field.name)
        _check_nulls(column, field, 0)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_columns(given: pa.Schema, schema: pa.Schema) -> None:
    """Checks that a schema has exactly the columns of a table, in any order.

    Raises:
        SchemaMismatch: A column is missing, unknown or given twice, or has another type.
    """
    _check_names(given.names, schema)
    for field in schema:
        type_ = given.field(field.name).type
        if type_ != field.type:
            raise SchemaMismatch(f'column "{field.name}" is {format_type(field.type)}, not {type_}', column=field.name)


def _check_names(names: Sequence[str], schema: pa.Schema) -> None:
    twice = find_duplicate(names)
    if twice is not None:
        raise SchemaMismatch(f'column "{twice}" is given twice', column=twice)
    known, given = set(schema.names), set(names)
    for name in names:
        if name not in known:
            raise SchemaMismatch(f'there is no column "{name}"{did_you_mean(name, schema.names)}', column=name)
    for name in schema.names:
        if name not in given:
            raise SchemaMismatch(
                f'column "{name}" is missing; give all columns: ' + ", ".join(f'"{n}"' for n in schema.names),
                column=name,
            )


def _cast(column: pa.Array, field: pa.Field, first_row: int) -> pa.Array:
    try:
        column = plain_layout(column)
        return cast_exactly(column, field.type)
    except (TypeError, NotImplementedError) as error:
        cause: Exception = error
        row = _first_row_with_value(column)
    except (ValueError, pa.ArrowException) as error:
        cause = error
        row = _first_row_that_fails(column, field.type)
    if row is None:
        message = f'column "{field.name}" cannot be cast to {format_type(field.type)}: {cause}'
        raise SchemaMismatch(message, column=field.name) from cause
    value = _rows(column, row, row + 1)
    message = (
        f'column "{field.name}", row {first_row + row}: {_format_value(value)} cannot be cast to '
        f"{format_type(field.type)}: {_why(value, field.type)}"
    )
    raise SchemaMismatch(message, column=field.name, row=first_row + row) from cause


def _first_row_with_value(column: pa.Array) -> int | None:
    row: int = pc.index(column.is_valid(), True).as_py()
    return None if row < 0 else row


def _first_row_that_fails(column: pa.Array, target: pa.DataType) -> int | None:
    """Finds the first row that cannot be cast, by bisection, which costs about two more casts of the column."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _why(_rows(column, low, middle), target) is not None:
            high = middle
        else:
            low = middle
    return low if _why(_rows(column, low, high), target) is not None else None


def _rows(column: pa.Array, start: int, stop: int) -> pa.Array:
    """Returns a slice of a column. Nested columns are copied, because Arrow validates all values of a plain slice."""
    if pa.types.is_nested(column.type):
        return column.take(pa.array(range(start, stop), pa.int64()))
    return column.slice(start, stop - start)


def _why(column: pa.Array, target: pa.DataType) -> str | None:
    """Returns why the column cannot be cast, or None if it can."""
    try:
        cast_exactly(column, target)
    except (TypeError, ValueError, NotImplementedError, pa.ArrowException) as error:
        return str(error).partition("\n")[0]
    return None


def _format_value(value: pa.Array) -> str:
    """Formats the value of an array of one for a message; a long value is left out."""
    try:
        plain = value.to_pylist()[0]
    except (ValueError, OverflowError, pa.ArrowException):
        return "the value"
    if isinstance(plain, str):
        text = f'"{plain}"'
    else:
        text = repr(plain) if isinstance(plain, bytes | list | dict) else str(plain)
    return text if len(text) <= _LONGEST_VALUE else "the value"


def _check_nulls(column: pa.Array, field: pa.Field, first_row: int) -> None:
    found = first_forbidden_null(column, field)
    if found is not None:
        row = first_row + found.row
        message = f'column "{field.name}", row {row}: {found.path} is null, but it is NOT NULL'
        raise SchemaMismatch(message, column=field.name, row=row)
