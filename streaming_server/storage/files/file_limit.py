"""The limit of open files of this process, and how open stores share it."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import Final

from scankv.model.errors import ServerBusy

_FILES_OF_OPEN_BUCKET: Final = 20
"""Descriptors of one open bucket with a few SST files."""
_FEW_BUCKETS: Final = 256
_FILES_OF_MANY_BUCKETS: Final = 80
"""Descriptors of one open bucket where there are more than a few: enough for the SST files of a larger one."""
_FILES_OF_CONNECTION: Final = 4
"""Connections take at most one of so many descriptors."""
_LEAST_FILES: Final = 20
"""The least limit of open files that RocksDB accepts for one store."""
_OTHER_FILES: Final = 10
"""RocksDB reserves this many of a store's files for files other than SST files; a checkpoint needs none of them."""
_MOST_FILES: Final = 256
_RETRY_SECONDS: Final = 1.0
_ERRNOS: Final = frozenset([errno.EMFILE, errno.ENFILE])


def raise_file_limit() -> None:
    """Raises the limit as far as the system allows: an open bucket takes a dozen files, and each connection one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int:
    """Returns the most files that this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """Returns how many files this process has open; 0 if the system does not report it."""
    with suppress(OSError):
        # Since Linux 6.2 the size is the number of entries; before, it is 0.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    return 0


def has_files_left() -> bool:
    """Whether another store may be opened: less than seven eighths of the limit are in use."""
    limit = file_limit()
    return open_files() < limit - limit // 8


def has_quarter_of_files_left() -> bool:
    """Whether less than three quarters of the limit are in use."""
    limit = file_limit()
    return open_files() < limit - limit // 4


def check_files_left(location: str) -> None:
    """Refuses to open a store when few files are left.

    Rule: opening a store never takes the files that open buckets need for writing. After a flush that could not open a
    file, RocksDB takes no writes until the bucket is opened again.

    Args:
        location: The name of the store in errors.

    Raises:
        ServerBusy: `has_files_left` is false.
    """
    if not has_files_left():
        raise too_many_files(f"{location} cannot be opened")


def is_out_of_files(error: OSError) -> bool:
    """Whether an error means that the process or the system has too many files open."""
    return error.errno in _ERRNOS


def too_many_files(problem: str) -> ServerBusy:
    """Returns the error for an operation that needs more open files than the limit allows."""
    return ServerBusy(
        f"{problem}: the server has {open_files():,} of at most {file_limit():,} files open and closes unused ones; "
        "retry, or raise its limit (`ulimit -n`)",
        retry_after=_RETRY_SECONDS,
    )


def max_open_buckets(most: int, limit: int) -> int:
    """Returns how many unused buckets stay open when few files are left: `most`, or fewer where the limit is low."""
    return min(most, max(1, min(_FEW_BUCKETS, limit // _FILES_OF_OPEN_BUCKET), limit // _FILES_OF_MANY_BUCKETS))


def max_connections(most: int) -> int:
    """Returns how many connections the server accepts: `most`, or fewer when the limit of files is low."""
    return min(most, max(1, file_limit() // _FILES_OF_CONNECTION))


def files_needed(open_buckets: int, connections: int) -> int:
    """Returns the least limit of open files with which the server keeps so many buckets and connections."""
    return max(open_buckets * _FILES_OF_OPEN_BUCKET, connections * _FILES_OF_CONNECTION)


def files_per_store(buckets: int) -> int:
    """Returns how many SST files each of some open buckets may keep open: together half of the limit."""
    return max(_LEAST_FILES, min(_MOST_FILES, file_limit() // 2 // buckets))


def max_idle_checkpoints(files_per_store: int) -> int:
    """Returns how many checkpoints may stay open while unused: their files take at most an eighth of the limit."""
    return file_limit() // 8 // (files_per_store - _OTHER_FILES)
