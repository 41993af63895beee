"""What can be done with the files of a store that is not open?"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import rocksdict

from streaming_server.storage.files.frames import write_at
from streaming_server.storage.rocks.store_options import store_options
from streaming_server.storage.rocks.write_ahead_log import find_log_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streaming_server.storage.rocks.store_options import RocksResources

_FIRST_FAMILIES = frozenset(["rows", "log", "meta"])  # Checkpoints from before indexes existed have no others.
_PIECE_BYTES = 1 << 20


def is_complete(path: Path) -> bool:
    """Whether a store was completely created in a directory: RocksDB adds the column families after `CURRENT`."""
    if not (path / "CURRENT").exists():
        return False
    with suppress(Exception):
        return _FIRST_FAMILIES <= set(rocksdict.Rdict.list_cf(str(path)))
    return True  # Opening it reports what is wrong.


def families_of(path: Path) -> list[str]:
    """Returns the names of the column families of a store, which may be open. The index is the number of the family."""
    return list(rocksdict.Rdict.list_cf(str(path)))


def create_empty(path: Path, families: Sequence[str], resources: RocksResources) -> None:
    """Creates a store without writes, whose column families have the same numbers as those of another store."""
    options = store_options("none", resources)
    store = rocksdict.Rdict(str(path), options)
    for name in families[1:]:
        store.create_column_family(name, options)
    store.close()
    for file in find_log_files(path):
        file.path.unlink()


def make_logs_durable(path: Path) -> None:
    """Makes the write-ahead logs of a store durable, which opening it only for reading does not. Blocks.

    Overwrites every byte with itself, which takes no space. A sync alone would not suffice after a failed sync: the
    system considers those pages written, and would write only later ones.

    Raises:
        DiskFull: The operating system has accepted writes for which the disk has no space.
        OSError: Anything else.
    """
    for log in sorted(path.glob("*.log")):
        with log.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                write_at(log, piece, file.tell() - len(piece), sync=False)
        write_at(log, b"", 0, sync=True)
