"""The column locks of a table on disk: all of them in `<table>/column-locks.json`, which goes with the table."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """What is kept of one lock: not when it expires, as a restart begins its time to live anew.

    Attributes:
        lock_id: Its id.
        columns: The names of the columns.
        owner: Who has it.
        ttl: Its time to live, in seconds.
    """

    lock_id: str
    columns: tuple[str, ...]
    owner: str
    ttl: float


class LockFile:
    """The file of one table. Not thread-safe.

    Args:
        table: The directory of the table.
    """

    def __init__(self, table: Path) -> None:
        self._path = table / "column-locks.json"

    def read(self) -> list[LockRecord]:
        """The locks that there are. A file that cannot be read is logged, and has none: they would end soon anyway."""
        if not self._path.exists():
            return []
        try:
            content = read_checked_json(self._path)
            return [LockRecord(**{**each, "columns": tuple(each["columns"])}) for each in content["locks"]]
        except (DataLoss, TypeError, LookupError) as error:
            _log.error("DATA_LOSS: the column locks in %s cannot be read, and have ended: %s", self._path, error)
            return []

    def write(self, locks: Iterable[LockRecord]) -> None:
        """Keeps these locks and no others, durably."""
        write_checked_json(self._path, {"locks": [asdict(each) for each in locks]})
