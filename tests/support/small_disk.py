"""A small file system that a test fills and empties."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BALLAST = "ballast"


class SmallDisk:
    """A mounted tmpfs. Needs root or passwordless sudo.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def full(self, spare_bytes: int = 0) -> Iterator[None]:
        """Leaves at most `spare_bytes` free during the block."""
        ballast = self.path / _BALLAST
        try:
            with ballast.open("wb") as file:
                self._fill(file.fileno(), spare_bytes)
            yield
        finally:
            ballast.unlink()

    def _fill(self, file: int, spare_bytes: int) -> None:
        """Fills the free space in smaller and smaller pieces, since other processes may be writing."""
        size, piece = 0, 1 << 30
        while piece >= 4096:
            status = os.statvfs(self.path)
            if status.f_bavail * status.f_frsize < piece + spare_bytes:
                piece //= 2
                continue
            with suppress(OSError):
                os.posix_fallocate(file, size, piece)
                size += piece


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mounts a new tmpfs of this size at `path` for the block. Creates the directory."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    path.mkdir()
    owner = f"uid={os.getuid()},gid={os.getgid()},mode=0700"
    subprocess.run([*as_root, "mount", "-t", "tmpfs", "-o", f"size={size_bytes},{owner}", "tmpfs", path], check=True)
    try:
        yield SmallDisk(path)
    finally:
        # Lazily, since a killed process may still be closing its files.
        subprocess.run([*as_root, "umount", "--lazy", path], check=True)
