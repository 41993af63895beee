"""Column locks for their holder: acquiring, renewing and releasing them."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from aio_client._input.arguments import flag_of, is_text, items_of, names_of, principal_of, text_of
from aio_client._input.awaitable import AwaitableOpener
from aio_client._transport.lease import RenewableLease, ttl_millis
from aio_client._transport.repeatable_calls import call_again
from scankv.model.errors import LockLost, UsageError
from scankv.v1 import lock_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._transport.transport import Transport


class ColumnLock(RenewableLease):
    """A lock on columns of a table: writes of others that would change them are refused with ColumnLocked.

    A lock ends when it is released, when it is not renewed within its time to live, when its restarted owner takes it
    over, and when the table is dropped. It survives its client and a restart of the server, which starts the time to
    live again. Writes of the holder name the lock: `table.upsert(data, locks=[lock])`. A write that names a lock that
    has ended is refused with LockLost.

    `async with` renews the lock, and releases it at the end.

    Made by `table.lock_columns(...)` and `client.column_locks()`. Belongs to the event loop of its client.
    """

    def __init__(self, transport: Transport, message: lock_pb2.ColumnLock, asked_at: float) -> None:
        """Called by `ColumnLockOpener` and `list_locks`.

        Args:
            transport: The client's connection.
            message: The server's description of the lock.
            asked_at: The instant of `time.monotonic` before the call. The described lock lasts for at least its
                remaining time from this instant on.
        """
        super().__init__()
        self._transport = transport
        self._update(message, asked_at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.owner} on {', '.join(self.columns)} of {self.table}>"

    @property
    def _label(self) -> str:
        return f"column lock {self.id}"

    @property
    def id(self) -> str:
        """The lock's id, which writes, renewals and the release name."""
        return self._message.lock_id

    @property
    def table(self) -> str:
        """The table's name, as `database.table`."""
        return self._message.table

    @property
    def columns(self) -> list[str]:
        """The names of the locked columns."""
        return list(self._message.columns)

    @property
    def owner(self) -> str:
        """The owner's name, which other writers see in their errors."""
        return self._message.owner

    @property
    def principal(self) -> str | None:
        """The principal that the lock belongs to: only its tokens, and admins, can use it. None: it has no owner."""
        return self._message.principal or None

    @property
    def ttl(self) -> float:
        """The time to live in seconds: the lock ends unless it is renewed within it."""
        return self._message.ttl_millis / 1000

    @property
    def remaining(self) -> float:
        """Seconds until the lock ends, counted from the server's last answer to this object. 0 when it has ended."""
        if self._released:
            return 0.0
        return max(0.0, self._asked_at + self._message.remaining_millis / 1000 - time.monotonic())

    async def renew(self, ttl: float | None = None) -> None:
        """Starts the lock's time to live again.

        Args:
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            LockLost: The lock was released or has expired, or its table was dropped.
            UsageError: `ttl` is out of range.
        """
        request = lock_pb2.RenewColumnLockRequest(lock_id=self.id, ttl_millis=0 if ttl is None else ttl_millis(ttl))
        asked_at = time.monotonic()
        response = await self._transport.call(
            lambda: self._transport.services.locks.RenewColumnLock, request, repeatable=False
        )
        self._update(response.lock, asked_at)

    async def release(self) -> None:
        """Ends the lock. Idempotent: does nothing if the lock has ended already."""
        with suppress(LockLost):
            await release_lock(self._transport, self.id)
        self._on_released()

    def _update(self, message: lock_pb2.ColumnLock, asked_at: float) -> None:
        self._message = message
        self._asked_at = asked_at
        self._on_renewed()


class ColumnLockOpener(AwaitableOpener[ColumnLock]):
    """The result of `table.lock_columns()`: each `async with` or `await` takes a lock of its own."""

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
        principal: str | None = None,
    ) -> None:
        """Called by `Table.lock_columns`; takes no lock yet. Raises UsageError for a time to live out of range."""
        names = names_of(columns, "columns")
        self._transport = transport
        self._request = lock_pb2.LockColumnsRequest(
            table=table,
            columns=names,
            owner=text_of(owner, "owner"),
            ttl_millis=ttl_millis(ttl),
            take_over=flag_of(take_over, "take_over"),
            principal=principal_of(principal),
        )

    async def _open(self) -> ColumnLock:
        """Takes a lock, which the caller renews and releases. Raises the errors of `Table.lock_columns`."""
        request = lock_pb2.LockColumnsRequest()
        request.CopyFrom(self._request)
        request.lock_id = uuid.uuid4().hex
        asked_at = time.monotonic()
        response = await call_again(self._transport, lambda: self._transport.services.locks.LockColumns, request)
        return ColumnLock(self._transport, response.lock, asked_at)


def lock_ids_of(locks: Sequence[ColumnLock | str]) -> list[str]:
    """Returns the ids of some locks. Raises UsageError for other values, including a single id."""
    return [lock_id_of(lock) for lock in items_of(locks, "locks", "a list of column locks or their ids")]


def lock_id_of(lock: ColumnLock | str) -> str:
    """Returns the id of a lock, or the id itself. Raises UsageError for other values."""
    id_ = lock if isinstance(lock, str) else getattr(lock, "id", None)
    if not is_text(id_):
        raise UsageError(f"locks must be column locks or their ids, not {lock!r}", option="locks")
    return id_


async def list_locks(transport: Transport, table: str | None) -> list[ColumnLock]:
    """Returns the column locks of one table, or of all tables, by table and id. Raises TableNotFound."""
    request = lock_pb2.ListColumnLocksRequest(table=table or "")
    asked_at = time.monotonic()
    response = await transport.call(lambda: transport.services.locks.ListColumnLocks, request)
    return [ColumnLock(transport, message, asked_at) for message in response.locks]


async def release_lock(transport: Transport, lock_id: str) -> None:
    """Ends a lock of any client. Raises LockLost."""
    request = lock_pb2.ReleaseColumnLockRequest(lock_id=text_of(lock_id, "lock_id"))
    await transport.call(lambda: transport.services.locks.ReleaseColumnLock, request, repeatable=False)
