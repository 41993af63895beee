"""The latest commit time of each worker process of a server, in memory that all of them share."""

from __future__ import annotations

import mmap
import os
from typing import Final

_SIZE: Final = 8


class SharedTimes:
    """The latest commit times of the workers, in nanoseconds since 1970 UTC. For one thread at a time.

    A worker reads all of them and sets only its own, with one store of an aligned word. So no lock is needed, and what
    a worker has set before it answers is seen by every worker that is asked later.

    Args:
        descriptor: The memory that `create_times` has made. A worker that is started again finds the times there.
        number: The worker.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        self._times = memoryview(mmap.mmap(descriptor, 0)).cast("q")
        self._number = number

    def latest(self) -> int:
        """Returns the latest time of all workers; 0 if no worker has set one."""
        return max(self._times)

    def set(self, nanos: int) -> None:
        """Sets the time of this worker."""
        self._times[self._number] = nanos


def create_times(workers: int) -> int:
    """Returns the descriptor of memory for the times of some workers. It ends with the processes that have it."""
    descriptor = os.memfd_create("scankv-times")
    os.write(descriptor, bytes(_SIZE * workers))
    return descriptor
