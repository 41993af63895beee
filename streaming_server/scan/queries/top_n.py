"""Top-N: keeps the best rows of a scan in stored form, and decodes them at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, InvalidKey, InvalidRequest, RequestTooLarge
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.limits import MAX_CHUNK_ROWS, MAX_TOP_N
from scankv.model.tables.aggregates import check_orderable
from streaming_server.arrays.sort_codes import decode_sort_codes, sort_codes
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from scankv.model.errors import ScanKvError
    from scankv.model.tables.columns import Schema
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.chunk_source import Chunk, StoredRows

MAX_KEPT_BYTES: Final = 128 * 1024 * 1024
"""The limit for the stored rows of a result."""

_DEFERRED_ROWS: Final = 1024
"""The most candidates from columnar bases whose rows are not read yet. If there are more, the rows of the candidates
that still qualify are read.
"""
_DEFERRED_BATCHES: Final = 64
"""The same limit in batches. The merge order of a batch with delta rows takes up to 320 KiB."""
_FEW: Final = 64
_SETTLE_BYTES: Final = 16 * 1024 * 1024
# Settling this much takes a millisecond or two, too little to be worth a thread.
_QUICK_ROWS: Final = 4096
_QUICK_BYTES: Final = 4 * 1024 * 1024
_QUICK_BATCHES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNSpec:
    """The rows that a top-N query asks for. Immutable.

    Attributes:
        by: The column that orders the rows. Nulls come last in both directions; equal rows are ordered by ascending
            key.
        n: The most rows.
        ascending: Whether the least value is first.
        columns: The columns to return. None: all.
        with_ties: Whether to return also the rows after the last one that have the same value in `by`.
    """

    by: str
    n: int
    ascending: bool
    columns: tuple[str, ...] | None
    with_ties: bool = False

    def check(self, schema: Schema) -> None:
        """Checks the query against the columns of the table. Raises InvalidRequest or SchemaMismatch."""
        if not 1 <= self.n <= MAX_TOP_N:
            raise InvalidRequest(f"n must be between 1 and {MAX_TOP_N:,}, not {self.n:,}")
        check_orderable(schema.column(self.by), "rows cannot be ordered by it")
        schema.select(self.columns)


@dataclass(frozen=True, slots=True)
class _DeferredRows:
    """Rows that may be among the best: their values, and how to read the rows if they still qualify later.

    `first` is the number of rows that were added before their batch.
    """

    values: pa.Array
    indices: pa.Array
    stored: StoredRows
    first: int


class TopNCollector:
    """The best of the rows added so far. Use it from one thread at a time.

    It keeps up to about 2n rows and a batch, each with its stored form, its key and its value in `by`. A batch without
    any row better than the worst of n is only compared. Of rows stored as Arrow, only the values are read until there
    are n (or 1,024) candidates or 64 batches of them; then the rows that still qualify are read. With ties, it keeps up
    to twice 100,000 rows and a batch. If more rows tie with the worst, it drops them; that is an error only if their
    value is still the worst at the end.

    Args:
        spec: The requested rows.
        definition: The table.
        max_kept_bytes: The most bytes of the stored rows of a result.

    Attributes:
        kept_rows: The number of rows kept now.
        most_rows: The most rows to add at once.
    """

    most_rows: Final = MAX_CHUNK_ROWS

    def __init__(self, spec: TopNSpec, definition: TableDefinition, *, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        codec = RowCodec(definition)
        self._max_kept_bytes = max_kept_bytes
        self._spec = spec
        self._n = spec.n
        self._rows = codec.decoder(spec.columns)
        self._row_keys = codec.decoder(definition.primary_key)
        # Without a key, rows with equal values are in the order in which they were added.
        self._keys = KeyCodec(definition.key_schema.types, definition.primary_key) if definition.has_key else None
        self._added = 0
        direction = "ascending" if spec.ascending else "descending"
        self._by_value = [("value", direction)]
        self._by_value_and_key = [("value", direction), ("key", "ascending")]
        self._better = pc.less if spec.ascending else pc.greater
        self._worse = pc.greater if spec.ascending else pc.less
        self._not_worse = pc.less_equal if spec.ascending else pc.greater_equal
        self._kept: list[pa.RecordBatch] = []
        self._deferred: list[_DeferredRows] = []
        self._deferred_rows = 0
        # The n best values added, once there are n.
        self._best: pa.Array | None = None
        # The sort code of the last bound by which floats were compared, and its value.
        self._float_bound: tuple[pa.Scalar, pa.Scalar] | None = None
        self.kept_rows = self._kept_bytes = self._settled_bytes = self._settled_rows = 0
        # Value and key of the last of n rows, once there are n. Rows after it cannot be in the result.
        self._worst: tuple[pa.Scalar, pa.Scalar] | None = None
        # The value of the worst row when ties with it were dropped, and the error to raise if it is still the worst.
        self._dropped_ties: tuple[pa.Scalar, ScanKvError] | None = None

    @property
    def is_due(self) -> bool:
        """Whether to call `settle`, in a thread because it may take long. Memory grows until then."""
        if self._deferred_rows >= max(self._n, _DEFERRED_ROWS) or len(self._deferred) >= _DEFERRED_BATCHES:
            return True
        enough = self._n if self._worst is None else 2 * self._settled_rows
        return self.kept_rows >= enough or self._has_too_many_bytes

    @property
    def is_small(self) -> bool:
        """Whether `result` takes about a millisecond."""
        return self._is_quick and self._n <= _FEW

    @property
    def _is_quick(self) -> bool:
        few = self.kept_rows + self._deferred_rows <= _QUICK_ROWS and len(self._deferred) <= _QUICK_BATCHES
        return few and self._kept_bytes <= _QUICK_BYTES

    @property
    def _has_too_many_bytes(self) -> bool:
        return self._kept_bytes >= max(_SETTLE_BYTES, 2 * self._settled_bytes)

    def add(self, chunk: Chunk) -> None:
        """Adds the next rows, in key order: their values in `by`, and the stored rows."""
        column = chunk.batch.column(0)
        first, self._added = self._added, self._added + len(column)
        near = self._rows_near_bound(column)
        if near is not None:
            if not len(near):
                return
            column = column.take(near)
        indices, values = self._candidates(sort_codes(column))
        if not len(values):
            return
        if near is not None:
            indices = near.take(indices)
        if chunk.stored is None:
            self._keep(values, chunk.batch.column(1).take(indices), _numbers(first, indices))
        else:
            self._deferred.append(_DeferredRows(values, indices, chunk.stored, first))
            self._deferred_rows += len(values)
        if self._n <= _DEFERRED_ROWS:
            # The value of the n-th row bounds later rows before it is known which row that is.
            best = pa.concat_arrays([self._best, values]) if self._best is not None else values
            self._best = best.take(pc.select_k_unstable(best, self._n, self._by_value))
        if self.is_due and self._is_quick:
            self.settle()

    def _rows_near_bound(self, column: pa.Array) -> pa.Array | None:
        """Returns the indices of all rows that may reach the bound, and maybe of others. None: of all rows.

        Sort codes of floats take several passes over all values. This comparison takes one, and few rows pass it.
        """
        bound = self._bound()
        if bound is None or column.type not in (pa.float32(), pa.float64()):
            return None
        if self._float_bound is None or self._float_bound[0] != bound:
            self._float_bound = bound, decode_sort_codes(pa.array([bound]), column.type)[0]
        # The comparison is not true of NaN, so rows with NaN remain.
        return pc.indices_nonzero(pc.invert(self._worse(column, self._float_bound[1])))

    def _candidates(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Returns the indices and values of the rows that may be among the best n, in their order or sorted."""
        bound = self._bound()
        may_be = values.is_valid() if bound is None else self._not_worse(values, bound)
        if may_be.true_count > self._n and (bound is None or self._n <= _FEW):
            # The n-th value of this batch is a bound as well, and much cheaper to find than by sorting.
            last = values[pc.select_k_unstable(values, self._n, self._by_value)[-1].as_py()]
            may_be, bound = self._not_worse(values, last), last
        if bound is None:
            indices = pa.array(np.arange(len(values)))
        else:
            indices = pc.indices_nonzero(may_be)
            values = values.take(indices)
        if len(values) > self._n:
            # The sort is stable: among rows with equal values, those with the least keys remain.
            order = pc.sort_indices(values, sort_keys=self._by_value)
            order = order[: self._n + (self._ties(values.take(order)) if self._spec.with_ties else 0)]
            indices, values = indices.take(order), values.take(order)
        return indices, values

    def _bound(self) -> pa.Scalar | None:
        """Returns a value that n rows are known to reach or beat. None: no such value other than null is known."""
        bound = None
        if self._best is not None and len(self._best) == self._n:
            bound = self._best[-1]
        elif self._worst is not None:
            bound = self._worst[0]
        return bound if bound is not None and bound.is_valid else None

    def _keep(self, values: pa.Array, stored: pa.Array, numbers: pa.Array) -> None:
        found = self._with_keys(values, stored, numbers)
        if found.num_rows:
            self._kept.append(found)
            self.kept_rows += found.num_rows
            self._kept_bytes += found.nbytes

    def settle(self) -> None:
        """Drops rows that are not among the best n. Raises RequestTooLarge if the best rows take too much memory."""
        bound, late = self._bound(), self._deferred
        self._deferred, self._deferred_rows = [], 0
        for each in late:
            values, indices = each.values, each.indices
            if bound is not None:
                still = pc.indices_nonzero(self._not_worse(values, bound))
                values, indices = values.take(still), indices.take(still)
            if len(values):
                self._keep(values, each.stored(indices), _numbers(each.first, indices))
                if self._has_too_many_bytes:
                    self._drop()
        if self._kept:
            self._drop()

    def _drop(self) -> None:
        rows = pa.concat_batches(self._kept)
        indices = pc.sort_indices(rows, sort_keys=self._by_value_and_key)
        best = rows.take(indices[: self._n])
        if best.num_rows == self._n:
            self._worst = best["value"][-1], best["key"][-1]
            if self._spec.with_ties:
                best = self._with_ties(best, rows, indices)
        self._kept = [best]
        self.kept_rows = self._settled_rows = best.num_rows
        self._kept_bytes = self._settled_bytes = best.nbytes
        if self._kept_bytes > self._max_kept_bytes:
            raise too_large(self._n, self._max_kept_bytes)

    def result(self) -> pa.RecordBatch:
        """Returns the best rows in order. May take long.

        Raises:
            InvalidRequest: With ties, there are more than 100,000 rows.
            RequestTooLarge: The rows take too much memory.
            DataLoss: A row is damaged.
        """
        rows, error = self.first_rows()
        if error is not None:
            raise error
        return rows

    def first_rows(self) -> tuple[pa.RecordBatch, ScanKvError | None]:
        """Returns the best rows in order, and the error if some rows that tie with the last one are missing.

        May take long. Raises RequestTooLarge and DataLoss as `result`.
        """
        self.settle()
        if not self._kept:
            return self._rows.decode(pa.array([], pa.binary())), None
        error = None
        if self._dropped_ties is not None and self._worst is not None and self._dropped_ties[0].equals(self._worst[0]):
            error = self._dropped_ties[1]
        return self._rows.decode(self._kept[0]["stored"]), error

    def _with_keys(self, values: pa.Array, stored: pa.Array, numbers: pa.Array) -> pa.RecordBatch:
        """Returns the rows with their keys, without those that tie with the worst row and come after it."""
        try:
            keys = numbers if self._keys is None else self._keys.encode(self._row_keys.decode(stored).columns)
        except InvalidKey as error:
            raise DataLoss("a stored row is damaged: its key is not a valid key") from error
        rows = pa.RecordBatch.from_arrays([values, keys, stored], ["value", "key", "stored"])
        if self._worst is None:
            return rows
        if self._spec.with_ties:
            return rows
        value, key = self._worst
        better = self._better(values, value) if value.is_valid else values.is_valid()
        return rows.filter(pc.or_(better, pc.less(keys, key)))

    def _with_ties(self, best: pa.RecordBatch, rows: pa.RecordBatch, indices: pa.Array) -> pa.RecordBatch:
        """Returns the best rows with the rows that tie with the last one, or without them if there are too many."""
        count = self._n + self._ties(rows["value"].take(indices))
        error: ScanKvError | None = too_many_ties(self._spec) if count > MAX_TOP_N else None
        together = best if error is not None else rows.take(indices[:count])
        if error is None and together.nbytes > self._max_kept_bytes:
            error = too_large(self._n, self._max_kept_bytes)
        if error is None:
            return together
        self._dropped_ties = best["value"][-1], error
        return best

    def _ties(self, ordered: pa.Array) -> int:
        """Returns the number of sorted values after the n-th that are equal to it."""
        last, after = ordered[self._n - 1], ordered[self._n :]
        if not last.is_valid:
            return len(after)
        return int(pc.sum(pc.equal(after, last)).as_py() or 0)


def _numbers(first: int, indices: pa.Array) -> pa.Array:
    return pc.add(indices.cast(pa.int64()), first)


def too_large(n: int, max_bytes: int) -> RequestTooLarge:
    """Returns the error for first rows that take too much memory."""
    return RequestTooLarge(
        f"the first {n:,} rows take more than {max_bytes:,} stored bytes, the limit: ask for fewer rows"
    )


def too_many_ties(spec: TopNSpec) -> InvalidRequest:
    """Returns the error for too many rows that tie with the last one."""
    return InvalidRequest(
        f"the first {spec.n:,} rows and those that tie with the last one in {spec.by} are more than {MAX_TOP_N:,}: "
        "ask without ties, or for fewer rows with `where`"
    )
