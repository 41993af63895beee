"""All tables of a server: the catalog, and the open tables."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from scankv.model.errors import (
    DataLoss,
    InvalidRequest,
    ScanKvError,
    ServerDraining,
    TableNotFound,
)
from scankv.model.names import table_of, tablet_number
from scankv.model.tables.schema import TableDefinition
from streaming_server.activity import Activity
from streaming_server.clock import ServerClock
from streaming_server.engine.backups.archive import Archive
from streaming_server.engine.backups.archive_part import BEING_DROPPED
from streaming_server.engine.backups.backup_cut import CutTaker
from streaming_server.engine.backups.backups import Backups
from streaming_server.engine.bootstrap.bootstrap import (
    BOOTSTRAP_TTL_SECONDS,
    BootstrapHost,
    BootstrapTerms,
)
from streaming_server.engine.bootstrap.bootstraps import Bootstraps
from streaming_server.engine.bucket.holds import BucketHolds
from streaming_server.engine.changelog.consumer_registry import ConsumerRegistry
from streaming_server.engine.changelog.log_maintenance import LogMaintenance
from streaming_server.engine.columnar.base_maintenance import BaseMaintenance
from streaming_server.engine.functions.installed import load_installed
from streaming_server.engine.merging.merger import Merger
from streaming_server.engine.snapshots.borrowed_views import BorrowedViews
from streaming_server.engine.snapshots.pinning import MAX_HOLD_SECONDS
from streaming_server.engine.snapshots.snapshots import Snapshots
from streaming_server.engine.table.live_table import LiveTable
from streaming_server.engine.tables.clock_keeper import ClockKeeper
from streaming_server.engine.tables.data_disk_use import DataDiskUse
from streaming_server.engine.tables.definition_rules import DefinitionRules
from streaming_server.engine.tables.idle_buckets import IdleBuckets
from streaming_server.engine.tables.limits import (
    base_limits,
    catch_up_limits,
    clock_limits,
    transaction_limits,
    writer_limits,
)
from streaming_server.engine.tables.partition_expiry import PartitionExpiry
from streaming_server.engine.tables.table_sizes import TableSizes
from streaming_server.engine.tables.tablets import Tablets
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.engine.tasks.executor import StorageExecutor, all_ended
from streaming_server.engine.transactions.transactions import Transactions
from streaming_server.engine.transactions.worker_logs import merge_logs
from streaming_server.engine.writes.column_locks import ColumnLocks
from streaming_server.engine.writes.expiry_sweep import ExpirySweep
from streaming_server.storage.bootstrap.bootstrap_directory import BootstrapDirectory, find_bootstraps
from streaming_server.storage.bootstrap.taken_in import rows_taken_in
from streaming_server.storage.files.disk_reserve import DiskReserve
from streaming_server.storage.files.disk_use import DiskBytes
from streaming_server.storage.files.file_limit import file_limit, files_per_store, max_open_buckets
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.rows.table_codec import TableCodec
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.data_directory import (
    MARKERS_FORMAT,
    DataDirectory,
)
from streaming_server.storage.tables.placement import ALONE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import pyarrow as pa

    from streaming_server.clock import MachineClocks
    from streaming_server.config import ServerConfig
    from streaming_server.engine.backups.backup_cut import BackupCut
    from streaming_server.engine.bucket.live_bucket import WriteMark
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.snapshots.loans import Lender
    from streaming_server.engine.table.table_partitions import PartitionStats
    from streaming_server.engine.tables.definition_rules import DefinitionChanges, TableParts
    from streaming_server.shared_times import SharedTimes
    from streaming_server.storage.files.disk_use import DiskBytes
    from streaming_server.storage.tables.placement import Placement

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Tables:
    """The tables of one data directory, which it locks until `close`. Bound to the server's event loop.

    Creating, altering and dropping happen one at a time. Each is durable when its method returns, and runs to
    completion even if the caller is cancelled.

    Args:
        config: The server's settings.
        max_hold_seconds: For how long taking a snapshot may pause the writers of a table.
        clocks: The clocks of the machine. None: the real ones.
        placement: Which tables belong to this process.
        lock: The descriptor by which another process has locked the directory for this one. None: it is not locked yet.
        lender: Borrows views of tables of other processes. None: this process has all tables.
        times: The commit times of all processes of the server. None: there is one process.

    Attributes:
        clock: The server's clock.
        snapshots: The pinned snapshots of the tables. They expire after `start`.
        consumers: The consumers of the tables' changes. They expire after `start`.
        locks: The locks on the tables' columns. They expire after `start`.
        assignments: Held while snapshots and consumers are counted and given to another principal.
        transactions: The transactions that write to the tables. Call `recover` first; they expire after `start`.
        bootstraps: The tables that are being bootstrapped. They expire after `start`.
        backups: The backups of the tables. They are created regularly after `start`.
        archive: The archive of what was written since the last backup. It is written after `start`.
        rules: What the definitions of tables may be.
        tablets: The tablets that this process owns.
        holds: The holds on tablets.
        activity: What clients do with each table.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        max_hold_seconds: float = MAX_HOLD_SECONDS,
        clocks: MachineClocks | None = None,
        placement: Placement = ALONE,
        lock: int | None = None,
        lender: Lender | None = None,
        times: SharedTimes | None = None,
    ) -> None:
        """Opens the directory.

        Raises:
            DirectoryLocked: Another server uses the directory.
            UsageError, ForeignDirectory, DiskFull: The directory cannot be used.
            DataLoss: The file that names its format cannot be read.
        """
        self._installed = load_installed(config.aggregators)
        self._directory = DataDirectory(config.data, placement=placement, lock=lock)
        self._placement = placement
        self.activity = Activity()
        with ExitStack() as on_failure:
            on_failure.callback(self._directory.close)
            self._catalog = Catalog(self._directory, placement)
            self._open_shared_resources(config, clocks, times)
            self.rules = DefinitionRules(self._directory, self._installed, self.clock)
            self._live: dict[str, LiveTable] = {}
            self._ddl = asyncio.Lock()
            self.assignments = asyncio.Lock()
            self._changes = DetachedTasks()
            self._disk_use = DataDiskUse(self._directory, placement, self._executor, self._catalog, self._live)
            self.sizes = TableSizes(self._executor, self._catalog, self._live)
            self._make_maintenance(config)
            self.snapshots = Snapshots(
                config,
                self._directory.trash,
                self._resources,
                self._executor,
                self._state,
                clock=self.clock,
                max_hold_seconds=max_hold_seconds,
            )
            self._borrowed = None if lender is None else self._make_borrowed(lender)
            self.consumers = ConsumerRegistry(config, self._executor, self._state, self.clock)
            self.locks = ColumnLocks(self._executor, self.clock, config.max_caller_share)
            for definition in self.definitions():
                self._load(definition)
            self.tablets = Tablets(
                catalog=self._catalog,
                executor=self._executor,
                live=self._live,
                snapshots=self.snapshots,
                consumers=self.consumers,
                locks=self.locks,
                ddl=self._ddl,
                clock=self.clock,
                transactions=lambda: self.transactions,
                table=self.table,
            )
            self.holds = BucketHolds()
            self._transaction_limits = transaction_limits(config)
            self.transactions = self._read_transactions(self._directory.transactions)
            self.bootstraps = Bootstraps(
                BootstrapHost(
                    executor=self._executor,
                    resources=self._resources,
                    clock=self.clock,
                    reserve=self._reserve,
                    directory=self._bootstrap_directory,
                    has_installed_functions=bool(self._installed),
                    has_table=self._catalog.has,
                    place=self._place,
                    activity=self.activity,
                )
            )
            self._load_bootstraps()
            self.backups = Backups(config, self._directory, self._resources, self.clock, self._cut, self._flush)
            self.archive = Archive(
                config,
                self._directory,
                placement,
                self._executor,
                self.clock,
                self.tablets.unchanging,
                tables=self._all_tables,
                closed=self._closed_tablets,
                remembered=self.transactions.remembered,
                versions=self._catalog.versions.values(),
                create_backup=self.backups.create,
                newest_backup=lambda: self.backups.progress.completed_micros,
            )
            on_failure.pop_all()

    def _open_shared_resources(
        self, config: ServerConfig, clocks: MachineClocks | None, times: SharedTimes | None
    ) -> None:
        """Makes what all tables share: memory, threads, the clock, and their limits."""
        self._few_open = max_open_buckets(config.max_open_buckets, file_limit())
        self._reserve = DiskReserve(config.data, config.min_free_bytes)
        self._resources = RocksResources.of_sizes(
            block_cache_bytes=config.block_cache_bytes,
            write_buffer_bytes=self._reserve.limit_write_buffer(config.write_buffer_bytes, config.workers),
            files_per_store=files_per_store(self._few_open),
            keeps_logs=bool(config.backup_location and config.archive_every_seconds),
        )
        self._executor = StorageExecutor(config.storage_threads)
        clock_file = ClockFile(self._directory.own)
        files = [clock_file]
        if self._placement.is_alone:
            files += [ClockFile(part) for part in self._directory.parts()]
        found = [file.read(is_new=not len(self._catalog)) for file in files]
        stored = max((each for each in found if each is not None), key=lambda each: each.service, default=None)
        self.clock = ServerClock(clocks, stored, clock_limits(config), times)
        self._clock_keeper = ClockKeeper(self.clock, clock_file, self._executor)
        self._catch_up = catch_up_limits(config)
        self._writer_limits = writer_limits(config)
        self._total_delta_bytes = config.base_total_delta_bytes

    def _make_borrowed(self, lender: Lender) -> BorrowedViews:
        return BorrowedViews(lender, self._catalog.path, self._resources, self._executor)

    def _read_transactions(self, root: Path) -> Transactions:
        has_elsewhere = self._catalog.has_elsewhere
        limits = self._transaction_limits
        return Transactions(root, self._executor, self.table, limits, self.clock, has_elsewhere, self.activity)

    def _make_maintenance(self, config: ServerConfig) -> None:
        """Makes the background tasks that maintain the tables."""
        self._log_maintenance = LogMaintenance(
            self._states,
            seconds=config.log_maintenance_seconds,
            max_held_bytes=config.max_retention_hold_bytes,
            clock=self.clock,
            reserve=self._reserve,
        )
        self._expiry = PartitionExpiry(
            self.definitions,
            self.table,
            lambda name, prefixes: self._to_its_end(self._drop_partitions(name, prefixes)),
            seconds=config.partition_expiry_seconds,
            clock=self.clock,
        )
        self._idle = IdleBuckets(
            self._states,
            most=config.max_open_buckets,
            few=self._few_open,
            idle_seconds=config.bucket_idle_seconds,
        )
        self._bases = BaseMaintenance(
            self._states,
            self._executor,
            base_limits(config),
            seconds=config.base_maintenance_seconds,
            clock=self.clock,
            reserve=self._reserve,
        )
        self._sweep = ExpirySweep(
            self._expiring, seconds=config.sweep_seconds, cpu_share=config.sweep_cpu_share, clock=self.clock
        )

    def _expiring(self) -> Iterable[TableState]:
        """Returns the states of the tables whose rows expire. Opens them."""
        return [self.table(each.name).state for each in self.definitions() if each.expiry is not None]

    def _load(self, definition: TableDefinition) -> None:
        """Loads a table's snapshots, consumers and locks. After an unexpected error, only this table is unusable."""
        name, path = definition.name, self._catalog.path(definition.name)
        try:
            self.snapshots.load(definition, path)
            self.consumers.load(definition, path)
            self.locks.add(definition, path)
        except Exception as error:
            _log.exception("the snapshots, consumers or locks of the table %s cannot be loaded", name)
            self._catalog.mark_unusable(
                name, f"its snapshots, consumers or locks in {path} cannot be loaded ({error!r})", error
            )

    def _load_bootstraps(self) -> None:
        """Loads the bootstraps of tables of this process. Leaves out one that fails with an unexpected error."""
        for id_, stored in find_bootstraps(self._directory.bootstraps):
            try:
                definition = TableDefinition.from_json(stored["definition"])
                if self._placement.owns(definition.name):
                    merger = Merger.of(TableCodec.of(definition), self._installed)
                    terms = BootstrapTerms.from_json(stored, merger)
                    self.bootstraps.load(id_, terms, stored["service_micros"])
            except Exception:
                _log.exception("the bootstrap %s cannot be loaded", id_)

    def _bootstrap_directory(self, id_: str) -> BootstrapDirectory:
        return BootstrapDirectory(self._directory.bootstraps / id_, self._directory.draft(id_))

    async def recover(self) -> None:
        """Rolls forward the transactions that were committed before the last stop. Call it before `start`.

        A bucket to which a transaction cannot be applied is not served; all others are. See `Transactions.recover`.
        If the last server had several worker processes, and this one is alone, it takes over their transactions.

        Raises:
            ScanKvError: See `merge_logs`.
        """
        await self.transactions.recover()
        if self._placement.is_alone:
            await merge_logs(self._directory, self.transactions, self._read_transactions)

    def start(self) -> None:
        """Starts the background tasks, which run until `close`."""
        self._clock_keeper.start()
        self.snapshots.start()
        self.consumers.start()
        self.locks.start()
        self.transactions.start()
        self.bootstraps.start()
        self._log_maintenance.start()
        self._bases.start()
        self._expiry.start()
        self._idle.start()
        self._sweep.start()
        self.backups.start()
        self.archive.start()

    def __len__(self) -> int:
        return sum(each.tablet is None for each in self.definitions())

    def definitions(self) -> list[TableDefinition]:
        """Returns the definitions of all tables, by name, ascending."""
        return [self._catalog.get(name) for name in self._catalog.names()]

    def find_damaged(self) -> dict[str, str]:
        """Returns why tables are damaged, completely or in some buckets, by name, ascending.

        Rule: a listing of tables names every table, even a damaged one.
        """
        found = self._catalog.unusable
        for name, live in self._live.items():
            troubled = [each for each in live.buckets if each.problem is not None]
            if troubled:
                buckets = ", ".join(str(each.number) for each in troubled)
                found[name] = f"of its {len(live.buckets)} buckets, {buckets} cannot be used: {troubled[0].problem}"
        return dict(sorted(found.items()))

    def live_tables(self) -> Iterable[LiveTable]:
        """Returns the tables that have been used since the start."""
        return self._live.values()

    @property
    def storage_resources(self) -> RocksResources:
        """What all buckets share: the block cache, and the durations of their writes and syncs."""
        return self._resources

    def _states(self) -> Iterable[TableState]:
        """Returns the states of the tables that have been used since the start."""
        return [live.state for live in self._live.values()]

    def _state(self, name: str) -> TableState | None:
        live = self._live.get(name)
        return None if live is None else live.state

    def table(self, name: str) -> LiveTable:
        """Returns a table, and opens it if necessary. Raises TableNotFound, which suggests similar names."""
        live = self._live.get(name)
        if tablet_number(name) is not None and live is None:
            self.tablets.check_open(name)
            if not self._catalog.knows(name):
                self.tablets.find(name)
        definition = self._catalog.get(name)
        if live is None:
            live = LiveTable(
                definition,
                self._catalog.path(name),
                self._resources,
                self._executor,
                partial(self._log_holds, name),
                self._catch_up,
                clock=self.clock,
                locks=self.locks.of(name),
                writer_limits=self._writer_limits,
                reserve=self._reserve,
                total_delta_bytes=self._total_delta_bytes,
                installed=self._installed,
                count_written=partial(self.activity.count_written_rows, table_of(name)),
            )
            self._live[name] = live
        return live

    @property
    def has_tablets(self) -> bool:
        """Whether a table with tablets has existed since the start."""
        return self._catalog.has_tablets

    def divided(self, name: str) -> TableDefinition | None:
        """Returns the definition of a table of this process that has tablets; None for any other name."""
        definition = self._catalog.find(name)
        return definition if definition is not None and definition.tablets > 1 and definition.tablet is None else None

    def is_divided(self, name: str) -> bool:
        """Whether a table of the server has tablets, even if another worker owns the table. Blocks briefly."""
        return self._catalog.is_divided(name)

    def current_definition(self, name: str) -> TableDefinition:
        """Returns the definition of a table of the server, even if another worker owns it. Blocks briefly.

        Raises:
            TableNotFound, DataLoss, InvalidRequest: As `table`.
        """
        return self._catalog.current(name)

    def incarnation(self, name: str) -> str:
        """Returns the incarnation of a table. Empty: this process has no such table, or cannot use it."""
        definition = self._catalog.find(name)
        return "" if definition is None else definition.incarnation

    def lacks(self, name: str) -> bool:
        """Whether a table would belong to this process, and does not exist."""
        return self.owns(name) and not self._catalog.knows(name)

    def owns(self, name: str) -> bool:
        """Whether a table belongs to this process, or would if it existed."""
        return self._placement.owns(name)

    def check_exists(self, name: str, is_visible: Callable[[str], bool]) -> None:
        """Raises TableNotFound unless a table exists, even a damaged one. The message suggests only visible tables.

        Only its owner knows whether a table of another process exists, and is asked before anything of it is read.
        """
        if not self.owns(name):
            return
        with suppress(DataLoss):
            self._catalog.get(name, is_visible)

    def borrow_view(self, name: str, snapshot_id: str) -> AbstractAsyncContextManager[None]:
        """Lets the current call read a snapshot of a table that another process owns, for the length of the block.

        Does nothing for a table of this process.

        Raises:
            ScanKvError: As `BorrowedViews.borrow`.
        """
        if self._borrowed is None or self.owns(name):
            return nullcontext()
        return self._borrowed.borrow(snapshot_id, name)

    def _log_holds(self, table: str, bucket: int) -> dict[str, int]:
        holders = self.snapshots, self.consumers, self.transactions
        return {owner: offset for each in holders for owner, offset in each.retention_holds(table, bucket).items()}

    async def create(self, name: str, schema: pa.Schema, **parts: Unpack[TableParts]) -> TableDefinition:
        """Creates a table without rows.

        Raises:
            TableExists: The name is taken.
            InvalidRequest, UpgradeNotConfirmed: As `DefinitionRules.define`.
            DiskFull: Less than the reserve of disk space is free, or the disk is full.
        """
        definition = self.rules.define(name, schema, **parts)
        self._reserve.check()
        await self._to_its_end(self._create(self._catalog.create, definition))
        return definition

    async def begin_bootstrap(
        self,
        definition: TableDefinition,
        *,
        overwrite: bool = False,
        merges_duplicates: bool = False,
        ttl: float = BOOTSTRAP_TTL_SECONDS,
        source: str = "",
        from_scratch: bool = False,
    ) -> str:
        """Begins a bootstrap of a table that `rules.define` has returned, or resumes it: see `Bootstraps.begin`.

        Raises:
            TableExists: The name is taken.
            UpgradeNotConfirmed: The data directory has a format without range markers.
            DiskFull: Less than the reserve of disk space is free.
            InvalidRequest, BootstrapDiffers: See `Bootstraps.begin`.
        """
        self.rules.require_format(MARKERS_FORMAT, "bootstraps")
        if not self.bootstraps.has_made(definition.name, source) or from_scratch:
            self._catalog.check_free(definition.name)
        self._reserve.check()
        terms = BootstrapTerms(
            merger=Merger.of(TableCodec.of(definition), self._installed),
            overwrite=overwrite,
            merges_duplicates=merges_duplicates,
            ttl=ttl,
            source=source,
        )
        return await self.bootstraps.begin(terms, from_scratch=from_scratch)

    async def rows_of_bootstrap(self, id_: str, name: str) -> int | None:
        """Returns the rows of a table that a bootstrap of an earlier process has added. None: no such table exists."""
        if self.bootstraps.has(id_) or not self._catalog.has(name, id_):
            return None
        return await self._executor.run(rows_taken_in, self._catalog.path(name))

    async def _place(self, definition: TableDefinition, draft: Path) -> None:
        """Adds the table of a draft, with its rows."""
        place = partial(self._catalog.place, draft=draft)
        await self._to_its_end(self._create(place, definition, has_files=True))
        if definition.indexes and self._catalog.is_usable(definition.name):
            with suppress(TableNotFound):  # dropped in the meantime
                self.table(definition.name).build_indexes()

    async def _create(
        self, store: Callable[[TableDefinition], None], definition: TableDefinition, *, has_files: bool = False
    ) -> None:
        async with self._ddl:
            await self._store_definition(store, definition)
            self.activity.begin(definition.name)
            if has_files:
                self.archive.part.record_files(self.clock.commit_micros(), definition.incarnation)
            self.consumers.add(definition, self._catalog.path(definition.name))
            self.locks.add(definition, self._catalog.path(definition.name))
            await self.tablets.notify_reliably(definition)

    async def alter(self, name: str, **changes: Unpack[DefinitionChanges]) -> TableDefinition:
        """Changes options, drops indexes, changes columns, and adds indexes: all or nothing.

        A dropped index is no longer used when this returns. A new index, even on new columns, is built in the
        background. Changed options apply to running work from then on.

        Raises:
            TableNotFound: The table does not exist.
            SchemaMismatch, InvalidRequest, UpgradeNotConfirmed: As `DefinitionRules.change`.
            UpgradeNotConfirmed: The data directory has a format without changes of the option `changelog`.
            ColumnLocked: A column to drop or rename is locked.
            DataLoss: The option `changelog` was to change, and a bucket is damaged.
            ScanKvError: An index was to be added, or columns were to change, and a committed transaction cannot be
                applied to the table.
        """
        return await self._to_its_end(self._alter(name, changes))

    async def _alter(self, name: str, changes: DefinitionChanges) -> TableDefinition:
        async with self._ddl, self.transactions.uses.altering(name), self.table(name).writes.locks.unchanged():
            live, before = self.table(name), self._catalog.get(name)
            definition = self.rules.change(before, **changes)
            if columns := changes.get("columns"):
                self.locks.of(name).check_unlocked((*columns.drop, *columns.rename))
            if changes.get("add_indexes") or definition.schema.id != before.schema.id:
                self.transactions.check_applied(name, before.incarnation)
            # Everything that is written under the new definition is later, because no process is behind another one.
            micros = self.clock.commit_micros()
            # Fails unless all owners of tablets answer, because none of them may miss what follows.
            await self.tablets.notify(before)
            if definition.changelogs == before.changelogs:
                definition = await self._replace_definition(definition, micros)
                try:
                    # First, because requests in the new schema are divided among tablets that must know it.
                    await self.tablets.notify_reliably(definition)
                finally:
                    live.alter(definition)
            else:
                if definition.tablets > 1:
                    raise InvalidRequest(
                        'the option "changelog" of a table with tablets cannot be changed: create another table'
                    )
                self.rules.require_format(MARKERS_FORMAT, "changes of the table option changelog")
                definition = await live.alter_changelog(lambda: self._replace_definition(definition))
        return definition

    async def _replace_definition(self, definition: TableDefinition, micros: int | None = None) -> TableDefinition:
        """Stores a changed definition as `_store_definition` does.

        The file keeps the definitions that the archive does not have yet, so that it gets them even after a kill.
        """
        earlier = self.archive.part.unarchived_versions(definition.incarnation)
        return await self._store_definition(partial(self._catalog.replace, earlier=earlier), definition, micros)

    async def _store_definition(
        self, store: Callable[[TableDefinition], None], definition: TableDefinition, micros: int | None = None
    ) -> TableDefinition:
        """Stores a new or changed definition, and records that for the archive.

        Args:
            store: Stores it.
            definition: The definition.
            micros: A commit time before everything that can be written under the definition. None: now.

        Returns:
            The definition with that time, and with its version.
        """
        micros = self.clock.commit_micros() if micros is None else micros
        definition = replace(definition, changed_micros=micros, version=definition.version + 1)
        await self._executor.run(store, definition)
        self.archive.part.record(definition.changed_micros, definition.incarnation, definition)
        return definition

    async def drop_partitions(self, name: str, prefix: bytes) -> list[PartitionStats]:
        """Drops the partitions whose encoded values begin with a prefix: see `TablePartitions.drop`."""
        return await self._to_its_end(self._drop_partitions(name, [prefix]))

    async def _drop_partitions(self, name: str, prefixes: Sequence[bytes]) -> list[PartitionStats]:
        async with self._ddl, self.transactions.uses.altering(name):
            live = self.table(name)
            return await live.partitions.drop(prefixes, self._replace_definition)

    async def table_after_changes(self, name: str) -> LiveTable:
        """Returns a table, once no table is being created, altered or dropped any more. Raises TableNotFound."""
        async with self._ddl:
            return self.table(name)

    @asynccontextmanager
    async def unaltered(self, name: str, seconds: float) -> AsyncIterator[tuple[LiveTable, Callable[[], None]]]:
        """Keeps all tables of this process from being created, altered and dropped for the length of the block.

        Args:
            name: A table.
            seconds: For how long at most.

        Yields:
            The table, and a function that lets tables be changed before the end of the block.

        Raises:
            TableNotFound: The table does not exist.
        """
        await self._ddl.acquire()
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._ddl.release()

        timer = asyncio.get_running_loop().call_later(seconds, release)
        try:
            yield self.table(name), release
        finally:
            timer.cancel()
            release()

    async def drop(self, name: str) -> None:
        """Drops a table and ends its scans with TableNotFound. Raises TableNotFound."""
        await self._to_its_end(self._drop(name))
        await self.transactions.retry(name)

    async def _drop(self, name: str) -> None:
        async with self._ddl, self.transactions.uses.altering(name):
            # A table that cannot be used was never opened, so it needs no close.
            live = self.table(name) if self._catalog.is_usable(name) else None
            if live is not None:
                await self.tablets.close_all(live.definition)
            try:
                reason = TableNotFound(f'table "{name}" was dropped', table=name)
                if live is not None:
                    await live.close(reason)
                await self.snapshots.drop(name, reason)
                await self.consumers.drop(name)
                await self.locks.drop(name)
                if live is not None:
                    await self._executor.run(self.archive.part.keep_logs, live.state.path, live.definition.incarnation)
                dropped = await self._executor.run(self._catalog.drop, name)
                if live is not None:
                    self.archive.part.record(self.clock.commit_micros(), live.definition.incarnation, None)
            except BaseException:
                # If the disk keeps the table from being dropped, the table is served as after a restart.
                with suppress(ScanKvError):
                    self._load(self._catalog.get(name))
                raise
            finally:
                self._live.pop(name, None)
                self.activity.forget(name)
                if live is not None:
                    await self.tablets.notify_reliably(live.definition)
            await self._executor.run(self._catalog.discard, dropped)

    def _all_tables(self) -> list[LiveTable]:
        """Returns all tables and tablets that can be used. Opens them, but none of their buckets."""
        closed = {each.name for each in self._closed_tablets()}
        return [self.table(each.name) for each in self.definitions() if each.name not in closed]

    def _closed_tablets(self) -> list[TableDefinition]:
        """Returns the own tablets that are closed, because their table is being dropped."""
        return [
            each
            for each in self.definitions()
            if each.tablet is not None and self.tablets.is_closed(table_of(each.name))
        ]

    async def _flush(self) -> None:
        """Flushes the buckets of all tables, as far as they can be."""
        cutter = CutTaker(self._directory.trash, self._executor, self.clock, self.transactions, {}, {})
        await cutter.flush(self._all_tables())

    async def _cut(
        self,
        root: Path,
        left_out: dict[str, str],
        before: Mapping[tuple[str, int], WriteMark],
        agree: Callable[[int], Awaitable[int]],
        attempts: int,
    ) -> BackupCut:
        """Takes one instant of all tables for a backup: see `CutTaker`."""
        async with self.archive.instants, self.tablets.unchanging():
            left_out.update(self._catalog.unusable)
            left_out.update({each.name: BEING_DROPPED for each in self._closed_tablets()})
            cutter = CutTaker(root, self._executor, self.clock, self.transactions, left_out, before, agree, attempts)
            cut = await cutter.take(self._all_tables())
            self.archive.follow(cut.micros)
            return cut

    @property
    def disk_reserve_bytes(self) -> int:
        """The free space below which writes are refused."""
        return self._reserve.bytes

    async def disk_use(self) -> tuple[DiskBytes, int]:
        """Returns the disk use of the data directory, and the free space there: see `DataDiskUse.get`."""
        return await self._disk_use.get()

    async def _to_its_end(self, change: Coroutine[None, None, T]) -> T:
        # Half of a change would leave the catalog and the open table inconsistent.
        return await asyncio.shield(self._changes.start(change))

    async def close(self) -> None:
        """Ends all tasks, closes every bucket cleanly, and unlocks the directory."""
        self.tablets.stop_notifying()
        await self.bootstraps.close()
        await self.backups.close()
        await self._sweep.close()
        await self._log_maintenance.close()
        await self._bases.close()
        await self._expiry.close()
        await self._idle.close()
        await self._changes.join()
        await self.tablets.join()
        await self.transactions.close()
        await self.archive.close()
        # Closing a bucket waits for the disk, so all of them are closed at once.
        await all_ended([live.close(ServerDraining("the server is shutting down")) for live in self._live.values()])
        await self.snapshots.close()
        if self._borrowed is not None:
            await self._borrowed.close()
        await self.consumers.close()
        await self.locks.close()
        # The clock is stored last, so that no stored time is later than the stored service time.
        await self._clock_keeper.close()
        self._executor.close()
        self._directory.close()
