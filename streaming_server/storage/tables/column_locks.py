"""The column locks of a table on disk, in `<table>/column-locks.json`. The file is dropped with its table."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, NewerFormat
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """One column lock, as it is stored. Its expiry is not stored, because a restart restarts its time to live.

    Attributes:
        lock_id: The id of the lock.
        columns: The names of the locked columns.
        owner: The writer that has the lock.
        ttl: The time to live of the lock, in seconds.
    """

    lock_id: str
    columns: tuple[str, ...]
    owner: str
    ttl: float


class LockFile:
    """The file of the column locks of one table. Not thread-safe.

    Args:
        table: The directory of the table.
    """

    def __init__(self, table: Path) -> None:
        self._path = table / "column-locks.json"

    def read(self) -> list[LockRecord]:
        """Returns the stored locks. An unreadable file is logged and counts as empty: locks end soon anyway.

        Raises:
            NewerFormat: A newer ScanKV has written the file.
        """
        if not self._path.exists():
            return []
        try:
            content = read_checked_json(self._path)
            return [LockRecord(**{**each, "columns": tuple(each["columns"])}) for each in content["locks"]]
        except NewerFormat:
            raise
        except (DataLoss, TypeError, LookupError) as error:
            _log.error("DATA_LOSS: the column locks in %s cannot be read, and have ended: %s", self._path, error)
            return []

    def write(self, locks: Iterable[LockRecord]) -> None:
        """Replaces the stored locks by these, durably."""
        write_checked_json(self._path, {"locks": [asdict(each) for each in locks]})
