"""Casts rows from the server to the exact Arrow types that Spark requires."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from scankv.model.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# PySpark 4.0 and 4.1 have no such parameter, and always return UTC.
_HAS_TIMEZONE: Final = "timezone" in signature(to_arrow_schema).parameters


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow types that Spark requires for a schema, computed by Spark's own function."""
    if _HAS_TIMEZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def cast_rows(rows: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Returns the rows in the target's types. Columns that have their type already are not copied.

    Call it for every batch: Spark checks the types of the first batch only.

    Args:
        rows: A batch with the target's columns, in the target's order.
        target: The schema from `arrow_schema`.

    Raises:
        SchemaMismatch: The cast would change a value, such as nanoseconds that are not whole microseconds; or a column
            has nulls that the target cannot have, which Spark would take for other values.
    """
    columns = [_cast(column, field) for column, field in zip(rows.columns, target, strict=True)]
    if not columns:
        return rows
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        raise SchemaMismatch(
            f'column "{field.name}" now has nulls, but it is NOT NULL in the schema that the query began with, because '
            'the table option "changelog" was changed: start the query again',
            column=field.name,
        )
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        reason = str(error).partition("\n")[0]
        message = f'column "{field.name}": Spark\'s type {field.type} cannot hold a value exactly: {reason}'
        raise SchemaMismatch(message, column=field.name) from None
