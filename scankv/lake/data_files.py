"""Opens data files for reading: pages must match their checksums, and damage is not taken for an outage."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from scankv.model.errors import LakeDamaged, LakeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.lake.lake_table import DataFile
    from scankv.lake.location import LakeLocation


@contextmanager
def open_data_file(location: LakeLocation, file: DataFile) -> Iterator[parquet.ParquetFile]:
    """Opens a data file. Reads in the block check the checksum of each page, which `LakeWriter` has written.

    Args:
        location: The location of the published table.
        file: The file.

    Raises:
        FileNotFoundError: The file does not exist.
        LakeDamaged: The file is damaged.
        LakeUnavailable: The location does not answer.
    """
    try:
        with location.open_input(file.path) as stream:
            yield _open(stream)
    except FileNotFoundError:
        raise
    except pa.ArrowInvalid as error:
        raise damaged_error(location, file, str(error)) from error
    except OSError as error:
        # pyarrow raises the same error for a damaged page and for a location that does not answer.
        damage = _find_damage(location.read(file.path))
        if damage is not None:
            raise damaged_error(location, file, damage) from error
        raise LakeUnavailable(f"{file.path} in {location} cannot be read ({error}): try again") from error


def damaged_error(location: LakeLocation, file: DataFile, what: str) -> LakeDamaged:
    """Returns the error for a data file that cannot be used."""
    return LakeDamaged(
        f"{file.path} of the table in {location} cannot be used: {what}; publish with --full, and read without the "
        "lake until then"
    )


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
        with open_data_file(location, file) as opened:
            known = set(opened.schema_arrow.names)
            table = opened.read([name for name in schema.names if name in known])
    except FileNotFoundError as error:
        raise damaged_error(location, file, "it does not exist") from error
    columns = [
        table.column(field.name).cast(field.type) if field.name in known else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _open(source: pa.NativeFile) -> parquet.ParquetFile:
    return parquet.ParquetFile(source, page_checksum_verification=True)


def _find_damage(content: bytes | None) -> str | None:
    """Returns what is wrong with the content of a file. None: nothing, or the file does not exist any more."""
    try:
        if content is not None:
            _open(pa.BufferReader(content)).read()
    except (OSError, pa.ArrowException) as error:
        return str(error)
    return None
