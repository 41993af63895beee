"""The first rows in the order of a column, by an index that has it last: about as many entries are read as rows asked.

The entries of a bucket come ascending by the column and then by key, or descending by both. So the rows are found in
three steps. First, entries are read in the direction asked for, until the value of the n-th row is known. Of the rows
with that value those with the least keys count: where not all were read, they are read again in ascending order. What
is then missing are rows that are null in the column, the first of them by key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import ScanKvError
from scankv.model.expressions import bind, plan_keys, plan_order
from scankv.model.limits import MAX_TOP_N
from streaming_server.scan.queries.entry_merge import EntryMerge, GaveUp
from streaming_server.scan.queries.top_n import MAX_KEPT_BYTES, too_large, too_many_ties
from streaming_server.storage.cursors.ranges_reader import missing_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.expressions import OrderPlan, Predicate
    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.scan.queries.top_n import TopNSpec
    from streaming_server.scan.rows.locked_view import LockedView
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec

MAX_INDEXED_ROWS: Final = 10_000
"""The greatest n for which an index is read: more rows are read faster one after another."""

_BUDGET_ENTRIES: Final = 10_000
_BUDGET_PER_ROW: Final = 10
_GET_ROWS: Final = 256
_GET_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """The index that has the rows in the order asked for, and where in it they are. Immutable."""

    codec: IndexCodec
    plan: OrderPlan


def chosen_order(
    spec: TopNSpec, where: Predicate | None, codec: RowCodec, keys: KeyCodec, indexes: Iterable[IndexCodec]
) -> OrderChoice | None:
    """The index that tells the first rows, None where all have to be looked at.

    It has `by` as its last column, all before it are equal to a value, and what else is asked can be asked of its
    entries. Where the key bounds the rows, those are looked at, unless the index bounds them as well.

    Args:
        spec: Which rows are asked for.
        where: What is true of them, None for all.
        codec: Of the rows.
        keys: Of their keys.
        indexes: Those that can be used.

    Raises:
        SchemaMismatch: As `bind`.
    """
    if spec.n > MAX_INDEXED_ROWS:
        return None
    bound, bounded = None, False
    if where is not None:
        bound = bind(where, codec.schema)
        bounded = plan_keys(bound, keys).ranges.is_bounded
    choices = []
    for index in indexes:
        plan = plan_order(bound, spec.by, index.columns)
        if plan is None:
            continue
        if plan.residual is None or not (bounded or set(plan.residual.columns) - set(index.covered)):
            choices.append(OrderChoice(index, plan))
    return max(choices, key=lambda choice: (choice.plan.residual is None, choice.plan.equal), default=None)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The first rows, as they are stored. Immutable.

    Attributes:
        scanned: How many entries and rows were read.
        index: The columns of the index.
    """

    stored: pa.Array
    decoder: Decoder
    scanned: int
    index: tuple[str, ...]

    @property
    def is_small(self) -> bool:
        """Whether `result` takes less than a millisecond."""
        return len(self.stored) <= _GET_ROWS and self.stored.nbytes <= _GET_BYTES // 16

    def result(self) -> pa.RecordBatch:
        """The rows, the first one first. May take long. Raises DataLoss for a damaged row."""
        return self.decoder.decode(self.stored)


async def top_by_index(spec: TopNSpec, choice: OrderChoice, locked: LockedView) -> FoundRows | None:
    """Finds the first rows in the entries of an index, and looks them up where that has not all their columns.

    Args:
        spec: Which rows are asked for.
        choice: How they are found.
        locked: What is read: all buckets of the table.

    Returns:
        None when it would take too many entries to find rows for which the residual is true, or too long ones: read all
        rows then.

    Raises:
        InvalidRequest: Over 100,000 rows, of which those behind the first n are equal to the last of them.
        RequestTooLarge: They are over 128 MiB as they are stored.
        DataLoss: Entries or rows are damaged, or do not agree.
    """
    index, plan = choice.codec, choice.plan
    budget = None if plan.residual is None else _BUDGET_ENTRIES + _BUDGET_PER_ROW * spec.n
    merge = EntryMerge(index, locked, spec.by, plan.residual, budget)
    try:
        best = await _first_entries(spec, plan, merge)
    except GaveUp:
        return None
    if best.num_rows > MAX_TOP_N:
        raise too_many_ties(spec)
    names = locked.codec.definition.schema.names if spec.columns is None else spec.columns
    if set(index.covered) >= set(names):
        return FoundRows(best["stored"], index.decoder(names), merge.read, index.index.columns)
    stored = await _rows_behind(best, spec, locked)
    return FoundRows(stored, locked.codec.decoder(spec.columns), merge.read + len(stored), index.index.columns)


async def _first_entries(spec: TopNSpec, plan: OrderPlan, merge: EntryMerge) -> pa.RecordBatch:
    """The entries of the first rows, in their order; of more than 100,000 only some more."""
    # Ties are read up to where they are too many.
    most = MAX_TOP_N + 1 if spec.with_ties else spec.n
    best = await merge.first_by_value(plan.values, spec.n, ascending=spec.ascending)
    found = best.found
    if best.last is None and plan.nulls.is_empty:
        return _sorted(found, spec)
    if best.last is None:
        missing = most - found.num_rows
        # Their values are equal, so that the order of the values puts them in that of their keys.
        nulls = await merge.first_by_key(merge.everywhere(plan.nulls), missing)
        return pa.concat_batches([_sorted(found, spec), _sorted(nulls, spec)[:missing]])
    if best.cut:
        better = (pc.less if spec.ascending else pc.greater)(found["value"], best.last)
        equal = await merge.first_by_key(best.cut, most - (pc.sum(better).as_py() or 0))
        found = pa.concat_batches([found, equal])
    first = _sorted(found, spec)
    if not spec.with_ties:
        return first[:most]
    behind = (pc.greater if spec.ascending else pc.less)(first["value"], best.last)
    return first[: first.num_rows - (pc.sum(behind).as_py() or 0)]


def _sorted(entries: pa.RecordBatch, spec: TopNSpec) -> pa.RecordBatch:
    direction = "ascending" if spec.ascending else "descending"
    return entries.take(pc.sort_indices(entries, sort_keys=[("value", direction), ("key", "ascending")]))


async def _rows_behind(entries: pa.RecordBatch, spec: TopNSpec, locked: LockedView) -> pa.Array:
    """The stored rows of some entries, in the same order."""
    numbers = entries["bucket"].to_numpy()
    places, values = [], []
    left = MAX_KEPT_BYTES
    for number in locked.buckets:
        of_bucket = np.flatnonzero(numbers == number)
        places.append(of_bucket)
        keys = entries["key"].take(pa.array(of_bucket)).to_pylist()
        step = max(1, min(_GET_ROWS, _GET_BYTES // max(1, locked.buckets[number].longest_row)))
        for start in range(0, len(keys), step):
            if start:
                await locked.yield_to_others()
            part = _rows_of(number, keys[start : start + step], locked)
            values += part
            left -= sum(map(len, part))
            if left < 0:
                raise too_large(spec.n, MAX_KEPT_BYTES)
    stored = pa.array(values, pa.binary())
    return stored if len(places) < 2 else stored.take(pa.array(np.argsort(np.concatenate(places))))


def _rows_of(number: int, keys: list[bytes], locked: LockedView) -> list[bytes]:
    bucket = locked.buckets[number]
    try:
        found = bucket.get(keys)
        rows = [row for row in found if row is not None]
        if len(rows) < len(keys):
            raise missing_rows(bucket.location)
    except ScanKvError as error:
        raise locked.on_error(number, error) from error.__cause__
    return rows
