"""Changes as the rows of a stream: row kind, offset, commit time and columns, filtered as the reader requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scankv.model.changes.change_columns import CHANGE_FIELDS, ChangeColumns
from scankv.model.errors import SchemaMismatch
from scankv.model.expressions import bind, evaluate
from scankv.model.expressions.binding import columns_of
from streaming_server.scan.chunk_source import Chunk
from streaming_server.storage.changelog.records import RowKind, rows_of
from streaming_server.storage.rows.conversion import convert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.changes.change_columns import Kinds, Numbers
    from scankv.model.expressions import BoundPredicate, Predicate
    from scankv.model.tables.columns import Schema
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
    from streaming_server.scan.changes.net_changes import NetChangeBatch
    from streaming_server.scan.changes.range_rescan import RescannedRows
    from streaming_server.storage.changelog.records import LogRecord


class ChangeRows:
    """Builds the chunks of a stream of changes. Its schema follows the table's, unless columns were chosen.

    What the changes have is a property of the stream, not of the table as it is now: the option `changelog` of the
    table may have changed since they were recorded.

    Args:
        definition: The table as of the opening.
        columns: The columns to return. None: all.
        where: The predicate on the rows. None: all rows. If the changelog has no before-images and the predicate uses
            more than the key, rows that do not match are returned as deletes.
        not_before: Changes committed before this time, in microseconds since 1970 UTC, are dropped.
        before_images: Whether the changes have the rows before them, until `lose_before_images` is called. None: as
            the table has them now.

    Attributes:
        not_before: As given.
        columns: The columns of the table that the chunks have.

    Raises:
        SchemaMismatch: A column does not exist, or a value does not fit the type of its column.
    """

    def __init__(
        self,
        definition: TableDefinition,
        columns: Sequence[str] | None,
        where: Predicate | None,
        not_before: int = 0,
        *,
        before_images: bool | None = None,
    ) -> None:
        self.not_before = not_before
        self._before_images = definition.options.before_images if before_images is None else before_images
        self._columns = columns
        self._where = where
        self._bound: BoundPredicate | None = None
        named = columns_of(where, definition.schema.arrow) if where is not None else ()
        self._named = {name: definition.schema.column(name).id for name in (*(columns or ()), *named)}
        self._set_schema(definition, definition.schema.id)

    @property
    def selective(self) -> bool:
        """Whether changes are filtered."""
        return self._bound is not None

    def chunk_of_records(
        self,
        records: Sequence[LogRecord],
        bucket: int,
        definition: TableDefinition,
        applied: AlreadyAppliedFilter | None = None,
        *,
        deletes_unmatched: bool = False,
    ) -> Chunk:
        """Returns the matching changes of some records of a bucket.

        Args:
            records: The changes, at least one record.
            bucket: The bucket that they come from.
            definition: The current definition of the table, which has their schemas.
            applied: Removes the changes that the rows sent earlier already contain. None: all changes are new.
            deletes_unmatched: Whether a row that does not match is returned as a delete, even if it did not match
                before, because the reader may have an earlier row that matches.
        """
        newest = max(record.schema_id for record in records)
        if newest > self.schema_id:
            self._set_schema(definition, newest)
        rows = pa.concat_batches([rows_of(record, definition, self.schema_id, self._table) for record in records])
        kinds = np.concatenate([record.changes.kinds for record in records])
        offsets = np.concatenate([record.offset + np.arange(len(record.changes)) for record in records])
        times = np.concatenate([record.commit_micros for record in records])
        kept = None if applied is None else applied.new_changes(records, bucket)
        if kept is None and times[0] < self.not_before:
            kept = np.flatnonzero(times >= self.not_before)
        if kept is not None:
            rows, kinds, offsets, times = rows.take(pa.array(kept)), kinds[kept], offsets[kept], times[kept]
        return self._filter_chunk(rows, kinds, offsets, times, bucket, knows_before=not deletes_unmatched)

    def chunk_of_rescan(self, read: RescannedRows, bucket: int, offset: int, micros: int) -> Chunk:
        """Returns rows that were read again, because a range marker stands for their changes, as upserts.

        Rows that do not match are returned as deletes, because they may have matched before. The predicate may use only
        the key instead; then other rows are left out. Rows that have expired are returned as deletes as well: the
        reader may have an earlier row that has not, and the removal may be silent.

        Args:
            read: The rows.
            bucket: The bucket that they come from.
            offset: The offset of the marker.
            micros: Its commit time.
        """
        definition, count = read.definition, read.rows.num_rows
        if definition.schema.id > self.schema_id:
            self._set_schema(definition, definition.schema.id)
        rows = convert(read.rows, definition.schema, definition.schema_at(self.schema_id))
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=self._table)
        kinds = np.full(count, RowKind.UPDATE_AFTER, np.uint8)
        if read.expired is not None:
            kinds[read.expired] = RowKind.DELETE
            if not self._before_images:  # A delete has only the key.
                rows = self._null_beside_key(rows, read.expired)
        return self._filter_chunk(
            rows, kinds, np.full(count, offset), np.full(count, micros), bucket, knows_before=False
        )

    def chunk_of_net_changes(
        self, net: NetChangeBatch, bucket: int, definition: TableDefinition, schema_id: int
    ) -> Chunk:
        """Returns the matching net changes of a bucket.

        Args:
            net: The changes.
            bucket: The bucket.
            definition: The current definition of the table.
            schema_id: The schema version of their rows. The table may have been altered since they were computed.
        """
        if definition.schema.id > self.schema_id:
            self._set_schema(definition, definition.schema.id)
        rows = convert(net.rows, definition.schema_at(schema_id), definition.schema_at(self.schema_id))
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=self._table)
        if schema_id != self.schema_id and not self._before_images:
            # A delete has only the key, and so no defaults of columns that were added.
            rows = self._null_beside_key(rows, net.kinds == RowKind.DELETE)
        return self._filter_chunk(rows, net.kinds, net.offsets, net.commit_micros, bucket)

    def _filter_chunk(
        self,
        rows: pa.RecordBatch,
        kinds: Kinds,
        offsets: Numbers,
        times: Numbers,
        bucket: int,
        *,
        knows_before: bool = True,
    ) -> Chunk:
        if self._bound is not None:
            # A predicate that is null is not true.
            matches = evaluate(self._bound, rows).fill_null(False).to_numpy(zero_copy_only=False)
            # Without before-images, nothing says whether the reader has a row that matches.
            knows_before = knows_before and self._before_images
            if self._beside_key and not knows_before:
                kinds = np.where(matches, kinds, np.uint8(RowKind.DELETE))
                if not self._before_images:  # A delete has only the key.
                    rows = self._null_beside_key(rows, kinds == RowKind.DELETE)
            else:
                kept, kinds = _visible_changes(kinds, matches) if knows_before else _matching_changes(kinds, matches)
                rows, offsets, times = rows.take(pa.array(kept)), offsets[kept], times[kept]
        return Chunk(bucket, self._project(rows), changes=ChangeColumns(kinds, offsets, times))

    def _null_beside_key(
        self, rows: pa.RecordBatch, only_key: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> pa.RecordBatch:
        """Sets the columns outside the key to null in the rows where `only_key` is true."""
        indices = pa.array(np.arange(len(only_key)), mask=only_key)
        columns = [
            column if name in self._key else column.take(indices)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def empty_chunk(self, bucket: int) -> Chunk:
        return Chunk(bucket, pa.RecordBatch.from_pylist([], self._of_rows), changes=ChangeColumns.of_table(0))

    def chunk_of_rows(self, chunk: Chunk) -> Chunk:
        """Returns rows of the table, filtered already, as changes."""
        rows = self._project(chunk.batch)
        message = chunk.message if rows is chunk.batch else None
        return Chunk(chunk.bucket, rows, message, changes=ChangeColumns.of_table(rows.num_rows))

    def lose_before_images(self, definition: TableDefinition) -> None:
        """Call before changes that lack the rows before them. Columns outside the key can be null from then on."""
        self._before_images = False
        self._set_schema(definition, self.schema_id)

    def _project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if rows.schema.equals(self._of_rows) else rows.select(self._names)

    def _check_named(self, version: Schema) -> None:
        """Raises SchemaMismatch if a column that the stream names was dropped or renamed in a schema version."""
        for name, id_ in self._named.items():
            column = version.by_id.get(id_)
            if column is None or column.name != name:
                became = "dropped" if column is None else f'renamed to "{column.name}"'
                raise SchemaMismatch(
                    f'column "{name}" was {became} while the stream was running: start it again from its offsets, '
                    "with the present columns",
                    column=name,
                )

    def _set_schema(self, definition: TableDefinition, schema_id: int) -> None:
        version = definition.schema_at(schema_id)
        self._check_named(version)
        self._table = definition.change_schema_at(schema_id)
        self._key = frozenset(definition.primary_key)
        self.schema_id = schema_id
        self._names = version.select(self._columns).names
        self.columns = tuple(version.column(name) for name in self._names)
        self._of_rows = pa.schema([self._table.field(name) for name in self._names])
        self.schema = pa.schema([*CHANGE_FIELDS, *self._of_rows])
        self._bound = None if self._where is None else bind(self._where, self._table)
        self._beside_key = self._bound is not None and not self._key.issuperset(self._bound.columns)


def _matching_changes(
    kinds: Kinds, matches: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Kinds]:
    """Selects changes by a predicate that uses only the key, which no change of a row alters."""
    kept = np.flatnonzero(matches)
    return kept, kinds[kept]


def _visible_changes(
    kinds: Kinds, matches: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Kinds]:
    """Selects changes as a reader of matching rows sees them.

    A row that begins to match is an insert for the reader; a row that ceases to match is a delete. Half of an update
    without its other half is treated the same way.
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
