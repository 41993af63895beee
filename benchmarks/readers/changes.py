"""The asyncio client as a reader of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client import StartFrom, StopAt
from benchmarks.readers.scankv import ClientReader

if TYPE_CHECKING:
    from benchmarks.measure import Timing


class ChangesReader(ClientReader):
    """Reads the changes that there are, with what happened to each row, to their end."""

    def read_log(self, limit: int | None = None) -> Timing:
        """Reads all changes from the first one on, or the first ones of them."""
        scan = self._table.changes(StartFrom.EARLIEST, StopAt.LATEST).limit(limit)
        return self._runner.run(self._timed(scan))

    def read_full(self) -> Timing:
        """Reads all rows, and the changes behind them, of which there are none."""
        return self._runner.run(self._timed(self._table.changes(StartFrom.FULL, StopAt.LATEST)))

    def read_net(self) -> Timing:
        """Reads one net change for each key, over all changes."""
        scan = self._table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net")
        return self._runner.run(self._timed(scan))
