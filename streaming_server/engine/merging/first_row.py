"""The engine `first_row`: keeps the first row of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streaming_server.engine.merging.newest_row import take_written_rows

if TYPE_CHECKING:
    from streaming_server.engine.functions.function import Places
    from streaming_server.engine.merging.row_merge import RowColumns, RowMerge
    from streaming_server.engine.merging.rows import CurrentRows, MergeResult, WrittenRows


class FirstRow:
    """Writes rows only to keys without a row."""

    def row_merge(self, columns: RowColumns) -> RowMerge | None:
        """See `MergeEngine.row_merge`."""
        return lambda current, rows: rows[0] if current is None else None

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """See `MergeEngine.last_deletes`."""
        return None

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """See `MergeEngine.merge`."""
        is_first = ~standing.exists & (np.diff(written.starts) > 0)
        return take_written_rows(standing, written, np.where(is_first, written.starts[:-1], -1))
