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
from scankv.model.types.int96 import COARSE, FINE, exact_int96, has_int96, int96_columns, needs_nanos

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyarrow.dataset import FileSystemDataset, ParquetFileFragment

    from scankv.lake.location import LakeLocation

_BATCH_ROWS: Final = 65_536


def read_parquet(location: LakeLocation, target: pa.Schema) -> SourceRows:
    """Returns the rows of all files, with the partition columns of directories such as `day=3`.

    A column that a file does not have is null in its rows. Columns have a type that fits the values of all files. Files
    whose names begin with `_` or `.` do not count. Of a table that was published as Parquet, only the files of
    its newest version do. Few batches are read ahead.

    Args:
        location: The location.
        target: The columns of the table; empty if they are those of the files. Timestamps of the type INT96 are read as
            nanoseconds in columns for which it has nanoseconds, and as microseconds in others.

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
            format_ = dataset.ParquetFileFormat(**COARSE)
            open_files = partial(dataset.dataset, paths, filesystem=location.files, format=format_, partitioning="hive")
            # Its columns are those of the first file.
            files = open_files()
            schema = pa.unify_schemas(
                [files.schema, *(file.physical_schema for file in files.get_fragments())], promote_options="permissive"
            )
            if not schema.equals(files.schema):
                files = open_files(schema=schema)
            count = files.count_rows()
            fine = _open_int96(files)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UsageError(f"{location} cannot be read as Parquet files of one table: {error}") from error
    if not files.files:
        raise UsageError(f"{location} has no Parquet files: give a file, or a directory with Parquet files")
    if fine:
        schema = _schema_with_nanos(files.schema, [each.physical_schema for each in fine.values()], target)
        reader = pa.RecordBatchReader.from_batches(schema, _read_int96(files, fine, schema))
    else:
        scanner = files.scanner(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
        reader = pa.RecordBatchReader.from_batches(files.schema, scanner.to_batches())
    return SourceRows(reader=reader, count=count, state=_state_of(location, files.files))


def _open_int96(files: FileSystemDataset) -> dict[str, ParquetFileFragment]:
    """Opens files with timestamps of the type INT96 again, by path, to read these columns in nanoseconds."""
    from pyarrow import dataset

    paths = [file.path for file in files.get_fragments() if has_int96(file.metadata)]
    format_ = dataset.ParquetFileFormat(**FINE)
    return {path: format_.make_fragment(path, filesystem=files.filesystem) for path in paths}


def _schema_with_nanos(coarse: pa.Schema, fine: Sequence[pa.Schema], target: pa.Schema) -> pa.Schema:
    """Returns the columns; those of the type INT96 are in nanoseconds if the table has them in nanoseconds."""
    for file in fine:
        for field in file:
            place = coarse.get_field_index(field.name)
            if field.type != coarse.field(place).type and needs_nanos(field.name, target):
                coarse = coarse.set(place, coarse.field(place).with_type(field.type))
    return coarse


def _read_int96(
    files: FileSystemDataset, fine: Mapping[str, ParquetFileFragment], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of files, one after another, in the columns of `_schema_with_nanos`."""
    for file in files.get_fragments():
        again = fine.get(file.path)
        if again is None:
            yield from file.to_batches(schema=schema, batch_size=_BATCH_ROWS)
            continue
        names = int96_columns(file.physical_schema, again.physical_schema)
        # Columns of the type INT96 are read as they are: another file may have the same column in nanoseconds.
        coarse = pa.schema([file.physical_schema.field(each.name) if each.name in names else each for each in schema])
        batches = file.to_batches(schema=coarse, batch_size=_BATCH_ROWS)
        first = 0
        for batch, nanos in zip(batches, again.to_batches(columns=names, batch_size=_BATCH_ROWS), strict=True):
            yield exact_int96(batch, nanos, schema, first).cast(schema)
            first += batch.num_rows


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
