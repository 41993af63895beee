"""The engine `aggregate`: each column has a function. Only the written columns are merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scankv.model.tables.merge_functions import IGNORE_RETRACT, ColumnAggregate
from streaming_server.engine.functions.folds import fold_of
from streaming_server.engine.functions.function import Inputs, RefusedValueError, replace_where
from streaming_server.engine.merging.rows import MergeResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.engine.functions.folds import Fold
    from streaming_server.engine.functions.function import Mask, MergeFunction, Places
    from streaming_server.engine.merging.row_merge import RowColumns, RowMerge
    from streaming_server.engine.merging.rows import CurrentRows, WrittenRows
    from streaming_server.storage.rows.single_rows import Values


class RefusedColumnError(Exception):
    """Rows cannot be merged.

    Attributes:
        column: The column that cannot be merged.
        reason: The reason, without values.
        place: The index of the key.
    """

    def __init__(self, column: str, reason: str, place: int) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason
        self.place = place


@dataclass(frozen=True, slots=True)
class AggregatedColumn:
    """A column with its aggregator.

    Attributes:
        aggregate: The definition of the aggregate.
        type: The column's type.
        function: The function that merges it.
        hidden: The names of its hidden columns.
        retracts: Whether its inputs can be retracted.
    """

    aggregate: ColumnAggregate
    type: pa.DataType
    function: MergeFunction
    hidden: tuple[str, ...]
    retracts: bool

    def merge(self, standing: CurrentRows, inputs: Inputs) -> dict[str, pa.Array]:
        """Merges inputs by the column's function. Returns the column and its hidden columns, by name.

        Raises:
            RefusedColumnError: The inputs of a key have no result.
        """
        return self.merge_with(self.function, standing, self.effective_inputs(inputs))

    def effective_inputs(self, inputs: Inputs) -> Inputs:
        """Returns the inputs without ignored retractions. `retracted` is None unless a retraction remains."""
        if inputs.retracted is not None and (self.aggregate.flag(IGNORE_RETRACT) or not inputs.retracted.any()):
            added = inputs.additions()
            return Inputs(added.values, added.keys, added.count)
        return inputs

    def merge_with(self, function: MergeFunction, standing: CurrentRows, inputs: Inputs) -> dict[str, pa.Array]:
        """Merges inputs by `function`. Returns and raises as `merge`."""
        names = (self.aggregate.column, *self.hidden)
        try:
            results = function.merge([standing.columns[name] for name in names], inputs)
        except RefusedValueError as error:
            raise RefusedColumnError(self.aggregate.column, error.reason, error.place) from error
        return dict(zip(names, results, strict=True))

    def overwrite(self, standing: CurrentRows, values: pa.Array, where: Mask) -> dict[str, pa.Array]:
        """Replaces the column by `values`. Returns the column and its hidden columns by name.

        In rows where the mask is true, the hidden columns become those of a key whose only input is its value.
        """
        names = (self.aggregate.column, *self.hidden)
        empty = [pa.nulls(len(values), standing.columns[name].type) for name in names]
        places = np.flatnonzero(where)
        results = self.function.merge(empty, Inputs(values.take(pa.array(places)), places, len(values)))
        hidden = [replace_where(where, new, standing.columns[name]) for name, new in zip(names, results, strict=True)]
        return {**dict(zip(names, hidden, strict=True)), self.aggregate.column: values}


class AggregateEngine:
    """Merges each column by its function.

    Args:
        columns: All columns besides the key, by name.
    """

    def __init__(self, columns: Mapping[str, AggregatedColumn]) -> None:
        self._columns = columns

    def row_merge(self, columns: RowColumns) -> RowMerge | None:
        """See `MergeEngine.row_merge`."""
        folds: list[tuple[Fold, list[int]]] = []
        for name, column in self._columns.items():
            fold = fold_of(column.function, column.type)
            if fold is None:
                return None
            folds.append((fold, [columns.places[each] for each in (name, *column.hidden)]))

        def merge(current: Values | None, rows: Sequence[Values]) -> Values:
            merged = columns.start(current, rows)
            for fold, places in folds:
                first = places[0]
                inputs = [row[first] for row in rows] if len(rows) > 1 else (rows[0][first],)
                if len(places) == 1:
                    (merged[first],) = fold((merged[first],), inputs)
                else:
                    for place, value in zip(places, fold([merged[place] for place in places], inputs), strict=True):
                        merged[place] = value
            return tuple(merged)

        return merge

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """See `MergeEngine.last_deletes`."""
        return None

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """See `MergeEngine.merge`. A retraction without a row creates a row, with values below zero."""
        columns: dict[str, pa.Array] = {}
        for name in written.targets(standing):
            column = self._columns[name]
            columns |= column.merge(standing, written.inputs(name, column.type))
        return MergeResult(columns, np.diff(written.starts) > 0)
