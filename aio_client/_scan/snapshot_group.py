"""Snapshots of several tables at one instant, for their holder."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aio_client._input.arguments import names_of
from aio_client._input.awaitable import AwaitableOpener
from aio_client._scan.snapshot import PIN_RETRIES, Snapshot
from aio_client._transport.lease import RenewableLease, ttl_millis
from scankv.model.errors import UsageError
from scankv.v1 import snapshot_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from aio_client._transport.transport import Transport


_FIRST_SECONDS: Final = 60.0
"""The time to live with which snapshots are taken. Those of an answer that is lost end after it: they have no owner."""


class SnapshotGroup(RenewableLease):
    """Snapshots of several tables, all of one instant: one `Snapshot` for each table.

    `scan.as_of(snapshots.table("game.scores"))` reads one of them. Every transaction is in the snapshots of all of its
    tables, or in none of them.

    `async with` renews all of them, and releases them at the end.

    Made by `client.snapshot([...])`. Belongs to the event loop of its client. Not picklable: send the ids.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Called by `SnapshotGroupOpener`.

        Args:
            snapshots: The snapshots by table.
        """
        super().__init__()
        self._snapshots = dict(snapshots)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._snapshots)}>"

    @property
    def _label(self) -> str:
        return f"the snapshots of {', '.join(self._snapshots)}"

    def table(self, name: str) -> Snapshot:
        """Returns the snapshot of one table.

        Args:
            name: `database.table`.

        Raises:
            UsageError: The table was not pinned.
        """
        if name not in self._snapshots:
            raise UsageError(
                f"there is no snapshot of {name!r}: the snapshots are of {', '.join(self._snapshots)}; name it in "
                "client.snapshot([...]), too"
            )
        return self._snapshots[name]

    @property
    def tables(self) -> list[str]:
        """The names of the tables, in the order in which they were given."""
        return list(self._snapshots)

    @property
    def taken_at(self) -> datetime:
        """When the views were taken, by the server's clock, in UTC."""
        return max(each.taken_at for each in self._snapshots.values())

    @property
    def ttl(self) -> float:
        """The shortest time to live of a snapshot, in seconds: the snapshot ends unless it is renewed within it."""
        return min(each.ttl for each in self._snapshots.values())

    @property
    def remaining(self) -> float:
        """Seconds until the first snapshot ends, counted from the server's last answer. 0 when one has ended."""
        return min(each.remaining for each in self._snapshots.values())

    async def renew(self, ttl: float | None = None) -> None:
        """Starts the time to live of all snapshots again.

        Args:
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            SnapshotLost: One of them was released or has expired, or its table was dropped.
            UsageError: `ttl` is out of range.
        """
        for each in self._snapshots.values():
            await each.renew(ttl)
        self._on_renewed()

    async def release(self) -> None:
        """Ends all snapshots. Idempotent: does nothing for those that have ended already."""
        for each in self._snapshots.values():
            await each.release()
        self._on_released()


class SnapshotGroupOpener(AwaitableOpener[SnapshotGroup]):
    """The result of `client.snapshot([...])`: each `async with` or `await` takes snapshots of its own."""

    call = "client.snapshot([...])"
    name = "snapshots"
    result = SnapshotGroup

    def __init__(self, transport: Transport, tables: Sequence[str], ttl: float) -> None:
        """Called by `Client.snapshot`; takes no snapshot yet.

        Raises:
            UsageError: There is no table, one is named twice, or the time to live is out of range.
        """
        names = names_of(tables, "tables")
        if not names or len({*names}) < len(names):
            raise UsageError(
                f"tables must be the names of one or more tables, each once, not {names!r}", option="tables"
            )
        self._transport = transport
        self._ttl = ttl
        least = min(ttl_millis(ttl), ttl_millis(_FIRST_SECONDS))
        self._request = snapshot_pb2.PinSnapshotsRequest(tables=names, ttl_millis=least)

    async def _open(self) -> SnapshotGroup:
        """Takes the snapshots, which the caller renews and releases. Raises as `Client.snapshot`."""

        async def attempt(deadline: float) -> SnapshotGroup:
            asked_at, calls = time.monotonic(), self._transport
            answer = await calls.attempt(
                lambda: calls.services.snapshots.PinSnapshots, self._request, deadline=deadline
            )
            pause = answer.write_pause_micros
            return SnapshotGroup({each.table: Snapshot(calls, each, asked_at, pause) for each in answer.snapshots})

        group = await self._transport.retry(
            attempt, self._request, retries=lambda error: isinstance(error, PIN_RETRIES)
        )
        if self._ttl > _FIRST_SECONDS:
            try:
                await group.renew(self._ttl)
            except BaseException:
                await asyncio.shield(group.release())
                raise
        return group
