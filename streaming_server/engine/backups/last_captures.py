"""What workers leave for the archive when a server stops: they end at once, and the first one stores the last segment.

A worker leaves its last capture in a file once it has ended all writes. It can be asked no more, and all that the
capture names remains on the disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from scankv.model.errors import Unavailable
from streaming_server.engine.backups.segment_capture import SegmentCapture
from streaming_server.storage.files.checked_json import find_checked_json, write_checked_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streaming_server.storage.tables.data_directory import DataDirectory

_FILE: Final = "last-capture.json"
_LOOK_SECONDS: Final = 0.05


class LastCaptures:
    """The last captures of the workers of a server.

    Args:
        directory: The data directory.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def remove(self) -> None:
        """Removes what an earlier process of this worker has left. Blocks."""
        _in(self._directory.own).unlink(missing_ok=True)

    def leave(self, capture: SegmentCapture) -> None:
        """Leaves the last capture of this worker. Blocks."""
        write_checked_json(_in(self._directory.own), capture.to_json())

    async def wait(self, workers: Sequence[int], seconds: float) -> None:
        """Returns once all of these workers have left their captures, or after some seconds."""
        files = [_in(self._directory.parts()[number]) for number in workers]
        try:
            async with asyncio.timeout(seconds):
                while not all(file.exists() for file in files):  # noqa: ASYNC110  # other processes write them
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return

    def read(self, worker: int) -> SegmentCapture:
        """Returns the last capture of a worker. Blocks.

        Raises:
            Unavailable: It has left none.
            DataLoss: The file is damaged.
        """
        found = find_checked_json(_in(self._directory.parts()[worker]))
        if found is None:
            raise Unavailable(f"worker {worker} has not left what it has written: the next start archives that")
        return SegmentCapture.from_json(found)


def _in(part: Path) -> Path:
    return part / _FILE
