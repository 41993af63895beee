"""The error for a full disk, which names the directory and says what to do.

Rule: every write to the data directory fails with `DiskFull` when no space is left. `RocksStore.failure` ensures this
for writes of RocksDB, `translate_disk_errors` for all other files.
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
_ADVICE: Final = "free some space by dropping tables or releasing snapshots, or enlarge the disk"


@contextmanager
def translate_disk_errors(directory: Path) -> Iterator[None]:
    """Translates an OSError of the block that means a lack of space or of file descriptors.

    Raises:
        DiskFull: No space is left; the message names the directory.
        ServerBusy: Too many files are open. That is temporary, and no damage of any file.
    """
    try:
        yield
    except OSError as error:
        shortage = resource_error(error, directory)
        if shortage is None:
            raise
        raise shortage from error


def resource_error(error: OSError, directory: Path | str) -> DiskFull | ServerBusy | None:
    """Returns the error to raise for an OSError that means a lack of space or of file descriptors. None: neither."""
    if is_out_of_space(error):
        return disk_full(directory)
    if is_out_of_files(error):
        return too_many_files(f"a file in {directory} cannot be opened")
    return None


def is_out_of_space(error: OSError) -> bool:
    """Whether an error means that the disk or the quota has no space left."""
    return error.errno in _ERRNOS


def disk_full(directory: Path | str, advice: str = _ADVICE) -> DiskFull:
    """Returns the error for a write that found no space.

    Args:
        directory: Where the write was made.
        advice: What the reader of the message can do.
    """
    return DiskFull(f"the disk of {directory} is full ({_free(directory)}): {advice}", directory=directory)


def has_space(directory: Path) -> bool:
    """Whether enough space is free for another attempt to write."""
    return shutil.disk_usage(directory).free >= _ENOUGH_BYTES


def _free(directory: Path | str) -> str:
    try:
        return f"{shutil.disk_usage(directory).free:,} bytes free"
    except OSError:
        return "its free space is unknown"
