"""Restores tables of a backup to a data directory that no server uses.

A restored table is a new incarnation: tokens, positions, versions and writers that clients got from the table that was
backed up are refused, because its changes since the backup are gone. Its consumers are restored with their positions,
and are refused until these are accepted.
"""

from __future__ import annotations

import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import xxhash

from scankv.model.errors import DataLoss, InvalidResumeToken, NewerFormat, UpgradeNotConfirmed, UsageError
from streaming_server.engine.backups.redistribution import Redistribution, check_buckets
from streaming_server.engine.backups.replay import CannotReplay, LogReplay, check_state
from streaming_server.engine.backups.restored_transactions import write_transactions
from streaming_server.engine.backups.stored_consumers import consumers_by_part
from streaming_server.scan.changes.consumer_progress import ConsumerProgress
from streaming_server.scan.changes.log_token import parse_log_token
from streaming_server.storage.backup.backup_store import MAX_PACK_BYTES
from streaming_server.storage.backup.stored_fields import translate_unusable
from streaming_server.storage.bucket.bucket_state import BucketState, load_state
from streaming_server.storage.bucket.service_times import shift_service_times
from streaming_server.storage.bucket.writer_states import forget_transactions
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.tables.catalog import Catalog, divide, path_of_tablet
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.consumers import ConsumerDirectory
from streaming_server.storage.tables.data_directory import NEWEST_FORMAT, DataDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import StoredTimes
    from streaming_server.engine.backups.restore_plan import RestorePlan, TableSource
    from streaming_server.storage.backup.archive_segment import LogPiece
    from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredFile, StoredTable
    from streaming_server.storage.backup.backup_store import BackupStore

_AT_ONCE: Final = 4
_CACHE_BYTES: Final = 8 << 20
# What has become of a consumer, as predicates after its id.
_LATER: Final = "has no position as of that instant in the archive, and is left out"
_BEYOND: Final = "was beyond the restored changes, and is set back to their end"
_BEYOND_IN_ROWS: Final = "was reading rows as of a later instant, and is left out"


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
        consumers: What has become of consumers that were not restored as they were stored, by id.
    """

    name: str
    restored_as: str
    rows: int | None
    bytes: int
    micros: int
    why: str = ""
    consumers: Mapping[str, str] = field(default_factory=dict)


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
    """Makes a new data directory with all tables of a plan.

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
        restoring, left_out = _Restore(store, directory, plan.manifest.times, on_bytes), dict[str, str]()
        with translate_unusable(f"the backup {plan.manifest.backup_id}"):
            restored = restoring.run(plan, {name: name for name in plan.sources}, incarnations, left_out=left_out)
        ClockFile(data).write(plan.manifest.times)
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
        restoring = _Restore(store, directory, _stored_times(directory), on_bytes)
        with translate_unusable(f"the backup {plan.manifest.backup_id}"):
            return RestoreResult(restoring.run(plan, names, incarnations, buckets), {})
    finally:
        directory.close()


def _stored_times(directory: DataDirectory) -> StoredTimes | None:
    """Returns the times with which the next server on a directory begins. None: no server has run on it."""
    found = [ClockFile(path).read(is_new=True) for path in (directory.path, *directory.parts())]
    return max((each for each in found if each is not None), key=lambda each: each.service, default=None)


class _Restore:
    """Restores tables to a directory, given the times with which its next server begins."""

    def __init__(
        self,
        store: BackupStore,
        directory: DataDirectory,
        times: StoredTimes | None,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._service_micros = 0 if times is None else times.service // 1000
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
        """Restores tables under new names and as new incarnations, with their commits: see `write_transactions`.

        All tables are complete before the first one is added.

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
            tables, keeps_offsets = [restored for _, restored in prepared], buckets is None
            service = self._service_micros
            write_transactions(
                self._directory, self._catalog, plan, incarnations, tables, service, keeps_offsets=keeps_offsets
            )
        except BaseException:
            for definition, _ in prepared:
                shutil.rmtree(self._catalog.draft(definition), ignore_errors=True)
            raise
        self._directory.forget_archived()
        for definition, _ in prepared:
            self._catalog.place(definition)
        return tables

    def _prepare(
        self, source: TableSource, new: str, incarnation: str, buckets: int | None
    ) -> tuple[TableDefinition, RestoredTable]:
        table = source.table
        definition = replace(
            table.definition, name=new, incarnation=incarnation, changed_micros=0, has_predecessor=True, losses=0
        )
        if buckets is not None:
            definition = replace(definition, buckets=buckets)
        draft, copied = self._catalog.draft(definition), self._path / "trash" / f"source-{incarnation}"
        consumers = dict.fromkeys(sorted(source.later_consumers), _LATER)
        try:
            with translate_disk_errors(self._path):
                is_as_before = definition.buckets == table.definition.buckets
                states = self._copy(source, draft if is_as_before else copied)
                if not is_as_before:
                    self._redistribute(table, definition, copied, draft)
                divide(draft, definition)
                if is_as_before:
                    consumers |= _write_consumers(source, definition, draft, states)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if not isinstance(error, CannotReplay) or source.otherwise is None:
                raise
            return self._prepare(replace(source.otherwise, why=error.message), new, incarnation, buckets)
        finally:
            shutil.rmtree(copied, ignore_errors=True)
        # Rule: ids of indexes never go back, because entries of an index may be left in a bucket.
        used = [index for state in states.values() for index in state.indexes]
        definition = replace(definition, last_index_id=max([definition.last_index_id, *used]))
        rows = [state.rows for state in states.values()]
        known = None if None in rows else sum(filter(None, rows))
        restored = RestoredTable(table.name, new, known, table.bytes, source.micros, source.why, consumers)
        return definition, restored

    def _redistribute(self, table: StoredTable, definition: TableDefinition, copied: Path, draft: Path) -> None:
        target = draft / "buckets"
        target.mkdir(parents=True)
        states = Redistribution(table.definition, definition, self._resources).run(copied / "buckets", target)
        for number, state in states.items():
            _write_watermark(target / f"{number:04}.durable", state.log_offset)

    def _copy(self, source: TableSource, draft: Path) -> dict[int, BucketState]:
        """Copies the files of a table, verifies them, and makes them durable. Returns the state of each bucket."""
        table = source.table
        for number in table.states:
            (draft / "buckets" / f"{number:04}").mkdir(parents=True)
        (draft / "buckets").mkdir(parents=True, exist_ok=True)
        packs = {name: self._store.read_object(name, size) for name, size in _pack_sizes(table).items()}
        with ThreadPoolExecutor(_AT_ONCE, "restore") as threads:
            for _ in threads.map(lambda file: self._write(file, packs, draft), table.files):
                pass
        numbers = sorted({*table.states, *source.logs})
        return {number: self._settle(source, number, draft / "buckets" / f"{number:04}") for number in numbers}

    def _write(self, file: StoredFile, packs: Mapping[str, bytes], draft: Path) -> None:
        checksum, size = xxhash.xxh3_128(), 0
        with (draft / file.path).open("xb") as target:
            if file.pack:
                content = packs[file.pack][file.offset : file.offset + file.size]
                checksum.update(content)
                size = target.write(content)
            else:
                for piece in self._store.read_pieces(file.sha256):
                    checksum.update(piece)
                    size += target.write(piece)
                    if size > file.size:
                        break
            if size != file.size or checksum.hexdigest() != file.checksum:
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
        compression = table.definition.options.compression
        store = RocksStore(path, location, compression=compression, resources=self._resources, may_be_cut_short=True)
        try:
            state = load_state(store)
            if sequence is None and expected is not None:
                check_state(state, expected, location)
            elif sequence != store.sequence:
                raise DataLoss(f"{location} has {store.sequence:,} writes instead of {sequence:,} after the replay")
            state = shift_service_times(store, state, self._service_micros - source.service_micros)
            forget_transactions(store)
        finally:
            store.close()
        _write_watermark(path.with_suffix(".durable"), state.log_offset)
        return state

    def _read_piece(self, piece: LogPiece) -> bytes:
        return self._store.read_archived(piece.data, piece.offset, piece.size, piece.checksum)


def _write_consumers(
    source: TableSource, definition: TableDefinition, draft: Path, states: Mapping[int, BucketState]
) -> dict[str, str]:
    """Writes the consumers of a table with their old tokens, by which the server recognizes them as restored.

    Returns:
        What has become of those that were set back or left out, by id.
    """
    table, changed = source.table, dict[str, str]()
    consumers = consumers_by_part(table)
    for before, after in zip(table.definition.parts, definition.parts, strict=True):
        directory = ConsumerDirectory(draft if after.tablet is None else path_of_tablet(draft, after.tablet))
        for one in consumers[before.incarnation]:
            beyond = dict[int, int]()
            with suppress(InvalidResumeToken):  # It was damaged when it was backed up.
                token = parse_log_token(one.token)
                beyond = _ends_passed(token.position.offsets, states)
            if beyond and token.position.scanning:
                changed[one.consumer_id] = _BEYOND_IN_ROWS
                continue
            if beyond:
                moved = ConsumerProgress(token.position, token.query).with_offsets(beyond).token(token.table)
                one, changed[one.consumer_id] = replace(one, token=moved, moved_micros=source.micros), _BEYOND
            directory.write(one)
    return changed


def _ends_passed(offsets: Mapping[int, int], states: Mapping[int, BucketState]) -> dict[int, int]:
    """Returns, by bucket, the ends of the changelogs that end before a consumer's position."""
    ends = {bucket: states.get(bucket, BucketState()).log_offset for bucket in offsets}
    # An earlier epoch may have had more changes than its successor began with.
    return {
        bucket: ends[bucket]
        for bucket, offset in offsets.items()
        if offset > ends[bucket] or count_of(offset) > count_of(ends[bucket])
    }


def _pack_sizes(table: StoredTable) -> dict[str, int]:
    """Returns the bytes of each pack of a table. Raises DataLoss if a pack would have more than it may."""
    sizes: dict[str, int] = {}
    for file in table.files:
        if file.pack:
            sizes[file.pack] = max(sizes.get(file.pack, 0), file.offset + file.size)
    for name, size in sizes.items():
        if size > MAX_PACK_BYTES:
            raise DataLoss(
                f'the backup says that the pack {name} of the table "{table.name}" has {size:,} bytes; the limit is '
                f"{MAX_PACK_BYTES:,}: ScanKV has not written this, so restore another backup"
            )
    return sizes


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
