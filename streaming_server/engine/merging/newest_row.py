"""The engines `last_row` and `versioned`: the newest row of a key stays, by arrival or by the order of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streaming_server.engine.functions.function import last_places
from streaming_server.engine.merging.ordering import newness
from streaming_server.engine.merging.rows import DELETE, MergeResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.functions.function import Places
    from streaming_server.engine.merging.row_merge import RowColumns, RowMerge
    from streaming_server.engine.merging.rows import CurrentRows, WrittenRows
    from streaming_server.storage.rows.single_rows import Values


class NewestRow:
    """Keeps the newest of the stored row and the written rows.

    Args:
        order: The columns that order rows by age, most significant first. Null is oldest. Among equal rows, and among
            all rows if there are no such columns, the last one to arrive is newest.
    """

    def __init__(self, order: Sequence[str]) -> None:
        self._order = order

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """See `MergeEngine.merge`."""
        keys = written.keys
        if not self._order:
            places = np.full(written.count, -1)
            last = last_places(keys)
            places[keys[last]] = last
            return take_written_rows(standing, written, places)
        before, after = newness(standing, written, self._order)
        order = np.lexsort((after, keys))
        newest = order[last_places(keys[order])]
        at = keys[newest]
        wins = ~standing.exists[at] | (after[newest] >= before[at])
        places = np.full(written.count, -1)
        places[at[wins]] = newest[wins]
        return take_written_rows(standing, written, places)

    def row_merge(self, columns: RowColumns) -> RowMerge | None:
        """See `MergeEngine.row_merge`."""
        if not self._order:
            return lambda _, rows: rows[-1]
        age = columns.age(self._order)
        if age is None:
            return None

        def merge(current: Values | None, rows: Sequence[Values]) -> Values | None:
            newest = current
            for row in rows:
                if newest is None or age(row) >= age(newest):
                    newest = row
            return None if newest is current else newest

        return merge

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """See `MergeEngine.last_deletes`. A delete counts if it is not older than the row that exists when it arrives.

        The age of a deleted row is forgotten, so the result depends on the order in which the rows of a key arrived.
        Only keys with a delete enter this loop.
        """
        if not self._order or any(name not in written.batch.schema.names for name in self._order):
            return None
        assert written.kinds is not None
        before, after = newness(standing, written, self._order)
        last = np.full(written.count, -1)
        for key in np.unique(written.keys[written.kinds == DELETE]).tolist():
            first, end = int(written.starts[key]), int(written.starts[key + 1])
            newest = int(before[key]) if standing.exists[key] else -1
            rows = zip(after[first:end].tolist(), (written.kinds[first:end] == DELETE).tolist(), strict=True)
            for place, (new, deletes) in enumerate(rows, first):
                if new >= newest:
                    newest = -1 if deletes else new
                    last[key] = place if deletes else last[key]
        return last


def take_written_rows(standing: CurrentRows, written: WrittenRows, places: Places) -> MergeResult:
    """Takes the written columns of one written row for each key, given by its position. -1 keeps the current row."""
    columns = {}
    wrote = places >= 0
    sources = np.where(wrote, places + written.count, np.arange(written.count))
    everywhere = pa.array(places) if wrote.all() else None
    for name in written.targets(standing):
        old = standing.columns[name]
        new = written.column(name, old.type)
        columns[name] = (
            new.take(everywhere) if everywhere is not None else pa.concat_arrays([old, new]).take(pa.array(sources))
        )
    return MergeResult(columns, wrote)
