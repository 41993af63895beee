"""Reads a Delta table that any program has written."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.lake.delta.delta_log import escaped_partition_value
from scankv.lake.delta.delta_table import misread_partition_column
from scankv.lake.location import require_package
from scankv.lake.source_rows import SourceRows
from scankv.model.errors import LakeDamaged, LakeUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalake import DeltaTable

    from scankv.lake.location import LakeLocation

_SETTINGS: Final = {
    # The rows come in the same order each time.
    "datafusion.execution.target_partitions": "1",
    # By default, timestamps of the type INT96 wrap before 1677 and after 2262.
    "datafusion.execution.parquet.coerce_int96": "us",
}


def read_delta(location: LakeLocation) -> SourceRows:
    """Returns the rows of the newest version, without those that deletion vectors mask.

    Their number is not known if the table may have deletion vectors.

    Raises:
        LakeUnavailable: The location cannot be read.
        LakeDamaged: The table is damaged, or has a feature that deltalake does not know.
        UsageError: deltalake is not installed.
    """
    require_package("deltalake")
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        with _translate_panics(location):
            return _read(location)
    except (TableNotFoundError, OSError) as error:
        raise LakeUnavailable(f"the Delta table in {location} cannot be read: {error}") from error
    except (DeltaError, pa.ArrowException) as error:
        raise LakeDamaged(f"the Delta table in {location} cannot be read: {error}") from error


def _read(location: LakeLocation) -> SourceRows:
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(location.root_uri, storage_options=location.object_store_options("aws_") or None)
    if table.metadata().partition_columns:
        _check_partition_values(table, location)
    # The number of rows that a vector masks would have to be read.
    has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
    schema, count = pa.schema(table.schema()), None if has_vectors else table.count()
    query = QueryBuilder(_SETTINGS).register("source", table).execute("SELECT * FROM source")
    state = f"version {table.version()} of the Delta table {table.metadata().id}"
    reader = pa.RecordBatchReader.from_batches(pa.schema(query.schema), _batches(query, location))
    return SourceRows(reader=reader.cast(schema), count=count, state=state)


def _batches(query: Iterable[Any], location: LakeLocation) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a query.

    They do not pass through a C stream, because a Rust panic within one ends the process.

    Raises:
        LakeDamaged: The reader of deltalake panics.
        OSError: It cannot read a file.
    """
    from deltalake.exceptions import DeltaError

    with _translate_panics(location):
        try:
            for batch in query:
                yield pa.record_batch(batch)
        except Exception as error:
            # The reader of deltalake raises this class itself. Anything else is a mistake in a program.
            if type(error) is not Exception and not isinstance(error, DeltaError):
                raise
            raise OSError(str(error)) from error


@contextmanager
def _translate_panics(location: LakeLocation) -> Iterator[None]:
    """Converts a panic of deltalake, which is no `Exception`. Its libraries panic on damaged files."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LakeDamaged(
            f"the Delta table in {location} cannot be read, most likely because it is damaged: {error}"
        ) from error


def _check_partition_values(table: DeltaTable, location: LakeLocation) -> None:
    """Raises LakeDamaged if deltalake reads a partition value as another value.

    The values of other columns come from data files alone: a read of all rows does not use the bounds in the log.
    """
    column = misread_partition_column(table.metadata().configuration, table.partitions())
    if column is not None:
        raise LakeDamaged(
            f"the Delta table in {location} cannot be read: an earlier release has published values of partition "
            f'column "{column}" that readers take for other values: publish it again with --full'
        )
    found = escaped_partition_value(location, table.version())
    if found is not None:
        raise LakeDamaged(
            f'the Delta table in {location} cannot be read: partition column "{found[0]}" has the value "{found[1]}", '
            "for which the log has escapes that deltalake reads as another character: have the program that wrote "
            "the table write it again with UTF-8 in the log, or give the rows as a RecordBatchReader of a program "
            "that can read it"
        )
