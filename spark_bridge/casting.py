"""Rows as they come from the server, made into the very Arrow types that Spark takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from scankv.model.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark takes for a schema: those that it compares batches with, so asked of it."""
    return to_arrow_schema(schema, timezone="UTC")


def cast_rows(rows: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The same rows in the target's types; columns that have them already are not copied.

    Spark looks at the types of the first batch alone, so every batch goes through here.

    Args:
        rows: A batch with the target's columns in its order.
        target: As `arrow_schema` makes it.

    Raises:
        SchemaMismatch: A value cannot be kept exactly, as nanoseconds that are no whole microseconds.
    """
    columns = [_cast(column, field) for column, field in zip(rows.columns, target, strict=True)]
    if not columns:
        return rows
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        reason = str(error).partition("\n")[0]
        message = f'column "{field.name}": Spark\'s type cannot hold a value exactly: {reason}'
        raise SchemaMismatch(message, column=field.name) from None
