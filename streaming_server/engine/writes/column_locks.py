"""Column locks: leases with which one writer reserves columns of a table for its own writes."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
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
from streaming_server.access.owners import NAMED_OWNER, new_owner, owner_check, share_refusal
from streaming_server.engine.snapshots.leases import check_lease_id
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.storage.tables.column_locks import LockFile, LockRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.tasks.executor import StorageExecutor

DEFAULT_LOCK_SECONDS: Final = 30.0
"""The default time to live of a lock, in seconds."""

_MAX_LOCKS: Final = 100
"""The most locks of one table at a time."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class HeldColumnLock:
    """A lock on columns of a table that ends at `expires` on the server's monotonic clock.

    `owner` is a name that its client has chosen. The lock belongs to the principal `principal`; empty: to nobody.
    """

    lock_id: str
    table: str
    columns: tuple[str, ...]
    owner: str
    ttl: float
    expires: float
    clock: ServerClock
    principal: str = ""

    def check_principal(self) -> None:
        """Raises PermissionDenied if it belongs to another principal, and the caller is no admin of the table."""
        owner_check(f"the column lock {self.lock_id}", [self.table])(self.principal)

    @property
    def remaining(self) -> float:
        """The remaining time to live, in seconds."""
        return max(self.expires - self.clock.monotonic(), 0.0)


class TableColumnLocks:
    """The locks of one table, and the running writes that a new lock waits for. Bound to the event loop.

    Args:
        definition: The table's definition when it was created or loaded.
        path: Its directory.
        executor: Runs blocking work.
        clock: The server's clock.
        share: The share of the locks that one principal may have.
    """

    def __init__(
        self, definition: TableDefinition, path: Path, executor: StorageExecutor, clock: ServerClock, share: float
    ) -> None:
        self._clock = clock
        self._share = share
        self.table = definition.name
        self._file = LockFile(path)
        self._executor = executor
        self._locks: dict[str, HeldColumnLock] = {}
        self._writes: set[asyncio.Future[None]] = set()
        # Held while the file is written, so that the file ends up equal to memory.
        self._changing = asyncio.Lock()
        self._closed = False
        for record in self._file.read():
            self._locks[record.lock_id] = self._of(record)

    def _of(self, record: LockRecord) -> HeldColumnLock:
        return HeldColumnLock(
            lock_id=record.lock_id,
            table=self.table,
            columns=record.columns,
            owner=record.owner,
            ttl=record.ttl,
            expires=self._clock.monotonic() + record.ttl,
            clock=self._clock,
            principal=record.principal,
        )

    def live(self) -> list[HeldColumnLock]:
        """Returns the locks that have not expired, by id."""
        return sorted((lock for lock in self._locks.values() if lock.remaining), key=lambda lock: lock.lock_id)

    @contextmanager
    def admit(self, columns: Collection[str] | None, held: Collection[str]) -> Iterator[None]:
        """Admits a write for the length of the block; a lock that is requested during it waits for its end.

        Rule: a write that names a lock is applied only while that lock lives. A holder that was paused, or whose lock a
        restarted owner has taken over, wrongly believes that it is the only writer. So its write is refused even if the
        columns are no longer locked.

        Args:
            columns: The columns that the write may change. None: all, as in a delete of complete rows.
            held: The ids of the locks that the writer holds.

        Raises:
            LockLost: A lock that the writer names has ended, or is on another table.
            PermissionDenied: A lock that the writer names belongs to another principal.
            ColumnLocked: Another owner has locked one of the columns.
        """
        for lock_id in held:
            self._get(lock_id).check_principal()
        for lock in self.live():
            if lock.lock_id not in held and (columns is None or not set(columns).isdisjoint(lock.columns)):
                locked = lock.columns if columns is None else columns
                raise _column_locked(lock, locked, "nothing was written: write other columns, or wait")
        over = asyncio.get_running_loop().create_future()
        self._writes.add(over)
        try:
            yield
        finally:
            self._writes.discard(over)
            over.set_result(None)

    async def lock(
        self,
        latest: Callable[[], TableDefinition],
        columns: Sequence[str],
        owner: str,
        lock_id: str,
        ttl: float | None,
        *,
        take_over: bool = False,
    ) -> HeldColumnLock:
        """Locks columns for an owner, durably. Earlier writes of others have ended when this returns.

        Args:
            latest: Returns the table's current definition.
            columns: The columns.
            owner: The name of the owner, which errors of other writers show.
            lock_id: The id of the lock; an existing lock of this id is renewed. Empty: the server chooses an id.
            ttl: Its time to live, in seconds. None: the default.
            take_over: Whether this lock atomically replaces other locks of the same owner on any of the columns.

        Raises:
            InvalidRequest, SchemaMismatch: The columns, the owner, the id or the time to live are not allowed.
            ColumnLocked: Another lock has one of the columns.
            PermissionDenied: The lock of this id, or one to take over, belongs to another principal.
            TooManyLocks: The table has reached its limit of locks.
        """
        seconds = DEFAULT_LOCK_SECONDS if ttl is None else ttl
        async with self._changing:
            known = self._locks.get(lock_id)
            is_live = known is not None and bool(known.remaining)
            if known is not None and is_live:
                known.check_principal()
            # Not before: while a call waits here, the columns may get other names.
            _check(latest(), columns, owner, lock_id, seconds)
            if known is not None and (set(known.columns), known.owner) != (set(columns), owner):
                raise InvalidRequest(
                    f"column lock {lock_id} exists, with other columns or another owner: choose another id"
                )
            ended = self._of_owner(owner, columns) if take_over else []
            for each in ended:
                self._locks[each].check_principal()
            self._check_free(columns, {lock_id, *ended})
            if not is_live and not ended:
                self._check_share()
            record = LockRecord(
                lock_id=lock_id or uuid.uuid4().hex,
                columns=tuple(columns),
                owner=owner,
                ttl=seconds,
                principal=_principal_after(known if is_live else None, [self._locks[each] for each in ended]),
            )
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
        """Returns the ids of an owner's locks on any of the columns."""
        mine = (lock for lock in self.live() if lock.owner == owner)
        return [lock.lock_id for lock in mine if not set(columns).isdisjoint(lock.columns)]

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """Lets no lock begin for the length of the block, in which columns may get other names."""
        async with self._changing:
            yield

    def check_unlocked(self, columns: Collection[str]) -> None:
        """Raises ColumnLocked if one of these columns, which are to be dropped or renamed, is locked."""
        for lock in self.live():
            if not set(columns).isdisjoint(lock.columns):
                raise _column_locked(lock, columns, "no column was changed: release the lock first, or wait")

    def _check_free(self, columns: Sequence[str], except_for: Collection[str]) -> None:
        for lock in self.live():
            if lock.lock_id not in except_for and not set(columns).isdisjoint(lock.columns):
                raise _column_locked(lock, columns, "nothing was locked: lock other columns, or wait")
        live = [lock for lock in self.live() if lock.lock_id not in except_for]
        if len(live) >= _MAX_LOCKS:
            raise TooManyLocks(
                f"table {self.table} has {len(live)} column locks; the limit is {_MAX_LOCKS}: release some",
                table=self.table,
            )

    def _check_share(self) -> None:
        """Raises TooManyLocks if the caller may have no other lock."""
        live = self.live()
        mine = sum(lock.principal == new_owner() for lock in live)
        refusal = share_refusal("column locks", mine, len(live), _MAX_LOCKS, self._share, [self.table])
        if refusal is not None:
            raise TooManyLocks(f"table {self.table}: {refusal}", table=self.table)

    async def renew(self, lock_id: str, ttl: float | None) -> HeldColumnLock:
        """Restarts a lock's time to live, or sets it to `ttl` seconds.

        Raises LockLost, InvalidRequest, PermissionDenied.
        """
        if ttl is not None:
            _check_ttl(ttl)
        async with self._changing:
            lock = self._get(lock_id)
            lock.check_principal()
            seconds = lock.ttl if ttl is None else ttl
            changed = seconds != lock.ttl
            lock.ttl, lock.expires = seconds, self._clock.monotonic() + seconds
            if changed:
                await self._store()
        return lock

    async def release(self, lock_id: str) -> None:
        """Ends a lock, durably. Raises LockLost, PermissionDenied."""
        async with self._changing:
            self._get(lock_id).check_principal()
            await self._remove([lock_id])

    async def assign(self, before: str, principal: str) -> int:
        """Gives the locks that belong to a principal (empty: to nobody) to another one, and returns how many."""
        async with self._changing:
            given = {lock.lock_id: principal for lock in self.live() if lock.principal == before}
            if given:
                await self._store(given)
            for lock_id in given:
                self._locks[lock_id].principal = principal
        return len(given)

    async def expire(self) -> None:
        """Forgets the locks that have expired."""
        async with self._changing:
            expired = [lock.lock_id for lock in self._locks.values() if not lock.remaining]
            if expired:
                _log.info("%d column locks of %s have expired", len(expired), self.table)
                await self._remove(expired)

    def next_expiry(self) -> float | None:
        """Returns when the first lock expires, on the monotonic clock. None: the table has no locks."""
        return min((lock.expires for lock in self._locks.values()), default=None)

    async def close(self) -> None:
        """Refuses further locks, because the table is dropped, and waits until the file is no longer written."""
        self._closed = True
        async with self._changing:
            pass

    def has(self, lock_id: str) -> bool:
        """Returns whether a lock of this id exists and has not expired."""
        lock = self._locks.get(lock_id)
        return lock is not None and bool(lock.remaining)

    def _get(self, lock_id: str) -> HeldColumnLock:
        if not self.has(lock_id):
            raise lock_lost(lock_id)
        return self._locks[lock_id]

    async def _remove(self, lock_ids: Sequence[str]) -> None:
        # If the file cannot be written, the locks stay in memory as well, and end when they expire.
        before = dict(self._locks)
        for lock_id in lock_ids:
            del self._locks[lock_id]
        try:
            await self._store()
        except BaseException:
            self._locks = before
            raise

    async def _store(self, principals: Mapping[str, str] = MappingProxyType({})) -> None:
        """Writes the locks. Some of them, by id, get another principal once this has returned."""
        if self._closed:
            raise _table_dropped(self.table)
        records = [
            LockRecord(
                lock_id=lock.lock_id,
                columns=lock.columns,
                owner=lock.owner,
                ttl=lock.ttl,
                principal=principals.get(lock.lock_id, lock.principal),
            )
            for lock in self._locks.values()
        ]
        await self._executor.run(self._file.write, records)


class ColumnLocks:
    """The column locks of all tables. Bound to the event loop.

    Args:
        executor: Runs blocking work.
        clock: The server's clock.
        share: The share of the locks of a table that one principal may have.
    """

    def __init__(self, executor: StorageExecutor, clock: ServerClock, share: float) -> None:
        self._executor = executor
        self._clock = clock
        self._share = share
        self._tables: dict[str, TableColumnLocks] = {}
        self._reaper = Reaper(self._next_expiry, self._expire, clock)

    def add(self, definition: TableDefinition, path: Path) -> None:
        """Adds a table, and loads the locks in its directory. Their time to live restarts now."""
        self._tables[definition.name] = TableColumnLocks(definition, path, self._executor, self._clock, self._share)

    async def drop(self, table: str) -> None:
        """Forgets the locks of a table that is being dropped."""
        locks = self._tables.pop(table, None)
        if locks is not None:
            await locks.close()

    def of(self, table: str) -> TableColumnLocks:
        """Returns the locks of one table. Raises TableNotFound."""
        if table not in self._tables:
            raise _table_dropped(table)
        return self._tables[table]

    def with_id(self, lock_id: str) -> TableColumnLocks:
        """Returns the locks of the table that has this lock. Raises LockLost."""
        for locks in self._tables.values():
            if locks.has(lock_id):
                return locks
        raise lock_lost(lock_id)

    def tables_of(self, lock_id: str) -> list[str]:
        """Returns the tables that have a lock with this id."""
        return [name for name, locks in self._tables.items() if locks.has(lock_id)]

    def list_locks(self, table: str | None) -> list[HeldColumnLock]:
        """Returns the locks of one table, or of all tables (None), by table and id."""
        chosen = [self.of(table)] if table is not None else [self._tables[name] for name in sorted(self._tables)]
        return [lock for locks in chosen for lock in locks.live()]

    def start(self) -> None:
        """Starts the task that expires locks. It runs until `close`."""
        self._reaper.start()

    def notify(self, lock: HeldColumnLock) -> None:
        """Reports a new lock, or a new time to live, to the task that expires locks."""
        self._reaper.notify(lock.expires)

    async def close(self) -> None:
        """Stops the task that expires locks. Locks stay on disk."""
        await self._reaper.close()

    def _next_expiry(self) -> float | None:
        expiries = [locks.next_expiry() for locks in self._tables.values()]
        return min((expiry for expiry in expiries if expiry is not None), default=None)

    async def _expire(self) -> None:
        # A failing disk of one table does not keep the locks of other tables from expiring.
        await all_ended(locks.expire() for locks in list(self._tables.values()))


def _table_dropped(table: str) -> TableNotFound:
    return TableNotFound(f'table "{table}" was dropped', table=table)


def _principal_after(known: HeldColumnLock | None, ended: Sequence[HeldColumnLock]) -> str:
    """Returns the owner of a lock that renews a known one, and takes over others.

    Rule: neither gives an owner to a lock that has none, because lists have its id and the name of its holder. Only an
    admin names an owner for what replaces it.
    """
    if known is not None:
        return known.principal
    return new_owner() if NAMED_OWNER.get() or all(lock.principal for lock in ended) else ""


def lock_lost(lock_id: str) -> LockLost:
    """Returns the error for an id of no lock."""
    return LockLost(
        f"no column lock {lock_id[:64]!r} exists: it was released, has expired, was dropped with its table, or never "
        "existed; take a new one",
        lock=lock_id[:64],
    )


def _column_locked(lock: HeldColumnLock, columns: Collection[str], outcome: str) -> ColumnLocked:
    names = ", ".join(sorted(set(lock.columns).intersection(columns)))
    seconds = round(lock.remaining, 1)
    return ColumnLocked(
        f'"{lock.owner}" has locked {names} of {lock.table}, for another {seconds:g} s unless it is renewed; {outcome}',
        table=lock.table,
        owner=lock.owner,
        columns=names,
        remaining=seconds,
    )


def _check(definition: TableDefinition, columns: Sequence[str], owner: str, lock_id: str, ttl: float) -> None:
    check_writer_id(owner)
    if lock_id:
        check_lease_id(lock_id)
    _check_ttl(ttl)
    if not columns:
        raise InvalidRequest("a column lock must have at least one column: name those that the writer fills")
    if len(set(columns)) != len(columns):
        raise InvalidRequest("the columns of a column lock name a column twice: name each once")
    names = definition.schema.arrow.names
    for name in columns:
        if name not in names:
            raise SchemaMismatch(
                f'table {definition.name} has no column "{name}"{did_you_mean(name, names)}', column=name
            )
        if name in definition.primary_key:
            raise InvalidRequest(
                f'column "{name}" is part of the primary key, which no write changes: lock other columns'
            )


def _check_ttl(ttl: float) -> None:
    if not MIN_LEASE_SECONDS <= ttl <= MAX_LEASE_SECONDS:
        raise InvalidRequest(
            f"a column lock's time to live must be between {MIN_LEASE_SECONDS:g} and {MAX_LEASE_SECONDS:g} s, "
            f"not {ttl:g} s"
        )
