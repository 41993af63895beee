"""The first rows of a scan in the order of a column: the best are kept as they are stored, and decoded at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, InvalidKey, InvalidRequest, RequestTooLarge
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.limits import MAX_TOP_N
from scankv.model.tables.aggregates import check_orderable
from streaming_server.arrays.sort_codes import sort_codes
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import Schema, TableDefinition
    from streaming_server.scan.chunk_source import Chunk, StoredRows

MAX_KEPT_BYTES: Final = 128 * 1024 * 1024
"""Of the stored rows of an answer."""

_LATE_ROWS: Final = 1024
"""Rows of a base of which nothing but the value is read, until they are still among the best when there are so many."""
_LATE_BATCHES: Final = 64
"""The same of batches: where changes are laid over one, its order takes up to 320 KiB."""
_FEW: Final = 64
_SETTLE_BYTES: Final = 16 * 1024 * 1024
# What is settled in a millisecond or two, for which a thread is not worth its while.
_QUICK_ROWS: Final = 4096
_QUICK_BYTES: Final = 4 * 1024 * 1024
_QUICK_BATCHES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNSpec:
    """Which rows are asked for. Immutable.

    Attributes:
        by: The column that orders them. Nulls come last in both directions; equal rows by ascending key.
        n: How many rows, at most.
        ascending: Whether the least is first.
        columns: What is returned of them, None for all.
        with_ties: Whether also the rows behind the last one that are equal to it in `by`.
    """

    by: str
    n: int
    ascending: bool
    columns: tuple[str, ...] | None
    with_ties: bool = False

    def check(self, schema: Schema) -> None:
        """Checks it against the columns of the table. Raises InvalidRequest or SchemaMismatch."""
        if not 1 <= self.n <= MAX_TOP_N:
            raise InvalidRequest(f"n is {self.n}: it must be from 1 to {MAX_TOP_N:,}")
        check_orderable(schema.column(self.by), "rows cannot be ordered by it")
        schema.select(self.columns)


@dataclass(frozen=True, slots=True)
class _Late:
    """Rows that may be among the best: their values, and how to read them if they still are later."""

    values: pa.Array
    places: pa.Array
    stored: StoredRows


class TopN:
    """The best of the rows added so far. Used by one thread at a time.

    Keeps up to about 2n rows and a batch, each with its stored form, its key and its value in `by`; a batch in which no
    row is better than the worst of n is only looked at. Rows that lie as Arrow are not read but for their values before
    there are n, or 1,024, candidates, or 64 batches of them, and then only those that still are. With ties, up to twice
    100,000 rows and a batch: where more are equal to the worst, they are let go, and it is an error only if that is
    still the worst at the end.

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
        self._spec = spec
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
        self._late: list[_Late] = []
        self._late_rows = 0
        # The n best values added, once there are so many.
        self._best: pa.Array | None = None
        self.kept_rows = self._kept_bytes = self._settled_bytes = self._settled_rows = 0
        # Value and key of the last of n rows, once there are so many: what comes after it does not matter.
        self._worst: tuple[pa.Scalar, pa.Scalar] | None = None
        # The value of the worst when rows equal to it were let go, and the error that this is.
        self._let_go: tuple[pa.Scalar, ScanKvError] | None = None

    @property
    def is_due(self) -> bool:
        """Whether `settle` is to be called, which may take long, in a thread: memory grows until then."""
        if self._late_rows >= max(self._n, _LATE_ROWS) or len(self._late) >= _LATE_BATCHES:
            return True
        enough = self._n if self._worst is None else 2 * self._settled_rows
        return self.kept_rows >= enough or self._is_too_much

    @property
    def _is_quick(self) -> bool:
        few = self.kept_rows + self._late_rows <= _QUICK_ROWS and len(self._late) <= _QUICK_BATCHES
        return few and self._kept_bytes <= _QUICK_BYTES

    @property
    def _is_too_much(self) -> bool:
        return self._kept_bytes >= max(_SETTLE_BYTES, 2 * self._settled_bytes)

    def add(self, chunk: Chunk) -> None:
        """Takes the next rows, in key order: their values in `by`, and the rows as they are stored."""
        values = sort_codes(chunk.batch.column(0))
        places, values = self._candidates(values)
        if not len(values):
            return
        if chunk.stored is None:
            self._keep(values, chunk.batch.column(1).take(places))
        else:
            self._late.append(_Late(values, places, chunk.stored))
            self._late_rows += len(values)
        if self._n <= _LATE_ROWS:
            # What comes is compared with the value of the n-th row before anybody knows which row that is.
            best = pa.concat_arrays([self._best, values]) if self._best is not None else values
            self._best = best.take(pc.select_k_unstable(best, self._n, self._by_value))
        if self.is_due and self._is_quick:
            self.settle()

    def _candidates(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The places of the values, and the values, that may be among the best n, in their order or sorted."""
        bound = self._bound()
        may_be = values.is_valid() if bound is None else self._not_worse(values, bound)
        if may_be.true_count > self._n and (bound is None or self._n <= _FEW):
            # The n-th of this batch alone is a bound, too. To find it takes a fraction of the time of a sort.
            last = values[pc.select_k_unstable(values, self._n, self._by_value)[-1].as_py()]
            may_be, bound = self._not_worse(values, last), last
        if bound is None:
            places = pa.array(np.arange(len(values)))
        else:
            places = pc.indices_nonzero(may_be)
            values = values.take(places)
        if len(values) > self._n:
            # Stable, so that of equal values those with the least keys stay.
            order = pc.sort_indices(values, sort_keys=self._by_value)
            order = order[: self._n + (self._ties(values.take(order)) if self._spec.with_ties else 0)]
            places, values = places.take(order), values.take(order)
        return places, values

    def _bound(self) -> pa.Scalar | None:
        """A value than which n rows are no worse; None where none is known but null."""
        bound = None
        if self._best is not None and len(self._best) == self._n:
            bound = self._best[-1]
        elif self._worst is not None:
            bound = self._worst[0]
        return bound if bound is not None and bound.is_valid else None

    def _keep(self, values: pa.Array, stored: pa.Array) -> None:
        found = self._with_keys(values, stored)
        if found.num_rows:
            self._kept.append(found)
            self.kept_rows += found.num_rows
            self._kept_bytes += found.nbytes

    def settle(self) -> None:
        """Drops what is not among the best n. Raises RequestTooLarge when those take too much memory."""
        bound, late = self._bound(), self._late
        self._late, self._late_rows = [], 0
        for each in late:
            values, places = each.values, each.places
            if bound is not None:
                still = pc.indices_nonzero(self._not_worse(values, bound))
                values, places = values.take(still), places.take(still)
            if len(values):
                self._keep(values, each.stored(places))
                if self._is_too_much:
                    self._drop()
        if self._kept:
            self._drop()

    def _drop(self) -> None:
        rows = pa.concat_batches(self._kept)
        places = pc.sort_indices(rows, sort_keys=self._by_value_and_key)
        best = rows.take(places[: self._n])
        if best.num_rows == self._n:
            self._worst = best["value"][-1], best["key"][-1]
            if self._spec.with_ties:
                best = self._with_ties(best, rows, places)
        self._kept = [best]
        self.kept_rows = self._settled_rows = best.num_rows
        self._kept_bytes = self._settled_bytes = best.nbytes
        if self._kept_bytes > self._max_kept_bytes:
            raise too_large(self._n, self._max_kept_bytes)

    def result(self) -> pa.RecordBatch:
        """The best rows, the first one first. May take long.

        Raises:
            InvalidRequest: With ties, they are over 100,000.
            RequestTooLarge: They take too much memory.
            DataLoss: A row is damaged.
        """
        self.settle()
        if not self._kept:
            return self._rows.decode(pa.array([], pa.binary()))
        if self._let_go is not None and self._worst is not None and self._let_go[0].equals(self._worst[0]):
            raise self._let_go[1]
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
        if self._spec.with_ties:
            return rows
        value, key = self._worst
        better = self._better(values, value) if value.is_valid else values.is_valid()
        return rows.filter(pc.or_(better, pc.less(keys, key)))

    def _with_ties(self, best: pa.RecordBatch, rows: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
        """The best rows and those behind them that are equal to the last one, or without them where they are many."""
        count = self._n + self._ties(rows["value"].take(places))
        error: ScanKvError | None = too_many_ties(self._spec) if count > MAX_TOP_N else None
        together = best if error is not None else rows.take(places[:count])
        if error is None and together.nbytes > self._max_kept_bytes:
            error = too_large(self._n, self._max_kept_bytes)
        if error is None:
            return together
        self._let_go = best["value"][-1], error
        return best

    def _ties(self, ordered: pa.Array) -> int:
        """Of values in their order, how many behind the n-th are equal to it."""
        last, behind = ordered[self._n - 1], ordered[self._n :]
        if not last.is_valid:
            return len(behind)
        return int(pc.sum(pc.equal(behind, last)).as_py() or 0)


def too_large(n: int, max_bytes: int) -> RequestTooLarge:
    """The error for first rows that take too much memory."""
    return RequestTooLarge(f"the first {n:,} rows take over {max_bytes:,} bytes as they are stored: ask for fewer")


def too_many_ties(spec: TopNSpec) -> InvalidRequest:
    """The error for too many rows that are equal to the last one."""
    return InvalidRequest(
        f"the first {spec.n:,} rows and those that are equal to the last of them in {spec.by} are over {MAX_TOP_N:,}: "
        "ask without ties, or for fewer rows by `where`"
    )
