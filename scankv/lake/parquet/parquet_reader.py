"""Reads Parquet files that any program has written: one file, or all files below a directory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.lake.formats import KEEP_SECONDS
from scankv.lake.parquet.parquet_table import ParquetLakeTable
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from scankv.lake.location import LakeLocation

_BATCH_ROWS: Final = 65_536


def read_parquet(location: LakeLocation) -> tuple[pa.RecordBatchReader, int | None]:
    """Returns the rows of all files, with the partition columns of directories such as `day=3`, and their number.

    A column that a file does not have is null in its rows. Columns have a type that fits the values of all files. Files
    whose names begin with `_` or `.` do not count. Of a table that was published as Parquet, only the files of
    its newest version do. Few batches are read ahead.

    Raises:
        UsageError: There is no file, or the files are not Parquet files whose columns fit together.
        LakeUnavailable: The location cannot be read.
        LakeDamaged: The manifest of a published table is damaged.
    """
    # On use, as it imports pandas.
    from pyarrow import dataset

    with location.translate_errors("read"):
        try:
            paths = _published_files(location) or location.root
            open_files = partial(
                dataset.dataset, paths, filesystem=location.files, format="parquet", partitioning="hive"
            )
            # Its columns are those of the first file.
            files = open_files()
            schema = pa.unify_schemas(
                [files.schema, *(file.physical_schema for file in files.get_fragments())], promote_options="permissive"
            )
            if not schema.equals(files.schema):
                files = open_files(schema=schema)
            rows = files.count_rows()
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UsageError(f"{location} cannot be read as Parquet files of one table: {error}") from error
    if not files.files:
        raise UsageError(f"{location} has no Parquet files: give a file, or a directory with Parquet files")
    scanner = files.scanner(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
    return pa.RecordBatchReader.from_batches(files.schema, scanner.to_batches()), rows


def _published_files(location: LakeLocation) -> list[str]:
    """Returns the files of the newest version of a published table; an empty list if no version exists."""
    version = ParquetLakeTable(location, KEEP_SECONDS).load()
    return [] if version is None else [f"{location.root}/{file.path}" for file in version.files]
