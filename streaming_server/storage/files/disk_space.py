"""Out of space: the one error for it, which names the directory and says what to do.

Every write to the data directory must fail with `DiskFull` when the disk has no space left: RocksDB's through
`RocksStore.failure`, those to files of our own inside `translate_disk_errors`.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DiskFull
from streaming_server.storage.files.file_limit import is_out_of_files, too_many_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scankv.model.errors import ServerBusy

_ERRNOS: Final = frozenset([errno.ENOSPC, errno.EDQUOT])
_ENOUGH_BYTES: Final = 1 << 20
_ADVICE: Final = "free some space, by dropping tables or releasing snapshots, or make the disk larger"


@contextmanager
def translate_disk_errors(directory: Path) -> Iterator[None]:
    """Raises DiskFull, naming the directory, for an OSError in the block that says that there is no space left.

    And ServerBusy for one that says that too many files are open, which passes, too, and is no damage of any file.
    """
    try:
        yield
    except OSError as error:
        want = resource_error(error, directory)
        if want is None:
            raise
        raise want from error


def resource_error(error: OSError, directory: Path | str) -> DiskFull | ServerBusy | None:
    """The error for what the system had too little of, space or files. None: it says something else."""
    if is_out_of_space(error):
        return disk_full(directory)
    if is_out_of_files(error):
        return too_many_files(f"a file in {directory} cannot be opened")
    return None


def is_out_of_space(error: OSError) -> bool:
    """Whether an error says that the disk, or the quota, has no space left."""
    return error.errno in _ERRNOS


def disk_full(directory: Path | str, advice: str = _ADVICE) -> DiskFull:
    """The error for a write that found no space.

    Args:
        directory: Where it was made.
        advice: What to do.
    """
    return DiskFull(f"the disk of {directory} is full ({_free(directory)}): {advice}", directory=directory)


def has_space(directory: Path) -> bool:
    """Whether there is space enough to try again to write."""
    return shutil.disk_usage(directory).free >= _ENOUGH_BYTES


def _free(directory: Path | str) -> str:
    try:
        return f"{shutil.disk_usage(directory).free:,} bytes free"
    except OSError:
        return "its free bytes cannot be read"
