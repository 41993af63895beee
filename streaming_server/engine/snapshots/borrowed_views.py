"""Views of tables that other worker processes own: read here for as long as their owners lend them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, ScanKvError, ServerDraining
from streaming_server.engine.snapshots.pinned_view import PinnedView
from streaming_server.engine.snapshots.pinned_views import IDLE_VIEWS_OPEN
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.storage.files.file_limit import max_idle_checkpoints
from streaming_server.storage.snapshots.borrowed_directory import BorrowedDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from streaming_server.engine.snapshots.loans import Lender, Loan
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.snapshots.snapshots import ViewManifest

IDLE_SECONDS: Final = 5.0
"""How long the files of a borrowed view stay open after its last reader. Tasks of one query follow each other sooner.
The disk space of a view that its owner has removed is free only once they are closed."""

_BORROWED: Final[ContextVar[tuple[str, BorrowedView] | None]] = ContextVar("scankv_borrowed_view", default=None)
"""The snapshot whose view the current call has borrowed, with the view."""

_log: Final = logging.getLogger(__name__)


class BorrowedView(PinnedView):
    """One view that another process keeps.

    Args:
        table: The name of its table.
        directory: Its directory.
        manifest: Its manifest.
        resources: Shared by all buckets of the process.
        executor: Runs blocking work.
    """

    def __init__(
        self,
        table: str,
        directory: BorrowedDirectory,
        manifest: ViewManifest,
        resources: RocksResources,
        executor: StorageExecutor,
    ) -> None:
        super().__init__(table, directory, manifest, resources, executor)
        self._files = directory

    async def end(self, reason: ScanKvError) -> None:
        """See `PinnedView`. Also removes the links to its files."""
        await super().end(reason)
        await self.executor.run(self._files.remove_links)


class BorrowedViews:
    """The views that a worker process has borrowed. Bound to the event loop.

    Rule: a call reads a view only within a loan of its own, which the owner grants only while the snapshot exists. So a
    snapshot that has ended at its owner is not served here, even if the files of its view are still open.

    Args:
        lender: Borrows views from their owners.
        path_of: Returns the directory of a table.
        resources: Shared by all buckets of the process.
        executor: Runs blocking work.
    """

    def __init__(
        self,
        lender: Lender,
        path_of: Callable[[str], Path],
        resources: RocksResources,
        executor: StorageExecutor,
    ) -> None:
        self._lender = lender
        self._path_of = path_of
        self._resources = resources
        self._executor = executor
        self._views: dict[str, BorrowedView] = {}
        # When the unused ones are closed; the one that was used last comes last.
        self._idle: OrderedDict[str, asyncio.TimerHandle] = OrderedDict()
        self._most_idle_checkpoints = max_idle_checkpoints(resources.files_per_store)
        self._work = DetachedTasks("closing a borrowed snapshot view failed: %s")

    def __len__(self) -> int:
        return len(self._views)

    @asynccontextmanager
    async def borrow(self, snapshot_id: str, table: str) -> AsyncIterator[None]:
        """Has the owner of a table keep the view of a snapshot for the block, in which the current call may read it.

        Raises:
            SnapshotLost, TableNotFound, InvalidRequest, PermissionDenied, Unavailable: As `Lender.borrow`.
            DataLoss: The manifest of the view is damaged.
        """
        async with self._lender.borrow(table, snapshot_id) as loan:
            view = await self._find(table, loan)
            loan.on_lost(partial(self._end, view))
            with self._use(view):
                token = _BORROWED.set((snapshot_id, view))
                try:
                    yield
                finally:
                    _BORROWED.reset(token)

    async def _find(self, table: str, loan: Loan) -> BorrowedView:
        found = self._views.get(loan.view_id)
        if found is not None:
            return found
        directory = BorrowedDirectory(self._path_of(table), loan.view_id, self._lender.aliases)
        try:
            manifest = await self._executor.run(directory.manifest)
        except DataLoss:
            if directory.exists():
                raise
            raise directory.gone_error() from None
        if manifest.definition.incarnation != loan.incarnation:
            # The table was replaced since the loan was granted. The owner, which checks the manifests that it keeps,
            # says what became of the snapshot.
            raise directory.gone_error()
        # Another call may have found it in the meantime.
        view = BorrowedView(table, directory, manifest, self._resources, self._executor)
        return self._views.setdefault(loan.view_id, view)

    @contextmanager
    def _use(self, view: BorrowedView) -> Iterator[None]:
        """Keeps the files of a view open for the length of the block."""
        timer = self._idle.pop(view.view_id, None)
        if timer is not None:
            timer.cancel()
        view.users += 1
        try:
            yield
        finally:
            view.users -= 1
            if view.users == 0 and self._views.get(view.view_id) is view:
                self._rest(view)

    def _rest(self, view: BorrowedView) -> None:
        """Closes a view that has no user if it gets none soon. Closes others if too many are open."""
        close = partial(self._end, view, self._unused_error(view.view_id))
        self._idle[view.view_id] = asyncio.get_running_loop().call_later(IDLE_SECONDS, close)
        while len(self._idle) > IDLE_VIEWS_OPEN or self._idle_checkpoints() > self._most_idle_checkpoints:
            oldest = self._views[next(iter(self._idle))]
            self._end(oldest, self._unused_error(oldest.view_id))

    @staticmethod
    def _unused_error(view_id: str) -> ServerDraining:
        return ServerDraining(f"the files of the snapshot view {view_id} were closed")

    def _idle_checkpoints(self) -> int:
        return sum(self._views[view_id].open_checkpoints for view_id in self._idle)

    def _end(self, view: BorrowedView, reason: ScanKvError) -> None:
        """Ends the scans of a view with a reason, and closes its files. A later loan opens them again."""
        if self._views.get(view.view_id) is not view:
            return
        del self._views[view.view_id]
        timer = self._idle.pop(view.view_id, None)
        if timer is not None:
            timer.cancel()
        if view.users:
            _log.info("ending %d scans of the snapshot view %s: %s", view.users, view.view_id, reason.message)
        self._work.start(view.end(reason))

    async def close(self) -> None:
        """Ends all scans, and closes all files."""
        for view in list(self._views.values()):
            self._end(view, ServerDraining("the server is shutting down"))
        await self._work.join()


def borrowed_view(snapshot_id: str, table: str) -> BorrowedView | None:
    """Returns the view of a snapshot if the current call has borrowed it."""
    found = _BORROWED.get()
    if found is None or found[0] != snapshot_id or found[1].table != table:
        return None
    return found[1]
