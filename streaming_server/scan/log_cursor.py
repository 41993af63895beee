"""A cursor over the rows of a bucket without primary key, which are the changes in its changelog."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from scankv.model.expressions import evaluate
from streaming_server.arrays.arrow_buffers import columnless_batch
from streaming_server.storage.changelog.offsets import row_key
from streaming_server.storage.cursors.cursor import SHORT_SECONDS, SLICE_SECONDS
from streaming_server.storage.cursors.range_reader import STEP_SECONDS
from streaming_server.storage.files.formats import locate
from streaming_server.storage.rows.conversion import initial_values, widened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.tables.columns import ColumnDefinition
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.chunk_source import StoredRows
    from streaming_server.storage.changelog.change_log import LogReader
    from streaming_server.storage.changelog.records import LogRecord
    from streaming_server.storage.rows.row_codec import RowCodec

_WHOLE_ROWS: Final = 1024
"""A batch with so many rows is not filled with rows of the next record, because joining them copies all of them."""


class LogCursor:
    """A `Cursor` over the records of a changelog. The key of a row is the `row_key` of its log offset.

    Rows of large records are returned as they are stored. Those of small records are joined.

    Use it from one thread at a time. It pins files on disk until `close`.

    Args:
        records: Reads the records; the cursor closes it.
        codec: The codec of the table as of the view.
        columns: The columns to return. None: all.
        residual: The predicate that `next_batch` filters rows by. None: no filter.
        reverse: Whether to read in descending order.
        location: The name of the bucket in errors.

    Attributes:
        message: None, because rows and their kinds are one record batch in storage.
        rows_scanned: Rows read so far, matching or not.
        last_key: The key up to which the cursor has read. None before the first row.
    """

    message: None = None

    def __init__(
        self,
        records: LogReader,
        codec: RowCodec,
        columns: Sequence[str] | None,
        residual: BoundPredicate | None,
        *,
        reverse: bool,
        location: str,
    ) -> None:
        self.rows_scanned = 0
        self.last_key: bytes | None = None
        self._records = records
        self._codec = codec
        self._residual = residual
        self._reverse = reverse
        self._location = location
        self._output = _RecordColumns(codec.definition, columns)
        self._filter_input = _RecordColumns(codec.definition, residual.columns if residual else ())
        # The rest of the record that was read last, and the parts of records of the next batch.
        self._record: LogRecord | None = None
        self._parts: list[LogRecord] = []
        self._rows = 0
        self._bytes = 0.0
        self._is_full = False
        self._current: _BatchRows | None = None

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Reads records for the next batch, for about a millisecond. See `Cursor`. Raises DataLoss."""
        began = time.thread_time()
        self._gather(max_rows, max_bytes, SLICE_SECONDS)
        if not self._parts:
            return None
        return self._is_full and time.thread_time() - began < SHORT_SECONDS

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the requested columns of the next matching rows, possibly an empty batch; None at the proven end.

        Reads at most `max_rows` rows and about `max_bytes` of stored data, but at least one row. Raises DataLoss.
        """
        self._gather(max_rows, max_bytes, STEP_SECONDS)
        parts, self._parts = self._parts, []
        self._is_full, self._rows, self._bytes = False, 0, 0.0
        if not parts:
            return None
        last = parts[-1]
        self.rows_scanned += sum(len(part.changes) for part in parts)
        self.last_key = row_key(last.offset if self._reverse else last.offset + len(last.changes) - 1)
        try:
            kept = None if self._residual is None else evaluate(self._residual, self._of(self._filter_input, parts))
            self._current = _BatchRows(parts, kept)
            if kept is not None and self._output.are_none:
                # A count needs no columns, and filtering a batch without columns would take longer than the predicate.
                return columnless_batch(kept.true_count)
            rows = self._of(self._output, parts)
            return rows if kept is None else rows.filter(kept)
        except DataLoss as error:
            raise locate(error, self._location) from error

    @property
    def stored(self) -> StoredRows:
        """Encodes rows of the current batch with the current schema. May be called later. Raises DataLoss."""
        assert self._current is not None
        return partial(self._encode_stored, self._current)

    def _encode_stored(self, current: _BatchRows, indices: pa.Array) -> pa.Array:
        try:
            rows = self._of(_RecordColumns(self._codec.definition, None), current.parts)
        except DataLoss as error:
            raise locate(error, self._location) from error
        if current.kept is not None:
            rows = rows.filter(current.kept)
        return self._codec.encode(rows.take(indices))

    def next_rows(self, max_rows: int, max_bytes: int) -> None:
        """Not supported: rows of tables without a key are not merged in one order."""
        raise AssertionError("a table without a key has no order over all buckets")

    def close(self) -> None:
        """Releases the records. Closing twice is allowed."""
        self._records.close()
        self._record = self._current = None
        self._parts = []

    def _gather(self, max_rows: int, max_bytes: int, seconds: float) -> None:
        """Takes rows of records until the next batch is full, or reading them has taken some seconds."""
        began = time.thread_time()
        while not self._is_full:
            if self._record is None:
                self._record = self._records.read()
                if self._record is None:
                    self._is_full = True
                    return
            self._take(self._record, max_rows, max_bytes)
            if time.thread_time() - began > seconds:
                return

    def _take(self, record: LogRecord, max_rows: int, max_bytes: int) -> None:
        """Adds rows of a record to the next batch, and keeps the rest of the record."""
        count = len(record.changes)
        a_row = max(record.changes.rows.nbytes / count, 1.0)
        room = min(max_rows - self._rows, int((max_bytes - self._bytes) / a_row))
        if self._rows and (room < 1 or (count > room and self._rows >= max_rows // 2)):
            # The next batch can have all of it, and joining it to this one would copy both.
            self._is_full = True
            return
        taken = max(1, min(count, room))
        first, end = record.offset, record.offset + count
        if self._reverse:
            self._parts.append(record.between(end - taken, end))
            rest = record.between(first, end - taken)
        else:
            self._parts.append(record.between(first, first + taken))
            rest = record.between(first + taken, end)
        self._record = rest if taken < count else None
        self._rows += taken
        self._bytes += taken * a_row
        self._is_full = self._rows >= min(max_rows, _WHOLE_ROWS) or self._bytes >= max_bytes or taken < count

    def _of(self, columns: _RecordColumns, parts: Iterable[LogRecord]) -> pa.RecordBatch:
        """Returns columns of the rows of some records, in reading order. Raises DataLoss."""
        if columns.are_none:
            return columnless_batch(sum(len(part.changes) for part in parts))
        batches = [columns.of(part) for part in parts]
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(reversed(batches) if self._reverse else batches)
        if not self._reverse:
            return rows
        return rows.take(pa.array(np.arange(rows.num_rows - 1, -1, -1)))


class _BatchRows:
    """The rows of records that are in a batch: those for which `kept` is true, or all if `kept` is None."""

    def __init__(self, parts: Sequence[LogRecord], kept: pa.BooleanArray | None) -> None:
        self.parts = parts
        self.kept = kept


class _RecordColumns:
    """Some columns of records, which may have older versions of the schema.

    Args:
        definition: The table as of the view.
        columns: The columns. None: all.

    Attributes:
        are_none: Whether there are no columns.
    """

    def __init__(self, definition: TableDefinition, columns: Sequence[str] | None) -> None:
        self._definition = definition
        self._schema = definition.schema.select(columns)
        self._columns = [definition.schema.column(name) for name in self._schema.names]
        self._places: dict[int, list[int | None]] = {}
        self.are_none = not self._columns

    def of(self, record: LogRecord) -> pa.RecordBatch:
        """Returns the columns of the rows of a record. Raises DataLoss."""
        rows = record.changes.rows
        places = self._places.get(record.schema_id)
        if places is None:
            old = {
                column.id: place for place, column in enumerate(self._definition.schema_at(record.schema_id).columns)
            }
            places = self._places[record.schema_id] = [old.get(column.id) for column in self._columns]
        arrays = [self._array(rows, place, column) for place, column in zip(places, self._columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    @staticmethod
    def _array(rows: pa.RecordBatch, place: int | None, column: ColumnDefinition) -> pa.Array:
        return initial_values(column, rows.num_rows) if place is None else widened(rows.column(place), column)
