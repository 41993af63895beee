"""Reads a Delta table that any program has written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.lake.location import require_package
from scankv.model.errors import LakeDamaged, LakeUnavailable

if TYPE_CHECKING:
    from scankv.lake.location import LakeLocation


def read_delta(location: LakeLocation) -> tuple[pa.RecordBatchReader, int | None]:
    """Returns the rows of the newest version, without those that deletion vectors mask, and about their number.

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
        schema, rows = pa.schema(table.schema()), table.count()
        return pa.RecordBatchReader.from_stream(table.scan()).cast(schema), rows
    except (TableNotFoundError, OSError) as error:
        raise LakeUnavailable(f"the Delta table in {location} cannot be read: {error}") from error
    except (DeltaError, pa.ArrowException) as error:
        raise LakeDamaged(f"the Delta table in {location} cannot be read: {error}") from error
