"""Which column types a Parquet file can hold, and which types it returns."""

from __future__ import annotations

import io

import pyarrow as pa

from scankv.model.errors import UsageError
from scankv.model.types.types import format_type


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns as they are read from a Parquet file: seconds become milliseconds, other types stay the same.

    Raises:
        UsageError: Parquet cannot hold a column. The message names the column.
    """
    return pa.schema([_parquet_field(field) for field in schema])


def _parquet_field(field: pa.Field) -> pa.Field:
    from pyarrow import parquet  # on use, see `writers`

    alone, file = pa.schema([field]), io.BytesIO()
    try:
        parquet.ParquetWriter(file, alone).close()
    except (OSError, pa.ArrowException) as error:
        # Parquet cannot hold decimals whose scale is negative or greater than their precision.
        raise UsageError(
            f'column "{field.name}": Parquet cannot hold {format_type(field.type)}: {error}; choose the format arrow, '
            "or other columns",
            column=field.name,
        ) from error
    return parquet.read_schema(file).field(0)
