"""The properties of a table: its name, columns, key, buckets, options, indexes and merge rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aio_client._table.handle import TableMethods
from scankv.model.tables.agg import Aggregator
from scankv.model.types.python_values import python_value

if TYPE_CHECKING:
    import pyarrow as pa


class TableDescription(TableMethods):
    """The properties of a table as of the server's latest answer about it. Reading a property makes no call."""

    @property
    def name(self) -> str:
        """The name as `database.table`."""
        return self._handle.name

    @property
    def schema(self) -> pa.Schema:
        """The columns. Key columns are not nullable."""
        return self._handle.shape.schema

    @property
    def column_defaults(self) -> dict[str, Any]:
        """What complete rows get that are written without a column, by column, as Python values.

        A default that Python has no value for, such as a date after the year 9999, is an Arrow scalar.
        """
        return {name: python_value(default) for name, default in self._handle.shape.defaults.items()}

    @property
    def column_comments(self) -> dict[str, str]:
        """What columns mean, by column. Columns without a comment are left out."""
        return dict(self._handle.shape.description.column_comments)

    @property
    def primary_key(self) -> list[str]:
        """The names of the key columns, in key order. Empty: the table has no primary key, and rows are appended."""
        return list(self._handle.shape.description.primary_key)

    @property
    def bucket_key(self) -> list[str]:
        """The names of the key columns whose values choose the bucket.

        In a table without a primary key, any columns; empty if the buckets take turns.
        """
        return list(self._handle.shape.description.bucket_key)

    @property
    def partition_by(self) -> list[str]:
        """The names of the columns that the table is partitioned by. Empty: it is not partitioned."""
        return list(self._handle.shape.description.partition_by)

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._handle.shape.description.buckets

    @property
    def tablets(self) -> int:
        """Into how many tablets the buckets are divided, each with an owner of its own. 1: into none."""
        return max(1, self._handle.shape.description.tablets)

    @property
    def owner_port(self) -> int:
        """The port of the worker process that owns the table, on the host of the server; 0: the server is one process.

        A transaction can use tables with the same port.
        """
        return self._handle.shape.description.owner_port

    @property
    def incarnation(self) -> str:
        """Identifies this incarnation of the table: a table created again under the same name has another value."""
        return self._handle.shape.description.incarnation

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from their defaults, by name."""
        return dict(self._handle.shape.description.options)

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each index, in the order of creation. Indexes that are still being built are included."""
        return tuple(tuple(index.columns) for index in self._handle.shape.description.indexes)

    @property
    def merge_engine(self) -> str:
        """What an upsert does to an existing row: the option `merge_engine`, by default "last_row"."""
        return self._handle.shape.merge_engine

    @property
    def version_column(self) -> str | None:
        """The column that decides which row wins in a `versioned` table; None for other tables."""
        return self._handle.shape.merging.version_column

    @property
    def sequence_column(self) -> tuple[str, ...]:
        """The columns that decide which row is newer. Empty if the row written last wins."""
        return self._handle.shape.merging.sequence_columns

    @property
    def sequence_groups(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """The sequence groups of a `partial_update` table: sequence columns to the columns that they order."""
        return {group.sequence: group.columns for group in self._handle.shape.merging.sequence_groups}

    @property
    def aggregators(self) -> dict[str, Aggregator]:
        """The aggregator of each column that was given one, by column name."""
        return {
            each.column: Aggregator(each.function, each.parameters) for each in self._handle.shape.merging.aggregates
        }
