"""The pinned snapshots of a server: leases by id, and the one task that ends expired leases."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, ServerDraining, SnapshotExists, SnapshotLost, TooManySnapshots
from scankv.model.limits import MAX_SPLITS
from scankv.model.names import check_snapshot_name, table_of, tablet_number
from streaming_server.access.owners import assignment_refusal, new_owner, share_for, share_refusal
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.engine.snapshots.borrowed_views import borrowed_view
from streaming_server.engine.snapshots.leases import (
    Lease,
    SnapshotInfo,
    check_lease_id,
    check_lease_name,
    check_lease_owner,
    check_lease_table,
    check_part_id,
    check_renewal,
    check_ttl,
    lease_check,
    lost_error,
    snapshot_info,
)
from streaming_server.engine.snapshots.loans import LentView
from streaming_server.engine.snapshots.part_ids import PartId, shown_id
from streaming_server.engine.snapshots.pinned_views import PinnedViews
from streaming_server.engine.snapshots.pinning import MAX_HOLD_SECONDS
from streaming_server.engine.snapshots.splits import SplitRequest, sample_view, split_sample
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.storage.snapshots.ended_leases import EndedLeases
from streaming_server.storage.snapshots.snapshots import LeaseRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import Predicate
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.snapshots.pinned_view import PinnedView, SnapshotReader
    from streaming_server.engine.snapshots.pinning import ViewPinner
    from streaming_server.engine.snapshots.splits import KeySample
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.rocks.store_options import RocksResources

SHARED_LEASE_SECONDS: Final = 60.0
"""At the limit of leases, a new lease replaces no shared lease that was renewed within this time."""

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
        executor: Runs blocking work.
        live: Returns an open table by name, or None.
        clock: The server's clock.
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
        self._executor = executor
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        # The leases on first tablets, by the ids of the snapshots whose first parts they are.
        self._first_parts: dict[str, Lease] = {}
        self._ended_ids: dict[str, EndedLeases] = {}
        # Ids that are being pinned, with their principals. They count as leases.
        self._pending: dict[str, str] = {}
        self._work = DetachedTasks("work on a snapshot failed: %s")
        self._views = PinnedViews(
            config,
            trash,
            resources,
            executor,
            live,
            clock=clock,
            max_hold_seconds=max_hold_seconds,
            tasks=self._work,
        )
        self._reaper = Reaper(self._next_expiry, self._expire, clock)

    def load(self, definition: TableDefinition, path: Path) -> None:
        """Loads the snapshots of a table from disk, and removes what a crash has left of others. Blocks."""
        ended = self._ended_ids[definition.name] = EndedLeases(path)
        ended.load()
        for view in self._views.load(definition, path):
            for lease_id, stored in view.directory.leases().items():
                self._add(self._new_lease(view, lease_id, stored))

    def start(self) -> None:
        """Starts the task that ends expired leases. Call `close` at the end."""
        self._reaper.start()

    @property
    def views(self) -> int:
        """The number of views. Of a table with tablets, only the views of the first tablet count."""
        return sum(not tablet_number(view.table) for view in self._views)

    @property
    def leases(self) -> int:
        """The number of leases. Of a table with tablets, only the leases on the first tablet count."""
        parts = map(PartId.parse, self._leases)
        return sum(part is None or part.tablet == 0 for part in parts)

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """Returns the retention holds on the changelog of a bucket: offset by owner. May be called in any thread."""
        return self._views.retention_holds(table, bucket)

    async def held_bytes(self) -> int:
        """Returns the bytes on disk that only snapshots keep. Reads directories."""
        return await self._views.held_bytes()

    async def pin(
        self,
        pinning: ViewPinner,
        *,
        lease_id: str = "",
        ttl: float | None = None,
        same_view_as: str = "",
        shared: bool = False,
        name: str = "",
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
            name: The name of the snapshot, which no other snapshot of the table may have. Empty: none.

        Raises:
            InvalidRequest: The id, the name or the time to live is invalid, or the id belongs to a snapshot of another
                table or with another name.
            SnapshotExists: Another snapshot of the table has this name.
            SnapshotLost: No snapshot `same_view_as` exists, or the shared lease of this id has ended.
            SnapshotNotTaken: Writers would have been paused for too long.
            TooManySnapshots: The limit of leases, or of the disk space that they hold, is reached.
            PermissionDenied: The id is that of another principal's snapshot, which is not shared.
            DataLoss: A bucket is damaged.
        """
        lease_id = lease_id or uuid.uuid4().hex
        table = pinning.table
        table_name = table.definition.name
        if table.definition.tablet is None:
            self.check_pin(lease_id, ttl, shared=shared, name=name)
        else:
            check_part_id(lease_id)
        # A call that holds the buckets for several pins has excluded others before the hold, until its last pin.
        async with nullcontext() if CURRENT_HOLD.get() is not None else pinning.exclude_others():
            there = await self.find_pinned(table, lease_id, name)
            if there is not None:
                check_renewal(there)
                return await self._renew(there, self.renewed_ttl(there, ttl))
            ttl = self.default_ttl if ttl is None else ttl
            await self._make_place()
            with self._place_for(lease_id, table_name):
                if same_view_as:
                    view, write_pause_micros = self.lease(same_view_as, table_name).view, 0
                else:
                    view, write_pause_micros = await self._views.take(pinning)
                with self._views.use(view):
                    pending = table.definition.tablet == 0
                    record = LeaseRecord(ttl, shared, name, pending, new_owner())
                    lease = self._new_lease(view, lease_id, record)
                    await self._write_new(lease)
                    return replace(self._info_of(lease), write_pause_micros=write_pause_micros)

    def check_pin(self, lease_id: str, ttl: float | None, *, shared: bool, name: str) -> None:
        """Raises InvalidRequest unless a snapshot may be pinned with these arguments of `pin`."""
        check_lease_id(lease_id)
        if ttl is not None:
            check_ttl(ttl)
        if name:
            check_snapshot_name(name)
        if name and shared:
            raise InvalidRequest("a shared snapshot cannot have a name: its lease_id already is one")

    async def find_pinned(self, table: TableState, lease_id: str, name: str) -> Lease | None:
        """Returns the lease that a repeated pin of a table renews. None: the pin takes a new lease.

        Ends a lease of this id or name that has expired. Call it in `exclude_others`.

        Args:
            table: The table; of a table with tablets, the first tablet.
            lease_id: The id of the snapshot.
            name: The name of the snapshot. Empty: it has no name.

        Raises:
            InvalidRequest, SnapshotExists, SnapshotLost: As `pin`.
        """
        table_name = table.definition.name
        there = self._leases.get(lease_id) or self._first_parts.get(lease_id)
        if there is not None and there.expires > self._clock.monotonic():
            check_lease_table(there, table_name)
            check_lease_name(there, name)
            return there
        if there is not None:
            await self._end(there)
        # The id of a shared lease names one view forever, because some of its readers may have read that view.
        if lease_id in self._ended_ids.setdefault(table_name, EndedLeases(table.path)):
            raise lost_error(lease_id)
        if name:
            await self._free_name(table_name, name)
        return None

    @property
    def default_ttl(self) -> float:
        """The time to live of a lease, in seconds, unless its pin states another one."""
        return self._config.snapshot_ttl_seconds

    def renewed_ttl(self, lease: Lease, ttl: float | None) -> float:
        """Returns the time to live, in seconds, that a repeated pin with a `ttl` gives a lease. None: the default."""
        wanted = self.default_ttl if ttl is None else ttl
        return max(wanted, lease.ttl) if lease.shared else wanted

    async def announce(self, part: PartId, *, shared: bool = False, name: str = "") -> None:
        """Announces a snapshot by its first part, once all parts are pinned. Durable when this returns.

        Raises:
            SnapshotLost: The part has ended.
        """
        lease = self.lease(str(part))
        lease.shared, lease.name, lease.pending = shared, name, False
        await self._write_lease(lease)
        self._first_parts[part.snapshot_id] = lease

    def divided_table_of(self, snapshot_id: str) -> str:
        """Returns the table with tablets of a current snapshot. Empty: its table has no tablets, or it is unknown."""
        lease = self._first_parts.get(snapshot_id)
        return "" if lease is None or lease.expires <= self._clock.monotonic() else table_of(lease.view.table)

    def first_part(self, snapshot_id: str, tablet: str) -> tuple[PartId, TableDefinition]:
        """Returns the first part of a snapshot of a table with tablets, and the definition of its tablet at the pin.

        Args:
            snapshot_id: The snapshot, as clients know it.
            tablet: The name of the first tablet of the table.

        Raises:
            SnapshotLost: No such snapshot exists.
            InvalidRequest: The snapshot is of another table.
            DataLoss: The manifest of its view cannot be read.
        """
        lease = self._leases.get(snapshot_id) or self._first_parts.get(snapshot_id)
        part = None if lease is None else PartId.parse(lease.lease_id)
        if lease is None or lease.expires <= self._clock.monotonic():
            raise lost_error(snapshot_id)
        check_lease_table(lease, tablet)
        if part is None or part.snapshot_id != snapshot_id:
            raise lost_error(snapshot_id)
        return part, lease.view.manifest.definition

    async def renew(self, snapshot_id: str, ttl: float | None = None) -> SnapshotInfo:
        """Renews a lease for its time to live, or for another one, `ttl` in seconds.

        Raises:
            SnapshotLost: No such snapshot exists.
            InvalidRequest: The time to live is out of range.
            PermissionDenied: It belongs to another principal, and is not shared.
        """
        if ttl is not None:
            check_ttl(ttl)
        lease = self.lease(snapshot_id)
        check_renewal(lease)
        if ttl is not None and not lease_check(lease).allows(lease.principal):
            # Others have asked for the longer one.
            ttl = max(ttl, lease.ttl)
        return await self._renew(lease, ttl)

    async def release(self, snapshot_id: str) -> None:
        """Ends a lease. If it was the last one of a view without readers, returns once the view is removed from disk.

        Raises:
            SnapshotLost: No such snapshot exists.
            PermissionDenied: It belongs to another principal.
        """
        lease = self.lease(snapshot_id)
        check_lease_owner(lease)
        await self._end(lease)
        if lease.view.removal is not None:
            await asyncio.shield(lease.view.removal)

    async def assign(self, table: str, before: str, principal: str) -> int:
        """Gives the snapshots of a table that belong to a principal (empty: to nobody) to another one, durably.

        Returns how many these are.
        """
        given = self._leases_in(table, before)
        for lease in given:
            with suppress(SnapshotLost):
                await self._write_lease(lease, principal)
        return len(given)

    def check_assignment(self, table: str, before: str, principal: str) -> None:
        """Raises TooManySnapshots if the caller may not give a principal as many as `assign` would."""
        mine = self._leases_of(principal)
        more = {shown_id(each.lease_id) for each in self._leases_in(table, before)} - mine
        limit, share = self._config.max_snapshot_leases, self._config.max_caller_share
        refusal = assignment_refusal("leases on snapshots", principal, len(mine), len(more), limit, share)
        if refusal is not None:
            raise TooManySnapshots(refusal)

    def _leases_in(self, table: str, principal: str) -> list[Lease]:
        return [each for each in self._leases.values() if each.view.table == table and each.principal == principal]

    def list_snapshots(self, table: str | None = None) -> list[SnapshotInfo]:
        """Returns the snapshots of one table (None: all), oldest view first; skips those with a damaged manifest."""
        now = self._clock.monotonic()
        infos = [
            snapshot_info(lease, now)
            for lease in self._leases.values()
            if lease.expires > now
            and lease.view.is_readable
            and not lease.pending
            and table in (None, lease.view.table)
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
        view = self._readable(snapshot_id, table_name)
        with self._views.use(view):
            yield await view.open_buckets(buckets)

    def _readable(self, snapshot_id: str, table: str) -> PinnedView:
        """Returns the view of a snapshot for the current call: one of this process, or one that the call has borrowed.

        Raises the errors of `reading`.
        """
        return borrowed_view(snapshot_id, table) or self.lease(snapshot_id, table).view

    @contextmanager
    def lend(self, snapshot_id: str, table: str) -> Iterator[LentView]:
        """Keeps the view of a snapshot for another process during the block, even beyond its lease.

        Raises the errors of `reading`.
        """
        view = self.lease(snapshot_id, table).view
        lent = LentView(view.view_id, view.manifest.definition.incarnation)
        with self._views.use(view):
            view.watch(lent)
            yield lent

    def definition(self, snapshot_id: str, table_name: str) -> TableDefinition:
        """Returns the definition of a table as of a snapshot. Raises the errors of `reading`."""
        return self._readable(snapshot_id, table_name).manifest.definition

    def view(self, snapshot_id: str, table_name: str, buckets: Sequence[int] | None) -> View:
        """Returns the view of some buckets (None: all) of a snapshot. Opens nothing. Raises the errors of `reading`."""
        pinned = self._readable(snapshot_id, table_name)
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
        cut = SplitRequest(splits, key_range, buckets, where, rows_per_split)
        sample, chosen = await self.sample(snapshot_id, cut)
        return await self._executor.run(split_sample, sample, cut, chosen)

    async def sample(self, snapshot_id: str, cut: SplitRequest) -> tuple[KeySample, Sequence[int]]:
        """Returns a sample of the keys of a snapshot by which it can be split, and the buckets to split.

        Raises the errors of `split`.
        """
        if not 1 <= cut.splits <= MAX_SPLITS:
            raise InvalidRequest(f"splits must be between 1 and {MAX_SPLITS:,}, not {cut.splits:,}")
        view = self.lease(snapshot_id).view
        chosen = view.select_buckets(cut.buckets)
        # Continues if the caller is cancelled, so that the next call finds the sample of the view.
        return await asyncio.shield(self._work.start(self._sample(view, cut))), chosen

    async def _sample(self, view: PinnedView, cut: SplitRequest) -> KeySample:
        with self._views.use(view):
            return await sample_view(view, self._executor, cut)

    async def drop(self, table: str, reason: ScanKvError) -> None:
        """Ends the snapshots of a table that is being dropped, and their scans with `reason`. The table is closed."""
        for lease in [lease for lease in self._leases.values() if lease.view.table == table]:
            self._forget(lease)
            lease.end()
        self._ended_ids.pop(table, None)
        await self._views.drop(table, reason)

    async def close(self) -> None:
        """Ends all work and closes all files. Leases and views stay on disk."""
        await self._reaper.close()
        for view in self._views:
            await view.end(ServerDraining("the server is shutting down"))
        await self._work.join()

    async def _free_name(self, table: str, name: str) -> None:
        """Ends the lease that has a name, if it has expired. Raises SnapshotExists if it has not."""
        for lease in [each for each in self._leases.values() if each.name == name and each.view.table == table]:
            if lease.expires > self._clock.monotonic():
                of, has = table_of(table), shown_id(lease.lease_id)
                raise SnapshotExists(
                    f'table {of} already has a snapshot named "{name}", with the id {has}: continue with it, release '
                    "it first, or choose another name",
                    table=of,
                    snapshot=has,
                )
            await self._end(lease)

    async def _make_place(self) -> None:
        """Ends the shared snapshot that was not renewed for the longest time, if the limit of leases is reached.

        If the principal has reached its own limit, ends one of its own that the caller may end.

        Of a table with tablets, ends the parts in this process. The owners of the other parts end them in the same way.
        """
        refusal, limit = self._share_refusal(), self._config.max_snapshot_leases
        if refusal is None and self._has_place():
            return
        # At the reserve for admins, the caller still gets the place of another one.
        own = share_for(new_owner(), limit, self._config.max_caller_share)
        has_share = refusal is None or len(self._leases_of(new_owner())) < own
        shared = [lease for lease in self._leases.values() if lease.is_shared and (has_share or _is_own_place(lease))]
        oldest = min(shared, key=lambda lease: lease.renewed_at, default=None)
        if oldest is not None and oldest.renewed_at + SHARED_LEASE_SECONDS <= self._clock.monotonic():
            snapshot_id = shown_id(oldest.lease_id)
            for lease in [each for each in shared if shown_id(each.lease_id) == snapshot_id]:
                await self._end(lease)

    def _has_place(self, lease_id: str = "") -> bool:
        """Whether the limit allows another lease. The parts of a snapshot count as one. Empty: a lease of any id."""
        limit = self._config.max_snapshot_leases
        if len(self._leases) + len(self._pending) < limit:
            return True
        taken = set(map(shown_id, (*self._leases, *self._pending)))
        return len(taken) < limit or shown_id(lease_id) in taken

    def _share_refusal(self, lease_id: str = "") -> str | None:
        """Returns why the caller may have no other lease. The parts of a snapshot count as one. None: it may."""
        limit = self._config.max_snapshot_leases
        if not new_owner():
            return None
        taken = set(map(shown_id, (*self._leases, *self._pending)))
        if shown_id(lease_id) in taken:
            return None
        mine = len(self._leases_of(new_owner()))
        return share_refusal("leases on snapshots", mine, len(taken), limit, self._config.max_caller_share)

    def _leases_of(self, principal: str) -> set[str]:
        """Returns the snapshots of which a principal has leases, or is taking them."""
        mine = {shown_id(each.lease_id) for each in self._leases.values() if each.principal == principal}
        return mine.union(shown_id(each) for each, owner in self._pending.items() if owner == principal)

    @contextmanager
    def _place_for(self, lease_id: str, table: str) -> Iterator[None]:
        """Counts a lease that is being taken."""
        if lease_id in self._pending:
            # Pins of one table take turns, so the id belongs to another table.
            raise InvalidRequest(f"the snapshot id {lease_id} is being taken for another table than {table}")
        if not self._has_place(lease_id):
            taken, limit = len(self._leases) + len(self._pending), self._config.max_snapshot_leases
            raise TooManySnapshots(
                f"there are {taken} leases on snapshots, and the limit is {limit}: release some, or raise "
                "max_snapshot_leases"
            )
        if (refusal := self._share_refusal(lease_id)) is not None:
            raise TooManySnapshots(refusal)
        self._pending[lease_id] = new_owner()
        try:
            yield
        finally:
            self._pending.pop(lease_id, None)

    def _new_lease(self, view: PinnedView, lease_id: str, record: LeaseRecord) -> Lease:
        ttl = self.default_ttl if record.ttl is None else record.ttl
        expires = self._clock.monotonic() + ttl
        return Lease(lease_id, view, ttl, expires, record.shared, record.name, record.pending, record.principal)

    async def _write_new(self, lease: Lease) -> None:
        """Makes a new lease durable, and then adds it."""
        async with lease.view.lease_files:
            try:
                await self._executor.run(_writing(lease, lease.principal))
            except BaseException:
                self._work.start(self._remove_file(lease.view, lease.lease_id))
                raise
            # Its time begins now.
            lease.expires = self._clock.monotonic() + lease.ttl
            self._add(lease)
            self._views.hold_log(lease.view)

    def _add(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        part = PartId.parse(lease.lease_id)
        if part is not None and part.tablet == 0 and not lease.pending:
            self._first_parts[part.snapshot_id] = lease
        lease.view.leases.add(lease.lease_id)
        self._reaper.notify(lease.expires)

    def _forget(self, lease: Lease) -> None:
        del self._leases[lease.lease_id]
        if self._first_parts.get(shown_id(lease.lease_id)) is lease:
            del self._first_parts[shown_id(lease.lease_id)]

    def lease(self, snapshot_id: str, table: str | None = None) -> Lease:
        """Returns a current lease on a view of a table (None: of any). Raises the errors of `reading`."""
        lease = self._leases.get(snapshot_id)
        if lease is None and table is not None:
            # The snapshot of a table with tablets, which is another table.
            lease = self._first_parts.get(snapshot_id)
        if lease is None or lease.expires <= self._clock.monotonic():
            raise lost_error(snapshot_id)
        if table is not None:
            check_lease_table(lease, table)
        return lease

    def table_of(self, snapshot_id: str) -> str | None:
        """Returns the table of a snapshot, even if its lease has just expired; None if no snapshot has this id."""
        lease = self._leases.get(snapshot_id) or self._first_parts.get(snapshot_id)
        return None if lease is None else lease.view.table

    async def _renew(self, lease: Lease, ttl: float | None) -> SnapshotInfo:
        # Rule: whoever renews a snapshot that nobody owns does not become its owner, because lists have its id.
        changed = ttl is not None and ttl != lease.ttl
        lease.ttl = lease.ttl if ttl is None else ttl
        lease.expires = self._clock.monotonic() + lease.ttl
        self._reaper.notify(lease.expires)
        if changed:
            await self._write_lease(lease)
        return self._info_of(lease)

    async def _write_lease(self, lease: Lease, principal: str | None = None) -> None:
        """Makes a change of a lease durable, and then gives it to a principal, if one is given.

        Raises SnapshotLost if it has ended.
        """
        async with lease.view.lease_files:
            # A lease that was released in the meantime must not come back.
            if self._leases.get(lease.lease_id) is not lease:
                raise lost_error(lease.lease_id)
            owner = lease.principal if principal is None else principal
            try:
                await self._executor.run(_writing(lease, owner))
            except FileNotFoundError:
                raise lost_error(lease.lease_id) from None
            lease.principal = owner

    def _info_of(self, lease: Lease) -> SnapshotInfo:
        return snapshot_info(lease, self._clock.monotonic())

    async def _end(self, lease: Lease) -> None:
        """Ends a lease: in memory at once, and on disk when this returns, also if this is cancelled."""
        if self._leases.get(lease.lease_id) is not lease:
            return
        self._forget(lease)
        lease.view.leases.discard(lease.lease_id)
        self._views.release_log(lease.view)
        lease.end()
        # None where the table was dropped in the meantime.
        ended = self._ended_ids.get(lease.view.table) if lease.shared else None
        if ended is not None:
            ended.add(shown_id(lease.lease_id))
        await asyncio.shield(self._work.start(self._remove_file(lease.view, lease.lease_id, ended)))

    async def _remove_file(self, view: PinnedView, lease_id: str, ended: EndedLeases | None = None) -> None:
        with self._views.use(view):
            async with view.lease_files:
                if ended is not None:
                    # Before the file of the lease is removed: after a crash in between, the lease exists again.
                    await self._executor.run(ended.write, shown_id(lease_id))
                if lease_id not in view.leases:
                    await self._executor.run(view.directory.remove_lease, lease_id)

    def _next_expiry(self) -> float | None:
        return min((lease.expires for lease in self._leases.values()), default=None)

    async def _expire(self) -> None:
        now = self._clock.monotonic()
        for lease in [lease for lease in self._leases.values() if lease.expires <= now]:
            try:
                await self._end(lease)
            except Exception:
                _log.exception("ending the lease %s", lease.lease_id)


def _is_own_place(lease: Lease) -> bool:
    """Whether a lease may make place for one that the call makes, because both belong to the same principal.

    An admin of some tables may name that principal. It may end nothing in other tables.
    """
    return lease.principal == new_owner() and lease_check(lease).allows(lease.principal)


def _writing(lease: Lease, principal: str) -> Callable[[], None]:
    """Returns a function that writes the file of a lease, which belongs to a principal."""
    write = lease.view.directory.write_lease
    return partial(
        write,
        lease.lease_id,
        lease.ttl,
        shared=lease.shared,
        name=lease.name,
        pending=lease.pending,
        principal=principal,
    )
