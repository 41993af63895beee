"""The reserve: disk space that writes leave free, so that deletes, drops, retention and compaction can free more."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from streaming_server.storage.files.disk_space import disk_full

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LARGEST_SHARE: Final = 20
"""The reserve is at most the disk's size divided by this."""
_SECONDS: Final = 1.0
"""How long an answer of the system about free space is used."""
_GROWTH: Final = 3
"""Bytes written for each byte of a request: to the write-ahead log, to a table file, and by a compaction."""
_LEAST_BYTES: Final = 1 << 20
MEMTABLE_BYTES: Final = 64 << 20
"""The size of a memtable, unless the disk or the memory is small."""
_STEP_SHARE: Final = 16
"""One step of a write takes at most the reserve divided by this."""
_BUFFER_SHARE: Final = 4
"""Unflushed writes take at most the reserve of a disk divided by this, if that is a memtable."""
_SMALL_BUFFER_SHARE: Final = 16
"""Otherwise they take less, since RocksDB needs as much free space to go on after a flush has failed."""
_BALLAST: Final = "ballast"
_BALLAST_SHARE: Final = 2
"""The ballast has the size of the reserve divided by this."""
_ADVICE: Final = (
    "the server keeps {reserve:,} bytes free (min_free_bytes) for reads, deletes, drops and compaction, which "
    "continue; to write again, free some space or enlarge the disk"
)
_BALLAST_ADVICE: Final = (
    "what is left is for flushes, retention and compaction, which free space: retry after some seconds; or free some "
    "space by dropping tables or shortening the retention (log_retention_bytes), or enlarge the disk"
)

_log: Final = logging.getLogger(__name__)


def reserve_bytes(least_bytes: int, disk_bytes: int) -> int:
    """Returns the reserve on a disk of a size: `least_bytes`, or a twentieth of a small disk."""
    return min(least_bytes, disk_bytes // _LARGEST_SHARE)


class DiskReserve:
    """Refuses writes while less than the reserve is free. Bound to the event loop.

    Asks the system for the free space at most once a second; sooner after many bytes were written, and while writes are
    refused.

    A part of the reserve is the ballast, a file that takes space while the rest becomes full. Once nothing can be
    written any more, `drop_ballast` makes space for what frees more. Deletes then wait for it.

    Args:
        directory: The data directory.
        least_bytes: The reserve in bytes; on a small disk, a twentieth of the disk instead. 0: no reserve.
        clock: Returns the time in seconds.
    """

    def __init__(self, directory: Path, least_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._ballast = directory / _BALLAST
        self._least_bytes = least_bytes
        self._clock = clock
        self._asked_at: float | None = None
        self._free = self._reserve = 0
        self._written = 0
        self._was_low = False

    @property
    def bytes(self) -> int:
        """The reserve in bytes."""
        self._ask()
        return self._reserve

    @property
    def free(self) -> int:
        """The free space of the disk in bytes."""
        self._ask()
        return self._free

    @property
    def is_low(self) -> bool:
        """Whether less than the reserve is free, so that writes are refused."""
        self._ask()
        return self._free < self._reserve

    def check(self, size: int = 0) -> None:
        """Admits a write.

        Args:
            size: The bytes of the request.

        Raises:
            DiskFull: Less than the reserve is free, or the write needs much of the reserve.
        """
        self._written += _GROWTH * size
        if self._refuses(size):
            self._asked_at = None  # Space may have been freed since the last answer.
            if self._refuses(size):
                raise disk_full(self._directory, _ADVICE.format(reserve=self._reserve))

    def check_file(self, most_bytes: int) -> None:
        """Admits a file that is written once, of at most so many bytes.

        Raises:
            DiskFull: Less than the reserve is free.
        """
        self._written += most_bytes
        if self.is_low:
            raise disk_full(self._directory, _ADVICE.format(reserve=self._reserve))

    def _refuses(self, size: int) -> bool:
        return self.is_low or bool(self._reserve and self._free < _GROWTH * size + self._reserve // _BALLAST_SHARE)

    def check_step(self) -> None:
        """Admits a step of a write that was admitted, or of a delete: it may use the reserve, but not the ballast.

        Raises:
            DiskFull: The ballast was dropped, and its space is for what frees more.
        """
        self._written += self._reserve // _STEP_SHARE
        if self.is_low and not self._ballast_bytes() and self._ballast.exists():
            raise disk_full(self._directory, _BALLAST_ADVICE)

    @property
    def step_bytes(self) -> int:
        """The most bytes of one step of a write. Large, unless the disk is small."""
        return self._reserve // _STEP_SHARE or sys.maxsize

    def drop_ballast(self) -> None:
        """Frees the space of the ballast, until more is free."""
        with suppress(FileNotFoundError):
            os.truncate(self._ballast, 0)

    def _ballast_bytes(self) -> int:
        with suppress(OSError):
            return self._ballast.stat().st_size
        return 0

    def _keep_ballast(self) -> None:
        """Makes the ballast before the reserve is in use; after it was dropped, once more is free than it had."""
        size = self._reserve // _BALLAST_SHARE
        if size + size // 2 <= self._free < 2 * self._reserve and not self._ballast_bytes():
            with suppress(OSError), self._ballast.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)

    def limit_write_buffer(self, asked: int, processes: int) -> int:
        """Returns the memory for unflushed writes of one of some processes: a part of the reserve.

        The reserve is that of a small disk. A bucket that found the disk full is opened again only if what it has not
        flushed fits on the disk.
        """
        if not self.bytes:
            return asked
        reserve = shutil.disk_usage(self._directory).total // _LARGEST_SHARE
        most = reserve // (_BUFFER_SHARE if reserve // _BUFFER_SHARE >= MEMTABLE_BYTES else _SMALL_BUFFER_SHARE)
        return min(asked, max(_LEAST_BYTES, most // processes))

    def check_fits(self, size: int) -> None:
        """Admits a write that must not be made in part, even from the reserve.

        Raises:
            DiskFull: The disk has no space for it.
        """
        self._asked_at = None
        self._ask()
        if self._asked_at is not None and self._free - self._ballast_bytes() < _GROWTH * size + _LEAST_BYTES:
            raise disk_full(self._directory)

    def _ask(self) -> None:
        now = self._clock()
        is_recent = self._asked_at is not None and now - self._asked_at < _SECONDS
        if is_recent and not self._was_low and self._written <= self._reserve // 4:
            return
        try:
            disk = shutil.disk_usage(self._directory)
        except OSError:
            return  # A failing disk; writes report it.
        self._asked_at, self._written = now, 0
        self._free, self._reserve = disk.free + self._ballast_bytes(), reserve_bytes(self._least_bytes, disk.total)
        self._keep_ballast()
        if (is_low := self._free < self._reserve) != self._was_low:
            self._was_low = is_low
            if is_low:
                _log.warning("writes are refused: %s", disk_full(self._directory, "the reserve is in use").message)
            else:
                _log.info("writes are accepted again: %d bytes are free", disk.free)
