"""Aggregates over the rows of a scan, in groups or over all rows: computed batch by batch, then merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.acero  # otherwise the first group_by imports it and holds the event loop for 40 ms
import pyarrow.compute as pc
import pyarrow.types as pat

from scankv.model.errors import InvalidRequest
from scankv.model.limits import MAX_CHUNK_ROWS
from scankv.model.tables.aggregates import Aggregate, AggregateFunction, check_aggregates, mean_type, sum_type
from streaming_server.arrays.exact_sums import (
    as_decimal_means,
    as_decimals,
    as_float_means,
    as_integers,
    limb,
    limb_count,
    propagate_carries,
)
from streaming_server.arrays.sort_codes import decode_sort_codes, sort_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scankv.model.tables.columns import Schema
    from streaming_server.scan.chunk_source import Chunk

MAX_GROUPS: Final = 1_000_000
MAX_STATE_BYTES: Final = 128 * 1024 * 1024
"""The limit for the state of all groups together."""

_MERGE_BATCHES: Final = 256
_MERGE_ROWS: Final = 65_536
_MERGE_BYTES: Final = 8 * 1024 * 1024
_MOST_GROUPED_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class _Partial:
    """One column of the state of each group, computed and merged by one associative Arrow function.

    Attributes:
        name: The name of the state column.
        column: The column that is aggregated.
        merge: The function.
        convert: Converts the column's values to the values to be merged.
    """

    name: str
    column: str
    merge: str
    convert: Callable[[pa.Array], pa.Array]


class RowCounter:
    """Counts rows.

    Attributes:
        rows: The number of rows added.
        is_due: Always False.
        most_rows: The most rows to add at once.
    """

    is_due: Final = False
    most_rows: Final = MAX_CHUNK_ROWS

    def __init__(self) -> None:
        self.rows = 0

    def add(self, chunk: Chunk) -> None:
        self.rows += chunk.batch.num_rows

    def settle(self) -> None:
        """Does nothing: a count has nothing to merge."""


class Aggregation:
    """The aggregates of the rows added so far. Use it from one thread at a time.

    Takes the memory of the groups, at most `MAX_STATE_BYTES`, and up to three times as much while it merges them.

    Args:
        aggregates: The aggregates to compute.
        group_by: The columns to group by.
        schema: The columns of the table.
        max_groups: The most groups.

    Attributes:
        columns: The columns that the batches must have, in this order.
        most_rows: The most rows to add at once, so that it takes about a millisecond. Groups take longer.

    Raises:
        InvalidRequest, SchemaMismatch: See `check_aggregates`.
    """

    def __init__(
        self, aggregates: Sequence[Aggregate], group_by: Sequence[str], schema: Schema, *, max_groups: int = MAX_GROUPS
    ) -> None:
        self._schema = check_aggregates(aggregates, group_by, schema)
        self.columns = tuple(dict.fromkeys([*group_by, *(each.column for each in aggregates)]))
        self.most_rows = _MOST_GROUPED_ROWS if group_by else MAX_CHUNK_ROWS
        self._aggregates = aggregates
        self._types = {name: schema.column(name).type for name in self.columns}
        self._max_groups = max_groups
        self._groups = [_Partial(f"group {name}", name, "", sort_codes) for name in group_by]
        partials = [known for each in aggregates for known in _partials(each, self._types[each.column])]
        self._partials = list({known.name: known for known in partials}.values())
        self._merged = self._of(pa.RecordBatch.from_pylist([], schema.select(self.columns)))
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0

    @property
    def is_due(self) -> bool:
        """Whether to call `settle`, in a thread because it may take long. Memory grows until then."""
        return (
            len(self._pending) >= _MERGE_BATCHES
            or self._pending_rows >= max(_MERGE_ROWS, self._merged.num_rows)
            or self._pending_bytes >= max(_MERGE_BYTES, self._merged.nbytes)
        )

    def add(self, chunk: Chunk) -> None:
        """Adds rows. Each batch has the columns `columns`, in this order."""
        if chunk.batch.num_rows:
            grouped = self._of(chunk.batch)
            self._pending.append(grouped)
            self._pending_rows += grouped.num_rows
            self._pending_bytes += grouped.nbytes

    def settle(self) -> None:
        """Merges the added rows into the groups. Raises InvalidRequest if there are too many groups."""
        if self._pending:
            merged = self._group_rows(pa.concat_tables([self._merged, *self._pending]))
            self._pending = []
            self._pending_rows = self._pending_bytes = 0
            self._merged = self._propagate_carries(merged)
        if self._groups and self._merged.num_rows > self._max_groups:
            raise InvalidRequest(
                f"the query has more than {self._max_groups:,} groups, the limit: group by fewer or other columns"
            )
        if self._merged.nbytes > MAX_STATE_BYTES:
            raise InvalidRequest(
                f"the groups take more than {MAX_STATE_BYTES >> 20} MiB, the limit: group by fewer columns, or ask "
                "for fewer functions"
            )

    def state(self) -> pa.Table:
        """Returns the groups, for `add_state` of another aggregation of the same query. May take long.

        Raises:
            InvalidRequest: There are too many groups.
        """
        self.settle()
        return self._merged

    def fits(self, state: pa.Table) -> bool:
        """Whether a state comes from an aggregation of the same query and the same columns."""
        return bool(state.schema.equals(self._merged.schema))

    def add_state(self, state: pa.Table) -> None:
        """Adds all rows that another aggregation has. May take long.

        Raises:
            InvalidRequest: There are too many groups.
        """
        self._pending.append(state)
        self.settle()

    def result(self) -> pa.RecordBatch:
        """Returns the groups in ascending order, nulls last. May take long.

        Raises:
            InvalidRequest: There are too many groups, or a sum does not fit into its type.
        """
        self.settle()
        known = self._merged
        if self._groups:
            keys = [(group.name, "ascending") for group in self._groups]
            known = known.take(pc.sort_indices(known, sort_keys=keys))
        arrays = {name: known.column(name).combine_chunks() for name in known.column_names}
        columns = [decode_sort_codes(arrays[group.name], self._types[group.column]) for group in self._groups]
        columns += [_result(each, self._types[each.column], arrays) for each in self._aggregates]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _of(self, batch: pa.RecordBatch) -> pa.Table:
        known = [*self._groups, *self._partials]
        arrays = [each.convert(batch.column(each.column)) for each in known]
        return self._group_rows(pa.table(arrays, [each.name for each in known]))

    def _group_rows(self, table: pa.Table) -> pa.Table:
        names = [group.name for group in self._groups]
        # A single thread adds floats in row order, so that their sums are deterministic.
        grouped = table.group_by(names, use_threads=False).aggregate([(p.name, p.merge) for p in self._partials])
        return grouped.rename_columns({f"{p.name}_{p.merge}": p.name for p in self._partials}).select(
            [*names, *(p.name for p in self._partials)]
        )

    def _propagate_carries(self, table: pa.Table) -> pa.Table:
        for name in {aggregate.column for aggregate in self._aggregates}:
            names = _limb_names(name, table.column_names)
            if names:
                limbs = propagate_carries([table.column(each).combine_chunks() for each in names])
                for each, array in zip(names, limbs, strict=True):
                    table = table.set_column(table.column_names.index(each), each, array)
        return table


def _partials(aggregate: Aggregate, type_: pa.DataType) -> Iterable[_Partial]:
    """Yields the state columns that an aggregate needs."""
    name, function = aggregate.column, aggregate.function
    if function in (AggregateFunction.MIN, AggregateFunction.MAX):
        yield _Partial(f"{function} {name}", name, str(function), sort_codes)
        return
    if function in (AggregateFunction.COUNT, AggregateFunction.MEAN):
        yield _Partial(f"count {name}", name, "sum", lambda array: array.is_valid().cast(pa.int64()))
    if function in (AggregateFunction.SUM, AggregateFunction.MEAN):
        if pat.is_floating(type_):
            yield _Partial(f"sum {name}", name, "sum", lambda array: array.cast(pa.float64()))
            return
        for number in range(limb_count(type_)):
            yield _Partial(f"limb {number} {name}", name, "sum", partial(limb, number=number))


def _limb_names(column: str, names: Iterable[str]) -> list[str]:
    known = set(names)
    return [name for name in (f"limb {number} {column}" for number in range(4)) if name in known]


def _result(aggregate: Aggregate, type_: pa.DataType, known: dict[str, pa.Array]) -> pa.Array:
    name, function = aggregate.column, aggregate.function
    match function:
        case AggregateFunction.COUNT:
            return known[f"count {name}"].fill_null(0)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return decode_sort_codes(known[f"{function} {name}"], type_)
    if pat.is_floating(type_):
        total = known[f"sum {name}"]
        return (
            total if function is AggregateFunction.SUM else pc.divide(total, known[f"count {name}"].cast(pa.float64()))
        )
    limbs = propagate_carries([known[limb] for limb in _limb_names(name, known)])
    if function is AggregateFunction.SUM:
        return _exact_sum(aggregate, type_, limbs)
    counts = known[f"count {name}"]
    if pat.is_decimal(type_):
        return as_decimal_means(limbs, counts, type_.scale, mean_type(type_))
    return as_float_means(limbs, counts)


def _exact_sum(aggregate: Aggregate, type_: pa.DataType, limbs: Sequence[pa.Array]) -> pa.Array:
    wide = sum_type(type_)
    sums = as_decimals(limbs, wide) if pat.is_decimal(type_) else as_integers(limbs, wide)
    if sums is None:
        fits = "decimal128 of 38 digits" if pat.is_decimal(type_) else str(wide)
        raise InvalidRequest(
            f'the sum of column "{aggregate.column}" does not fit into {fits}: ask for its mean, or for smaller groups',
            column=aggregate.column,
        )
    return sums
