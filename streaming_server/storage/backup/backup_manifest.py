"""The manifest of a backup: which tables it has, and where the content of each file is."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss, NewerFormat, ScanKvError, TableNotFound, did_you_mean
from scankv.model.limits import MAX_BUCKETS
from scankv.model.names import TableName, table_of, tablet_number
from scankv.model.tables.schema import TableDefinition
from streaming_server.clock import StoredTimes
from streaming_server.storage.backup.stored_fields import (
    check_fields,
    commits_from_json,
    commits_to_json,
    translate_unreadable,
)
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.tables.consumers import ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from streaming_server.storage.backup.backup_store import BackupStore

_log: Final = logging.getLogger(__name__)

_FORMAT: Final = 1
# Part of the path of each restored file, so nothing else may be in it.
_PATH: Final = re.compile(r"buckets/[0-9]{4}/[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a table in a backup.

    Attributes:
        path: Its path in the directory of the table.
        size: Its bytes.
        sha256: The SHA-256 of its content, which names the object. Two files with the same one cannot be made.
        checksum: The XXH3 checksum of its content with 128 bits, which is verified six times as fast.
        tail: The SHA-256 of its last 4 KiB. With the name and the size, it tells whether a file of RocksDB, which never
            changes, is the same as before.
        pack: The object that contains it with other small files. Empty: the file is an object of its own.
        offset: Where it begins in the pack.
    """

    path: str
    size: int
    sha256: str
    checksum: str
    tail: str
    pack: str = ""
    offset: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        digests = (self.sha256, self.tail, *([self.pack] if self.pack else ()))
        if (
            not _PATH.fullmatch(self.path)
            or not all(map(_SHA256.fullmatch, digests))
            or min(self.size, self.offset) < 0
        ):
            raise ValueError(f"{self.path!r} describes no file of a table")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """One table in a backup.

    Attributes:
        definition: Its definition at the instant of the backup.
        states: The state of each bucket, by number. Buckets that were never used are absent.
        files: The files of the buckets.
        consumers: The consumers of its changes.
    """

    definition: TableDefinition
    states: Mapping[int, BucketState]
    files: tuple[StoredFile, ...]
    consumers: tuple[ConsumerRecord, ...] = ()

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def rows(self) -> int | None:
        """Its rows, exact. None: unknown."""
        rows = [state.rows for state in self.states.values()]
        return None if None in rows else sum(filter(None, rows))

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def of_buckets(self, numbers: Collection[int]) -> StoredTable:
        """Returns the table with only some of its buckets."""
        paths = tuple(f"buckets/{number:04}/" for number in numbers)
        return replace(
            self,
            states={number: state for number, state in self.states.items() if number in numbers},
            files=tuple(file for file in self.files if file.path.startswith(paths)),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        return {
            "definition": self.definition.to_json(),
            "states": {str(number): state.to_bytes().decode() for number, state in self.states.items()},
            "files": [asdict(file) for file in self.files],
            "consumers": [one.to_json() for one in self.consumers],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoredTable:
        """Reads the result of `to_json`. Raises ValueError if it contradicts itself, others if it lacks fields."""
        states = {int(number): BucketState.from_bytes(one.encode()) for number, one in values["states"].items()}
        table = cls(
            definition=check_fields(TableDefinition.from_json(values["definition"])),
            states={number: check_fields(state) for number, state in states.items()},
            files=tuple(StoredFile(**file) for file in values["files"]),
            consumers=tuple(check_fields(ConsumerRecord.from_json(one)) for one in values["consumers"]),
        )
        table._check()
        return table

    def _check(self) -> None:
        """Raises ValueError if its parts do not fit together."""
        TableName.parse(table_of(self.name))
        if table_of(self.name) != self.name and tablet_number(self.name) is None:
            raise ValueError(f"{self.name} is not the name of a tablet")
        buckets = self.definition.buckets
        if not 1 <= buckets <= MAX_BUCKETS:
            raise ValueError(f"{self.name} has {buckets:,} buckets; a table has between 1 and {MAX_BUCKETS:,}")
        if beyond := [number for number in self.states if not 0 <= number < buckets]:
            raise ValueError(f"{self.name} has the state of bucket {beyond[0]:,}, but only {buckets:,} buckets")
        paths = [file.path for file in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError(f"{self.name} has a file twice")
        for path in paths:
            if int(path.split("/")[1]) not in self.states:
                raise ValueError(f"{self.name} has the file {path}, but no state of its bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """One backup: all tables of a server as of one instant. Immutable.

    Attributes:
        backup_id: The id; ids ascend with the time.
        micros: The instant, in microseconds since 1970 UTC.
        pause_micros: How long writers were paused for the instant.
        seconds: How long creating it took.
        directory_format: The format of the data directory.
        times: The clock of the server.
        epoch: The epoch of the transaction log.
        committed: The remembered commits of transactions, as `CommittedTransaction.to_json` returns them.
        tables: The tables, by name, ascending.
        left_out: Why tables are not in the backup, by name.
        new_bytes: The bytes of the files that no earlier backup had.
    """

    backup_id: str
    micros: int
    pause_micros: int
    seconds: float
    directory_format: int
    times: StoredTimes
    epoch: int
    committed: tuple[Mapping[str, Any], ...]
    tables: tuple[StoredTable, ...]
    left_out: Mapping[str, str]
    new_bytes: int

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    @property
    def objects(self) -> dict[str, int]:
        """The bytes of each object that it needs, at least, by SHA-256."""
        needed: dict[str, int] = {}
        for table in self.tables:
            for file in table.files:
                name, size = (file.pack, file.offset + file.size) if file.pack else (file.sha256, file.size)
                needed[name] = max(size, needed.get(name, 0))
        return needed

    def table(self, name: str) -> StoredTable:
        """Returns a table. Raises TableNotFound, which suggests similar names or says why it was left out."""
        for table in self.tables:
            if table.name == name:
                return table
        if name in self.left_out:
            raise TableNotFound(f'the backup {self.backup_id} lacks the table "{name}": {self.left_out[name]}')
        similar = did_you_mean(name, [table.name for table in self.tables])
        raise TableNotFound(f'the backup {self.backup_id} has no table "{name}"{similar}', table=name)

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        return {
            "backup_format": _FORMAT,
            "backup_id": self.backup_id,
            "micros": self.micros,
            "pause_micros": self.pause_micros,
            "seconds": self.seconds,
            "directory_format": self.directory_format,
            "times": self.times.to_json(),
            "epoch": self.epoch,
            **commits_to_json(self.committed),
            "tables": [table.to_json() for table in self.tables],
            "left_out": dict(self.left_out),
            "new_bytes": self.new_bytes,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BackupManifest:
        """Reads the result of `to_json`."""
        if values["backup_format"] != _FORMAT:
            raise NewerFormat(f"it has format {values['backup_format']}, and this version of ScanKV reads {_FORMAT}")
        manifest = cls(
            backup_id=values["backup_id"],
            micros=values["micros"],
            pause_micros=values["pause_micros"],
            seconds=values["seconds"],
            directory_format=values["directory_format"],
            times=check_fields(StoredTimes.from_json(values["times"])),
            epoch=values["epoch"],
            committed=commits_from_json(values),
            tables=tuple(map(StoredTable.from_json, values["tables"])),
            left_out=values["left_out"],
            new_bytes=values["new_bytes"],
        )
        return check_fields(manifest)


def read_manifest(store: BackupStore, backup_id: str) -> BackupManifest:
    """Returns the manifest of a backup. Raises DataLoss, or NewerFormat, if it cannot be read."""
    content = store.read_manifest(backup_id)
    with translate_unreadable(f"the manifest of the backup {backup_id} in {store.shown}"):
        manifest = BackupManifest.from_json(content)
    if manifest.backup_id != backup_id:
        raise DataLoss(f"the manifest of the backup {backup_id} in {store.shown} is that of {manifest.backup_id}")
    return manifest


def newest_manifest(store: BackupStore) -> BackupManifest | None:
    """Returns the newest backup whose manifest can be read. None: no such backup exists."""
    for backup_id in reversed(store.manifests()):
        try:
            return read_manifest(store, backup_id)
        except ScanKvError as error:
            _log.warning("a backup cannot be used: %s", error.message)
    return None


def read_backup(store: BackupStore, backup_id: str) -> BackupManifest:
    """Returns the manifest of a backup; `latest` is the newest one.

    Raises:
        DataLoss, NewerFormat: There is no such backup, or its manifest cannot be read. The message then names the
            newest backup whose manifest can be read.
    """
    found = find_backup(store, backup_id)
    try:
        return read_manifest(store, found)
    except (DataLoss, NewerFormat) as error:
        raise type(error)(f"{error.message}; {_readable_hint(store)}") from error


def _readable_hint(store: BackupStore) -> str:
    for backup_id in reversed(store.manifests()):
        with suppress(DataLoss, NewerFormat):
            readable = read_manifest(store, backup_id).backup_id
            return f"the newest backup that can be read is {readable}: give its name, without --as-of"
    return "no other backup can be read"


def find_backup(store: BackupStore, backup_id: str) -> str:
    """Returns the id of a backup; `latest` is the newest one.

    Raises:
        DataLoss: There is no such backup.
    """
    known = store.manifests()
    if backup_id == "latest" and known:
        return known[-1]
    if backup_id not in known:
        what = f'backup "{backup_id}"{did_you_mean(backup_id, known)}' if known else "backup"
        raise DataLoss(f"{store.shown} has no {what}: `scankv backups list {store.shown}` lists the backups")
    return backup_id
