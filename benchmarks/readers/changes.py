"""Reads changes through the asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client import StartFrom, StopAt
from benchmarks.readers.scankv import ClientReader

if TYPE_CHECKING:
    from benchmarks.measure import Timing


class ChangesReader(ClientReader):
    """Reads all existing changes, with their change columns."""

    def read_log(self, limit: int | None = None) -> Timing:
        """Reads all changes, or the first `limit` changes."""
        scan = self._table.changes(StartFrom.EARLIEST, StopAt.LATEST).limit(limit)
        return self._runner.run(self._time_scan(scan))

    def read_full(self) -> Timing:
        """Reads all rows and then the changes after them, although no change exists."""
        return self._runner.run(self._time_scan(self._table.changes(StartFrom.FULL, StopAt.LATEST)))

    def read_net(self) -> Timing:
        """Reads all changes as one net change for each key."""
        scan = self._table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net")
        return self._runner.run(self._time_scan(scan))
