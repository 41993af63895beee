"""Column locks: leases by which one writer keeps columns of a table to itself."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import (
    ColumnLocked,
    InvalidRequest,
    LockLost,
    SchemaMismatch,
    TableNotFound,
    TooManyLocks,
    did_you_mean,
)
from scankv.model.limits import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from scankv.model.names import check_writer_id
from streaming_server.engine.snapshots.leases import check_lease_id
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.storage.tables.column_locks import LockFile, LockRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.tasks.executor import StorageExecutor

DEFAULT_LOCK_SECONDS: Final = 30.0
"""Seconds that a lock lives without being renewed, when its taker does not say."""

_MAX_LOCKS: Final = 100
"""Locks of one table at once."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class ColumnLock:
    """One lock: of a table's columns, until `expires` on the monotonic clock of the server."""

    lock_id: str
    table: str
    columns: tuple[str, ...]
    owner: str
    ttl: float
    expires: float
    clock: ServerClock

    @property
    def remaining(self) -> float:
        """Seconds that are left of it."""
        return max(self.expires - self.clock.monotonic(), 0.0)


class TableLocks:
    """The locks of one table, and the writes that they have to wait for. Bound to the event loop.

    Args:
        definition: The table, as of when it was made or loaded.
        path: Its directory.
        executor: Runs what blocks.
        clock: The server's.
    """

    def __init__(self, definition: TableDefinition, path: Path, executor: StorageExecutor, clock: ServerClock) -> None:
        self._clock = clock
        self.table = definition.name
        self._file = LockFile(path)
        self._executor = executor
        self._locks: dict[str, ColumnLock] = {}
        self._writes: set[asyncio.Future[None]] = set()
        # Held while the file is written, so that it ends as what is in memory.
        self._changing = asyncio.Lock()
        self._closed = False
        for record in self._file.read():
            self._locks[record.lock_id] = self._of(record)

    def _of(self, record: LockRecord) -> ColumnLock:
        return ColumnLock(
            lock_id=record.lock_id,
            table=self.table,
            columns=record.columns,
            owner=record.owner,
            ttl=record.ttl,
            expires=self._clock.monotonic() + record.ttl,
            clock=self._clock,
        )

    def live(self) -> list[ColumnLock]:
        """Those that have not expired, by their ids."""
        return sorted((lock for lock in self._locks.values() if lock.remaining), key=lambda lock: lock.lock_id)

    @contextmanager
    def admitted(self, columns: Collection[str] | None, held: Collection[str]) -> Iterator[None]:
        """Lets a write go on: a lock that is taken meanwhile is given only behind it.

        Rule: a write that names a lock is applied only while that lock lives. A holder that was paused, or whose lock a
        restarted owner has taken over, believes to be alone and is not; so it is refused also when nobody has the
        columns locked by then.

        Args:
            columns: The columns that it may change. None: all, as a delete of whole rows does.
            held: The ids of the locks that the writer has.

        Raises:
            LockLost: A lock that the writer names has ended, or is not of this table.
            ColumnLocked: Somebody else has locked one of them.
        """
        for lock_id in held:
            self._found(lock_id)
        for lock in self.live():
            if lock.lock_id not in held and (columns is None or not set(columns).isdisjoint(lock.columns)):
                raise _locked(lock, lock.columns if columns is None else columns)
        over = asyncio.get_running_loop().create_future()
        self._writes.add(over)
        try:
            yield
        finally:
            self._writes.discard(over)
            over.set_result(None)

    async def lock(
        self,
        definition: TableDefinition,
        columns: Sequence[str],
        owner: str,
        lock_id: str,
        ttl: float | None,
        *,
        take_over: bool = False,
    ) -> ColumnLock:
        """Locks columns for an owner, durably; writes of others that have begun are over when this returns.

        Args:
            definition: The table's current definition.
            columns: The columns.
            owner: What others are told.
            lock_id: Names the lock: one that is there already is renewed. Empty: the table's choice.
            ttl: Its time to live, in seconds. None: the default.
            take_over: Whether other locks of the same owner on any of the columns end in its place, in the same step.

        Raises:
            InvalidRequest, SchemaMismatch: What is wrong with the columns, the owner, the id or the time to live.
            ColumnLocked: Another lock has one of the columns.
            TooManyLocks: There are as many as there may be.
        """
        seconds = DEFAULT_LOCK_SECONDS if ttl is None else ttl
        _check(definition, columns, owner, lock_id, seconds)
        async with self._changing:
            known = self._locks.get(lock_id)
            if known is not None and (set(known.columns), known.owner) != (set(columns), owner):
                raise InvalidRequest(f"there is a column lock {lock_id} of other columns, or of another owner")
            ended = self._of_owner(owner, columns) if take_over else []
            self._check_free(columns, {lock_id, *ended})
            record = LockRecord(lock_id=lock_id or uuid.uuid4().hex, columns=tuple(columns), owner=owner, ttl=seconds)
            locks = self._locks
            self._locks = {name: each for name, each in locks.items() if name not in ended}
            lock = self._locks[record.lock_id] = self._of(record)
            try:
                await self._store()
            except BaseException:
                self._locks = locks
                raise
            if ended:
                _log.info('"%s" has taken over %d column locks of %s', owner, len(ended), self.table)
        before = list(self._writes)
        if before:
            await asyncio.wait(before)
        lock.expires = self._clock.monotonic() + lock.ttl
        return lock

    def _of_owner(self, owner: str, columns: Sequence[str]) -> list[str]:
        """The ids of the locks that an owner has on any of the columns."""
        mine = (lock for lock in self.live() if lock.owner == owner)
        return [lock.lock_id for lock in mine if not set(columns).isdisjoint(lock.columns)]

    def _check_free(self, columns: Sequence[str], but: Collection[str]) -> None:
        live = [lock for lock in self.live() if lock.lock_id not in but]
        for lock in live:
            if not set(columns).isdisjoint(lock.columns):
                raise _locked(lock, columns)
        if len(live) >= _MAX_LOCKS:
            raise TooManyLocks(
                f"table {self.table} has {len(live)} column locks, which is the limit: release some", table=self.table
            )

    async def renew(self, lock_id: str, ttl: float | None) -> ColumnLock:
        """Begins a lock's time to live anew, or (with `ttl`) another one. Raises LockLost, InvalidRequest."""
        if ttl is not None:
            _check_ttl(ttl)
        async with self._changing:
            lock = self._found(lock_id)
            seconds = lock.ttl if ttl is None else ttl
            changed, lock.ttl, lock.expires = seconds != lock.ttl, seconds, self._clock.monotonic() + seconds
            if changed:
                await self._store()
        return lock

    async def release(self, lock_id: str) -> None:
        """Ends a lock, durably. Raises LockLost."""
        async with self._changing:
            self._found(lock_id)
            await self._remove([lock_id])

    async def expire(self) -> None:
        """Forgets the locks that have expired."""
        async with self._changing:
            expired = [lock.lock_id for lock in self._locks.values() if not lock.remaining]
            if expired:
                _log.info("%d column locks of %s have expired", len(expired), self.table)
                await self._remove(expired)

    def next_expiry(self) -> float | None:
        """When the first of the locks expires, on the monotonic clock; None without locks."""
        return min((lock.expires for lock in self._locks.values()), default=None)

    async def close(self) -> None:
        """Refuses further locks, because the table is dropped; returns when nobody writes the file any more."""
        self._closed = True
        async with self._changing:
            pass

    def has(self, lock_id: str) -> bool:
        """Whether there is a lock of that id, and it has not expired."""
        lock = self._locks.get(lock_id)
        return lock is not None and bool(lock.remaining)

    def _found(self, lock_id: str) -> ColumnLock:
        if not self.has(lock_id):
            raise lock_lost(lock_id)
        return self._locks[lock_id]

    async def _remove(self, lock_ids: Sequence[str]) -> None:
        # First on disk: should that fail, they are still there, and end when they expire.
        before = dict(self._locks)
        for lock_id in lock_ids:
            del self._locks[lock_id]
        try:
            await self._store()
        except BaseException:
            self._locks = before
            raise

    async def _store(self) -> None:
        if self._closed:
            raise _dropped(self.table)
        records = [
            LockRecord(lock_id=lock.lock_id, columns=lock.columns, owner=lock.owner, ttl=lock.ttl)
            for lock in self._locks.values()
        ]
        await self._executor.run(self._file.write, records)


class ColumnLocks:
    """The column locks of all tables. Bound to the event loop.

    Args:
        executor: Runs what blocks.
        clock: The server's.
    """

    def __init__(self, executor: StorageExecutor, clock: ServerClock) -> None:
        self._executor = executor
        self._clock = clock
        self._tables: dict[str, TableLocks] = {}
        self._reaper = Reaper(self._next_expiry, self._expire, clock)

    def add(self, definition: TableDefinition, path: Path) -> None:
        """Takes notice of a table, and of the locks that its directory has: their time to live begins now."""
        self._tables[definition.name] = TableLocks(definition, path, self._executor, self._clock)

    async def drop(self, table: str) -> None:
        """Forgets the locks of a table that is being dropped."""
        locks = self._tables.pop(table, None)
        if locks is not None:
            await locks.close()

    def of(self, table: str) -> TableLocks:
        """The locks of one table. Raises TableNotFound."""
        if table not in self._tables:
            raise _dropped(table)
        return self._tables[table]

    def with_id(self, lock_id: str) -> TableLocks:
        """The locks of the table that has this one. Raises LockLost."""
        for locks in self._tables.values():
            if locks.has(lock_id):
                return locks
        raise lock_lost(lock_id)

    def listed(self, table: str | None) -> list[ColumnLock]:
        """The locks of one table, or of all, by table and id."""
        chosen = [self.of(table)] if table is not None else [self._tables[name] for name in sorted(self._tables)]
        return [lock for locks in chosen for lock in locks.live()]

    def start(self) -> None:
        """Starts letting locks expire, until `close`."""
        self._reaper.start()

    def notify(self, lock: ColumnLock) -> None:
        """Takes notice of a lock that was taken, or given another time to live."""
        self._reaper.notify(lock.expires)

    async def close(self) -> None:
        """Stops that. Locks stay on disk."""
        await self._reaper.close()

    def _next_expiry(self) -> float | None:
        expiries = [locks.next_expiry() for locks in self._tables.values()]
        return min((expiry for expiry in expiries if expiry is not None), default=None)

    async def _expire(self) -> None:
        # One table's failing disk does not keep the others' locks.
        await all_ended(locks.expire() for locks in list(self._tables.values()))


def _dropped(table: str) -> TableNotFound:
    return TableNotFound(f'table "{table}" was dropped', table=table)


def lock_lost(lock_id: str) -> LockLost:
    """The error for an id that names no lock."""
    return LockLost(
        f"there is no column lock {lock_id[:64]!r}: it was released, has expired, went with its table, or never was; "
        "take a new one",
        lock=lock_id[:64],
    )


def _locked(lock: ColumnLock, columns: Collection[str]) -> ColumnLocked:
    names = ", ".join(sorted(set(lock.columns).intersection(columns)))
    seconds = round(lock.remaining, 1)
    return ColumnLocked(
        f'"{lock.owner}" has locked {names} of {lock.table}, for another {seconds:g} s unless that is renewed; nothing '
        "was written: write other columns, or wait",
        table=lock.table,
        owner=lock.owner,
        columns=names,
        seconds=seconds,
    )


def _check(definition: TableDefinition, columns: Sequence[str], owner: str, lock_id: str, ttl: float) -> None:
    check_writer_id(owner)
    if lock_id:
        check_lease_id(lock_id)
    _check_ttl(ttl)
    if not columns:
        raise InvalidRequest("a column lock is of at least one column: name those that the writer fills")
    if len(set(columns)) != len(columns):
        raise InvalidRequest("a column is named twice")
    names = definition.schema.arrow.names
    for name in columns:
        if name not in names:
            raise SchemaMismatch(
                f'table {definition.name} has no column "{name}"{did_you_mean(name, names)}', column=name
            )
        if name in definition.primary_key:
            raise InvalidRequest(f'column "{name}" is of the key, which no write changes: it cannot be locked')


def _check_ttl(ttl: float) -> None:
    if not MIN_LEASE_SECONDS <= ttl <= MAX_LEASE_SECONDS:
        raise InvalidRequest(
            f"a column lock's time to live is {ttl:g} s: it must be from {MIN_LEASE_SECONDS:g} to {MAX_LEASE_SECONDS:g}"
        )
