"""Which columns a Parquet file can hold, and as what they come back."""

from __future__ import annotations

import io

import pyarrow as pa

from scankv.model.errors import UsageError
from scankv.model.types.types import format_type


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as a Parquet file gives them back: seconds become milliseconds, all else stays what it is.

    Raises:
        UsageError: Parquet cannot hold a column; names it.
    """
    return pa.schema([_parquet_field(field) for field in schema])


def _parquet_field(field: pa.Field) -> pa.Field:
    from pyarrow import parquet  # on use, see `writers`

    alone, file = pa.schema([field]), io.BytesIO()
    try:
        parquet.ParquetWriter(file, alone).close()
    except (OSError, pa.ArrowException) as error:
        # Decimals whose scale is negative, or greater than their digits.
        raise UsageError(
            f'column "{field.name}": Parquet cannot hold {format_type(field.type)}: {error}; choose the format arrow, '
            "or other columns",
            column=field.name,
        ) from error
    return parquet.read_schema(file).field(0)
