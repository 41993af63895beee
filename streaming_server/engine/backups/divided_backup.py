"""Backups of a server of several worker processes: one instant of all of them.

The first worker creates a backup. It pauses its own writers, then those of each other worker, in the order of their
numbers, in which transactions over several workers raise their barriers, too. While all of them are paused, it chooses
the instant. Then each worker stores its own tables, and the first one joins their manifests.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from scankv.model.errors import BackupFailed
from scankv.model.names import tablet_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredTable

_CHECK_SECONDS: Final = 10.0

_log: Final = logging.getLogger(__name__)


class BackupPeers(Protocol):
    """The other workers of a server, as the backups of one call them.

    Every method raises Unavailable if the worker does not answer, and otherwise the error of the worker.
    """

    @property
    def number(self) -> int:
        """The number of this worker."""
        ...

    @property
    def others(self) -> Sequence[int]:
        """The numbers of the other workers, ascending."""
        ...

    async def flush(self, worker: int) -> None:
        """As `Backups.flush` at a worker."""
        ...

    async def begin_part(self, worker: int, cut_id: str) -> int:
        """As `Backups.begin_part` at a worker."""
        ...

    async def finish_part(self, worker: int, cut_id: str, micros: int | None) -> BackupManifest:
        """As `Backups.finish_part` at a worker."""
        ...


class OtherParts:
    """The parts of a backup that the other workers make, as the first worker sees them.

    Args:
        peers: The other workers. None: there are none.
    """

    def __init__(self, peers: BackupPeers | None) -> None:
        self._peers = peers
        self._making: list[asyncio.Task[BackupManifest]] = []

    async def flush(self) -> None:
        """Has all others flush their buckets, before any writer is paused."""
        if self._peers is not None:
            await asyncio.gather(*map(self._peers.flush, self._peers.others))

    async def agree(self, micros: int) -> int:
        """Pauses the writers of all others, and has them take the instant, which it returns.

        Args:
            micros: The earliest instant.
        """
        peers = self._peers
        if peers is None:
            return micros
        cut_id, paused = uuid.uuid4().hex, list[int]()
        try:
            for number in peers.others:
                paused.append(number)
                micros = max(micros, await peers.begin_part(number, cut_id))
        except BaseException:
            self._making += [asyncio.create_task(_give_up(peers, number, cut_id)) for number in paused]
            raise
        self._making = [asyncio.create_task(peers.finish_part(number, cut_id, micros)) for number in peers.others]
        return micros

    async def wait(self, check: Callable[[], Awaitable[None]]) -> list[BackupManifest]:
        """Returns the parts, once all are made.

        Args:
            check: Called repeatedly while waiting. Raises if the backup must end.
        """
        waiting = set(self._making)
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=_CHECK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
            await check()
        return [each.result() for each in self._making]

    async def close(self) -> None:
        """Ends what still runs. The parts of other workers end by themselves."""
        for each in self._making:
            each.cancel()
        if self._making:
            await asyncio.wait(self._making)
        for each in self._making:
            if not each.cancelled() and (error := each.exception()) is not None:
                _log.info("a part of a backup was not made: %s", error)


async def _give_up(peers: BackupPeers, number: int, cut_id: str) -> BackupManifest:
    return await peers.finish_part(number, cut_id, None)


class BackupPart:
    """The part of a backup that this worker makes for the first one.

    Args:
        cut_id: Identifies the attempt.
        make: Makes the part, given a function that agrees on the instant.
    """

    def __init__(
        self,
        cut_id: str,
        make: Callable[[Callable[[int], Awaitable[int]]], Coroutine[None, None, BackupManifest]],
    ) -> None:
        self.cut_id = cut_id
        loop = asyncio.get_running_loop()
        self._paused: asyncio.Future[int] = loop.create_future()
        self._instant: asyncio.Future[int | None] = loop.create_future()
        self.task = asyncio.create_task(make(self._agree))
        # Retrieves the error, since there may be no caller left to raise it to.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _agree(self, micros: int) -> int:
        self._paused.set_result(micros)
        instant = await self._instant
        if instant is None:
            raise BackupFailed("the backup was given up")
        return instant

    async def begin(self) -> int:
        """Returns the earliest instant, once all writers are paused."""
        await asyncio.wait([self.task, self._paused], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if not self._paused.done():
            await asyncio.shield(self.task)
        return self._paused.result()

    def give_up(self) -> None:
        """Ends the pause, if it has not ended."""
        if not self._instant.done():
            self._instant.set_result(None)

    async def finish(self, micros: int | None) -> BackupManifest:
        """Takes the instant (None: gives up), and returns the part once it is made."""
        if not self._instant.done():
            self._instant.set_result(micros)
        return await asyncio.shield(self.task)


def join_parts(parts: Sequence[BackupManifest]) -> BackupManifest:
    """Returns the manifest of all workers. The first part is that of the first worker."""
    left_out: dict[str, str] = {}
    for part in parts:
        left_out |= part.left_out
    tables = _join_tablets([table for part in parts for table in part.tables], left_out)
    # A tablet without a table is that of a table that was dropped.
    left_out = {name: why for name, why in left_out.items() if tablet_number(name) is None}
    if len(parts) == 1:
        return replace(parts[0], tables=tables, left_out=left_out)
    return replace(
        parts[0],
        pause_micros=max(part.pause_micros for part in parts),
        # Each worker has counted its decisions by itself, so the log that follows them begins a new epoch.
        epoch=1 + max(part.epoch for part in parts),
        committed=_join_commits([each for part in parts for each in part.committed]),
        tables=tables,
        left_out=left_out,
        new_bytes=sum(part.new_bytes for part in parts),
    )


def _join_tablets(found: Iterable[StoredTable], left_out: dict[str, str]) -> tuple[StoredTable, ...]:
    """Returns the tables with the buckets of their tablets, by name.

    Args:
        found: The tables and tablets that the workers have stored.
        left_out: Why tables and tablets are left out. Tables that lack a tablet are added.
    """
    known = {each.definition.incarnation: each for each in found}
    tables: list[StoredTable] = []
    for table in known.values():
        tablets = table.definition.all_tablets if table.definition.tablet is None else []
        missing = [each for each in tablets if each.incarnation not in known]
        if missing:
            why = left_out.get(missing[0].name, "its owner does not know it yet")
            left_out[table.name] = f"tablet {missing[0].tablet} cannot be backed up: {why}"
        elif table.definition.tablet is None:
            tables.append(_with_buckets(table, [known[each.incarnation] for each in tablets]))
    return tuple(sorted(tables, key=lambda table: table.name))


def _with_buckets(table: StoredTable, tablets: Sequence[StoredTable]) -> StoredTable:
    parts = (table, *tablets)
    return replace(
        table,
        states={number: state for part in parts for number, state in part.states.items()},
        files=tuple(file for part in parts for file in part.files),
        consumers=tuple(consumer for part in parts for consumer in part.consumers),
    )


def _join_commits(found: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Returns the commits as their coordinators remember them, who may not know all offsets yet."""
    committed = {each["token"]: each for each in found if "coordinator" not in each}
    for share in found:
        if "coordinator" in share and (known := committed.get(share["token"])) is not None:
            offsets = {**share["log_offsets"], **known["log_offsets"]}
            committed[share["token"]] = {**known, "log_offsets": offsets}
    return tuple(sorted(committed.values(), key=lambda each: int(each["served_micros"])))
