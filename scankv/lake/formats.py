"""The open formats by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.lake.location import LakeLocation
from scankv.model.errors import LakeDamaged, UsageError

if TYPE_CHECKING:
    from scankv.lake.lake_table import LakeTable

FORMATS: Final = ("delta", "parquet", "iceberg")
_MARKS: Final = {"delta": "_delta_log", "parquet": "_scankv", "iceberg": "metadata"}
"""A directory that each format has at its location, and no other one."""

CATALOG_FILE: Final = "catalog.db"
"""The catalog of an Iceberg table on a local disk, beside the table: a database of SQLite."""

KEEP_SECONDS: Final = 7 * 86_400
"""How long the files of earlier versions remain unless the caller says otherwise."""


def open_lake_table(
    uri: str, format_: str = "delta", keep_seconds: float = KEEP_SECONDS, catalog: str | None = None
) -> LakeTable:
    """Returns the published table at a location, which may not exist yet. Does not read it.

    Args:
        uri: A directory, or a URI such as `s3://bucket/tables/scores`.
        format_: One of `FORMATS`.
        keep_seconds: How long the files of earlier versions remain.
        catalog: The catalog of an Iceberg table and its name there, as `prod:game.scores`, for a catalog of the
            configuration of pyiceberg. None: a file beside the table is its catalog.

    Raises:
        UsageError: The format does not exist, or the location cannot be used.
    """
    if catalog is not None and format_ != "iceberg":
        raise UsageError(f'catalog needs the format "iceberg", not {format_!r}: leave it out', option="catalog")
    location = LakeLocation(uri)
    if format_ == "delta":
        from scankv.lake.delta.delta_table import DeltaLakeTable

        return DeltaLakeTable(location, keep_seconds)
    if format_ == "parquet":
        from scankv.lake.parquet.parquet_table import ParquetLakeTable

        return ParquetLakeTable(location, keep_seconds)
    if format_ == "iceberg":
        from scankv.lake.iceberg.iceberg_table import IcebergLakeTable

        return IcebergLakeTable(location, keep_seconds, catalog)
    raise UsageError(f"format must be {' or '.join(map(repr, FORMATS))}, not {format_!r}", option="format")


def find_lake_table(uri: str) -> LakeTable:
    """Returns the published table at a location, in the format that it has there; a Delta table if no table is there.

    Raises:
        UsageError: The location cannot be used, or a package for the format is missing.
        LakeDamaged: It is an Iceberg table of another catalog than the file beside it.
        LakeUnavailable: The location does not answer.
    """
    location = LakeLocation(uri)
    found = next((each for each in FORMATS if location.list(_MARKS[each])), FORMATS[0])
    if found == "iceberg" and (location.local is None or not (location.local / CATALOG_FILE).exists()):
        raise LakeDamaged(
            f"{location} has an Iceberg table whose catalog is elsewhere: read it with readers of Iceberg, or publish "
            "the table in another format"
        )
    return open_lake_table(uri, found)


def check_unused(lake: LakeTable) -> None:
    """Checks that no table of another format is at the location of a table that was not published before.

    Two tables in one directory would delete the files of each other.

    Raises:
        LakeDamaged: Such a table exists.
        LakeUnavailable: The location does not answer.
    """
    for format_, directory in _MARKS.items():
        if format_ != lake.format and lake.location.list(directory):
            raise LakeDamaged(
                f'{lake.location} has a table in the format "{format_}", not "{lake.format}": choose another location'
            )
