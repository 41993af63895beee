"""A second directory for a store that takes no writes, through which the store can be opened for reading.

Opening a store writes small files into its directory even if it is opened for reading only: rocksdict writes its
configuration, RocksDB its log. The alias has links to the files of the store and takes those writes. It is in memory
where the system has a file system for that, otherwise in the directory for temporary files.

A process that may only read a store uses an alias on every disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_REWRITTEN: Final = ("LOCK", "LOG", "rocksdict-config.json")


class ReadOnlyAlias:
    """A directory with links to the files of a store, which must not change until `remove`.

    A killed process leaves the directory, which is as small as its links.

    Args:
        store: The directory of the store.
        parent: Where to make the alias. None: in memory if possible.

    Attributes:
        path: The directory.

    Raises:
        OSError: The directory cannot be created, or that of the store cannot be read.
    """

    def __init__(self, store: Path, parent: Path | None = None) -> None:
        if parent is None and os.access(_MEMORY, os.W_OK):
            parent = _MEMORY
        self.path = Path(tempfile.mkdtemp(prefix="scankv-read-only-", dir=parent))
        try:
            for entry in os.scandir(store):
                if entry.name not in _REWRITTEN and not entry.name.startswith("LOG."):
                    (self.path / entry.name).symlink_to(Path(entry.path).absolute())
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Removes the directory, after the store was closed."""
        shutil.rmtree(self.path, ignore_errors=True)
