"""The pinned views of a server: takes them, closes those that are not read, and removes those without leases."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, TooManySnapshots
from scankv.model.tables.expiry import tick_of
from streaming_server.engine.bucket.call_point import now_of
from streaming_server.engine.snapshots.leases import lost_error
from streaming_server.engine.snapshots.pinned_view import PinnedView
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.file_limit import max_idle_checkpoints
from streaming_server.storage.snapshots.pinned_base import remove_base, write_delta
from streaming_server.storage.snapshots.snapshots import (
    PinnedBucket,
    ViewDirectory,
    ViewManifest,
    load_views,
    unshared_snapshot_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.snapshots.pinning import ViewPinner
    from streaming_server.engine.tasks.detached_tasks import DetachedTasks
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.snapshots.pinned_base import PinnedBase

IDLE_VIEWS_OPEN: Final = 8

_LOOK_SHARE: Final = 10
"""How long a measurement of the disk space that views hold is used, in multiples of the processor time it took."""

_log: Final = logging.getLogger(__name__)


class PinnedViews:
    """The pinned views of all tables. Bound to the event loop.

    A view stays while it has a lease or a user. The files of the views that were read last stay open.

    Args:
        config: The limit of the disk space that views hold.
        trash: The directory that removed files are moved to first.
        resources: Shared by all buckets of the process.
        executor: Runs blocking work.
        live: Returns an open table by name, or None.
        clock: The server's clock.
        max_hold_seconds: For how long taking a view may pause the writers of a table.
        tasks: Closes and removes views.
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
        max_hold_seconds: float,
        tasks: DetachedTasks,
    ) -> None:
        self._config = config
        self._trash = trash
        self._resources = resources
        self._executor = executor
        self._live = live
        self._clock = clock
        self._max_hold_seconds = max_hold_seconds
        self._tasks = tasks
        self._views: dict[str, PinnedView] = {}
        # The directories of the tables that have views.
        self._paths: dict[str, Path] = {}
        self._idle: OrderedDict[str, PinnedView] = OrderedDict()
        self._held, self._next_look = 0, -math.inf
        self._most_idle_checkpoints = max_idle_checkpoints(resources.files_per_store)

    def load(self, definition: TableDefinition, path: Path) -> list[PinnedView]:
        """Loads the views of a table from disk, and removes what a crash has left of others. Blocks."""
        views = []
        for directory in load_views(path, self._trash):
            manifest: ViewManifest | DataLoss
            try:
                manifest = directory.manifest()
                if manifest.definition.incarnation != definition.incarnation:
                    raise DataLoss(f"the snapshot manifest in {directory.path} is of another table")
            except DataLoss as error:
                _log.error("DATA_LOSS: %s", error.message)
                manifest = type(error)(error.message, table=definition.name, view=directory.view_id)
            views.append(self._add(definition.name, path, directory, manifest))
        return views

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[PinnedView]:
        return iter(list(self._views.values()))

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """Returns the retention holds on the changelog of a bucket: offset by owner. May be called in any thread."""
        return {
            _log_owner(view.view_id): view.manifest.buckets[bucket].log_offset
            for view in self
            if view.table == table and view.leases and view.is_readable
        }

    async def held_bytes(self) -> int:
        """Returns the bytes on disk that only views keep. Reads directories."""
        return await self._executor.run(unshared_snapshot_bytes, self._table_paths())

    def _table_paths(self) -> list[Path]:
        return [self._paths[table] for table in {view.table for view in self._views.values()}]

    async def take(self, pinning: ViewPinner) -> tuple[PinnedView, int]:
        """Takes a view of a table as of now, or finds an equal one. Call it in `pinning.exclude_others`.

        Returns the view, and for how many microseconds writers were paused.

        Raises:
            SnapshotNotTaken: Writers would have been paused for too long.
            TooManySnapshots: The limit of the disk space that views hold is reached.
            DataLoss: A bucket is damaged.
        """
        table = pinning.table
        name = table.definition.name
        if any(view.table == name for view in self._views.values()):
            offsets = await pinning.offsets()
            now = _position(offsets, table.definition, now_of(table.clock))
            for view in self._views.values():
                if view.table == name and view.is_readable and _position_of(view.manifest) == now:
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
        return self._add(name, table.path, directory, manifest), cut.write_pause_micros

    async def _check_disk(self) -> None:
        """Refuses a new view if the existing views held all of the allowed disk space at the last measurement.

        Rule: the cost of a pin does not grow with the number of pins that are kept. A measurement reads the directories
        of all views, so measurements take at most a tenth of a core.
        """
        if self._clock.monotonic() >= self._next_look:
            self._held, seconds = await self._executor.run(_measure, unshared_snapshot_bytes, self._table_paths())
            self._next_look = self._clock.monotonic() + _LOOK_SHARE * seconds
        held, limit = self._held, self._config.max_snapshot_bytes
        if held >= limit:
            raise TooManySnapshots(
                f"snapshots hold {held} bytes on disk, and the limit is {limit}: release some, or raise "
                "max_snapshot_bytes"
            )

    def _add(self, table: str, path: Path, directory: ViewDirectory, manifest: ViewManifest | DataLoss) -> PinnedView:
        view = PinnedView(table, directory, manifest, self._resources, self._executor)
        self._views[view.view_id] = view
        self._paths[table] = path
        return view

    def hold_log(self, view: PinnedView) -> None:
        """Retains the changes from a leased view on; in a bucket that is not open, as soon as it is opened."""
        table = self._live(view.table)
        if table is None or not view.is_readable:
            return
        for number, bucket in view.manifest.buckets.items():
            live = table.buckets[number]
            # Changes that are gone cannot be retained, and a hold on them would retain everything after them.
            if live.state is not None and count_of(bucket.log_offset) >= live.state.log_first:
                live.retain_log(_log_owner(view.view_id), bucket.log_offset)

    def release_log(self, view: PinnedView) -> None:
        """Ends the retention hold of a view that has no lease."""
        table = self._live(view.table)
        if table is None or view.leases:
            return
        for live in table.buckets:
            live.release_log(_log_owner(view.view_id))

    @contextmanager
    def use(self, view: PinnedView) -> Iterator[None]:
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
            self.release_log(view)
            self._forget(view)
            view.removal = self._tasks.start(self._remove(view))
        elif view.open_checkpoints:
            self._idle[view.view_id] = view
            while len(self._idle) > IDLE_VIEWS_OPEN or self._idle_checkpoints() > self._most_idle_checkpoints:
                self._tasks.start(self._idle.popitem(last=False)[1].close())

    def _idle_checkpoints(self) -> int:
        return sum(view.open_checkpoints for view in self._idle.values())

    def _forget(self, view: PinnedView) -> None:
        del self._views[view.view_id]
        self._idle.pop(view.view_id, None)

    async def _remove(self, view: PinnedView) -> None:
        await view.end(lost_error(view.view_id))
        await self._executor.run(view.directory.remove, self._trash)

    async def drop(self, table: str, reason: ScanKvError) -> None:
        """Forgets the views of a table that is being dropped, and ends their scans with `reason`."""
        views = [view for view in self if view.table == table]
        for view in views:
            self._forget(view)
        self._paths.pop(table, None)
        for view in views:
            await view.end(reason)


def _log_owner(view_id: str) -> str:
    """Returns the owner of a view's retention hold."""
    return f"snapshot:{view_id}"


def _keep_bases(directory: ViewDirectory, bases: Mapping[int, BaseView]) -> dict[int, PinnedBase]:
    """Writes the merged deltas of some bases next to their files. Leaves out a base whose delta cannot be written."""
    kept = {}
    for number, view in bases.items():
        try:
            net = view.delta.merge()
            kept[number] = write_delta(directory.base(number), view.base.info.name, net.keys, net.values)
        except OSError as error:
            _log.warning("a snapshot goes without the columnar base of %s: %s", view.location, error)
            remove_base(directory.base(number))
    return kept


def _position_of(manifest: ViewManifest) -> tuple[object, ...]:
    offsets = {number: one.log_offset for number, one in manifest.buckets.items()}
    return _position(offsets, manifest.definition, manifest.view_micros)


def _position(offsets: Mapping[int, int], definition: TableDefinition, micros: int) -> tuple[object, ...]:
    """Returns what differs between two views of a table unless they have the same rows."""
    expiry = definition.expiry
    expired = None if expiry is None else (expiry.column.id, expiry.seconds, expiry.since_micros, tick_of(micros))
    return dict(offsets), definition.schema.id, expired


def _measure(function: Callable[[list[Path]], int], paths: list[Path]) -> tuple[int, float]:
    """Calls a function. Returns its result, and the seconds of processor time that it took in this thread."""
    began = time.thread_time()
    return function(paths), time.thread_time() - began
