"""The stored clocks of a data directory, in `<data>/clock.json`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, NewerFormat
from streaming_server.clock import StoredTimes
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json

if TYPE_CHECKING:
    from pathlib import Path

_log: Final = logging.getLogger(__name__)


class ClockFile:
    """The clock file of one data directory. Its methods block.

    Args:
        data: The data directory.
    """

    def __init__(self, data: Path) -> None:
        self._path = data / "clock.json"

    def read(self, *, is_new: bool) -> StoredTimes | None:
        """Returns the times stored last. None: no times were stored, or they cannot be read.

        Without the file, service time begins at zero. Then nothing expires early, and data on disk may be kept longer.

        Raises:
            NewerFormat: A newer ScanKV has written the file.

        Args:
            is_new: Whether the data directory is empty, so that the file may be missing.
        """
        if is_new and not self._path.exists():
            return None
        try:
            content = read_checked_json(self._path)
            return StoredTimes.from_json(content)
        except NewerFormat:
            raise
        except (DataLoss, LookupError, TypeError, ValueError) as error:
            _log.error("DATA_LOSS: %s cannot be read, so service time begins at zero: %s", self._path, error)
            return None

    def write(self, times: StoredTimes) -> None:
        """Replaces the stored times durably. Raises DiskFull or OSError."""
        write_checked_json(self._path, times.to_json())
