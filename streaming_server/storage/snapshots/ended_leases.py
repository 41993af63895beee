"""The ids of ended shared leases of a table. They are never used again."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from streaming_server.storage.files.checked_json import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

MOST_IDS: Final = 10_000
"""The most ids that are remembered: those that ended last."""

_LONGEST_FILE_BYTES: Final = 4 * MOST_IDS * 65

_log: Final = logging.getLogger(__name__)


class EndedLeases:
    """Remembers, in memory and on disk, which shared leases of a table have ended. Dropped with the table.

    `write` blocks and may be called from any thread. Call all other methods on the event loop.

    Args:
        table: The directory of the table.
    """

    def __init__(self, table: Path) -> None:
        self._path = table / "ended_snapshots"
        # In the order in which they ended.
        self._ids: dict[str, None] = {}
        self._writing = threading.Lock()
        self._has_durable_name = False

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._ids

    def load(self) -> None:
        """Reads the ids from disk.

        Damage of this file must not keep the table from being served, so ids that cannot be read are forgotten.
        """
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            _log.error("the ids of ended snapshots cannot be read and may be used again: %s", error)
            return
        for lease_id in text.splitlines():
            self._remember(lease_id)

    def add(self, lease_id: str) -> None:
        """Remembers an id."""
        self._remember(lease_id)

    def write(self, lease_id: str) -> None:
        """Makes an id that was added durable. Blocks.

        A full disk must not keep a lease from ending: if the write fails, the id is remembered until the server stops.
        """
        try:
            with self._writing:
                self._append(lease_id)
        except OSError as error:
            _log.error("the end of the snapshot %s cannot be recorded: %s", lease_id, error)

    def _append(self, lease_id: str) -> None:
        if self._path.exists() and self._path.stat().st_size > _LONGEST_FILE_BYTES:
            self._rewrite()
            return
        # The line break comes first, so that an id that a crash has cut short does not spoil the next one.
        with self._path.open("a", encoding="ascii") as file:
            file.write(f"\n{lease_id}")
            file.flush()
            os.fsync(file.fileno())
        if not self._has_durable_name:
            self._sync_name()

    def _rewrite(self) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="ascii") as file:
            file.write("\n".join(list(self._ids)))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._sync_name()

    def _sync_name(self) -> None:
        sync_directory(self._path.parent)
        self._has_durable_name = True

    def _remember(self, lease_id: str) -> None:
        self._ids[lease_id] = None
        while len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]
