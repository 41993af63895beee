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

from scankv.model.errors import DataLoss, NewerFormat, UpgradeNotConfirmed, UsageError
from scankv.model.tables.schema import incarnation_of
from streaming_server.engine.backups.redistribution import Redistribution, check_buckets
from streaming_server.engine.backups.replay import CannotReplay, LogReplay, check_state
from streaming_server.engine.backups.stored_consumers import consumers_by_part, progress_of
from streaming_server.scan.changes.log_plan import table_digest
from streaming_server.storage.bucket.bucket_state import load_state
from streaming_server.storage.bucket.writer_states import forget_transactions
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.tables.catalog import Catalog, divide, path_of_tablet
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.consumers import ConsumerDirectory
from streaming_server.storage.tables.data_directory import NEWEST_FORMAT, DataDirectory
from streaming_server.storage.transactions.transaction_log import TransactionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.backups.restore_plan import RestorePlan, TableSource
    from streaming_server.storage.backup.archive_segment import LogPiece
    from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredFile, StoredTable
    from streaming_server.storage.backup.backup_store import BackupStore
    from streaming_server.storage.bucket.bucket_state import BucketState

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
        micros: The instant that it is of, in microseconds since 1970 UTC.
        why: Why it is of another instant than the one that was asked for. Empty: it is not.
    """

    name: str
    restored_as: str
    rows: int | None
    bytes: int
    micros: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored.

    Attributes:
        tables: The restored tables, in the order of their names in the backup.
        left_out: Why tables of the plan were not restored, by name.
    """

    tables: list[RestoredTable]
    left_out: dict[str, str]


def restore_all(
    store: BackupStore, plan: RestorePlan, data: Path, on_bytes: Callable[[int], None] = lambda _: None
) -> RestoreResult:
    """Makes a new data directory with all tables of a plan, and with the remembered commits of transactions.

    Servers refuse the directory until all of it is durable. After a crash, the next call starts from scratch.

    Rule: a table that cannot be restored as of the instant, and of which no earlier backup exists, is left out and does
    not keep the others from being restored.

    Args:
        store: The location of the backups.
        plan: What to restore.
        data: The data directory, which is empty or does not exist.
        on_bytes: Called with the number of bytes after each file that was restored, in any thread.

    Raises:
        UsageError, ForeignDirectory, DirectoryLocked: The directory cannot be used.
        DataLoss: The backup is damaged or incomplete.
        NewerFormat: A newer ScanKV has created the backup.
        BackupFailed: The location cannot be read.
        DiskFull, DiskFailed: The directory cannot be written.
    """
    _check_readable(plan.manifest)
    directory = DataDirectory(data, restoring=plan.manifest.backup_id)
    try:
        incarnations = {name: uuid.uuid4().hex for name in plan.sources}
        restoring, left_out = _Restore(store, directory, on_bytes), dict[str, str]()
        restored = restoring.run(plan, {name: name for name in plan.sources}, incarnations, left_out=left_out)
        ClockFile(data).write(plan.manifest.times)
        _write_transactions(directory, plan, incarnations, restored)
        directory.end_restore()
    finally:
        directory.close()
    return RestoreResult(restored, left_out)


def restore_tables(
    store: BackupStore,
    plan: RestorePlan,
    data: Path,
    names: Mapping[str, str],
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    buckets: int | None = None,
) -> RestoreResult:
    """Adds some tables of a plan to a data directory, which may be new. No server may use it.

    Args:
        store: The location of the backups.
        plan: What can be restored.
        data: The data directory.
        names: The new name of each table, by its name in the backup.
        on_bytes: As for `restore_all`.
        buckets: The number of buckets that the tables get. Then they begin without changes and consumers, and their
            indexes are built when a server opens them. None: as in the backup.

    Raises:
        TableNotFound: The backup lacks one of the tables.
        TableExists: The directory has a table of a new name.
        UpgradeNotConfirmed: The directory has an older format than the backup.
        CannotReplay: A table cannot be restored as of the instant, and no earlier backup of it exists.
        UsageError, ForeignDirectory, DirectoryLocked, DataLoss, NewerFormat, BackupFailed, DiskFull, DiskFailed: As
            `restore_all`. No table was added, unless the message says that.
    """
    _check_readable(plan.manifest)
    for name in names:
        source = plan.source(name)
        if buckets is not None:
            check_buckets(source.table, buckets)
    if len(set(names.values())) != len(names):
        raise UsageError("two tables would get the same name: give each another one")
    directory = DataDirectory(data)
    try:
        if directory.format < plan.manifest.directory_format:
            raise UpgradeNotConfirmed(
                f"the backup has format {plan.manifest.directory_format}, and {data} has format {directory.format}: "
                f"confirm the upgrade with `scankv upgrade {data} --confirm`",
                format=directory.format,
            )
        incarnations = {name: uuid.uuid4().hex for name in names}
        return RestoreResult(_Restore(store, directory, on_bytes).run(plan, names, incarnations, buckets), {})
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

    def run(
        self,
        plan: RestorePlan,
        names: Mapping[str, str],
        incarnations: Mapping[str, str],
        buckets: int | None = None,
        left_out: dict[str, str] | None = None,
    ) -> list[RestoredTable]:
        """Restores tables under new names and as new incarnations. All are complete before the first one is added.

        Args:
            plan: What can be restored.
            names: The new name of each table.
            incarnations: The new incarnation of each table.
            buckets: The number of buckets. None: as before.
            left_out: Where to say which tables cannot be taken back. None: the first of them is an error.
        """
        for new in names.values():
            self._catalog.check_free(new)
        prepared: list[tuple[TableDefinition, RestoredTable]] = []
        try:
            for name, new in names.items():
                try:
                    prepared.append(self._prepare(plan.source(name), new, incarnations[name], buckets))
                except CannotReplay as error:
                    if left_out is None:
                        raise
                    left_out[name] = f"{error.message}, and no earlier backup has it"
        except BaseException:
            for definition, _ in prepared:
                shutil.rmtree(self._catalog.draft(definition), ignore_errors=True)
            raise
        for definition, _ in prepared:
            self._catalog.place(definition)
        return [restored for _, restored in prepared]

    def _prepare(
        self, source: TableSource, new: str, incarnation: str, buckets: int | None
    ) -> tuple[TableDefinition, RestoredTable]:
        table = source.table
        definition = replace(table.definition, name=new, incarnation=incarnation)
        if buckets is not None:
            definition = replace(definition, buckets=buckets)
        draft, copied = self._catalog.draft(definition), self._path / "trash" / f"source-{incarnation}"
        try:
            with translate_disk_errors(self._path):
                is_as_before = definition.buckets == table.definition.buckets
                rows = self._copy(source, draft if is_as_before else copied)
                if not is_as_before:
                    self._redistribute(table, definition, copied, draft)
                divide(draft, definition)
                if is_as_before:
                    _write_consumers(table, definition, draft)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if not isinstance(error, CannotReplay) or source.otherwise is None:
                raise
            return self._prepare(replace(source.otherwise, why=error.message), new, incarnation, buckets)
        finally:
            shutil.rmtree(copied, ignore_errors=True)
        return definition, RestoredTable(table.name, new, rows, table.bytes, source.micros, source.why)

    def _redistribute(self, table: StoredTable, definition: TableDefinition, copied: Path, draft: Path) -> None:
        target = draft / "buckets"
        target.mkdir(parents=True)
        states = Redistribution(table.definition, definition, self._resources).run(copied / "buckets", target)
        for number, state in states.items():
            _write_watermark(target / f"{number:04}.durable", state.log_offset)

    def _copy(self, source: TableSource, draft: Path) -> int | None:
        """Copies the files of a table, verifies them, and makes them durable. Returns the number of its rows."""
        table, rows = source.table, list[int | None]()
        for number in table.states:
            (draft / "buckets" / f"{number:04}").mkdir(parents=True)
        (draft / "buckets").mkdir(parents=True, exist_ok=True)
        packs = {name: self._store.read_object(name) for name in {each.pack for each in table.files if each.pack}}
        with ThreadPoolExecutor(_AT_ONCE, "restore") as threads:
            for _ in threads.map(lambda file: self._write(file, packs, draft), table.files):
                pass
        for number in sorted({*table.states, *source.logs}):
            state = self._settle(source, number, draft / "buckets" / f"{number:04}")
            rows.append(state.rows)
        return None if None in rows else sum(filter(None, rows))

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

    def _settle(self, source: TableSource, number: int, path: Path) -> BucketState:
        """Opens a bucket once, which shows that RocksDB can, and makes it one of the new data directory."""
        table, sequence = source.table, None
        location, expected = f"bucket {number} of {table.name}", table.states.get(number)
        if number in source.logs:
            replay = LogReplay(path, location, table.definition, source.micros, self._resources)
            sequence = replay.prepare(source.logs[number], expected, self._read_piece)
        store = RocksStore(path, location, compression=table.definition.options.compression, resources=self._resources)
        try:
            state = load_state(store)
            if sequence is None and expected is not None:
                check_state(state, expected, location)
            elif sequence != store.sequence:
                raise DataLoss(f"{location} has {store.sequence:,} writes instead of {sequence:,} after the replay")
            forget_transactions(store)
        finally:
            store.close()
        _write_watermark(path.with_suffix(".durable"), state.log_offset)
        return state

    def _read_piece(self, piece: LogPiece) -> bytes:
        return self._store.read_archived(piece.data, piece.offset, piece.size, piece.checksum)


def _write_consumers(table: StoredTable, definition: TableDefinition, draft: Path) -> None:
    """Writes the consumers of a table and its tablets, with their positions in those of the new incarnation."""
    consumers = consumers_by_part(table)
    for before, after in zip(table.definition.parts, definition.parts, strict=True):
        directory = ConsumerDirectory(draft if after.tablet is None else path_of_tablet(draft, after.tablet))
        for one in consumers[before.incarnation]:
            # None: it was damaged when it was backed up.
            if (progress := progress_of(one, before)) is not None:
                directory.write(replace(one, token=progress.token(table_digest(after))))


def _write_watermark(path: Path, offset: int) -> None:
    watermark = DurableWatermark(path)
    try:
        watermark.write(offset)
    finally:
        watermark.close()


def _check_readable(manifest: BackupManifest) -> None:
    if manifest.directory_format > NEWEST_FORMAT:
        raise NewerFormat(
            f"the backup {manifest.backup_id} has format {manifest.directory_format}, and this version of ScanKV reads "
            f"formats up to {NEWEST_FORMAT}: use the version that created it, or a newer one"
        )


def _write_transactions(
    directory: DataDirectory, plan: RestorePlan, incarnations: Mapping[str, str], restored: list[RestoredTable]
) -> None:
    """Remembers the commits of the backup, so that repeating one of them does not write its rows again.

    Rule: a commit is remembered only if all of its tables have its rows. A table may be of an earlier instant, or
    have been left out. A table that was dropped before the backup does not count.
    """
    new_incarnations: dict[str, str] = {}
    instants: dict[str, int] = {}
    known = {each.name: each.micros for each in restored}
    for name, source in plan.sources.items():
        for each in (source, source.otherwise):
            if each is not None:
                new_incarnations[each.table.definition.incarnation] = incarnations[name]
                instants[each.table.definition.incarnation] = known.get(name, 0)
    left_out = {each.definition.incarnation for each in plan.manifest.tables} - instants.keys()
    instants |= dict.fromkeys(left_out, 0)
    done: list[dict[str, Any]] = [
        {**each, "tables": {name: _translate(old, new_incarnations) for name, old in each["tables"].items()}}
        for each in plan.manifest.committed
        if each["micros"]
        <= min([plan.micros, *(instants.get(incarnation_of(old), plan.micros) for old in each["tables"].values())])
    ]
    if not done:
        return
    head = {"epoch": plan.manifest.epoch, "next": 1 + max(each["number"] for each in done)}
    log = TransactionLog(directory.transactions)
    try:
        log.rewrite([{"log": head}, *({"done": each} for each in done)])
    finally:
        log.close()


def _translate(incarnation: str, new: Mapping[str, str]) -> str:
    """Returns the new incarnation of a table or a tablet, given those of the tables."""
    of_table = incarnation_of(incarnation)
    return new.get(of_table, of_table) + incarnation.removeprefix(of_table)
