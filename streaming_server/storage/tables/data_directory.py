"""The data directory: its lock, its format and its layout.

scankv.json                              the format of the directory
clock.json                               the service time and commit time of its servers
LOCK                                     locked by the server that uses the directory; has its process id
tables/<database>/<table>/table.json     the definition of a table
tables/<database>/<table>/buckets/0003   the RocksDB directory of bucket 3, with its durable watermark beside it
tables/.../<table>/bases/0003/<name>     the columnar base of bucket 3
tables/.../<table>/snapshots/<view>      a pinned view: its manifest, checkpoints of the buckets, leases
tables/.../<table>/consumers/<id>.json   the position of a consumer of the changelog
transactions/log-7                       the transaction log
transactions/<token>/                    the staged requests of a transaction
trash/                                   tables that are being created or dropped; emptied at every start
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
# The root of a file system has the first; a crash during the very first start may leave the others.
_IN_ANY_DIRECTORY = {"lost+found", "LOCK", f"{_FORMAT_FILE}.partial"}
_MOST_NAMED = 3


class DirectoryLocked(ScanKvError):
    """Another server uses the data directory."""

    code = "FAILED_PRECONDITION"
    reason = "DIRECTORY_LOCKED"


class ForeignDirectory(ScanKvError):
    """The directory is not empty, and it is not a ScanKV data directory."""

    code = "FAILED_PRECONDITION"
    reason = "FOREIGN_DIRECTORY"


class DataDirectory:
    """A data directory, locked for this process until `close`.

    A directory that does not belong to ScanKV is never changed. Everything created in it is private to its owner.

    Raises:
        DirectoryLocked: Another process has locked the directory; the message names its process id.
        ForeignDirectory: The directory is neither empty nor a ScanKV data directory; the message names its contents.
        UsageError: The path is no directory, cannot be written, or has the format of a newer version.
        DataLoss: The format file is damaged.
        DiskFull: The directory is new, and no space is left to set it up.
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
        """Creates missing directories and empties the trash.

        Rule: on a full disk, a data directory that was used before can be used again. Nothing that exists is created
        again, so no space is needed.
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
                "stop that server, or give this one another directory",
                pid=owner,
            ) from error
        # The process id is only for people, so a full disk does not matter.
        with suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _refuse_foreign(self) -> None:
        """Checks the contents of the directory. Nothing in it may be created, locked or removed before this check."""
        others = sorted(set(os.listdir(self.path)) - _IN_ANY_DIRECTORY)
        # After the listing, because a server that starts concurrently writes the format file before anything else.
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
            raise UsageError(
                f"the data directory {self.path} has format {found}: this server reads format {_FORMAT}; use a server "
                "of the version that wrote it"
            )

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._lock)
