"""Restores tables of a backup to a data directory that no server uses.

A restored table is a new incarnation: tokens, positions and versions that clients got from the table that was backed
up are refused, because its changes since the backup are gone. Its consumers continue from where they were.
"""

from __future__ import annotations

import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import xxhash

from scankv.model.errors import DataLoss, InvalidResumeToken, NewerFormat, UpgradeNotConfirmed, UsageError
from streaming_server.engine.backups.redistribution import Redistribution, check_buckets
from streaming_server.scan.changes.consumer_progress import ConsumerProgress
from streaming_server.scan.changes.log_plan import table_digest
from streaming_server.storage.bucket.bucket_state import load_state
from streaming_server.storage.bucket.durable_watermark import DurableWatermark
from streaming_server.storage.bucket.writer_states import forget_transactions
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.rocks.store import RocksResources, RocksStore
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.consumers import ConsumerDirectory
from streaming_server.storage.tables.data_directory import NEWEST_FORMAT, DataDirectory
from streaming_server.storage.transactions.transaction_log import TransactionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredFile, StoredTable
    from streaming_server.storage.backup.backup_store import BackupStore

_AT_ONCE: Final = 4
_CACHE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """A table that was restored.

    Attributes:
        name: Its name in the backup.
        restored_as: Its name now.
        rows: Its rows, exact. None: unknown.
        bytes: The bytes of its files.
    """

    name: str
    restored_as: str
    rows: int | None
    bytes: int


def restore_all(
    store: BackupStore, manifest: BackupManifest, data: Path, on_bytes: Callable[[int], None] = lambda _: None
) -> list[RestoredTable]:
    """Makes a new data directory with all tables of a backup, and with the remembered commits of transactions.

    Servers refuse the directory until all of it is durable. After a crash, the next call begins anew.

    Args:
        store: The location of the backup.
        manifest: The backup.
        data: The data directory, which is empty or does not exist.
        on_bytes: Called with the number of bytes after each file that was restored, in any thread.

    Raises:
        UsageError, ForeignDirectory, DirectoryLocked: The directory cannot be used.
        DataLoss: The backup is damaged or incomplete.
        NewerFormat: A newer ScanKV has created the backup.
        BackupFailed: The location cannot be read.
        DiskFull, DiskFailed: The directory cannot be written.
    """
    _check_readable(manifest)
    directory = DataDirectory(data, restoring=manifest.backup_id)
    try:
        targets = {each.name: _anew(each.definition, each.name) for each in manifest.tables}
        restored = _Restore(store, directory, on_bytes).run(manifest, targets)
        ClockFile(data).write(manifest.times)
        _write_transactions(directory, manifest, targets)
        directory.end_restore()
    finally:
        directory.close()
    return restored


def restore_tables(
    store: BackupStore,
    manifest: BackupManifest,
    data: Path,
    names: Mapping[str, str],
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    buckets: int | None = None,
) -> list[RestoredTable]:
    """Adds some tables of a backup to a data directory, which may be new. No server uses it meanwhile.

    Args:
        store: The location of the backup.
        manifest: The backup.
        data: The data directory.
        names: The new name of each table, by its name in the backup.
        on_bytes: As for `restore_all`.
        buckets: The number of buckets that the tables get. Then they begin without changes and consumers, and their
            indexes are built when a server opens them. None: as in the backup.

    Raises:
        TableNotFound: The backup lacks one of the tables.
        TableExists: The directory has a table of a new name.
        UpgradeNotConfirmed: The directory has an older format than the backup.
        UsageError, ForeignDirectory, DirectoryLocked, DataLoss, NewerFormat, BackupFailed, DiskFull, DiskFailed: As
            `restore_all`. No table was added, unless the message says that.
    """
    _check_readable(manifest)
    targets = {name: _anew(manifest.table(name).definition, new) for name, new in names.items()}
    if buckets is not None:
        for name in names:
            check_buckets(manifest.table(name), buckets)
        targets = {name: replace(definition, buckets=buckets) for name, definition in targets.items()}
    if len(set(names.values())) != len(names):
        raise UsageError("two tables would get the same name: give each another one")
    directory = DataDirectory(data)
    try:
        if directory.format < manifest.directory_format:
            raise UpgradeNotConfirmed(
                f"the backup has format {manifest.directory_format}, and {data} has format {directory.format}: confirm "
                f"the upgrade with `scankv upgrade {data} --confirm`",
                format=directory.format,
            )
        return _Restore(store, directory, on_bytes).run(manifest, targets)
    finally:
        directory.close()


class _Restore:
    def __init__(self, store: BackupStore, directory: DataDirectory, on_bytes: Callable[[int], None]) -> None:
        self._store = store
        self._catalog = Catalog(directory)
        self._path = directory.path
        self._on_bytes = on_bytes
        self._resources = RocksResources.of_sizes(
            block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_CACHE_BYTES, files_per_store=64
        )

    def run(self, manifest: BackupManifest, targets: Mapping[str, TableDefinition]) -> list[RestoredTable]:
        """Restores tables as their new definitions say. All are complete before the first one is added."""
        restored = []
        for definition in targets.values():
            self._catalog.check_free(definition.name)
        for name, definition in targets.items():
            table = manifest.table(name)
            self._prepare(table, definition)
            restored.append(RestoredTable(name, definition.name, table.rows, table.bytes))
        for definition in targets.values():
            self._catalog.place(definition)
        return restored

    def _prepare(self, table: StoredTable, definition: TableDefinition) -> None:
        if definition.buckets == table.definition.buckets:
            self._copy(table, definition, self._catalog.draft(definition))
            return
        source = self._path / "trash" / f"source-{definition.incarnation}"
        self._copy(table, definition, source)
        target = self._catalog.draft(definition) / "buckets"
        with translate_disk_errors(self._path):
            target.mkdir(parents=True)
            states = Redistribution(table, definition, self._resources).run(source / "buckets", target)
            for number, state in states.items():
                _write_watermark(target / f"{number:04}.durable", state.log_offset)
            _sync(target.parent)
            shutil.rmtree(source)

    def _copy(self, table: StoredTable, definition: TableDefinition, draft: Path) -> None:
        """Copies the files of a table, verifies them, and makes them durable."""
        with translate_disk_errors(self._path):
            for number in table.states:
                (draft / "buckets" / f"{number:04}").mkdir(parents=True)
            (draft / "buckets").mkdir(parents=True, exist_ok=True)
            packs = {name: self._store.read_object(name) for name in {each.pack for each in table.files if each.pack}}
            with ThreadPoolExecutor(_AT_ONCE, "restore") as threads:
                for _ in threads.map(lambda file: self._write(file, packs, draft), table.files):
                    pass
            for number in table.states:
                self._settle(table, number, draft / "buckets" / f"{number:04}")
            self._write_consumers(table, definition, draft)
            _sync(draft)

    def _write(self, file: StoredFile, packs: Mapping[str, bytes], draft: Path) -> None:
        checksum = xxhash.xxh3_128()
        with (draft / file.path).open("xb") as target:
            if file.pack:
                content = packs[file.pack][file.offset : file.offset + file.size]
                checksum.update(content)
                target.write(content)
            else:
                for piece in self._store.read_pieces(file.sha256):
                    checksum.update(piece)
                    target.write(piece)
            if checksum.hexdigest() != file.checksum:
                raise self._store.damaged(file.pack or file.sha256)
            target.flush()
            os.fsync(target.fileno())
        self._on_bytes(file.size)

    def _settle(self, table: StoredTable, number: int, path: Path) -> None:
        """Opens a bucket once, which shows that RocksDB can, and makes it one of the new data directory."""
        location, expected = f"bucket {number} of {table.name}", table.states[number]
        store = RocksStore(path, location, compression=table.definition.options.compression, resources=self._resources)
        try:
            state = load_state(store)
            if (state.count, state.rows) != (expected.count, expected.rows):
                raise DataLoss(f"{location} differs from the manifest of the backup: it has {state.count:,} changes")
            forget_transactions(store)
        finally:
            store.close()
        _write_watermark(path.with_suffix(".durable"), state.log_offset)

    @staticmethod
    def _write_consumers(table: StoredTable, definition: TableDefinition, draft: Path) -> None:
        consumers, before, after = ConsumerDirectory(draft), table_digest(table.definition), table_digest(definition)
        for one in table.consumers:
            try:
                token = ConsumerProgress.from_token(one.token, before).token(after)
            except InvalidResumeToken:
                continue  # It was damaged when it was backed up.
            consumers.write(replace(one, token=token))


def _write_watermark(path: Path, offset: int) -> None:
    watermark = DurableWatermark(path)
    try:
        watermark.write(offset)
    finally:
        watermark.close()


def _sync(draft: Path) -> None:
    """Makes the names of the files of a table durable."""
    for path in (*(draft / "buckets").iterdir(), draft / "buckets", draft):
        if path.is_dir():
            sync_directory(path)


def _check_readable(manifest: BackupManifest) -> None:
    if manifest.directory_format > NEWEST_FORMAT:
        raise NewerFormat(
            f"the backup {manifest.backup_id} has format {manifest.directory_format}, and this version of ScanKV reads "
            f"formats up to {NEWEST_FORMAT}: use the version that created it, or a newer one"
        )


def _anew(definition: TableDefinition, name: str) -> TableDefinition:
    return replace(definition, name=name, incarnation=uuid.uuid4().hex)


def _write_transactions(
    directory: DataDirectory, manifest: BackupManifest, targets: Mapping[str, TableDefinition]
) -> None:
    """Remembers the commits of the backup, so that repeating one of them does not write its rows again."""
    if not manifest.committed:
        return
    incarnations = {each.definition.incarnation: targets[each.name].incarnation for each in manifest.tables}
    done: list[dict[str, Any]] = [
        {**each, "tables": {name: incarnations.get(old, old) for name, old in each["tables"].items()}}
        for each in manifest.committed
    ]
    head = {"epoch": manifest.epoch, "next": 1 + max(each["number"] for each in done)}
    log = TransactionLog(directory.transactions)
    try:
        log.rewrite([{"log": head}, *({"done": each} for each in done)])
    finally:
        log.close()
