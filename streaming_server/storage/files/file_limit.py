"""How many files this process may have open, how many it has, and how open stores share them."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import Final

from scankv.model.errors import ServerBusy

_FILES_OF_OPEN_BUCKET: Final = 40
"""Descriptors of one bucket that is open, with a few table files."""
_LEAST_FILES: Final = 20
"""RocksDB's own minimum."""
_OTHER_FILES: Final = 10
"""So many of a store's files RocksDB keeps for those that are not table files; a checkpoint needs none of them."""
_MOST_FILES: Final = 256
_RETRY_SECONDS: Final = 1.0
_ERRNOS: Final = frozenset([errno.EMFILE, errno.ENFILE])


def raise_file_limit() -> None:
    """Raises the limit as far as the system allows: an open bucket takes some ten descriptors, and each scan some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int:
    """The most files that may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """How many are open; 0 where the system does not say."""
    with suppress(OSError):
        # Linux gives the number as the size since 6.2, and 0 before.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    return 0


def has_files_left() -> bool:
    """Whether files are left for another store: less than seven eighths of them are open."""
    limit = file_limit()
    return open_files() < limit - limit // 8


def has_half_of_files_left() -> bool:
    """Whether files are plentiful: less than half of them are open."""
    return open_files() < file_limit() // 2


def check_files_left(location: str) -> None:
    """Refuses to open a store when few files are left.

    Rule: what is opened takes no files that open buckets need to write. After a flush that could not open a file,
    RocksDB takes no writes until the bucket is opened again.

    Args:
        location: What errors call the store.

    Raises:
        ServerBusy: `has_files_left` is false.
    """
    if not has_files_left():
        raise too_many_files(f"{location} cannot be opened")


def is_out_of_files(error: OSError) -> bool:
    """Whether an error says that the process, or the system, has too many files open."""
    return error.errno in _ERRNOS


def too_many_files(problem: str) -> ServerBusy:
    """The error for what needs more open files than there may be."""
    return ServerBusy(
        f"{problem}, because the server has {open_files()} of {file_limit()} files open: it closes those that are not "
        "in use, so try again; or raise its limit (`ulimit -n`)",
        retry_after=_RETRY_SECONDS,
    )


def max_open_buckets(most: int) -> int:
    """How many buckets, of at most so many, may stay open while nobody uses them."""
    return min(most, max(1, file_limit() // _FILES_OF_OPEN_BUCKET))


def files_per_store(buckets: int) -> int:
    """How many table files each of some open buckets may keep open: together half of what the process may have."""
    return max(_LEAST_FILES, min(_MOST_FILES, file_limit() // 2 // buckets))


def max_idle_checkpoints(files_per_store: int) -> int:
    """How many checkpoints may stay open while nobody reads them: with all their files, an eighth of all."""
    return file_limit() // 8 // (files_per_store - _OTHER_FILES)
