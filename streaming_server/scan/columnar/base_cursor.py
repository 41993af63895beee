"""The rows of one bucket out of a columnar base and what was written since: a cursor that reads no RocksDB."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from scankv.model.expressions import evaluate
from streaming_server.arrays.arrow_buffers import without_columns
from streaming_server.arrays.sorted_merge import Merge
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.scan.columnar.base_ranges import Step, Stretches
from streaming_server.scan.columnar.delta import NO_ROWS
from streaming_server.scan.columnar.zone_maps import may_match
from streaming_server.scan.rows.row_representations import keyed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.keys.key_range import KeyRange
    from streaming_server.scan.chunk_source import StoredRows
    from streaming_server.scan.columnar.delta import NetRows
    from streaming_server.storage.columnar.columnar_base import ColumnarBase
    from streaming_server.storage.rows.row_codec import RowCodec


class BaseCursor:
    """A `Cursor` over a base and the net rows of an overlay: the rows that the bucket had when that was viewed.

    Rows of the base that nothing was written near go out as they lie in the file. Otherwise a step lays the net rows of
    its stretch of keys over those of the base, found by binary search in the base's keys, and takes the columns asked
    for of the result. Where the zone maps say that the residual is true of no row of a batch, the batch is not read.

    A step may have no rows where all were deleted. `last_key` is then that of the last deleted one.

    Use it from one thread at a time. It keeps the base's files mapped, and the overlay's rows, until `close`.

    Args:
        base: The base.
        net: Gives what was written since; called once, by the first read.
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
        net: Callable[[], NetRows],
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
        self._returned = _Columns(base.schema, codec, columns)
        self._looked_at = _Columns(base.schema, codec, residual.columns if residual else ())
        self._stretches: Stretches | None = None
        # Whoever counts the views that are read counts this one until then.
        self._net: Callable[[], NetRows] | None = net
        worthy = partial(_is_worthy, base, residual)
        self._open: Callable[[], Stretches] | None = lambda: Stretches(base, net(), key_range, reverse, worthy)
        self._rest: Step | None = None
        self._given: _Given | None = None
        self._whole: int | None = None

    @property
    def message(self) -> BatchMessage | None:
        """The batch just given as an IPC message, where it is one of the base to the last bit; else None.

        Nothing is copied. Raises DataLoss when it is damaged.
        """
        if self._whole is None or self._base is None:
            return None
        return BatchMessage(self._base.message(self._whole), self._base.crc32c(self._whole))

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The columns asked for of the next rows that are kept, perhaps none; None at the end.

        It reads at most `max_rows` rows, and about `max_bytes` in Arrow, but at least one. Raises DataLoss when the
        base is damaged or a row written since cannot be decoded.
        """
        step = self._step(max_rows, max_bytes)
        if step is None:
            return None
        try:
            return self._batch_of(step)
        except DataLoss as error:
            raise self._here(error) from error

    @property
    def stored(self) -> StoredRows:
        """Gives rows of the batch just given as the current schema stores them, also later. Raises DataLoss."""
        assert self._given is not None
        return partial(self._stored, self._given)

    def _stored(self, given: _Given, places: pa.Array) -> pa.Array:
        try:
            return self._codec.encode(self._all.of(given.chosen().at(places.to_numpy().astype(np.int64))))
        except DataLoss as error:
            raise self._here(error) from error

    def next_rows(self, max_rows: int, max_bytes: int) -> pa.StructArray | None:
        """The same as `keyed_rows`."""
        step = self._step(max_rows, max_bytes)
        if step is None:
            return None
        try:
            batch = self._batch_of(step)
            assert self._given is not None
            return keyed_rows(self._given.chosen().encoded_keys(), batch)
        except DataLoss as error:
            raise self._here(error) from error

    def skim(self, max_rows: int, max_bytes: int) -> int | None:
        """Reads on as `next_batch` does, whatever the residual says, but decodes nothing: how many rows that were.

        Perhaps none; None at the end. Raises DataLoss.
        """
        step = self._step(max_rows, max_bytes)
        return None if step is None else len(step)

    def close(self) -> None:
        """Lets go of the base and of what was written since. Closing twice is allowed."""
        self._base = self._net = self._stretches = self._open = self._rest = self._whole = self._given = None

    def _batch_of(self, step: Step) -> pa.RecordBatch:
        """The columns asked for of the rows of a step that are kept; notes which these are."""
        if self._residual is None:
            self._given = _Given(step, None)
            if step.whole is not None and self._returned.are_all_of_base:
                self._whole = step.whole
            return self._returned.of(step)
        kept = evaluate(self._residual, self._looked_at.of(step))
        self._given = given = _Given(step, kept)
        if self._returned.are_none:
            # As for counting. To filter no columns takes longer than the predicate.
            return without_columns(kept.true_count)
        if step.places is None:
            return self._returned.of(step).filter(kept)
        return self._returned.of(given.chosen())

    def _step(self, max_rows: int, max_bytes: int) -> Step | None:
        """The next rows, and notes how far they reach."""
        self._whole = None
        if self._open is not None:
            self._stretches, self._open = self._open(), None
        step = self._rest
        if step is None and self._stretches is not None:
            step = self._stretches.next(max_rows, max_bytes)
        if step is None:
            return None
        # What was inserted makes it longer than it may be.
        step, self._rest = step.split(max_rows)
        self.rows_scanned += len(step)
        self.last_key = step.last_key()
        return step

    @cached_property
    def _all(self) -> _Columns:
        return _Columns(self._schema, self._codec, None)

    def _here(self, error: DataLoss) -> DataLoss:
        return DataLoss(f"{self._place}: {error.message}")


@dataclass(frozen=True, slots=True)
class _Given:
    """The rows of a step that a batch was made of: those for which `kept` is true, all for None."""

    step: Step
    kept: pa.BooleanArray | None

    def chosen(self) -> Step:
        """A step of these rows alone."""
        if self.kept is None:
            return self.step
        return self.step.at(np.flatnonzero(self.kept.fill_null(False).to_numpy(zero_copy_only=False)))


def _is_worthy(base: ColumnarBase, residual: BoundPredicate | None, number: int) -> bool:
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
        self._block = NO_ROWS
        self._decoded = self._decoder.decode(NO_ROWS.values)
        self.are_none = not self._fields
        self.are_all_of_base = bool(self._decoder.schema.equals(base))

    def of(self, step: Step) -> pa.RecordBatch:
        """The columns of the rows of a step. Raises DataLoss for a stored row that cannot be decoded."""
        if self.are_all_of_base and step.places is None:
            return step.rows
        arrays = [
            step.rows.column(index) if index >= 0 else pa.nulls(step.rows.num_rows, field.type)
            for index, field in zip(self._indices, self._fields, strict=True)
        ]
        if step.places is not None:
            if self._block is not step.block:
                self._block, self._decoded = step.block, self._decoder.decode(step.block.values)
            over = self._decoded.slice(step.first, step.behind - step.first)
            merge = Merge(step.rows.num_rows, step.places, step.replaced)
            arrays = [merge.apply(below, above) for below, above in zip(arrays, over.columns, strict=True)]
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self._decoder.schema)
        return without_columns(len(step))
