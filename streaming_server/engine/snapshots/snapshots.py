"""The pinned snapshots of a server: leases by id, their views, and the one task that ends expired leases."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scankv.model.errors import DataLoss, InvalidRequest, ServerDraining, TooManySnapshots
from scankv.model.limits import MAX_SPLITS
from streaming_server.engine.snapshots.leases import (
    Lease,
    SnapshotInfo,
    check_lease_id,
    check_lease_table,
    check_ttl,
    lost,
    snapshot_info,
)
from streaming_server.engine.snapshots.pinned_view import PinnedView, SnapshotReader
from streaming_server.engine.snapshots.pinning import MAX_HOLD_SECONDS
from streaming_server.engine.snapshots.splits import SplitRequest, split_view
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.file_limit import max_idle_checkpoints
from streaming_server.storage.snapshots.ended_leases import EndedLeases
from streaming_server.storage.snapshots.pinned_base import remove_base, write_delta
from streaming_server.storage.snapshots.snapshots import (
    PinnedBucket,
    ViewDirectory,
    ViewManifest,
    load_views,
    unshared_snapshot_bytes,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import Predicate
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.snapshots.pinning import ViewPinner
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.storage.rocks.store import RocksResources
    from streaming_server.storage.snapshots.pinned_base import PinnedBase

IDLE_VIEWS_OPEN = 8
SHARED_LEASE_SECONDS: Final = 60.0
"""How long after its last renewal a shared lease counts, however few leases are left to give."""

_LOOK_SHARE: Final = 10
"""The result of measuring what views hold is used for so many times as long as the measurement computed."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Snapshots:
    """The pinned snapshots of a server. Bound to its event loop.

    Leases and views are on disk and outlive the server. When a server starts, the time to live of each lease begins
    again. Rule: leases are measured by the monotonic clock, so that setting the machine's clock ends none of them.

    A view with a lease retains the changes from its log offsets on, so that its reader can follow the table from there.
    As for every retention hold, `max_retention_hold_bytes` is the limit.

    Args:
        config: Limits and defaults.
        trash: The directory that removed files are moved to first.
        resources: Shared by all buckets of the process.
        executor: Runs what blocks.
        live: Returns an open table by name, or None.
        clock: The server's.
        max_hold_seconds: For how long taking a view may pause the writers of a table.
    """

    def __init__(
        self,
        config: ServerConfig,
        trash: Path,
        resources: RocksResources,
        executor: StorageExecutor,
        live: Callable[[str], TableState | None],
        *,
        clock: ServerClock,
        max_hold_seconds: float = MAX_HOLD_SECONDS,
    ) -> None:
        self._config = config
        self._trash = trash
        self._resources = resources
        self._executor = executor
        self._live = live
        self._clock = clock
        self._max_hold_seconds = max_hold_seconds
        self._leases: dict[str, Lease] = {}
        self._views: dict[str, PinnedView] = {}
        self._tables: dict[str, Path] = {}
        self._ended_ids: dict[str, EndedLeases] = {}
        # Ids that are being pinned. They count as leases.
        self._pending: set[str] = set()
        self._idle: OrderedDict[str, PinnedView] = OrderedDict()
        self._held, self._next_look = 0, -math.inf
        self._most_idle_checkpoints = max_idle_checkpoints(resources.files_per_store)
        self._work: set[asyncio.Task[Any]] = set()
        self._reaper = Reaper(self._next_expiry, self._expire, clock)

    def load(self, definition: TableDefinition, path: Path) -> None:
        """Loads the snapshots of a table from disk, and removes what a crash has left of others. Blocks."""
        ended = self._ended_ids[definition.name] = EndedLeases(path)
        ended.load()
        for directory in load_views(path, self._trash):
            manifest: ViewManifest | DataLoss
            try:
                manifest = directory.manifest()
                if manifest.definition.incarnation != definition.incarnation:
                    raise DataLoss(f"the snapshot manifest in {directory.path} is of another table")
            except DataLoss as error:
                _log.error("DATA_LOSS: %s", error.message)
                manifest = DataLoss(error.message, table=definition.name, view=directory.view_id)
            view = self._added(definition.name, path, directory, manifest)
            for lease_id, stored in directory.leases().items():
                ttl = self._config.snapshot_ttl_seconds if stored.ttl is None else stored.ttl
                self._lease_on(view, lease_id, ttl, shared=stored.shared)

    def start(self) -> None:
        """Starts the task that ends expired leases. Call `close` at the end."""
        self._reaper.start()

    @property
    def views(self) -> int:
        """The number of views."""
        return len(self._views)

    @property
    def leases(self) -> int:
        """The number of leases."""
        return len(self._leases)

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """Returns the retention holds on the changelog of a bucket: offset by owner. May be called in any thread."""
        return {
            _log_owner(view.view_id): view.manifest.buckets[bucket].log_offset
            for view in list(self._views.values())
            if view.table == table and view.leases and view.is_readable
        }

    async def held_bytes(self) -> int:
        """Returns the bytes on disk that only snapshots keep. Reads directories."""
        return await self._executor.run(unshared_snapshot_bytes, self._table_paths())

    def _table_paths(self) -> list[Path]:
        return [self._tables[table] for table in {view.table for view in self._views.values()}]

    async def pin(
        self,
        pinning: ViewPinner,
        *,
        lease_id: str = "",
        ttl: float | None = None,
        same_view_as: str = "",
        shared: bool = False,
    ) -> SnapshotInfo:
        """Takes a lease on a view of a table as of now, durable when this returns.

        If the table has not changed since its last view, takes another lease on that view. If a lease of this id on the
        same table exists, renews it; it keeps its view.

        Args:
            pinning: Pins the table.
            lease_id: The id of the snapshot. Empty: a new one.
            ttl: The lease's time to live, in seconds. None: the server's default.
            same_view_as: A snapshot of the table, whose view the new lease keeps. Empty: a view as of now.
            shared: Whether several callers use this id, which must all read the same view: see `PinSnapshotRequest`.

        Raises:
            InvalidRequest: The id or the time to live is invalid, or the id belongs to a snapshot of another table.
            SnapshotLost: No snapshot `same_view_as` exists, or the shared lease of this id has ended.
            SnapshotNotTaken: Writers would have been paused for too long.
            TooManySnapshots: The limit of leases, or of the disk space that they hold, is reached.
            DataLoss: A bucket is damaged.
        """
        lease_id = lease_id or uuid.uuid4().hex
        check_lease_id(lease_id)
        ttl = self._config.snapshot_ttl_seconds if ttl is None else ttl
        check_ttl(ttl)
        table = pinning.table
        name = table.definition.name
        async with pinning.alone():
            there = self._leases.get(lease_id)
            if there is not None and there.expires > self._clock.monotonic():
                check_lease_table(there, name)
                return await self._renewed(there, max(ttl, there.ttl) if there.shared else ttl)
            if there is not None:
                await self._ended(there)
            # The id of a shared lease names one view forever, because some of its readers may have read that view.
            if lease_id in self._ended_ids.setdefault(name, EndedLeases(table.path)):
                raise lost(lease_id)
            await self._make_place()
            with self._place_for(lease_id, name):
                if same_view_as:
                    view, write_pause_micros = self.lease(same_view_as, name).view, 0
                else:
                    view, write_pause_micros = await self._view_of_now(pinning)
                with self._used(view):
                    lease = await self._add_lease(view, lease_id, ttl, shared=shared)
                    return replace(self._info_of(lease), write_pause_micros=write_pause_micros)

    async def renew(self, snapshot_id: str, ttl: float | None = None) -> SnapshotInfo:
        """Renews a lease for its time to live, or for another one, `ttl` in seconds.

        Raises:
            SnapshotLost: No such snapshot exists.
            InvalidRequest: The time to live is out of range.
        """
        if ttl is not None:
            check_ttl(ttl)
        return await self._renewed(self.lease(snapshot_id), ttl)

    async def release(self, snapshot_id: str) -> None:
        """Ends a lease. If it was the last one of a view without readers, returns once the view is removed from disk.

        Raises:
            SnapshotLost: No such snapshot exists.
        """
        lease = self.lease(snapshot_id)
        await self._ended(lease)
        if lease.view.removal is not None:
            await asyncio.shield(lease.view.removal)

    def listed(self, table: str | None = None) -> list[SnapshotInfo]:
        """Returns the snapshots of one table (None: all), oldest view first; skips those with a damaged manifest."""
        now = self._clock.monotonic()
        infos = [
            snapshot_info(lease, now)
            for lease in self._leases.values()
            if lease.expires > now and lease.view.is_readable and table in (None, lease.view.table)
        ]
        return sorted(infos, key=lambda info: (info.manifest.view_micros, info.view_id, info.snapshot_id))

    @asynccontextmanager
    async def reading(
        self, snapshot_id: str, table_name: str, buckets: Sequence[int] | None = None
    ) -> AsyncIterator[SnapshotReader]:
        """Opens some buckets (None: all) of a snapshot for a block, which keeps the view even beyond its lease.

        Raises:
            SnapshotLost: No such snapshot exists: the id is unknown, released or expired, or the table was dropped.
            InvalidRequest: The snapshot is of another table, or a bucket does not exist.
            DataLoss: A bucket is damaged.
        """
        view = self.lease(snapshot_id, table_name).view
        with self._used(view):
            yield await view.open_buckets(buckets)

    def definition(self, snapshot_id: str, table_name: str) -> TableDefinition:
        """Returns the definition of a table as of a snapshot. Raises as `reading`."""
        return self.lease(snapshot_id, table_name).view.manifest.definition

    def view(self, snapshot_id: str, table_name: str, buckets: Sequence[int] | None) -> View:
        """Returns the view of some buckets (None: all) of a snapshot. Opens nothing. Raises as `reading`."""
        pinned = self.lease(snapshot_id, table_name).view
        states = {number: pinned.manifest.buckets[number] for number in pinned.select_buckets(buckets)}
        offsets = {number: state.log_offset for number, state in states.items()}
        return View(offsets, pinned.manifest.view_micros, total_rows(state.rows for state in states.values()))

    async def split(
        self,
        snapshot_id: str,
        splits: int,
        key_range: KeyRange,
        buckets: Sequence[int] | None = None,
        *,
        where: Predicate | None = None,
        rows_per_split: int | None = None,
    ) -> list[KeyRange]:
        """Splits a key range of some buckets (None: all) of a snapshot into ranges with about equally many rows.

        Returns exactly `splits` ranges, or fewer with `rows_per_split`, in key order and without gaps. Some are empty
        where there are too few keys. Reads a bounded number of keys. Equal calls return equal ranges.

        Args:
            snapshot_id: The snapshot.
            splits: The number of ranges.
            key_range: The range to split.
            buckets: The buckets to read.
            where: The filter of the scan, whose key ranges bound the keys that are counted. None: all rows.
            rows_per_split: About how many rows a range has at least. None: the rows are divided by `splits`.

        Raises:
            SnapshotLost: No such snapshot exists.
            InvalidRequest: The number of splits is out of range, or a bucket does not exist.
            SchemaMismatch: The predicate does not fit the table.
            DataLoss: A bucket is damaged.
        """
        if not 1 <= splits <= MAX_SPLITS:
            raise InvalidRequest(f"splits must be between 1 and {MAX_SPLITS:,}, not {splits:,}")
        view = self.lease(snapshot_id).view
        view.select_buckets(buckets)
        cut = SplitRequest(splits, key_range, buckets, where, rows_per_split)
        # Continues if the caller is cancelled, so that the next call finds the sample of the view.
        return await asyncio.shield(self._begin(self._split(view, cut)))

    async def _split(self, view: PinnedView, cut: SplitRequest) -> list[KeyRange]:
        with self._used(view):
            return await split_view(view, self._executor, cut)

    async def drop(self, table: str, reason: ScanKvError) -> None:
        """Ends the snapshots of a table that is being dropped, and their scans with `reason`. The table is closed."""
        views = [view for view in self._views.values() if view.table == table]
        for view in views:
            self._forget(view)
            for lease_id in view.leases:
                self._leases.pop(lease_id).end()
        self._tables.pop(table, None)
        self._ended_ids.pop(table, None)
        for view in views:
            await view.end(reason)

    async def close(self) -> None:
        """Ends all work and closes all files. Leases and views stay on disk."""
        await self._reaper.close()
        for view in list(self._views.values()):
            await view.end(ServerDraining("the server is shutting down"))
        while self._work:
            await asyncio.wait(list(self._work))

    async def _view_of_now(self, pinning: ViewPinner) -> tuple[PinnedView, int]:
        """Returns a view of the table as of now, and for how long writers were paused. Call it in `pinning.alone`."""
        table = pinning.table
        name = table.definition.name
        if any(view.table == name for view in self._views.values()):
            now = await pinning.offsets(), table.definition.schema.id
            for view in self._views.values():
                if view.table == name and view.is_readable and _position(view.manifest) == now:
                    return view, 0
        await self._check_disk()
        directory = ViewDirectory(table.path, uuid.uuid4().hex)
        try:
            await self._executor.run(directory.prepare)
            cut = await pinning.cut(
                [directory.bucket(live.number) for live in table.buckets],
                lambda: table.definition,
                base_paths=[directory.base(live.number) for live in table.buckets],
                log_owner=_log_owner(directory.view_id),
                max_hold_seconds=self._max_hold_seconds,
            )
            bases = await self._executor.run(_keep_bases, directory, cut.bases)
            manifest = ViewManifest(
                view_id=directory.view_id,
                definition=cut.definition,
                view_micros=cut.view_micros,
                buckets={number: PinnedBucket.of(state, bases.get(number)) for number, state in cut.states.items()},
            )
            await self._executor.run(directory.complete, manifest)
        except BaseException:
            for live in table.buckets:
                live.release_log(_log_owner(directory.view_id))
            pinning.discard_later(lambda: directory.remove(self._trash))
            raise
        return self._added(name, table.path, directory, manifest), cut.write_pause_micros

    async def _check_disk(self) -> None:
        """Refuses a new view where the existing ones hold as much disk as allowed, by the last measurement.

        Rule: the cost of a pin does not grow with the number of pins that are kept. A measurement reads the directories
        of all views, so measurements take at most a tenth of a core.
        """
        if self._clock.monotonic() >= self._next_look:
            self._held, seconds = await self._executor.run(_timed, unshared_snapshot_bytes, self._table_paths())
            self._next_look = self._clock.monotonic() + _LOOK_SHARE * seconds
        held, limit = self._held, self._config.max_snapshot_bytes
        if held >= limit:
            raise TooManySnapshots(
                f"snapshots hold {held} bytes on disk, and the limit is {limit}: release some, or raise "
                "max_snapshot_bytes"
            )

    def _added(self, table: str, path: Path, directory: ViewDirectory, manifest: ViewManifest | DataLoss) -> PinnedView:
        view = PinnedView(table, directory, manifest, self._resources, self._executor)
        self._views[view.view_id] = view
        self._tables[table] = path
        return view

    async def _make_place(self) -> None:
        """Ends the shared lease that was not renewed for the longest time, if the limit of leases is reached."""
        if len(self._leases) + len(self._pending) < self._config.max_snapshot_leases:
            return
        shared = [lease for lease in self._leases.values() if lease.shared]
        oldest = min(shared, key=lambda lease: lease.renewed_at, default=None)
        if oldest is not None and oldest.renewed_at + SHARED_LEASE_SECONDS <= self._clock.monotonic():
            await self._ended(oldest)

    @contextmanager
    def _place_for(self, lease_id: str, table: str) -> Iterator[None]:
        """Counts a lease that is being taken."""
        if lease_id in self._pending:
            # Pins of one table take turns, so the id belongs to another table.
            raise InvalidRequest(f"the snapshot id {lease_id} is being taken for another table than {table}")
        taken, limit = len(self._leases) + len(self._pending), self._config.max_snapshot_leases
        if taken >= limit:
            raise TooManySnapshots(
                f"there are {taken} leases on snapshots, and the limit is {limit}: release some, or raise "
                "max_snapshot_leases"
            )
        self._pending.add(lease_id)
        try:
            yield
        finally:
            self._pending.discard(lease_id)

    async def _add_lease(self, view: PinnedView, lease_id: str, ttl: float, *, shared: bool) -> Lease:
        async with view.lease_files:
            try:
                await self._executor.run(partial(view.directory.write_lease, shared=shared), lease_id, ttl)
            except BaseException:
                self._begin(self._remove_file(view, lease_id))
                raise
            lease = self._lease_on(view, lease_id, ttl, shared=shared)
            self._hold_log(view)
            return lease

    def _hold_log(self, view: PinnedView) -> None:
        """Retains the changes from a leased view on. For buckets that are not open: once they are opened."""
        table = self._live(view.table)
        if table is None or not view.is_readable:
            return
        for number, bucket in view.manifest.buckets.items():
            live = table.buckets[number]
            # Changes that are gone cannot be retained, and a hold on them would retain everything after them.
            if live.state is not None and count_of(bucket.log_offset) >= live.state.log_first:
                live.retain_log(_log_owner(view.view_id), bucket.log_offset)

    def _release_log(self, view: PinnedView) -> None:
        """Ends the retention hold of a view that has no lease."""
        table = self._live(view.table)
        if table is None or view.leases:
            return
        for live in table.buckets:
            live.release_log(_log_owner(view.view_id))

    def _lease_on(self, view: PinnedView, lease_id: str, ttl: float, *, shared: bool) -> Lease:
        lease = self._leases[lease_id] = Lease(lease_id, view, ttl, self._clock.monotonic() + ttl, shared)
        view.leases.add(lease_id)
        self._reaper.notify(lease.expires)
        return lease

    def lease(self, snapshot_id: str, table: str | None = None) -> Lease:
        """Returns a current lease on a view of a table (None: of any). Raises as `reading`."""
        lease = self._leases.get(snapshot_id)
        if lease is None or lease.expires <= self._clock.monotonic():
            raise lost(snapshot_id)
        if table is not None:
            check_lease_table(lease, table)
        return lease

    async def _renewed(self, lease: Lease, ttl: float | None) -> SnapshotInfo:
        changed = ttl is not None and ttl != lease.ttl
        lease.ttl = lease.ttl if ttl is None else ttl
        lease.expires = self._clock.monotonic() + lease.ttl
        self._reaper.notify(lease.expires)
        if changed:
            async with lease.view.lease_files:
                # A lease that was released in the meantime must not come back.
                if self._leases.get(lease.lease_id) is not lease:
                    raise lost(lease.lease_id)
                try:
                    write = partial(lease.view.directory.write_lease, shared=lease.shared)
                    await self._executor.run(write, lease.lease_id, lease.ttl)
                except FileNotFoundError:
                    raise lost(lease.lease_id) from None
        return self._info_of(lease)

    def _info_of(self, lease: Lease) -> SnapshotInfo:
        return snapshot_info(lease, self._clock.monotonic())

    async def _ended(self, lease: Lease) -> None:
        """Ends a lease: in memory at once, and on disk when this returns, also if this is cancelled."""
        if self._leases.get(lease.lease_id) is not lease:
            return
        del self._leases[lease.lease_id]
        lease.view.leases.discard(lease.lease_id)
        self._release_log(lease.view)
        lease.end()
        # None where the table was dropped in the meantime.
        ended = self._ended_ids.get(lease.view.table) if lease.shared else None
        if ended is not None:
            ended.add(lease.lease_id)
        await asyncio.shield(self._begin(self._remove_file(lease.view, lease.lease_id, ended)))

    async def _remove_file(self, view: PinnedView, lease_id: str, ended: EndedLeases | None = None) -> None:
        with self._used(view):
            async with view.lease_files:
                if ended is not None:
                    # Before the file of the lease is removed: after a crash in between, the lease exists again.
                    await self._executor.run(ended.write, lease_id)
                if lease_id not in view.leases:
                    await self._executor.run(view.directory.remove_lease, lease_id)

    @contextmanager
    def _used(self, view: PinnedView) -> Iterator[None]:
        """Ensures that the view is neither closed nor removed during the block."""
        view.users += 1
        self._idle.pop(view.view_id, None)
        try:
            yield
        finally:
            view.users -= 1
            if view.users == 0 and view.view_id in self._views:
                self._unused(view)

    def _unused(self, view: PinnedView) -> None:
        if not view.leases:
            self._release_log(view)
            self._forget(view)
            view.removal = self._begin(self._remove(view))
        elif view.open_checkpoints:
            self._idle[view.view_id] = view
            while len(self._idle) > IDLE_VIEWS_OPEN or self._idle_checkpoints() > self._most_idle_checkpoints:
                self._begin(self._idle.popitem(last=False)[1].close())

    def _idle_checkpoints(self) -> int:
        return sum(view.open_checkpoints for view in self._idle.values())

    def _forget(self, view: PinnedView) -> None:
        del self._views[view.view_id]
        self._idle.pop(view.view_id, None)

    async def _remove(self, view: PinnedView) -> None:
        await view.end(lost(view.view_id))
        await self._executor.run(view.directory.remove, self._trash)

    def _begin(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Runs work to its end, even if its caller is cancelled. `close` waits for it."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_done)
        return task

    def _work_done(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work on a snapshot failed: %s", error)

    def _next_expiry(self) -> float | None:
        return min((lease.expires for lease in self._leases.values()), default=None)

    async def _expire(self) -> None:
        now = self._clock.monotonic()
        for lease in [lease for lease in self._leases.values() if lease.expires <= now]:
            try:
                await self._ended(lease)
            except Exception:
                _log.exception("ending the lease %s", lease.lease_id)


def _log_owner(view_id: str) -> str:
    """Returns the owner of a view's retention hold."""
    return f"snapshot:{view_id}"


def _keep_bases(directory: ViewDirectory, bases: Mapping[int, BaseView]) -> dict[int, PinnedBase]:
    """Writes the merged deltas of some bases next to their files. Leaves out a base where that fails."""
    kept = {}
    for number, view in bases.items():
        try:
            net = view.delta.merge()
            kept[number] = write_delta(directory.base(number), view.base.info.name, net.keys, net.values)
        except OSError as error:
            _log.warning("a snapshot goes without the columnar base of %s: %s", view.location, error)
            remove_base(directory.base(number))
    return kept


def _position(manifest: ViewManifest) -> tuple[dict[int, int], int]:
    """Returns the log offsets and the schema of a view, which differ after every change of its table."""
    return {number: one.log_offset for number, one in manifest.buckets.items()}, manifest.definition.schema.id


def _timed(function: Callable[[list[Path]], int], paths: list[Path]) -> tuple[int, float]:
    """Calls a function. Returns its result, and the seconds of processor time that it took in this thread."""
    began = time.thread_time()
    return function(paths), time.thread_time() - began
