"""Reads an Iceberg table that any program has written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.lake.iceberg.catalogs import catalog_table, translate_errors
from scankv.lake.iceberg.checked_avro import checked_avro
from scankv.lake.location import require_package
from scankv.lake.source_rows import SourceRows
from scankv.model.counts import counted
from scankv.model.errors import LakeDamaged, ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from scankv.lake.location import LakeLocation

METADATA: Final = ".metadata.json"
"""How the name of a metadata file ends."""

_HINT: Final = "metadata/version-hint.text"


def read_iceberg(location: LakeLocation) -> SourceRows:
    """Returns the rows of the newest version, without deleted ones. Their number is known if no file of deletes exists.

    A location alone does not say which version is the newest: its catalog does. So the location is a metadata file, or
    a directory with a file that names the newest version, or one with a catalog of ours.

    Raises:
        UsageError: The location does not say which version is the newest, or pyiceberg is not installed.
        LakeUnavailable: The location cannot be read.
        LakeDamaged: A file is missing or damaged, or pyiceberg cannot read it. The rows raise this, too, if they are
            not as many as the table says.
    """
    require_package("pyiceberg")
    try:
        with translate_errors(location), checked_avro():
            return _read(_open(location), location)
    except ScanKvError:
        raise
    except Exception as error:
        # pyiceberg and its readers raise errors of many types for damaged manifests, and ValueError for equality
        # deletes, which pyiceberg cannot read.
        raise LakeDamaged(
            f"the Iceberg table in {location} cannot be read ({type(error).__name__}: {error}): restore its files if "
            "they are damaged; otherwise give the rows as a RecordBatchReader of a program that can read it"
        ) from error


def _read(table: Table, location: LakeLocation) -> SourceRows:
    # On use, as they import pyiceberg.
    from pyiceberg.schema import index_by_id
    from pyiceberg.types import TimestampType, TimestamptzType

    from scankv.lake.iceberg.int96_files import ReadsInt96

    if any(
        isinstance(each.field_type, TimestampType | TimestamptzType) for each in index_by_id(table.schema()).values()
    ):
        table.io = ReadsInt96(table.io)
    snapshot = table.current_snapshot()
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    has_deletes = int(summary.get("total-delete-files", 1))
    count = None if has_deletes else int(summary.get("total-records", 0))
    version = "no snapshot" if snapshot is None else f"snapshot {snapshot.snapshot_id}"
    state = f"{version} of the Iceberg table {table.metadata.table_uuid}, schema {table.schema().schema_id}"
    reader = table.scan().to_arrow_batch_reader()
    if count is not None:
        reader = pa.RecordBatchReader.from_batches(reader.schema, _complete(reader, count, location))
    return SourceRows(reader=reader, count=count, state=state)


def _complete(rows: pa.RecordBatchReader, count: int, location: LakeLocation) -> Iterator[pa.RecordBatch]:
    """Yields batches. Raises LakeDamaged after them if rows are missing, or there are too many.

    For pyiceberg, a manifest that is cut off within its data is complete.
    """
    found = 0
    for batch in rows:
        found += batch.num_rows
        yield batch
    if found != count:
        raise LakeDamaged(
            f"the Iceberg table in {location} has {counted(found, 'row')} in its files, and {count:,} by its metadata: "
            "restore its files if they are damaged; otherwise give the rows as a RecordBatchReader of a program that "
            "can read it"
        )


def _open(location: LakeLocation) -> Table:
    from pyiceberg.table import StaticTable

    options = {f"s3.{name}": value for name, value in location.object_store_options().items()}
    if location.root.endswith(METADATA):
        return StaticTable.from_metadata(location.root_uri, options)
    name = None if location.local is None else catalog_table(None, location)
    if name is not None and name.exists(location):
        with name.open(location) as catalog:
            return catalog.load_table(name.identifier)
    hint = location.read(_HINT)
    if hint is None:
        raise UsageError(
            f"{location} does not say which version of the Iceberg table is the newest, because its catalog does: give "
            "the metadata file that the catalog names, or the rows as a RecordBatchReader of pyiceberg"
        )
    newest = hint.decode().strip()
    file = newest if newest.endswith(METADATA) else f"v{newest}{METADATA}"
    return StaticTable.from_metadata(f"{location.root_uri}/metadata/{file}", options)
