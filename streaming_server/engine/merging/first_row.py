"""The engine `first_row`: keeps the first row of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streaming_server.engine.merging.newest_row import take_written_rows

if TYPE_CHECKING:
    from streaming_server.engine.functions.function import Places
    from streaming_server.engine.merging.rows import CurrentRows, MergeResult, WrittenRows


class FirstRow:
    """Writes rows only to keys without a row."""

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """As `MergeEngine.last_deletes`."""
        return None

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """As `MergeEngine.merge`."""
        is_first = ~standing.exists & (np.diff(written.starts) > 0)
        return take_written_rows(standing, written, np.where(is_first, written.starts[:-1], -1))
