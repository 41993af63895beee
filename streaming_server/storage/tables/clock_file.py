"""What a data directory keeps of the clocks of its servers, in `<data>/clock.json`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss
from streaming_server.clock import StoredTimes
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json

if TYPE_CHECKING:
    from pathlib import Path

_log: Final = logging.getLogger(__name__)


class ClockFile:
    """The file of one data directory. Its methods block.

    Args:
        data: The data directory.
    """

    def __init__(self, data: Path) -> None:
        self._path = data / "clock.json"

    def read(self, *, is_new: bool) -> StoredTimes | None:
        """What was kept last. None where nothing was, or it cannot be read.

        Without the file, service time begins at zero: nothing expires early, and what is on disk may be kept longer.

        Args:
            is_new: Whether the data directory has nothing yet, so that there need be no file.
        """
        if is_new and not self._path.exists():
            return None
        try:
            content = read_checked_json(self._path)
            return StoredTimes(**{**content, "doubtful": tuple((start, end) for start, end in content["doubtful"])})
        except (DataLoss, LookupError, TypeError, ValueError) as error:
            _log.error("DATA_LOSS: %s cannot be read, so its times begin again: %s", self._path, error)
            return None

    def write(self, times: StoredTimes) -> None:
        """Replaces what was kept, durably. Raises OSError."""
        write_checked_json(self._path, asdict(times))
