"""The rows of one bucket out of a columnar base and what was written since: a cursor that reads no RocksDB."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from scankv.model.expressions import evaluate
from streaming_server.arrays.arrow_buffers import columnless_batch
from streaming_server.arrays.sorted_merge import Merge
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.scan.columnar.base_ranges import RowRange, RowRanges
from streaming_server.scan.columnar.delta import EMPTY_DELTA
from streaming_server.scan.columnar.zone_maps import may_match
from streaming_server.scan.rows.row_representations import keyed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.keys.key_range import KeyRange
    from streaming_server.scan.chunk_source import StoredRows
    from streaming_server.scan.columnar.delta import MergedDelta
    from streaming_server.storage.columnar.columnar_base import ColumnarBase
    from streaming_server.storage.rows.row_codec import RowCodec


class BaseCursor:
    """A `Cursor` over a columnar base and a merged delta: the rows of a bucket at the instant of its view.

    Where the delta has no rows nearby, rows of the base go out as they lie in the file. Otherwise the cursor reads a
    row range: it lays the delta's rows over those of the base, which it finds by binary search in the base's keys, and
    takes the requested columns of the result. It does not read a batch for which the zone maps prove that the residual
    is true of no row.

    A row range has no rows where all of them were deleted. `last_key` is then the key of the last deleted row.

    Use it from one thread at a time. Until `close`, it keeps the base's files mapped and the delta's rows in memory.

    Args:
        base: The base.
        merge_delta: Gives what was written since; called once, by the first read.
        codec: Of the table as of the view: its schema is the base's, or has columns more.
        columns: What is returned, None for all.
        residual: What is asked of the rows; the others are left out by `next_batch`. None: nothing.
        key_range: The keys that are read.
        reverse: Whether in descending order.
        place: What errors call the bucket.

    Attributes:
        rows_scanned: Rows read so far, kept or not; without those of batches that the zone maps ruled out.
        last_key: The encoded key up to which it has read, None before the first row.
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
        place: str,
    ) -> None:
        self.rows_scanned = 0
        self.last_key: bytes | None = None
        self._codec = codec
        self._residual = residual
        self._place = place
        self._base: ColumnarBase | None = base
        self._schema = base.schema
        self._output = _Columns(base.schema, codec, columns)
        self._filter_input = _Columns(base.schema, codec, residual.columns if residual else ())
        self._ranges: RowRanges | None = None
        # Whoever counts the views that are read counts this one until then.
        self._merge_delta: Callable[[], MergedDelta] | None = merge_delta
        may_match_batch = partial(_may_match_batch, base, residual)
        self._start: Callable[[], RowRanges] | None = lambda: RowRanges(
            base, merge_delta(), key_range, reverse, may_match_batch
        )
        self._remainder: RowRange | None = None
        self._current: _KeptRows | None = None
        self._whole_batch: int | None = None

    @property
    def message(self) -> BatchMessage | None:
        """The batch just current as an IPC message, where it is one of the base to the last bit; else None.

        Nothing is copied. Raises DataLoss when it is damaged.
        """
        if self._whole_batch is None or self._base is None:
            return None
        return BatchMessage(self._base.message(self._whole_batch), self._base.crc32c(self._whole_batch))

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The columns asked for of the next rows that are kept, perhaps none; None at the end.

        It reads at most `max_rows` rows, and about `max_bytes` in Arrow, but at least one. Raises DataLoss when the
        base is damaged or a row written since cannot be decoded.
        """
        row_range = self._next_range(max_rows, max_bytes)
        if row_range is None:
            return None
        try:
            return self._batch_of(row_range)
        except DataLoss as error:
            raise self._with_place(error) from error

    @property
    def stored(self) -> StoredRows:
        """Gives rows of the batch just current as the current schema stores them, also later. Raises DataLoss."""
        assert self._current is not None
        return partial(self._stored, self._current)

    def _stored(self, current: _KeptRows, places: pa.Array) -> pa.Array:
        try:
            return self._codec.encode(self._all.of(current.as_range().take(places.to_numpy().astype(np.int64))))
        except DataLoss as error:
            raise self._with_place(error) from error

    def next_rows(self, max_rows: int, max_bytes: int) -> pa.StructArray | None:
        """The same as `keyed_rows`."""
        row_range = self._next_range(max_rows, max_bytes)
        if row_range is None:
            return None
        try:
            batch = self._batch_of(row_range)
            assert self._current is not None
            return keyed_rows(self._current.as_range().encoded_keys(), batch)
        except DataLoss as error:
            raise self._with_place(error) from error

    def skim(self, max_rows: int, max_bytes: int) -> int | None:
        """Reads on as `next_batch` does, whatever the residual says, but decodes nothing: how many rows that were.

        Perhaps none; None at the end. Raises DataLoss.
        """
        row_range = self._next_range(max_rows, max_bytes)
        return None if row_range is None else len(row_range)

    def close(self) -> None:
        """Lets go of the base and of what was written since. Closing twice is allowed."""
        self._base = self._merge_delta = self._ranges = self._start = self._remainder = self._whole_batch = (
            self._current
        ) = None

    def _batch_of(self, row_range: RowRange) -> pa.RecordBatch:
        """The columns asked for of the rows of a row_range that are kept; notes which these are."""
        if self._residual is None:
            self._current = _KeptRows(row_range, None)
            if row_range.whole_batch is not None and self._output.are_all_of_base:
                self._whole_batch = row_range.whole_batch
            return self._output.of(row_range)
        kept = evaluate(self._residual, self._filter_input.of(row_range))
        self._current = current = _KeptRows(row_range, kept)
        if self._output.are_none:
            # As for counting. To filter no columns takes longer than the predicate.
            return columnless_batch(kept.true_count)
        if row_range.places is None:
            return self._output.of(row_range).filter(kept)
        return self._output.of(current.as_range())

    def _next_range(self, max_rows: int, max_bytes: int) -> RowRange | None:
        """The next rows, and notes how far they reach."""
        self._whole_batch = None
        if self._start is not None:
            self._ranges, self._start = self._start(), None
        row_range = self._remainder
        if row_range is None and self._ranges is not None:
            row_range = self._ranges.next(max_rows, max_bytes)
        if row_range is None:
            return None
        # What was inserted makes it longer than it may be.
        row_range, self._remainder = row_range.split(max_rows)
        self.rows_scanned += len(row_range)
        self.last_key = row_range.last_key()
        return row_range

    @cached_property
    def _all(self) -> _Columns:
        return _Columns(self._schema, self._codec, None)

    def _with_place(self, error: DataLoss) -> DataLoss:
        return DataLoss(f"{self._place}: {error.message}")


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """The rows of a row_range that a batch was made of: those for which `kept` is true, all for None."""

    row_range: RowRange
    kept: pa.BooleanArray | None

    def as_range(self) -> RowRange:
        """A row_range of these rows alone."""
        if self.kept is None:
            return self.row_range
        return self.row_range.take(np.flatnonzero(self.kept.fill_null(False).to_numpy(zero_copy_only=False)))


def _may_match_batch(base: ColumnarBase, residual: BoundPredicate | None, number: int) -> bool:
    """Whether a batch of the base may have rows that are kept."""
    return residual is None or may_match(residual.predicate, partial(base.zone, number))


class _Columns:
    """Some columns, of rows of the base and of stored rows. It keeps what it decoded last.

    Args:
        base: The schema of the base.
        codec: Of the table as of the view.
        columns: The columns, None for all.

    Attributes:
        are_all_of_base: Whether they are those of the base, in the same order.
        are_none: Whether there are none.
    """

    def __init__(self, base: pa.Schema, codec: RowCodec, columns: Sequence[str] | None) -> None:
        self._decoder = codec.decoder(columns)
        self._fields = list(self._decoder.schema)
        # Columns are only ever added; those that the base is too old for are null in its rows.
        self._indices = [base.get_field_index(field.name) for field in self._fields]
        # To decode some rows takes almost as long as to decode a thousand.
        self._block = EMPTY_DELTA
        self._decoded = self._decoder.decode(EMPTY_DELTA.values)
        self.are_none = not self._fields
        self.are_all_of_base = bool(self._decoder.schema.equals(base))

    def of(self, row_range: RowRange) -> pa.RecordBatch:
        """The columns of the rows of a row_range. Raises DataLoss for a stored row that cannot be decoded."""
        if self.are_all_of_base and row_range.places is None:
            return row_range.rows
        arrays = [
            row_range.rows.column(index) if index >= 0 else pa.nulls(row_range.rows.num_rows, field.type)
            for index, field in zip(self._indices, self._fields, strict=True)
        ]
        if row_range.places is not None:
            if self._block is not row_range.block:
                self._block, self._decoded = row_range.block, self._decoder.decode(row_range.block.values)
            over = self._decoded.slice(row_range.first, row_range.stop - row_range.first)
            merge = Merge(row_range.rows.num_rows, row_range.places, row_range.replaced)
            arrays = [merge.apply(below, above) for below, above in zip(arrays, over.columns, strict=True)]
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self._decoder.schema)
        return columnless_batch(len(row_range))
