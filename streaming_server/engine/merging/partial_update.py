"""The engine `partial_update`: a column keeps its last value; a sequence group keeps the values of its newest row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streaming_server.engine.functions.function import Inputs, last_places, not_null_mask
from streaming_server.engine.functions.late_inputs import function_for_late_inputs
from streaming_server.engine.functions.picking import Last, replace_with_inputs
from streaming_server.engine.merging.ordering import newness
from streaming_server.engine.merging.rows import RETRACT, MergeResult

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from scankv.model.tables.merge_spec import SequenceGroup
    from streaming_server.engine.functions.function import Mask, Places
    from streaming_server.engine.merging.aggregate import AggregatedColumn
    from streaming_server.engine.merging.row_merge import RowColumns, RowMerge
    from streaming_server.engine.merging.rows import CurrentRows, WrittenRows
    from streaming_server.storage.rows.single_rows import Values

_LAST_NOT_NULL = Last(skip_nulls=True)


class PartialUpdate:
    """Merges each column outside of groups by itself; a null has no effect there. Columns of a group change together.

    Args:
        groups: The sequence groups.
        aggregated: The columns of groups that have a function, by name.
    """

    def __init__(self, groups: Sequence[SequenceGroup], aggregated: Mapping[str, AggregatedColumn]) -> None:
        self._groups = groups
        self._aggregated = aggregated
        self._grouped = {name for group in groups for name in group.members}

    def row_merge(self, columns: RowColumns) -> RowMerge | None:
        """See `MergeEngine.row_merge`."""
        if self._aggregated:
            return None
        alone = [
            place for name, place in columns.places.items() if name not in columns.keys and name not in self._grouped
        ]
        groups = []
        for group in self._groups:
            age = columns.age(group.sequence)
            if age is None:
                return None
            groups.append((age, [columns.places[name] for name in group.members]))

        def merge(current: Values | None, rows: Sequence[Values]) -> Values:
            merged = columns.start(current, rows)
            for row in rows:
                for place in alone:
                    if row[place] is not None:
                        merged[place] = row[place]
                for age, places in groups:
                    # The age of a row without a sequence has no values, so it is less than any other.
                    if any(own := age(row)) and own >= age(merged):
                        for place in places:
                            merged[place] = row[place]
            return tuple(merged)

        return merge

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """See `MergeEngine.last_deletes`."""
        return None

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """See `MergeEngine.merge`. Retractions concern groups only, and create no row."""
        columns: dict[str, pa.Array] = {}
        targets = written.targets(standing)
        added = written if written.kinds is None else written.where(written.kinds != RETRACT)
        for name in targets:
            if name not in self._grouped:
                old = standing.columns[name]
                columns[name] = _LAST_NOT_NULL.merge([old], added.inputs(name, old.type))[0]
        # A retraction before the first row of its key has no effect.
        known = written.where(_has_row(standing, written)) if written.retracted is not None else written
        for group in self._groups:
            columns |= self._merge_group(group, standing, known, frozenset(targets))
        return MergeResult(columns, (np.diff(added.starts) > 0) | (np.diff(known.starts) > 0))

    def _merge_group(
        self, group: SequenceGroup, standing: CurrentRows, written: WrittenRows, targets: Collection[str]
    ) -> dict[str, pa.Array]:
        if any(name not in targets for name in group.sequence):
            return {}
        types = {name: standing.columns[name].type for name in group.sequence}
        has_sequence = np.zeros(written.batch.num_rows, np.bool_)
        for name in group.sequence:
            has_sequence |= not_null_mask(written.column(name, types[name]))
        if not has_sequence.all():
            written = written.where(has_sequence)
        keys, is_newer = written.keys, self._is_newer(group, standing, written)
        newer = np.flatnonzero(is_newer)
        last = newer[last_places(keys[newer])]
        gone = None if written.retracted is None else written.retracted[last]
        columns: dict[str, pa.Array] = {}
        for name in group.members:
            if name in self._aggregated or name not in targets:
                continue
            old = standing.columns[name]
            inputs = Inputs(written.column(name, old.type), keys, written.count)
            columns[name] = replace_with_inputs(old, inputs, last, None if name in group.sequence else gone)
        for name in group.columns:
            if name in self._aggregated and name in targets:
                columns |= self._merge_aggregated(self._aggregated[name], standing, written, is_newer)
        return columns

    @staticmethod
    def _is_newer(group: SequenceGroup, standing: CurrentRows, written: WrittenRows) -> Mask:
        """Returns which rows are at least as new as all rows of their key that arrived before them."""
        before, after = newness(standing, written, group.sequence)
        unknown = np.ones(written.count, np.bool_)
        for name in group.sequence:
            unknown &= ~not_null_mask(standing.columns[name])
        before = np.where(unknown, 0, before)
        keys = np.concatenate((np.arange(written.count), written.keys))
        order = np.argsort(keys, kind="stable")
        # The numbers of later keys exceed those of earlier keys, so that one pass serves all keys.
        span = int(max(before.max(initial=0), after.max(initial=0))) + 1
        numbers = keys[order] * span + np.concatenate((before, after))[order]
        is_newer = np.zeros(len(numbers), np.bool_)
        is_newer[order] = numbers >= np.maximum.accumulate(numbers)
        return is_newer[written.count :]

    @staticmethod
    def _merge_aggregated(
        column: AggregatedColumn, standing: CurrentRows, written: WrittenRows, is_newer: Mask
    ) -> dict[str, pa.Array]:
        inputs = written.inputs(column.aggregate.column, column.type)
        is_older = ~is_newer if inputs.retracted is None else ~is_newer & ~inputs.retracted
        # Retractions apply after the late rows of their request, whatever the order in which both arrived.
        late_function = function_for_late_inputs(column.function) if is_older.any() else None
        if late_function is None:
            return column.merge(standing, inputs)
        first = column.merge_with(late_function, standing, inputs.where(is_older))
        return first | column.merge(standing.with_columns(first, standing.exists), inputs.where(~is_older))


def _has_row(standing: CurrentRows, written: WrittenRows) -> Mask:
    """Returns which rows come after another row of their key, stored or written."""
    assert written.kinds is not None
    adds = np.cumsum(written.kinds != RETRACT)
    base = np.concatenate(([0], adds))[written.starts[:-1]]
    return standing.exists[written.keys] | (adds > base[written.keys])
