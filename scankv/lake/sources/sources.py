"""Finds out what a location contains, and opens its rows: tables in open formats that any program has written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa
from pyarrow import fs

from scankv.lake.location import LakeLocation
from scankv.model.errors import LakeDamaged, LakeUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.lake.source_rows import SourceRows

SourceFormat: TypeAlias = Literal["delta", "iceberg", "parquet"]

_METADATA: Final = ".metadata.json"


def open_source(uri: str, format_: SourceFormat | None = None, target: pa.Schema | None = None) -> SourceRows:
    """Opens all rows of a table or of files, as of the newest version. Blocks.

    Args:
        uri: A file, a directory, or a URI such as `s3://bucket/tables/scores`.
        format_: The format. None: what the location contains.
        target: The columns of the table that the rows are for. None: those of the source.

    Raises:
        UsageError: The location or the format cannot be used, or a package that reads it is not installed.
        LakeUnavailable: The location cannot be read. The rows raise this as well.
        LakeDamaged: The table is damaged.
    """
    location = LakeLocation(uri)
    source = _open(location, format_, pa.schema([]) if target is None else target)
    rows = _translated(source.reader, location)
    return replace(source, reader=pa.RecordBatchReader.from_batches(source.reader.schema, rows))


def stored_bytes(uri: str) -> int:
    """Returns the size of all files at a location, or of the table that a metadata file belongs to. Blocks.

    Raises:
        UsageError: The location cannot be used.
        LakeUnavailable: It cannot be read.
    """
    path, mark, options = uri.partition("?")
    table, _, name = path.rpartition("/metadata/")
    location = LakeLocation(table + mark + options if table and name.endswith(_METADATA) else uri)
    if location.kind() == fs.FileType.File:
        with location.translate_errors("read"):
            return int(location.files.get_file_info(location.root).size)
    return sum(file.size_bytes for file in location.list(recursive=True))


def _translated(rows: pa.RecordBatchReader, location: LakeLocation) -> Iterator[pa.RecordBatch]:
    """Yields batches. Translates the errors of the libraries that read them to ours."""
    try:
        yield from rows
    except FileNotFoundError as error:
        raise LakeDamaged(f"{location} cannot be read to its end: a file is missing ({error})") from error
    except MemoryError as error:
        raise LakeDamaged(
            f"{location} cannot be read to its end: it is damaged, or a part of it needs more memory than is available "
            f"or allowed ({error}); write it again with smaller row groups or values"
        ) from error
    except (OSError, pa.ArrowException, ValueError) as error:
        raise LakeUnavailable(f"{location} cannot be read to its end: {error}") from error


def _open(location: LakeLocation, format_: SourceFormat | None, target: pa.Schema) -> SourceRows:
    match format_ or find_format(location):
        case "delta":
            from scankv.lake.delta.delta_reader import read_delta

            return read_delta(location)
        case "iceberg":
            from scankv.lake.iceberg.iceberg_reader import read_iceberg

            return read_iceberg(location)
        case "parquet":
            from scankv.lake.parquet.parquet_reader import read_parquet

            return read_parquet(location, target)
    raise UsageError(f'the format must be "delta", "iceberg" or "parquet", not {format_!r}', option="source_format")


def find_format(location: LakeLocation) -> SourceFormat:
    """Returns the format of what a location contains. Raises LakeUnavailable if it contains nothing."""
    if location.kind() == fs.FileType.File:
        return "iceberg" if location.root.endswith(_METADATA) else "parquet"
    if location.list("_delta_log"):
        return "delta"
    metadata = location.list("metadata")
    if any(file.path.endswith(_METADATA) for file in metadata):
        return "iceberg"
    if location.kind() == fs.FileType.NotFound:
        raise LakeUnavailable(f"{location} does not exist: give a file, a directory or a URI such as s3://bucket/table")
    return "parquet"
