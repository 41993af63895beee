"""Reads Parquet files that any program has written: one file, or all files below a directory."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.lake.formats import KEEP_SECONDS
from scankv.lake.parquet.parquet_table import ParquetLakeTable
from scankv.lake.source_rows import SourceRows
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.lake.location import LakeLocation

_BATCH_ROWS: Final = 65_536


def read_parquet(location: LakeLocation) -> SourceRows:
    """Returns the rows of all files, with the partition columns of directories such as `day=3`.

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
            count = files.count_rows()
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UsageError(f"{location} cannot be read as Parquet files of one table: {error}") from error
    if not files.files:
        raise UsageError(f"{location} has no Parquet files: give a file, or a directory with Parquet files")
    scanner = files.scanner(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
    reader = pa.RecordBatchReader.from_batches(files.schema, scanner.to_batches())
    return SourceRows(reader=reader, count=count, state=_state_of(location, files.files))


def _state_of(location: LakeLocation, paths: Sequence[str]) -> str:
    """Returns a text that changes if the names, the sizes or the times of the files change."""
    digest = hashlib.sha256()
    with location.translate_errors("read"):
        for file in location.files.get_file_info(list(paths)):
            digest.update(f"{file.path.removeprefix(location.root)}\0{file.size}\0{file.mtime_ns}\n".encode())
    return f"Parquet files in the state {digest.hexdigest()[:16]}, {len(paths):,} in number"


def _published_files(location: LakeLocation) -> list[str]:
    """Returns the files of the newest version of a published table; an empty list if no version exists."""
    version = ParquetLakeTable(location, KEEP_SECONDS).load()
    return [] if version is None else [f"{location.root}/{file.path}" for file in version.files]
