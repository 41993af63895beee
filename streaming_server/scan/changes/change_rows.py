"""Changes as the rows of a stream: what happened, where and when, and the row; seen by those who see some rows only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scankv.model.changes.change_columns import CHANGE_FIELDS, ChangeColumns
from scankv.model.expressions import bind, evaluate
from streaming_server.scan.chunk_source import Chunk
from streaming_server.storage.changelog.records import RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.changes.change_columns import Kinds, Numbers
    from scankv.model.expressions import BoundPredicate, Predicate
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
    from streaming_server.scan.changes.net_changes import NetRows
    from streaming_server.storage.changelog.records import LogRecord


class ChangeRows:
    """Makes the chunks of a stream of changes. Its schema grows with the table's, unless columns were chosen.

    Args:
        definition: The table as of the opening.
        columns: The columns of the table that are returned, None for all.
        where: What is true of the rows that are seen, None for all. Where there are no rows before a change, and it
            looks at more than the key, rows that do not match are seen as deleted ones.
        not_before: What was committed before this time, in microseconds since 1970, is left out.

    Raises:
        SchemaMismatch: A column does not exist, or is compared with what it cannot be.
    """

    def __init__(
        self,
        definition: TableDefinition,
        columns: Sequence[str] | None,
        where: Predicate | None,
        not_before: int = 0,
    ) -> None:
        self._not_before = not_before
        self._columns = columns
        self._where = where
        self._bound: BoundPredicate | None = None
        self._adopt(definition, definition.schema.id)

    @property
    def selective(self) -> bool:
        """Whether changes are left out."""
        return self._bound is not None

    def of(
        self,
        records: Sequence[LogRecord],
        bucket: int,
        definition: TableDefinition,
        applied: AlreadyAppliedFilter | None = None,
    ) -> Chunk:
        """The changes of some records of a bucket that are seen.

        Args:
            records: The changes, at least one record.
            bucket: Where they come from.
            definition: The table of now, which knows their schemas.
            applied: Says which of them the rows before do not show already. None: all.
        """
        newest = max(record.schema_id for record in records)
        if newest > self.schema_id:
            self._adopt(definition, newest)
        rows = pa.concat_batches([_widened(record.changes.rows, self._table) for record in records])
        kinds = np.concatenate([record.changes.kinds for record in records])
        offsets = np.concatenate([record.offset + np.arange(len(record.changes)) for record in records])
        times = np.concatenate([record.commit_micros for record in records])
        kept = None if applied is None else applied.new_changes(records, bucket)
        if kept is None and times[0] < self._not_before:
            kept = np.flatnonzero(times >= self._not_before)
        if kept is not None:
            rows, kinds, offsets, times = rows.take(pa.array(kept)), kinds[kept], offsets[kept], times[kept]
        return self._seen_of(rows, kinds, offsets, times, bucket)

    def of_net(self, net: NetRows, bucket: int, definition: TableDefinition) -> Chunk:
        """Net changes of a bucket that are seen; their rows have the columns of `definition`."""
        if definition.schema.id > self.schema_id:
            self._adopt(definition, definition.schema.id)
        rows = net.rows.select(self._table.names)
        return self._seen_of(rows, net.kinds, net.offsets, net.commit_micros, bucket)

    def _seen_of(self, rows: pa.RecordBatch, kinds: Kinds, offsets: Numbers, times: Numbers, bucket: int) -> Chunk:
        if self._bound is not None:
            # Where it is unknown whether a row matches, it does not.
            matches = evaluate(self._bound, rows).fill_null(False).to_numpy(zero_copy_only=False)
            if self._deletes_unmatched:
                kinds = np.where(matches, kinds, np.uint8(RowKind.DELETE))
                rows = self._keys_where(rows, kinds == RowKind.DELETE)
            else:
                kept, kinds = _seen(kinds, matches) if self._before_images else _chosen(kinds, matches)
                rows, offsets, times = rows.take(pa.array(kept)), offsets[kept], times[kept]
        return Chunk(bucket, self._chosen_of(rows), changes=ChangeColumns(kinds, offsets, times))

    def _keys_where(self, rows: pa.RecordBatch, only_key: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.RecordBatch:
        """The rows, with null beside the key in some of them."""
        places = pa.array(np.arange(len(only_key)), mask=only_key)
        columns = [
            column if name in self._key else column.take(places)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def nothing(self, bucket: int) -> Chunk:
        """No changes."""
        return Chunk(bucket, pa.RecordBatch.from_pylist([], self._of_rows), changes=ChangeColumns.of_table(0))

    def of_table(self, chunk: Chunk) -> Chunk:
        """Rows of the table, already those that are seen, as the first that is known of them."""
        rows = self._chosen_of(chunk.batch)
        message = chunk.message if rows is chunk.batch else None
        return Chunk(chunk.bucket, rows, message, changes=ChangeColumns.of_table(rows.num_rows))

    def _chosen_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if rows.schema.equals(self._of_rows) else rows.select(self._names)

    def _adopt(self, definition: TableDefinition, schema_id: int) -> None:
        version = definition.schema_at(schema_id)
        self._table = definition.change_schema_at(schema_id)
        self._before_images, self._key = definition.options.before_images, frozenset(definition.primary_key)
        self.schema_id = schema_id
        self._names = version.select(self._columns).names
        self._of_rows = pa.schema([self._table.field(name) for name in self._names])
        self.schema = pa.schema([*CHANGE_FIELDS, *self._of_rows])
        self._bound = None if self._where is None else bind(self._where, self._table)
        beside_key = self._bound is not None and not self._key.issuperset(self._bound.columns)
        self._deletes_unmatched = beside_key and not self._before_images


def _widened(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns that were added to their table since, null."""
    if len(rows.schema) == len(schema):
        return rows
    added = [pa.nulls(rows.num_rows, field.type) for field in list(schema)[rows.num_columns :]]
    return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)


def _chosen(
    kinds: Kinds, matches: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Kinds]:
    """Which changes are seen by those who see some keys only."""
    kept = np.flatnonzero(matches)
    return kept, kinds[kept]


def _seen(
    kinds: Kinds, matches: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Kinds]:
    """Which changes are seen by those who see rows that match, and as what.

    A row that begins to match is inserted for them, one that ceases to is deleted. Half of an update, whose other half
    is not there, is taken for such.
    """
    kinds = kinds.copy()
    before, after = kinds == RowKind.UPDATE_BEFORE, kinds == RowKind.UPDATE_AFTER
    paired = np.zeros(len(kinds), np.bool_)
    paired[:-1] = before[:-1] & after[1:]
    other = np.zeros(len(kinds), np.bool_)
    other[:-1] |= paired[:-1] & matches[1:]
    other[1:] |= paired[:-1] & matches[:-1]
    kinds[before & ~other] = RowKind.DELETE
    kinds[after & ~other] = RowKind.INSERT
    kept = np.flatnonzero(matches)
    return kept, kinds[kept]
