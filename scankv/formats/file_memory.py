"""Limits the memory that a command takes for a file from outside: a short file may expand to any size.

What compressed and repeated values expand to is known only to the libraries that read them, and the sizes that a file
states may be false. So the system refuses further memory to the process.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BASE_BYTES: Final = 1 << 30
_BYTES_PER_STORED_BYTE: Final = 32

TOO_LARGE: Final = (
    "the file is damaged, or a part of it needs more memory than is available, or than a command may take for it, "
    f"which is 1 GiB and {_BYTES_PER_STORED_BYTE} times its size, or of a pipe what has been read of it: write it "
    "again with smaller batches, row groups or values"
)
"""What to say of a file for which the memory is not enough."""


@contextmanager
def limit_memory(stored_bytes: int) -> Iterator[Callable[[int], None]]:
    """Limits how much more memory the process may take in the block. Allocations beyond that fail.

    The limit is for all threads, so only a program that does nothing else may have one. Memory that an allocator has
    reserved is not new, so it comes on top. Systems other than Linux have no such limit.

    Args:
        stored_bytes: The size of the file, or of all files, on disk.

    Yields:
        What raises the limit: takes how many bytes more of the file are known, if its size was not.
    """
    if sys.platform != "linux":
        yield lambda _: None
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _data_bytes() + _BASE_BYTES

    def raise_limit(more_bytes: int) -> None:
        nonlocal most
        most += _BYTES_PER_STORED_BYTE * more_bytes
        limits = [each for each in (soft, hard, most) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))

    raise_limit(stored_bytes)
    try:
        yield raise_limit
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Returns what the process has of the memory that RLIMIT_DATA limits."""
    import resource

    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
