"""A disk that fails as a test says, for a real server process: system calls on its data directory return an error.

    disk = FailingDisk(tmp_path, compile_library(tmp_path))
    with ServerProcess(disk.root, wrapper=disk.wrapper) as server:
        disk.fail(FULL, after=10)   # the eleventh call that needs space fails, and all after it
        ...
        disk.heal()

A C library, compiled for the tests, is preloaded into the process that the server is forked from. It counts and fails
the calls, as shared memory says.
"""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "BROKEN",
    "BROKEN_READS",
    "DEADLY",
    "FULL",
    "FULL_AT_SYNC",
    "OVER_QUOTA",
    "READ_ONLY",
    "WAITING_SYNCS",
    "DiskFault",
    "FailingDisk",
    "compile_library",
]

_SOURCE: Final = Path(__file__).with_name("failing_disk.c")
_CONTROL: Final = struct.Struct("<5q256s")
_CALLS, _FIRST, _KINDS, _ERROR, _FAILED = range(5)
_GROWS, _SYNCS, _REMOVES, _READS, _SPACE, _SHORT = 1, 2, 4, 8, 16, 32


@dataclass(frozen=True, slots=True)
class DiskFault:
    """A way in which a disk fails.

    Attributes:
        name: What it is called in the names of tests.
        error: The error of the calls, an errno. 0: the calls wait until the disk is healed. -1: the process that makes
            the first of them is killed before it.
        kinds: Which calls fail, as in `failing_disk.c`.
    """

    name: str
    error: int
    kinds: int

    @property
    def fails_syncs(self) -> bool:
        return bool(self.kinds & _SYNCS)


FULL: Final = DiskFault("full", errno.ENOSPC, _GROWS | _SPACE | _SHORT)
"""Everything that needs space fails; the first write is cut short."""
FULL_AT_SYNC: Final = DiskFault("full-at-sync", errno.ENOSPC, _GROWS | _SYNCS | _SPACE)
"""Syncs fail, too, as on a file system that reserves space late."""
OVER_QUOTA: Final = DiskFault("over-quota", errno.EDQUOT, _GROWS)
"""As `FULL`, but the disk reports free space."""
BROKEN: Final = DiskFault("broken", errno.EIO, _GROWS | _SYNCS)
"""Every write and sync fails."""
BROKEN_READS: Final = DiskFault("broken-reads", errno.EIO, _READS)
"""Every read fails."""
READ_ONLY: Final = DiskFault("read-only", errno.EROFS, _GROWS | _SYNCS | _REMOVES)
"""Nothing can be changed."""

WAITING_SYNCS: Final = DiskFault("waiting-syncs", 0, _SYNCS)
"""Syncs do not end."""
DEADLY: Final = DiskFault("deadly", -1, _GROWS | _SYNCS | _REMOVES)
"""The process dies before a change of the disk."""


class FailingDisk:
    """A data directory whose disk fails when a test says so. Works until then.

    Attributes:
        root: The data directory, which the server creates.
        wrapper: For `ServerProcess`.
    """

    def __init__(self, directory: Path, library: Path, part: str = "") -> None:
        """Creates a disk that works. If `part` is set, only what is below this path in the data directory will fail."""
        self.root = directory / "data"
        control = directory / "failing-disk"
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)
        variables = {
            "LD_PRELOAD": library,
            "SCANKV_FAILING_DISK": control,
            "SCANKV_FAILING_ROOT": self.root / part,
        }
        self.wrapper = ("env", *(f"{name}={value}" for name, value in variables.items()))

    def fail(self, fault: DiskFault, after: int = 0) -> None:
        """Fails such calls, from now on or after some that still work."""
        self.heal()
        self._set(_CALLS, 0)
        self._set(_KINDS, fault.kinds)
        self._control[_CONTROL.size - 256 :] = bytes(256)
        self._set(_ERROR, fault.error)
        self._set(_FIRST, after + 1)

    def heal(self) -> None:
        """Lets every call work again."""
        self._set(_FIRST, 0)
        self._set(_FAILED, 0)

    @property
    def has_failed(self) -> bool:
        """Whether a call has failed since the last `fail` or `heal`."""
        return self._get(_FAILED) > 0

    @property
    def place(self) -> str:
        """The first call that failed, and its file: `pwrite /tables/...`."""
        return self._control[_CONTROL.size - 256 :].rstrip(b"\0").decode(errors="replace")

    def _get(self, field: int) -> int:
        value: int = _CONTROL.unpack_from(self._control)[field]
        return value

    def _set(self, field: int, value: int) -> None:
        self._control[8 * field : 8 * field + 8] = value.to_bytes(8, "little", signed=True)


def compile_library(directory: Path) -> Path:
    """Compiles the library that makes calls fail, with the system's C compiler."""
    library = directory / "failing_disk.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", library, _SOURCE, "-ldl"], check=True)
    return library
