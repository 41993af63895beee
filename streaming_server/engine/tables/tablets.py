"""The tablets that this process owns, even if another worker process owns their table.

One file defines a table, and only the owner of the table writes this file. The owner of a tablet reads the file at its
start, and whenever the owner of the table reports that the file is about to change or has changed. So what the file
says holds, even if a process ends in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from scankv.model.errors import ScanKvError, TableNotFound, Unavailable
from scankv.model.names import table_of
from streaming_server.engine.bucket.commit_barrier import lock_behind_barriers
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.engine.transactions.table_usage_lock import TableUsageLock
from streaming_server.storage.bootstrap.taken_in import has_taken_in

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.changelog.consumer_registry import ConsumerRegistry
    from streaming_server.engine.snapshots.snapshots import Snapshots
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.transactions import Transactions
    from streaming_server.engine.writes.column_locks import ColumnLocks
    from streaming_server.storage.tables.catalog import Catalog

NotifyOwners: TypeAlias = Callable[[str, bool], Awaitable[None]]
"""Calls `Tablets.follow` at all other worker processes. Raises ConnectionFailed if one of them does not answer."""

_CLOSED_SECONDS: Final = 10.0
"""For how long tablets stay closed if the owner of the table ends before it reports whether the table was dropped."""

_RETRY_SECONDS: Final = 0.2

_NOTIFY_SECONDS: Final = 1.0

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Tablets:
    """The tablets that this process owns, of all tables. Bound to the event loop.

    Args:
        catalog: The definitions of this process.
        executor: Runs blocking work.
        live: The open tables and tablets, by name.
        snapshots: The snapshots of the tables and tablets.
        consumers: The consumers of the tables.
        locks: The column locks of the tables.
        ddl: Held while tables of this process are created, altered or dropped, and while the other processes are
            notified of that. They follow without their own `ddl`, since they may be altering tables, too.
        clock: The clock of the server.
        transactions: Returns the transactions of this process.
        table: Returns a table or tablet, and opens it.

    Attributes:
        writers: By incarnation and writer, keeps a writer of a table with tablets from being opened while a request of
            the writer is written.
        notify_owners: Notifies the other worker processes. None: no others exist.
        following: Held while this process follows a table. Taken after `ddl`, and never held while another process is
            called.
    """

    catalog: Catalog
    executor: StorageExecutor
    live: dict[str, LiveTable]
    snapshots: Snapshots
    consumers: ConsumerRegistry
    locks: ColumnLocks
    ddl: asyncio.Lock
    clock: ServerClock
    transactions: Callable[[], Transactions]
    table: Callable[[str], LiveTable]
    writers: TableUsageLock = field(default_factory=TableUsageLock)
    notify_owners: NotifyOwners | None = None
    following: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: dict[str, float] = field(default_factory=dict)
    _notifying: DetachedTasks = field(default_factory=DetachedTasks)
    _follows: DetachedTasks = field(default_factory=DetachedTasks)
    _catching_up: set[str] = field(default_factory=set)
    _is_closing: bool = False

    @asynccontextmanager
    async def unchanging(self) -> AsyncIterator[None]:
        """Keeps tables and tablets of this process from being created, altered or dropped."""
        async with self.ddl, self.following:
            yield

    def check_open(self, name: str) -> None:
        """Raises Unavailable for a tablet of a table that is about to be dropped."""
        if self.is_closed(table_of(name)):
            raise _being_dropped(table_of(name))

    def is_closed(self, table: str) -> bool:
        """Whether the tablets of a table are closed, because it is about to be dropped."""
        since = self._closed.get(table)
        return since is not None and self.clock.monotonic() - since < _CLOSED_SECONDS

    def find(self, name: str) -> None:
        """Reads the definition of a tablet that this process does not know yet, if it exists. Blocks briefly."""
        self._add(self.catalog.reload(table_of(name))[1])

    async def notify(self, table: TableDefinition, *, closing: bool = False) -> None:
        """Has the owners of all tablets of an own table follow it: see `follow`. Hold `ddl`.

        Raises:
            ConnectionFailed: One of them does not answer.
        """
        if table.tablets > 1:
            await self.follow(table.name, closing=closing)
            if self.notify_owners is not None:
                await self.notify_owners(table.name, closing)

    async def close_all(self, table: TableDefinition) -> None:
        """Closes all tablets of an own table that is about to be dropped, or none. As `notify`."""
        try:
            await self.notify(table, closing=True)
        except BaseException:
            await self.notify_reliably(table)
            raise

    async def notify_reliably(self, table: TableDefinition) -> None:
        """As `notify`, after a change that is done: owners that cannot follow are notified again in the background."""
        try:
            await self.notify(table)
        except ScanKvError as error:
            _log.warning("some workers do not know a change of table %s yet: %s", table.name, error.message)
            self._notifying.start(self._notify_again(table))

    async def _notify_again(self, table: TableDefinition) -> None:
        is_known = False
        while not is_known and not self._is_closing:
            await asyncio.sleep(_NOTIFY_SECONDS)
            async with self.ddl:
                with suppress(ScanKvError):
                    await self.notify(table)
                    is_known = True

    def stop_notifying(self) -> None:
        """Ends notifications in the background: the owners read the table when they start again."""
        self._is_closing = True

    async def join(self) -> None:
        """Returns once all notifications in the background have ended."""
        await self._notifying.join()
        await self._follows.join()

    async def follow(self, table: str, *, closing: bool) -> bool:
        """Follows a table that its owner has created or altered, has dropped, or is about to drop.

        Args:
            table: The table.
            closing: Whether the table is about to be dropped. Its tablets are then closed until the next call.

        Returns:
            Whether tablets of the table were dropped.
        """
        return await asyncio.shield(self._follows.start(self._follow_in_turn(table, closing=closing)))

    async def _follow_in_turn(self, table: str, *, closing: bool) -> bool:
        async with self.following:
            return await self._follow(table, closing=closing)

    async def _follow(self, table: str, *, closing: bool) -> bool:
        if closing:
            self._closed[table] = self.clock.monotonic()
            for name in [name for name in self.live if name != table and table_of(name) == table]:
                async with self.transactions().uses.altering(name):
                    await self.live[name].close(_being_dropped(table))
                    del self.live[name]
            return False
        before, now = await self.executor.run(self.catalog.reload, table)
        by_name, are_dropped = {each.name: each for each in now}, False
        for old in before:
            new = by_name.get(old.name)
            if new is None or new.incarnation != old.incarnation:
                are_dropped = True
                await self._forget(old.name, TableNotFound(f'table "{table}" was dropped', table=table))
        for new in now:
            # Compared with what is open, not with what was read before: an earlier call may have failed in between.
            if (live := self.live.get(new.name)) is not None and live.definition != new:
                # Rows are checked against the definition before they are committed, and applied after that. A hold also
                # locks the mutexes, so all views that are opened under holds of several tablets have one definition.
                async with self.transactions().uses.altering(new.name), lock_behind_barriers([*live.buckets]):
                    live.alter(new)
        known = {each.name: each.incarnation for each in before}
        added = [each for each in now if known.get(each.name) != each.incarnation]
        self._add(added)
        self._closed.pop(table, None)
        for each in added:
            if each.indexes and has_taken_in(self.catalog.path(table)):
                self.table(each.name).build_indexes()
        for each in now:
            if each in before:
                # The table may be about to get an index, for which these rows were not checked.
                self.transactions().check_applied(each.name, each.incarnation)
        return are_dropped

    def catch_up(self, table: str) -> None:
        """Follows a table in the background, after a call has shown that this process has an old definition."""
        if not self.is_closed(table) and table not in self._catching_up:
            self._catching_up.add(table)
            self._notifying.start(self._catch_up(table))

    async def _catch_up(self, table: str) -> None:
        try:
            async with self.following:
                # The table may have been closed in the meantime.
                if not self.is_closed(table):
                    await self._follow(table, closing=False)
        except ScanKvError as error:
            _log.warning("the definition of table %s cannot be read: %s", table, error.message)
        finally:
            self._catching_up.discard(table)

    def _add(self, tablets: list[TableDefinition]) -> None:
        for each in tablets:
            path = self.catalog.path(each.name)
            self.snapshots.load(each, path)
            self.consumers.load(each, path)
            self.locks.add(each, path)

    async def _forget(self, name: str, reason: TableNotFound) -> None:
        live = self.live.pop(name, None)
        if live is not None:
            await live.close(reason)
        await self.snapshots.drop(name, reason)
        await self.consumers.drop(name)
        await self.locks.drop(name)


def _being_dropped(table: str) -> Unavailable:
    return Unavailable(f"table {table} is being dropped: try again", retry_after=_RETRY_SECONDS)
