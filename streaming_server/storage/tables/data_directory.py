"""The data directory: its lock, its format and its layout.

scankv.json                              the format of the directory
clock.json                               the service time and commit time of its servers
ballast                                  space for a full disk: see `storage/files/disk_reserve.py`
archived.json                            the last segment of the archive; missing: not everything is archived
damaged/                                 what `scankv check --recover` has replaced
restoring.json                           the backup that is being restored, until all of it is
LOCK                                     locked by the server that uses the directory; has its process id
tables/<database>/<table>/table.json     the definition of a table
tables/<database>/<table>.dropped        empty; a table of this name was dropped
tables/<database>/<table>/buckets/0003   the RocksDB directory of bucket 3, with its durable watermark beside it
tables/.../<table>/bases/0003/<name>     the columnar base of bucket 3
tables/.../<table>/snapshots/<view>      a pinned view: its manifest, checkpoints of the buckets, leases
tables/.../<table>/consumers/<id>.json   the position of a consumer of the changelog
transactions/log-7                       the transaction log
transactions/<token>/                    the staged requests of a transaction
console/<hash>                           a session of the console, written by the gateway; see `http_gateway/console/`
bootstraps/<id>/                         a bootstrap: see `storage/bootstrap/bootstrap_directory.py`
workers/workers.json                     how many worker processes the server has; missing: the server is one process
workers/3/transactions, workers/3/clock.json  what worker 3 has of its own, in place of those above
workers/3/last-capture.json              what worker 3 left for the archive when it ended; removed when it starts
trash/                                   tables that are being created or dropped; emptied at every start of the server
trash/new-3-<incarnation>                a table that worker 3 is creating; removed when worker 3 starts, too
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, ScanKvError, UsageError
from streaming_server.storage.files.checked_json import (
    find_checked_json,
    make_directory,
    read_checked_json,
    sync_directory,
    write_checked_json,
)
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.formats import check_format
from streaming_server.storage.tables.placement import ALONE

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.storage.tables.placement import Placement

OLDEST_FORMAT: Final = 1
"""The format of ScanKV 0.1.0."""
REFUSALS_FORMAT: Final = 2
"""Buckets remember which rows of a request they have refused: see `writer_states`."""
MARKERS_FORMAT: Final = 3
"""The changelog has range markers: see `range_markers`."""
EVOLUTION_FORMAT: Final = 4
"""Columns are renamed, dropped, widened and given defaults: definitions have more than names and types."""
LOG_TABLES_FORMAT: Final = 5
"""Tables without a primary key, and changelogs without a limit of age."""
DELETIONS_FORMAT: Final = 5
"""The changelog has markers of deleted ranges: see `range_markers`."""
PARTITIONS_FORMAT: Final = 5
"""Tables are partitioned: see `storage/bucket/partitions.py`."""
EXPIRY_FORMAT: Final = 5
"""Rows expire: earlier servers would show expired rows, and not know the time of the last write in rows."""
WORKERS_FORMAT: Final = 5
"""Worker processes share the directory: earlier servers would not see the transactions that they have decided."""
TABLETS_FORMAT: Final = 5
"""Tables are divided into tablets: earlier servers would find no rows in them."""
NEWEST_FORMAT: Final = 5
"""The format of a new directory, and the newest one that this server opens. docs/internals/formats.md says how to add
one."""
_FORMAT_FILE = "scankv.json"
_RESTORE_FILE = "restoring.json"
_WORKERS, _WORKERS_FILE = "workers", "workers.json"
_PRIVATE = 0o700
# The root of a file system has the first; a crash during the very first start may leave the others.
_IN_ANY_DIRECTORY = {"lost+found", "LOCK", f"{_FORMAT_FILE}.partial", "restoring.json", "restoring.json.partial"}
_MOST_NAMED = 3

_log = logging.getLogger(__name__)


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

    A directory that does not belong to ScanKV, or has a newer format, is never changed. Everything created in it is
    private to its owner.

    Rule: a directory keeps its format, and gets nothing that its format does not have, until `confirm` is called. So
    servers of the version that wrote it can still open it.

    Attributes:
        path: The directory.
        bootstraps: The directory of the bootstraps of all worker processes, which exists from the first one on.
        archived: The file that names the last segment of the archive: see `forget_archived`.
        own: The directory of what no other worker process of the server uses: the transactions and the clock.
        format: The number of its format.

    Raises:
        DirectoryLocked: Another process has locked the directory; the message names its process id.
        ForeignDirectory: The directory is neither empty nor a ScanKV data directory; the message names its contents.
        UsageError: The path is no directory, or cannot be written.
        NewerFormat: A newer ScanKV has written the directory.
        DataLoss: The format file is damaged.
        DiskFull: The directory is new, and no space is left to set it up.
    """

    def __init__(
        self,
        path: Path,
        *,
        restoring: str = "",
        is_changed: bool = True,
        placement: Placement = ALONE,
        lock: int | None = None,
    ) -> None:
        """Locks the directory.

        Args:
            path: The directory.
            placement: The place of this process among the worker processes that share the directory.
            lock: The descriptor of the lock file, by which another process has locked the directory for this one as
                well. It has prepared the directory, too. None: the directory is not locked yet.
            is_changed: Whether the directory may be created and changed. Otherwise it must exist, and only its lock
                file is touched.
            restoring: The backup with which the directory, which is new, is to be filled. Servers refuse the directory
                until `end_restore`. Empty: none.
        """
        self.path = path
        self.tables = path / "tables"
        self.trash = path / "trash"
        self.bootstraps = path / "bootstraps"
        self.archived = path / "archived.json"
        self.own = path if placement.is_alone else path / _WORKERS / str(placement.number)
        self.transactions = self.own / "transactions"
        self._draft = f"new-{placement.number}-"
        if lock is not None:
            self._lock = lock
            # Of an earlier process of this worker. The others have drafts as well, which they are still making.
            self._remove_trash(self._draft)
            self.format = read_format(path)
            return
        try:
            if is_changed and not (path / _FORMAT_FILE).exists():
                make_directory(path)
            refuse_foreign(path)
            self._refuse_half_restored(restoring)
            # Before the lock file is touched.
            if (path / _FORMAT_FILE).exists():
                read_format(path)
            self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{path} is not a directory: give an empty or a new one as data directory") from error
        except OSError as error:
            raise UsageError(f"the data directory {path} cannot be used: {error.strerror}") from error
        try:
            self._take_lock()
            if restoring:
                self._begin_restore(restoring)
            self.format = self._find_format() if is_changed else read_format(path)
            if is_changed:
                self._make_directories()
        except BaseException:
            os.close(self._lock)
            raise

    def _make_directories(self) -> None:
        """Creates missing directories and empties the trash.

        Rule: on a disk that is full or fails, a data directory that was used before can be used again. Nothing that
        exists is created again, so no space is needed.
        """
        directories = (self.tables, self.trash, self.transactions)
        is_new = not all(directory.is_dir() for directory in directories)
        with translate_disk_errors(self.path):
            for directory in directories:
                directory.mkdir(mode=_PRIVATE, exist_ok=True)
            self._remove_trash()
            try:
                sync_directory(self.path)
            except OSError as error:
                if is_new:
                    raise
                # Nothing is written before a later sync of this directory succeeds: see `Catalog.create`.
                _log.warning("the data directory %s cannot be synced: %s", self.path, error)

    def draft(self, incarnation: str) -> Path:
        """Returns where the directory of a table is made. After a crash, the next start of this process removes it."""
        return self.trash / f"{self._draft}{incarnation}"

    def _remove_trash(self, prefix: str = "") -> None:
        """Removes everything in the trash whose name begins with a prefix."""
        for entry in [entry for entry in os.scandir(self.trash) if entry.name.startswith(prefix)]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)

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

    @property
    def workers(self) -> int:
        """How many worker processes the last server on this directory had. Raises DataLoss."""
        stored = find_checked_json(self.path / _WORKERS / _WORKERS_FILE)
        return 1 if stored is None else int(stored["workers"])

    def parts(self) -> list[Path]:
        """Returns the directories of the worker processes of the last server; none if it was one process."""
        return [self.path / _WORKERS / str(number) for number in range(self.workers)] if self.workers > 1 else []

    def place_parts(self, workers: int, draft: Path) -> None:
        """Makes a draft, with a directory for each worker process, the directories of the worker processes, durably."""
        write_checked_json(draft / _WORKERS_FILE, {"workers": workers})
        draft.rename(self.path / _WORKERS)
        sync_directory(self.path)

    def remove_parts(self) -> None:
        """Removes the directories of the worker processes, durably: from now on, the server is one process."""
        if (self.path / _WORKERS).exists():
            removed = self.trash / f"workers-{uuid.uuid4().hex}"
            (self.path / _WORKERS).rename(removed)
            sync_directory(self.path)
            shutil.rmtree(removed, ignore_errors=True)

    @property
    def lock(self) -> int:
        """The descriptor of the lock file. The lock lasts as long as a process has it open, whichever it is."""
        return self._lock

    def _refuse_half_restored(self, restoring: str) -> None:
        is_half = (self.path / _RESTORE_FILE).exists()
        if is_half and not restoring:
            raise UsageError(
                f"a restore to {self.path} did not finish: run it again with the same directory, where it starts from "
                "scratch"
            )
        if restoring and not is_half and (self.path / _FORMAT_FILE).exists():
            raise UsageError(
                f"{self.path} is a data directory already: give a new or an empty directory, or name the tables that "
                "are to be restored"
            )

    def _begin_restore(self, backup_id: str) -> None:
        """Marks the directory as incomplete, and removes what an earlier attempt has left."""
        write_checked_json(self.path / _RESTORE_FILE, {"backup": backup_id})
        for directory in (self.tables, self.transactions):
            shutil.rmtree(directory, ignore_errors=True)

    def end_restore(self) -> None:
        """Makes the restored directory usable for servers, durably."""
        (self.path / _RESTORE_FILE).unlink()
        sync_directory(self.path)

    def forget_archived(self) -> None:
        """Has the archive continue from a new backup, because it will lack what is about to change. Durable.

        Rule: whatever changes the directory without leaving that to the archive calls this first.
        """
        with suppress(FileNotFoundError):
            self.archived.unlink()
            sync_directory(self.path)

    def _find_format(self) -> int:
        """Returns the format of the directory. A new directory gets the newest one."""
        if not (self.path / _FORMAT_FILE).exists():
            write_checked_json(self.path / _FORMAT_FILE, {"format": NEWEST_FORMAT})
        return read_format(self.path)

    def confirm(self) -> None:
        """Gives the directory the newest format, durably. Servers that do not know it refuse the directory afterwards.

        Raises:
            DiskFull: The disk has no space left; the directory keeps its format.
        """
        write_checked_json(self.path / _FORMAT_FILE, {"format": NEWEST_FORMAT})
        self.format = NEWEST_FORMAT

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._lock)


def refuse_foreign(data: Path) -> None:
    """Checks the contents of a directory. Nothing in it may be created, locked or removed before this check.

    Raises:
        ForeignDirectory: The directory is neither empty nor a ScanKV data directory; the message names its contents.
    """
    others = sorted(set(os.listdir(data)) - _IN_ANY_DIRECTORY)
    # After the listing, because a server that starts concurrently writes the format file before anything else.
    if not others or (data / _FORMAT_FILE).is_file():
        return
    shown = ", ".join(json.dumps(name) for name in others[:_MOST_NAMED])
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    raise ForeignDirectory(
        f"the directory {data} is not a ScanKV data directory: it has {shown}{more}, but no {_FORMAT_FILE}; "
        f"give an empty or a new directory, or restore {_FORMAT_FILE} if this one has lost it",
        path=str(data),
    )


def read_format(data: Path) -> int:
    """Returns the format of a data directory, and changes nothing. A server may use the directory.

    Raises:
        NewerFormat: A newer ScanKV has written the directory.
        UsageError: The path is not a ScanKV data directory.
        DataLoss: The format file is damaged.
    """
    file = data / _FORMAT_FILE
    if not file.is_file():
        raise UsageError(f"{data} is not a ScanKV data directory, which has a file {_FORMAT_FILE}: give another path")
    found = read_checked_json(file).get("format")
    check_format(f"the data directory {data}", found, NEWEST_FORMAT)
    if not isinstance(found, int) or isinstance(found, bool) or found < OLDEST_FORMAT:
        raise DataLoss(
            f"the file {file} names the format {found!r}: formats {OLDEST_FORMAT} to {NEWEST_FORMAT} exist; restore it "
            "from a copy"
        )
    return found
