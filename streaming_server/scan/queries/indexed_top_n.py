"""Top-N by an index whose last column is the ordering column: reads about as many entries as rows are requested.

The entries of a bucket come ascending by the column and then by key, or descending by both. So the rows are found in
three steps. First, entries are read in the requested direction until the value of the n-th row is known. Of the rows
with that value, those with the least keys count; where not all of them were read, they are read again in ascending
order. Rows that are still missing are null in the column; the first of them by key are read last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import ScanKvError
from scankv.model.expressions import plan_keys, plan_order
from scankv.model.limits import MAX_TOP_N
from streaming_server.scan.queries.entry_merge import BudgetExceeded, EntryMerge
from streaming_server.scan.queries.top_n import MAX_KEPT_BYTES, too_large, too_many_ties
from streaming_server.storage.cursors.row_lookup import missing_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.expressions import BoundPredicate, OrderPlan
    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.scan.queries.top_n import TopNSpec
    from streaming_server.scan.rows.locked_view import LockedView
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import Decoder

MAX_INDEXED_ROWS: Final = 10_000
"""The greatest n for which an index is read. More rows are read faster by a scan."""

_BUDGET_ENTRIES: Final = 10_000
_BUDGET_PER_ROW: Final = 10
_GET_ROWS: Final = 256
_GET_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """The index that has the rows in the requested order, and the ranges of their entries. Immutable."""

    codec: IndexCodec
    plan: OrderPlan

    def most_entries(self, spec: TopNSpec) -> int | None:
        """Returns how many entries are read before a scan of all rows is preferred. None: as many as it takes."""
        return None if self.plan.residual is None else _BUDGET_ENTRIES + _BUDGET_PER_ROW * spec.n


def choose_order(
    spec: TopNSpec, where: BoundPredicate | None, keys: KeyCodec, indexes: Iterable[IndexCodec]
) -> OrderChoice | None:
    """Returns the index that finds the first rows; None if all rows have to be read.

    The index has `by` as its last column, the predicate compares all columns before it with a single value, and the
    index covers the residual predicate. If the predicate bounds the key as well, a scan of the key range is preferred
    to an index with a residual predicate.

    Args:
        spec: The requested rows.
        where: The predicate on the rows. None: all rows.
        keys: The codec of their keys.
        indexes: The indexes that can be used.
    """
    if spec.n > MAX_INDEXED_ROWS:
        return None
    bounded = where is not None and plan_keys(where, keys).ranges.is_bounded
    choices = []
    for index in indexes:
        plan = plan_order(where, spec.by, index.columns)
        if plan is None:
            continue
        if plan.residual is None or not (bounded or set(plan.residual.columns) - set(index.covered)):
            choices.append(OrderChoice(index, plan))
    return max(choices, key=lambda choice: (choice.plan.residual is None, choice.plan.equal), default=None)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The first rows, in stored form. Immutable.

    Attributes:
        scanned: The number of entries and rows read.
        index: The columns of the index.
        error: The error if too many rows tie with the last one, which are then missing. None: all are there.
    """

    stored: pa.Array
    decoder: Decoder
    scanned: int
    index: tuple[str, ...]
    error: ScanKvError | None = None

    @property
    def is_small(self) -> bool:
        """Whether `result` takes less than a millisecond."""
        return len(self.stored) <= _GET_ROWS and self.stored.nbytes <= _GET_BYTES // 16

    def result(self) -> pa.RecordBatch:
        """Returns the rows in order. May take long. Raises DataLoss for a damaged row, and `error`."""
        rows, error = self.first_rows()
        if error is not None:
            raise error
        return rows

    def first_rows(self) -> tuple[pa.RecordBatch, ScanKvError | None]:
        """Returns the rows in order, and `error`. May take long. Raises DataLoss for a damaged row."""
        return self.decoder.decode(self.stored), self.error


async def find_top_by_index(spec: TopNSpec, choice: OrderChoice, locked: LockedView) -> FoundRows | None:
    """Finds the first rows in the entries of an index. Reads the rows too, if the index does not cover their columns.

    Args:
        spec: The requested rows.
        choice: The index to read.
        locked: The view to read: all buckets of the table.

    Returns:
        None if the search would read too many or too long entries to find matching rows: scan all rows then.

    Raises:
        RequestTooLarge: The rows take more than 128 MiB in stored form.
        DataLoss: Entries or rows are damaged, or disagree.
    """
    index, plan = choice.codec, choice.plan
    merge = EntryMerge(index, locked, spec.by, plan.residual, choice.most_entries(spec))
    try:
        best = await _first_entries(spec, plan, merge)
    except BudgetExceeded:
        return None
    error = None
    if best.num_rows > MAX_TOP_N:
        best, error = best[: spec.n], too_many_ties(spec)
    names = locked.codec.definition.schema.names if spec.columns is None else spec.columns
    if set(index.covered) >= set(names):
        return FoundRows(best["stored"], index.decoder(names), merge.read, index.index.columns, error)
    await merge.end_step()
    stored = await _rows_of_entries(best, spec, locked)
    return FoundRows(stored, locked.codec.decoder(spec.columns), merge.read + len(stored), index.index.columns, error)


async def _first_entries(spec: TopNSpec, plan: OrderPlan, merge: EntryMerge) -> pa.RecordBatch:
    """Returns the entries of the first rows, in order; slightly more than 100,000 if there are too many."""
    # Ties are read until there are too many of them.
    most = MAX_TOP_N + 1 if spec.with_ties else spec.n
    best = await merge.first_by_value(plan.values, spec.n, ascending=spec.ascending)
    await merge.end_step()
    found = best.found
    if best.last is None and plan.nulls.is_empty:
        return _sort_entries(found, spec)
    if best.last is None:
        missing = most - found.num_rows
        # All values are null, so sorting by value and key sorts by key.
        nulls = await merge.first_by_key(merge.everywhere(plan.nulls), missing)
        return pa.concat_batches([_sort_entries(found, spec), _sort_entries(nulls, spec)[:missing]])
    if best.cut:
        better = (pc.less if spec.ascending else pc.greater)(found["value"], best.last)
        equal = await merge.first_by_key(best.cut, most - (pc.sum(better).as_py() or 0))
        found = pa.concat_batches([found, equal])
    first = _sort_entries(found, spec)
    if not spec.with_ties:
        return first[:most]
    worse = (pc.greater if spec.ascending else pc.less)(first["value"], best.last)
    return first[: first.num_rows - (pc.sum(worse).as_py() or 0)]


def _sort_entries(entries: pa.RecordBatch, spec: TopNSpec) -> pa.RecordBatch:
    direction = "ascending" if spec.ascending else "descending"
    return entries.take(pc.sort_indices(entries, sort_keys=[("value", direction), ("key", "ascending")]))


async def _rows_of_entries(entries: pa.RecordBatch, spec: TopNSpec, locked: LockedView) -> pa.Array:
    """Returns the stored rows of some entries, in the same order."""
    numbers = entries["bucket"].to_numpy()
    indices, values = [], []
    left = MAX_KEPT_BYTES
    since_turn = 0
    for number in locked.buckets:
        of_bucket = np.flatnonzero(numbers == number)
        indices.append(of_bucket)
        keys = entries["key"].take(pa.array(of_bucket)).to_pylist()
        step = max(1, min(_GET_ROWS, _GET_BYTES // max(1, locked.buckets[number].longest_row)))
        for start in range(0, len(keys), step):
            if since_turn >= _GET_ROWS // 4:
                await locked.yield_to_others()
                since_turn = 0
            part = _get_rows(number, keys[start : start + step], locked)
            since_turn += len(part)
            values += part
            left -= sum(map(len, part))
            if left < 0:
                raise too_large(spec.n, MAX_KEPT_BYTES)
    if len(values) > _GET_ROWS // 4:
        await locked.yield_to_others()
    stored = pa.array(values, pa.binary())
    return stored if len(indices) < 2 else stored.take(pa.array(np.argsort(np.concatenate(indices))))


def _get_rows(number: int, keys: list[bytes], locked: LockedView) -> list[bytes]:
    bucket = locked.buckets[number]
    try:
        found = bucket.get(keys)
        rows = [row for row in found if row is not None]
        if len(rows) < len(keys):
            raise missing_rows(bucket.location)
    except ScanKvError as error:
        raise locked.on_error(number, error) from error.__cause__
    return rows
