"""Reads data files again, with the columns and types of the table that they were published from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from scankv.model.errors import LakeDamaged, LakeUnavailable

if TYPE_CHECKING:
    from scankv.lake.lake_table import DataFile
    from scankv.lake.location import LakeLocation


def read_columns(location: LakeLocation, file: DataFile, schema: pa.Schema) -> pa.Table:
    """Returns columns of a file, with masked rows. Columns that the file lacks are null.

    Args:
        location: The location of the published table.
        file: The file.
        schema: The columns, with the types that they have in the table.

    Raises:
        LakeDamaged: The file is missing or damaged.
        LakeUnavailable: The location does not answer.
    """
    try:
        with location.open_input(file.path) as stream:
            opened = parquet.ParquetFile(stream)
            known = set(opened.schema_arrow.names)
            table = opened.read([name for name in schema.names if name in known])
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise LakeDamaged(
            f"{file.path} of the table in {location} cannot be read ({error}): publish with --full"
        ) from error
    except OSError as error:
        raise LakeUnavailable(f"{file.path} in {location} cannot be read ({error}): repeat the command") from error
    columns = [
        table.column(field.name).cast(field.type) if field.name in known else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
