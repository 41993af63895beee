"""Column locks as their holder sees them: taken, kept by renewals, given back."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from aio_client._input.arguments import flag_of, is_text, items_of, names_of, text_of
from aio_client._input.awaitable import Opener
from aio_client._transport.lease import Lease, ttl_millis
from aio_client._transport.repeatable_calls import call_again
from scankv.model.errors import LockLost, UsageError
from scankv.v1 import lock_pb2

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from aio_client._transport.transport import Transport


class ColumnLock(Lease):
    """A lock on columns of a table: writes of others that would change them are refused with ColumnLocked.

    It ends when it is released, when it is not renewed for its time to live, when its restarted owner takes it over,
    and with its table. It outlives its client and a restart of the server, which begins the time to live anew. Who
    writes the columns gives the lock: `table.upsert(data, locks=[lock])`; what names a lock that has ended is refused
    with LockLost.

    In `async with` it is renewed, and released at the end.

    Made by `table.lock_columns(...)` and `client.column_locks()`. Belongs to the event loop of its client.
    """

    def __init__(self, transport: Transport, message: lock_pb2.ColumnLock, asked_at: float) -> None:
        """Called by `ColumnLockOpener` and `list_locks`.

        Args:
            transport: The client's connection.
            message: What the server said of it.
            asked_at: When it was asked, on the monotonic clock: the lock lasts at least as long as said from then on.
        """
        super().__init__()
        self._transport = transport
        self._note(message, asked_at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner} on {', '.join(self.columns)} of {self.table}>"

    @property
    def _what(self) -> str:
        return f"column lock {self.id}"

    @property
    def id(self) -> str:
        """What writes, renewals and the release name."""
        return self._message.lock_id

    @property
    def table(self) -> str:
        """The table, as `database.table`."""
        return self._message.table

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._message.columns)

    @property
    def owner(self) -> str:
        """Who has it, as others are told."""
        return self._message.owner

    @property
    def ttl(self) -> float:
        """Seconds that the lock lives without being renewed."""
        return self._message.ttl_millis / 1000

    @property
    def remaining(self) -> float:
        """Seconds that the lock has left, reckoned from the server's last answer to this object; 0 when it is over."""
        if self._released:
            return 0.0
        return max(0.0, self._asked_at + self._message.remaining_millis / 1000 - time.monotonic())

    async def renew(self, ttl: float | None = None) -> None:
        """Begins the lock's time to live anew.

        Args:
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            LockLost: The lock was released or has expired, or its table was dropped.
        """
        request = lock_pb2.RenewColumnLockRequest(lock_id=self.id, ttl_millis=0 if ttl is None else ttl_millis(ttl))
        asked_at = time.monotonic()
        response = await self._transport.call(
            lambda: self._transport.services.locks.RenewColumnLock, request, repeatable=False
        )
        self._note(response.lock, asked_at)

    async def release(self) -> None:
        """Gives the lock back. Idempotent: nothing happens when it has ended already."""
        with suppress(LockLost):
            await release_lock(self._transport, self.id)
        self._note_released()

    def _note(self, message: lock_pb2.ColumnLock, asked_at: float) -> None:
        self._message = message
        self._asked_at = asked_at
        self._note_renewed()


class ColumnLockOpener(Opener):
    """What `table.lock_columns()` returns: `async with` it, or `await` it. Each time, it takes a lock of its own."""

    call = "table.lock_columns(...)"
    name = "lock"
    result = ColumnLock

    def __init__(
        self,
        transport: Transport,
        table: str,
        columns: Sequence[str],
        owner: str,
        ttl: float,
        *,
        take_over: bool = False,
    ) -> None:
        """Called by `Table.lock_columns`; takes nothing yet. Raises UsageError for a time to live out of range."""
        names = names_of(columns, "columns")
        self._transport = transport
        self._request = lock_pb2.LockColumnsRequest(
            table=table,
            columns=names,
            owner=text_of(owner, "owner"),
            ttl_millis=ttl_millis(ttl),
            take_over=flag_of(take_over, "take_over"),
        )
        self._lock: ColumnLock | None = None

    def __await__(self) -> Generator[None, None, ColumnLock]:
        return self.lock().__await__()

    async def __aenter__(self) -> ColumnLock:
        if self._lock is not None:
            raise UsageError("this table.lock_columns() is in use; call it again for another lock")
        self._lock = await self.lock()
        return await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lock is not None
        lock, self._lock = self._lock, None
        await lock.__aexit__(kind, error, traceback)

    async def lock(self) -> ColumnLock:
        """Takes a lock, which the caller renews and releases. The errors are those of `Table.lock_columns`."""
        request = lock_pb2.LockColumnsRequest()
        request.CopyFrom(self._request)
        request.lock_id = uuid.uuid4().hex
        asked_at = time.monotonic()
        response = await call_again(self._transport, lambda: self._transport.services.locks.LockColumns, request)
        return ColumnLock(self._transport, response.lock, asked_at)


def lock_ids_of(locks: Sequence[ColumnLock | str]) -> list[str]:
    """The ids of some locks. Raises UsageError for what are none, also a single one: its text is no list of ids."""
    return [lock_id_of(lock) for lock in items_of(locks, "locks", "column locks or their ids, in a list")]


def lock_id_of(lock: ColumnLock | str) -> str:
    """The id of a lock, which may be given itself. Raises UsageError for what is neither."""
    id_ = lock if isinstance(lock, str) else getattr(lock, "id", None)
    if not is_text(id_):
        raise UsageError(f"locks are column locks or their ids, not {lock!r}", option="locks")
    return id_


async def list_locks(transport: Transport, table: str | None) -> list[ColumnLock]:
    """The column locks of one table, or of all, by table and id. Raises TableNotFound."""
    request = lock_pb2.ListColumnLocksRequest(table=table or "")
    asked_at = time.monotonic()
    response = await transport.call(lambda: transport.services.locks.ListColumnLocks, request)
    return [ColumnLock(transport, message, asked_at) for message in response.locks]


async def release_lock(transport: Transport, lock_id: str) -> None:
    """Ends a lock, also of another client. Raises LockLost."""
    request = lock_pb2.ReleaseColumnLockRequest(lock_id=text_of(lock_id, "lock_id"))
    await transport.call(lambda: transport.services.locks.ReleaseColumnLock, request, repeatable=False)
