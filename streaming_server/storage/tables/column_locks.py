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
        principal: The principal that it belongs to. Empty: it belongs to nobody.
    """

    lock_id: str
    columns: tuple[str, ...]
    owner: str
    ttl: float
    principal: str = ""


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
            principals = content.get("principals", {})
            return [
                LockRecord(
                    **{**each, "columns": tuple(each["columns"]), "principal": principals.get(each["lock_id"], "")}
                )
                for each in content["locks"]
            ]
        except NewerFormat:
            raise
        except (DataLoss, TypeError, LookupError) as error:
            _log.error("DATA_LOSS: the column locks in %s cannot be read, and have ended: %s", self._path, error)
            return []

    def write(self, locks: Iterable[LockRecord]) -> None:
        """Replaces the stored locks by these, durably."""
        principals, stored = {}, []
        for each in locks:
            values = asdict(each)
            # Beside the locks, because an earlier version refuses a lock with more values than it knows.
            if principal := values.pop("principal"):
                principals[each.lock_id] = principal
            stored.append(values)
        write_checked_json(self._path, {"locks": stored} | ({"principals": principals} if principals else {}))
