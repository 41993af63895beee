"""The latest commit time of each worker process of a server, in memory that all of them share."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_SIZE: Final = 8


class SharedTimes:
    """The latest commit times of the workers, in nanoseconds since 1970. For one thread at a time.

    A worker reads all of them and sets only its own, with one store of an aligned word. So no lock is needed, and what
    a worker has set before it answers is seen by every worker that is asked later.

    Args:
        file: The file in memory. Its directory belongs to this start of the server.
        number: The worker.
        workers: The number of workers.
    """

    def __init__(self, file: Path, number: int, workers: int) -> None:
        size = _SIZE * workers
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        # A worker that is started again continues with the time that it had set.
        self._times = memoryview(memory).cast("q")
        self._number = number

    def latest(self) -> int:
        """Returns the latest time of all workers; 0 if no worker has set one."""
        return max(self._times)

    def set(self, nanos: int) -> None:
        """Sets the time of this worker."""
        self._times[self._number] = nanos
