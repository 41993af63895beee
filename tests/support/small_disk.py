"""A disk of a few megabytes, to be filled: a file system in memory, mounted for the length of a test.

Needs the right to mount, which root has, also in a container of CI.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SmallDisk:
    """One such disk.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Takes all of the space that is left."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(os.statvfs(self.path).f_bsize)):
                pass

    def clear(self) -> None:
        """Gives back what `fill` has taken."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mounts a disk of so many MiB at a path, which is made."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "scankv-test", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
