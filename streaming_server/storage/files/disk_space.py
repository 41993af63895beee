"""The errors for a full disk and for a failing one, which name the directory and say what to do.

Rule: every write to the data directory fails with `DiskFull` when no space is left, and with `DiskFailed` when the disk
is read-only or reports an error. `RocksStore.failure` ensures this for RocksDB, `translate_disk_errors` for all other
files.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DiskFailed, DiskFull, ScanKvError, Unavailable
from streaming_server.storage.files.file_limit import is_out_of_files, too_many_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scankv.model.errors import ServerBusy

_ERRNOS: Final = frozenset([errno.ENOSPC, errno.EDQUOT])
_FAILURES: Final = frozenset([errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN])
_FAILURE_TEXTS: Final = tuple(os.strerror(number) for number in sorted(_FAILURES))
_ENOUGH_BYTES: Final = 1 << 20
_PROBE: Final = ".probe"
_PROBE_BYTES: Final = 64 * 1024
_ADVICE: Final = "free some space by dropping tables or releasing snapshots, or enlarge the disk"

FREE_SPACE: Final = f"reads continue; to write again, {_ADVICE}, and retry after some seconds"
"""What to do about a full disk that keeps a table from being written."""


@contextmanager
def translate_disk_errors(directory: Path) -> Iterator[None]:
    """Translates an OSError of the block that means a failing disk, or a lack of space or of file descriptors.

    Raises:
        DiskFull: No space is left; the message names the directory.
        DiskFailed: The disk reports an error or is read-only; the message names the directory.
        ServerBusy: Too many files are open. That is temporary, and no damage of any file.
    """
    try:
        yield
    except OSError as error:
        shortage = resource_error(error, directory)
        if shortage is None:
            raise
        raise shortage from error


def resource_error(error: OSError, directory: Path | str) -> DiskFull | DiskFailed | ServerBusy | None:
    """Returns the error to raise for an OSError of a failing disk, or a lack of space or files. None: another cause."""
    if is_out_of_space(error):
        return disk_full(directory)
    if error.errno in _FAILURES:
        return disk_failed(directory, os.strerror(error.errno))
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


def disk_failed(directory: Path | str, cause: str) -> DiskFailed:
    """Returns the error for a disk that reports errors or is read-only.

    Args:
        directory: What could not be read or written.
        cause: The system's text for the error, such as `Read-only file system`.
    """
    return DiskFailed(
        f"the disk of {directory} fails ({cause}): reads that the disk answers continue; repair, remount or replace "
        "it, and the server writes again by itself within some seconds",
        directory=directory,
    )


def details_of_cause(error: BaseException) -> dict[str, str]:
    """Returns the details of an error that reads get because of a full or failing disk. Empty for another cause."""
    if not isinstance(error, DiskFull | DiskFailed):
        return {}
    return {"cause": error.reason} | {name: error.details[name] for name in ("directory",) if name in error.details}


def refusal_of_write(error: ScanKvError) -> ScanKvError:
    """Returns the error for a write that meets an error of `details_of_cause`: the one that all writes get."""
    kind = next((each for each in (DiskFull, DiskFailed) if each.reason == error.details.get("cause")), None)
    if kind is None or not isinstance(error, Unavailable):
        return error
    details = {name: value for name, value in error.details.items() if name != "cause"}
    return kind(error.message, retry_after=error.retry_after, **details)


def find_disk_failure(text: str) -> str | None:
    """Returns the system's text in an error message of RocksDB for a disk that fails. None: another cause."""
    return next((cause for cause in _FAILURE_TEXTS if cause in text), None)


def has_space(directory: Path) -> bool:
    """Whether enough space is free for another attempt to write."""
    return shutil.disk_usage(directory).free >= _ENOUGH_BYTES


def can_write(directory: Path) -> bool:
    """Whether a small file can be written to a directory and synced, whatever its free space says. Blocks."""
    probe = directory / _PROBE
    try:
        with probe.open("wb", buffering=0) as file:
            written = file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
        return written == _PROBE_BYTES
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _free(directory: Path | str) -> str:
    try:
        return f"{shutil.disk_usage(directory).free:,} bytes free"
    except OSError:
        return "its free space is unknown"
