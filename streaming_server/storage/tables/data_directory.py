"""The data directory as a whole: who may use it, its format, and where things lie in it.

scankv.json                              format of the directory
clock.json                               the service time and commit time that servers have come to
LOCK                                     held by the server that uses it, with its process id
tables/<database>/<table>/table.json     the table's definition
tables/<database>/<table>/buckets/0003   RocksDB directory of bucket 3, its durable watermark beside it
tables/.../<table>/bases/0003/<name>     the columnar base of bucket 3
tables/.../<table>/snapshots/<view>      a pinned view: its manifest, checkpoints of the buckets, leases
tables/.../<table>/consumers/<id>.json   how far a consumer of the table's changes has come
transactions/log-7                       which transactions were committed
transactions/<token>/                    what one has staged
trash/                                   tables being made or dropped; emptied at start
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError, UsageError
from streaming_server.storage.files.checked_json import read_checked_json, sync_directory, write_checked_json
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT = 1
_FORMAT_FILE = "scankv.json"
_PRIVATE = 0o700
# The root of a file system has the first; a crash during the very first start leaves the others.
_IN_ANY_DIRECTORY = {"lost+found", "LOCK", f"{_FORMAT_FILE}.partial"}
_MOST_NAMED = 3


class DirectoryLocked(ScanKvError):
    """Another server uses the data directory."""

    code = "FAILED_PRECONDITION"
    reason = "DIRECTORY_LOCKED"


class ForeignDirectory(ScanKvError):
    """The directory holds something, and it is not ScanKV's."""

    code = "FAILED_PRECONDITION"
    reason = "FOREIGN_DIRECTORY"


class DataDirectory:
    """A data directory, locked for this process until `close`.

    A directory that is not ScanKV's is never changed. What is made in it is for its owner alone.

    Raises:
        DirectoryLocked: Another process holds it; the message names its process id.
        ForeignDirectory: It is neither empty nor ScanKV's; the message names what is in it.
        UsageError: The path is no directory, cannot be written, or has the format of a newer version.
        DataLoss: Its format file is damaged.
        DiskFull: It is new, and there is no space to make it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables = path / "tables"
        self.trash = path / "trash"
        self.transactions = path / "transactions"
        try:
            path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self._refuse_foreign()
            self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{path} is not a directory: give an empty or a new one as data directory") from error
        except OSError as error:
            raise UsageError(f"the data directory {path} cannot be used: {error.strerror}") from error
        try:
            self._take_lock()
            self._check_format()
            self._make_directories()
        except BaseException:
            os.close(self._lock)
            raise

    def _make_directories(self) -> None:
        """Makes what is not there, and empties the trash.

        Rule: on a full disk, a directory that was used before can be used again. Making nothing anew needs no space.
        """
        with translate_disk_errors(self.path):
            for directory in (self.tables, self.trash, self.transactions):
                directory.mkdir(mode=_PRIVATE, exist_ok=True)
            for entry in list(os.scandir(self.trash)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)
            sync_directory(self.path)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DirectoryLocked(
                f"the data directory {self.path} is in use by the server with process id {owner}; "
                "stop it, or give this one another directory",
                pid=owner,
            ) from error
        # Who has it is only told to people: a disk without space for it does not matter.
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _refuse_foreign(self) -> None:
        """Nothing may be created, locked or removed in a directory before this has looked at it."""
        others = sorted(set(os.listdir(self.path)) - _IN_ANY_DIRECTORY)
        # Looked for after the listing: a server that starts at the same time writes it before anything else.
        if not others or (self.path / _FORMAT_FILE).is_file():
            return
        shown = ", ".join(json.dumps(name) for name in others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        raise ForeignDirectory(
            f"the directory {self.path} is not a ScanKV data directory: it has {shown}{more}, but no {_FORMAT_FILE}; "
            f"give an empty or a new directory, or restore {_FORMAT_FILE} if this one has lost it",
            path=str(self.path),
        )

    def _check_format(self) -> None:
        file = self.path / _FORMAT_FILE
        if not file.exists():
            write_checked_json(file, {"format": _FORMAT})
            return
        found = read_checked_json(file).get("format")
        if found != _FORMAT:
            raise UsageError(f"the data directory {self.path} has format {found}; this server reads format {_FORMAT}")

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._lock)
