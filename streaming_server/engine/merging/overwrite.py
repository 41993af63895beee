"""Writes that replace the current rows, whatever the table's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.engine.merging.newest_row import NewestRow
from streaming_server.engine.merging.rows import MergeResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from streaming_server.engine.functions.function import Places
    from streaming_server.engine.merging.aggregate import AggregatedColumn
    from streaming_server.engine.merging.row_merge import RowColumns, RowMerge
    from streaming_server.engine.merging.rows import CurrentRows, WrittenRows


class OverwriteEngine:
    """The last written row replaces the current row.

    Args:
        aggregated: The columns with a function. Their hidden columns become those of a single input.
    """

    def __init__(self, aggregated: Mapping[str, AggregatedColumn]) -> None:
        self._aggregated = aggregated
        self._last = NewestRow(())

    def row_merge(self, columns: RowColumns) -> RowMerge | None:
        """See `MergeEngine.row_merge`."""
        return None

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """See `MergeEngine.last_deletes`."""
        return None

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """See `MergeEngine.merge`."""
        result = self._last.merge(standing, written)
        columns: dict[str, pa.Array] = dict(result.columns)
        for name in result.columns:
            if name in self._aggregated and self._aggregated[name].hidden:
                columns |= self._aggregated[name].overwrite(standing, columns[name], result.wrote)
        return MergeResult(columns, result.wrote)
