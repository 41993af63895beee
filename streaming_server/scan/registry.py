"""Which scans are live: how many, whose, how far; and the totals of all there ever were."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from table_model.errors import ServerDraining, TooManyScans

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class LiveScan:
    """One scan that holds, or is about to hold, iterators."""

    table: str
    peer: str
    scan_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    rows_scanned: int = 0
    bytes_returned: int = 0


class ScanRegistry:
    """The live scans of a server, and how many it takes. Bound to the server's event loop.

    Args:
        max_live_scans: Scans that may be live at once.
    """

    def __init__(self, max_live_scans: int) -> None:
        self._max = max_live_scans
        self._live: dict[str, LiveScan] = {}
        self._draining = False
        self.started = 0
        self.rows_scanned = 0
        self.bytes_returned = 0

    def __len__(self) -> int:
        return len(self._live)

    @contextmanager
    def admitted(self, table: str, peer: str) -> Iterator[LiveScan]:
        """Registers a scan for the length of the block.

        Raises:
            TooManyScans: The server has as many as it takes.
            ServerDraining: The server is shutting down.
        """
        if self._draining:
            raise ServerDraining("the server is shutting down and takes no new scans: try again after its restart")
        if len(self._live) >= self._max:
            raise TooManyScans(
                f"the server has {self._max} live scans and takes no more: end some, or raise max_live_scans",
                retry_after=1.0,
            )
        scan = LiveScan(table, peer)
        self._live[scan.scan_id] = scan
        self.started += 1
        try:
            yield scan
        finally:
            del self._live[scan.scan_id]
            self.rows_scanned += scan.rows_scanned
            self.bytes_returned += scan.bytes_returned

    def drain(self) -> None:
        """Takes no new scans from now on."""
        self._draining = True
