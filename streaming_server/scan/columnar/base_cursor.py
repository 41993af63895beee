"""A cursor over a bucket's columnar base and delta. It reads no RocksDB."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from scankv.model.expressions import evaluate
from scankv.model.expressions.nodes import Unexpired
from streaming_server.arrays.arrow_buffers import columnless_batch
from streaming_server.arrays.sorted_merge import Merge
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.scan.columnar.base_ranges import RowRange, RowRanges
from streaming_server.scan.columnar.delta import EMPTY_DELTA
from streaming_server.scan.columnar.zone_maps import may_match
from streaming_server.scan.rows.row_representations import keyed_rows
from streaming_server.storage.cursors.cursor import SHORT_SECONDS
from streaming_server.storage.files.formats import locate
from streaming_server.storage.rows.conversion import initial_values, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.columns import Schema
    from streaming_server.scan.chunk_source import StoredRows
    from streaming_server.scan.columnar.delta import MergedDelta
    from streaming_server.storage.columnar.columnar_base import BaseInfo, ColumnarBase, Zone
    from streaming_server.storage.rows.row_codec import RowCodec


_WRITE_TIMES: Final = -1
"""In place of the place of a column: the time of the last write."""


class BaseCursor:
    """A `Cursor` over a columnar base and a merged delta: the rows of a bucket at the instant of its view.

    Where the delta has no rows nearby, the cursor returns batches of the base as they are in the file. Otherwise it
    reads a row range: it finds the positions of the delta's rows by binary search in the base's keys, merges them in,
    and takes the requested columns of the result. It skips a batch if the zone maps prove that none of its rows matches
    the residual predicate.

    A row range is empty if all of its rows were deleted. `last_key` is then the key of the last deleted row.

    Use it from one thread at a time. Until `close`, it keeps the base's files mapped and the delta's rows in memory.

    Args:
        base: The base.
        merge_delta: Returns the merged delta. Called once, by the first read.
        codec: The codec of the table as of the view.
        columns: The columns to return. None: all.
        residual: The predicate that `next_batch` filters rows by. None: no filter.
        key_range: The keys to read.
        reverse: Whether to read in descending order.
        location: The name of the bucket in errors.

    Attributes:
        rows_scanned: Rows read so far, matching or not. Batches that the zone maps rule out are not read.
        last_key: The encoded key up to which the cursor has read. None before the first row.
    """

    def __init__(
        self,
        base: ColumnarBase,
        merge_delta: Callable[[], MergedDelta],
        codec: RowCodec,
        columns: Sequence[str] | None,
        residual: BoundPredicate | None,
        key_range: KeyRange,
        *,
        reverse: bool,
        location: str,
    ) -> None:
        self.rows_scanned = 0
        self.last_key: bytes | None = None
        self._codec = codec
        self._residual = residual
        self._location = location
        self._base: ColumnarBase | None = base
        self._info = base.info
        self._old = codec.definition.schema_at(base.info.schema_id)
        self._output = _Columns(base.info, codec, columns)
        self._filter_input = _Columns(base.info, codec, residual.columns if residual else ())
        self._ranges: RowRanges | None = None
        # The number of views in use counts this view until the first read drops the reference.
        self._merge_delta: Callable[[], MergedDelta] | None = merge_delta
        may_match_batch = partial(_may_match_batch, base, self._old, codec, residual)
        self._start: Callable[[], RowRanges] | None = lambda: RowRanges(
            base, merge_delta(), key_range, reverse, may_match_batch
        )
        self._remainder: RowRange | None = None
        # The range that `prefetch` has found.
        self._found: RowRange | None = None
        self._current: _KeptRows | None = None
        self._whole_batch: int | None = None

    @property
    def message(self) -> BatchMessage | None:
        """The current batch as an IPC message, if it is identical to a batch of the base; otherwise None.

        Copies nothing. Raises DataLoss if the batch is damaged.
        """
        if self._whole_batch is None or self._base is None:
            return None
        return BatchMessage(self._base.message(self._whole_batch), self._base.crc32c(self._whole_batch))

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Finds the rows of the next batch, which may read and verify a batch of the base. See `Cursor`."""
        began = time.thread_time()
        if self._found is None:
            self._found = self._find_range(max_rows, max_bytes)
            if self._found is None:
                return None
        return time.thread_time() - began < SHORT_SECONDS

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the requested columns of the next matching rows, possibly an empty batch; None at the end.

        Reads at most `max_rows` rows and about `max_bytes` of Arrow data, but at least one row. Raises DataLoss if the
        base is damaged or a row of the delta cannot be decoded.
        """
        row_range = self._next_range(max_rows, max_bytes)
        if row_range is None:
            return None
        try:
            return self._batch_of(row_range)
        except DataLoss as error:
            raise self._locate(error) from error

    @property
    def stored(self) -> StoredRows:
        """Encodes rows of the current batch with the current schema. May be called later. Raises DataLoss."""
        assert self._current is not None
        return partial(self._encode_stored, self._current)

    def _encode_stored(self, current: _KeptRows, indices: pa.Array) -> pa.Array:
        try:
            return self._codec.encode(self._all.of(current.as_range().take(indices.to_numpy().astype(np.int64))))
        except DataLoss as error:
            raise self._locate(error) from error

    def next_rows(self, max_rows: int, max_bytes: int) -> pa.StructArray | None:
        """Returns the same rows as `next_batch`, in the form of `keyed_rows`; None at the end."""
        row_range = self._next_range(max_rows, max_bytes)
        if row_range is None:
            return None
        try:
            batch = self._batch_of(row_range)
            assert self._current is not None
            return keyed_rows(self._current.as_range().encoded_keys(), batch)
        except DataLoss as error:
            raise self._locate(error) from error

    def skim(self, max_rows: int, max_bytes: int) -> int | None:
        """Reads like `next_batch`, but ignores the residual predicate and decodes nothing. Returns the number of rows.

        The number may be 0. Returns None at the end. Raises DataLoss.
        """
        row_range = self._next_range(max_rows, max_bytes)
        return None if row_range is None else len(row_range)

    def close(self) -> None:
        """Releases the base and the delta. Closing twice is allowed."""
        self._base = self._merge_delta = self._ranges = self._start = self._remainder = None
        self._whole_batch = self._current = self._found = None

    def _batch_of(self, row_range: RowRange) -> pa.RecordBatch:
        """Returns the requested columns of the matching rows of a range, and remembers which rows these are."""
        if self._residual is None or self._none_has_expired(row_range.whole_batch):
            return self._all_of(row_range)
        kept = evaluate(self._residual, self._filter_input.of(row_range))
        if kept.true_count == len(row_range):
            return self._all_of(row_range)
        self._current = current = _KeptRows(row_range, kept)
        if self._output.are_none:
            # A count needs no columns, and filtering a batch without columns would take longer than the predicate.
            return columnless_batch(kept.true_count)
        if row_range.indices is None:
            return self._output.of(row_range).filter(kept)
        return self._output.of(current.as_range())

    def _all_of(self, row_range: RowRange) -> pa.RecordBatch:
        self._current = _KeptRows(row_range, None)
        if row_range.whole_batch is not None and self._output.are_all_of_base:
            self._whole_batch = row_range.whole_batch
        return self._output.of(row_range)

    def _none_has_expired(self, number: int | None) -> bool:
        """Whether a batch of the base proves that the residual predicate, which asks for nothing else, is true."""
        if number is None or self._residual is None or not isinstance(self._residual.predicate, Unexpired):
            return False
        assert self._base is not None
        zone = _zone_of(self._base, self._old, self._codec, number, self._residual.columns[0])
        return zone is not None and (zone.least is None or bool(zone.least.value > self._residual.predicate.bound))

    def _next_range(self, max_rows: int, max_bytes: int) -> RowRange | None:
        """Returns the next row range, None at the end. Advances `last_key` and `rows_scanned`."""
        self._whole_batch = None
        row_range, self._found = self._found, None
        if row_range is None:
            row_range = self._find_range(max_rows, max_bytes)
        if row_range is None:
            return None
        self.rows_scanned += len(row_range)
        self.last_key = row_range.last_key()
        return row_range

    def _find_range(self, max_rows: int, max_bytes: int) -> RowRange | None:
        """Returns the next row range, None at the end."""
        if self._start is not None:
            self._ranges, self._start = self._start(), None
        row_range = self._remainder
        if row_range is None and self._ranges is not None:
            row_range = self._ranges.next(max_rows, max_bytes)
        if row_range is None:
            return None
        # Rows that the delta inserts can make the range longer than max_rows.
        row_range, self._remainder = row_range.split(max_rows)
        return row_range

    @cached_property
    def _all(self) -> _Columns:
        return _Columns(self._info, self._codec, None)

    def _locate(self, error: DataLoss) -> DataLoss:
        return locate(error, self._location)


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """The rows of a range that are in a batch: those where `kept` is true, or all rows if `kept` is None."""

    row_range: RowRange
    kept: pa.BooleanArray | None

    def as_range(self) -> RowRange:
        if self.kept is None:
            return self.row_range
        return self.row_range.take(np.flatnonzero(self.kept.fill_null(False).to_numpy(zero_copy_only=False)))


def _may_match_batch(
    base: ColumnarBase, old: Schema, codec: RowCodec, residual: BoundPredicate | None, number: int
) -> bool:
    """Whether a batch of the base, whose rows have the schema `old`, may contain matching rows."""
    return residual is None or may_match(residual.predicate, partial(_zone_of, base, old, codec, number))


def _zone_of(base: ColumnarBase, old: Schema, codec: RowCodec, number: int, name: str) -> Zone | None:
    """Returns the zone of a column in a batch of the base, in the column's current type. None: unknown."""
    column = codec.column(name)
    if column is codec.write_time:
        return base.zone(number, name)
    stored = old.by_id.get(column.id)
    zone = None if stored is None else base.zone(number, stored.name)
    if zone is None or stored is None or stored.type == column.type:
        return zone
    if zone.least is None or zone.greatest is None:
        return zone
    return replace(zone, least=zone.least.cast(column.type), greatest=zone.greatest.cast(column.type))


class _Columns:
    """Some columns of base rows and stored delta rows. Caches the delta rows decoded last.

    Args:
        base: What the base contains.
        codec: The codec of the table as of the view.
        columns: The columns. None: all.

    Attributes:
        are_all_of_base: Whether the columns are exactly those of the base, in the same order, apart from their names.
        are_none: Whether there are no columns.
    """

    def __init__(self, base: BaseInfo, codec: RowCodec, columns: Sequence[str] | None) -> None:
        self._decoder = codec.decoder(columns)
        self._columns = [codec.column(name) for name in self._decoder.schema.names]
        old = codec.definition.schema_at(base.schema_id)
        places = {column.id: place for place, column in enumerate(old.columns)}
        if codec.write_time is not None and base.time_restarts is not None:
            places[codec.write_time.id] = _WRITE_TIMES
        self._places = [places.get(column.id) for column in self._columns]
        # Decoding a few rows takes almost as long as decoding a thousand, so a block is decoded once.
        self._block = EMPTY_DELTA
        self._decoded = self._decoder.decode(EMPTY_DELTA.values)
        self.are_none = not self._columns
        self.are_all_of_base = [(column.id, column.type) for column in self._columns] == [
            (column.id, column.type) for column in old.columns
        ]

    def of(self, row_range: RowRange) -> pa.RecordBatch:
        """Returns the columns of the rows of a range. Raises DataLoss if a stored row cannot be decoded."""
        rows = row_range.rows
        if self.are_all_of_base and row_range.indices is None and rows.schema.equals(self._decoder.schema):
            return rows
        arrays = [
            initial_values(column, rows.num_rows)
            if place is None
            else row_range.write_times()
            if place == _WRITE_TIMES
            else widened(rows.column(place), column)
            for place, column in zip(self._places, self._columns, strict=True)
        ]
        if row_range.indices is not None:
            if self._block is not row_range.block:
                self._block, self._decoded = row_range.block, self._decoder.decode(row_range.block.values)
            over = self._decoded.slice(row_range.first, row_range.stop - row_range.first)
            merge = Merge(rows.num_rows, row_range.indices, row_range.replaced)
            arrays = [merge.apply(below, above) for below, above in zip(arrays, over.columns, strict=True)]
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self._decoder.schema)
        return columnless_batch(len(row_range))
