"""The first rows of a scan in the order of a column: the best are kept as they are stored, and decoded at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.scan.sort_codes import sort_codes
from streaming_server.storage.row_codec import RowCodec
from table_model.aggregates import check_orderable
from table_model.errors import DataLoss, InvalidKey, InvalidRequest, RequestTooLarge
from table_model.key_codec import KeyCodec
from table_model.limits import MAX_TOP_N

if TYPE_CHECKING:
    from table_model.schema import Schema, TableDefinition

MAX_KEPT_BYTES: Final = 128 * 1024 * 1024
"""Of the stored rows of an answer."""

_SETTLE_BYTES: Final = 16 * 1024 * 1024
# What is settled in a millisecond or two, for which a thread is not worth its while.
_QUICK_ROWS: Final = 4096
_QUICK_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNSpec:
    """Which rows are asked for. Immutable.

    Attributes:
        by: The column that orders them. Nulls come last in both directions; equal rows by ascending key.
        n: How many rows, at most.
        ascending: Whether the least is first.
        columns: What is returned of them, None for all.
    """

    by: str
    n: int
    ascending: bool
    columns: tuple[str, ...] | None

    def check(self, schema: Schema) -> None:
        """Checks it against the columns of the table. Raises InvalidRequest or SchemaMismatch."""
        if not 1 <= self.n <= MAX_TOP_N:
            raise InvalidRequest(f"n is {self.n}: it must be from 1 to {MAX_TOP_N:,}")
        check_orderable(schema.column(self.by), "rows cannot be ordered by it")
        schema.select(self.columns)


class TopN:
    """The best of the rows added so far. Used by one thread at a time.

    Keeps up to about 2n rows and a batch, each with its stored form, its key and its value in `by`; a batch in which no
    row is better than the worst of n is only looked at.

    Args:
        spec: Which rows are the best.
        definition: The table that they are of.
        max_kept_bytes: The most bytes of the stored rows of an answer.

    Attributes:
        kept_rows: How many rows are kept now.
    """

    def __init__(self, spec: TopNSpec, definition: TableDefinition, *, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        codec = RowCodec(definition)
        self._max_kept_bytes = max_kept_bytes
        self._n = spec.n
        self._rows = codec.decoder(spec.columns)
        self._row_keys = codec.decoder(definition.primary_key)
        self._keys = KeyCodec(definition.key_schema.types, definition.primary_key)
        direction = "ascending" if spec.ascending else "descending"
        self._by_value = [("value", direction)]
        self._by_value_and_key = [("value", direction), ("key", "ascending")]
        self._better = pc.less if spec.ascending else pc.greater
        self._not_worse = pc.less_equal if spec.ascending else pc.greater_equal
        self._kept: list[pa.RecordBatch] = []
        self.kept_rows = self._kept_bytes = self._settled_bytes = 0
        # Value and key of the last of n rows, once there are so many: what comes after it does not matter.
        self._worst: tuple[pa.Scalar, pa.Scalar] | None = None

    @property
    def is_due(self) -> bool:
        """Whether `settle` is to be called, which may take long, in a thread: memory grows until then."""
        enough = self._n if self._worst is None else 2 * self._n
        return self.kept_rows >= enough or self._kept_bytes >= max(_SETTLE_BYTES, 2 * self._settled_bytes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows, in key order: their values in `by`, and the rows as they are stored."""
        values, stored = sort_codes(batch.column(0)), batch.column(1)
        if self._worst is not None and self._worst[0].is_valid:
            places = pc.indices_nonzero(self._not_worse(values, self._worst[0]))
            if not len(places):
                return
            values, stored = values.take(places), stored.take(places)
        if len(values) > self._n:
            # Stable, so that of equal values those with the least keys stay.
            places = pc.sort_indices(values, sort_keys=self._by_value)[: self._n]
            values, stored = values.take(places), stored.take(places)
        found = self._with_keys(values, stored)
        if found.num_rows:
            self._kept.append(found)
            self.kept_rows += found.num_rows
            self._kept_bytes += found.nbytes
            if self.is_due and self.kept_rows <= _QUICK_ROWS and self._kept_bytes <= _QUICK_BYTES:
                self.settle()

    def settle(self) -> None:
        """Drops what is not among the best n. Raises RequestTooLarge when those take too much memory."""
        rows = pa.concat_batches(self._kept)
        rows = rows.take(pc.sort_indices(rows, sort_keys=self._by_value_and_key)[: self._n])
        self._kept = [rows]
        self.kept_rows, self._kept_bytes = rows.num_rows, rows.nbytes
        self._settled_bytes = rows.nbytes
        if rows.num_rows == self._n:
            self._worst = rows["value"][-1], rows["key"][-1]
        if self._kept_bytes > self._max_kept_bytes:
            raise RequestTooLarge(
                f"the first {self._n:,} rows take over {self._max_kept_bytes:,} bytes as they are stored: ask for fewer"
            )

    def result(self) -> pa.RecordBatch:
        """The best rows, the first one first. May take long. Raises RequestTooLarge, or DataLoss for a damaged row."""
        if not self._kept:
            return self._rows.decode(pa.array([], pa.binary()))
        self.settle()
        return self._rows.decode(self._kept[0]["stored"])

    def _with_keys(self, values: pa.Array, stored: pa.Array) -> pa.RecordBatch:
        """The rows with their keys, without those that are as good as the worst but come after it."""
        try:
            keys = self._keys.encode(self._row_keys.decode(stored).columns)
        except InvalidKey as error:
            raise DataLoss("a stored row is damaged: its key is none that can be stored") from error
        rows = pa.RecordBatch.from_arrays([values, keys, stored], ["value", "key", "stored"])
        if self._worst is None:
            return rows
        value, key = self._worst
        better = self._better(values, value) if value.is_valid else values.is_valid()
        return rows.filter(pc.or_(better, pc.less(keys, key)))
