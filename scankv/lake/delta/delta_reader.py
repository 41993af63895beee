"""Reads a Delta table that any program has written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.lake.location import require_package
from scankv.model.errors import LakeDamaged, LakeUnavailable

if TYPE_CHECKING:
    from scankv.lake.location import LakeLocation


def read_delta(location: LakeLocation) -> tuple[pa.RecordBatchReader, int | None]:
    """Returns the rows of the newest version, without those that deletion vectors mask, and their number.

    The number is None if the table may have deletion vectors.

    Raises:
        LakeUnavailable: The location cannot be read.
        LakeDamaged: The table is damaged, or has a feature that deltalake does not know.
        UsageError: deltalake is not installed.
    """
    require_package("deltalake")
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(location.root_uri, storage_options=location.object_store_options("aws_") or None)
        # The number of rows that a vector masks would have to be read.
        has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
        schema, rows = pa.schema(table.schema()), None if has_vectors else table.count()
        return pa.RecordBatchReader.from_stream(table.scan()).cast(schema), rows
    except (TableNotFoundError, OSError) as error:
        raise LakeUnavailable(f"the Delta table in {location} cannot be read: {error}") from error
    except (DeltaError, pa.ArrowException) as error:
        raise LakeDamaged(f"the Delta table in {location} cannot be read: {error}") from error
