"""The workers of a server in one process, whose calls to each other a test can hold up, fail and repeat."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scankv.model.errors import Unavailable
from streaming_server.clock import ServerClock
from streaming_server.config import ServerConfig
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.transactions.worker_logs import divide_log
from streaming_server.storage.tables.data_directory import DataDirectory
from streaming_server.storage.tables.placement import Placement
from streaming_server.storage.transactions.staging import UPSERT
from tests.support.snapshots import new_table
from tests.support.tables import SCORES, ipc_stream, scores
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from streaming_server.clock import MachineClocks
    from streaming_server.engine.backups.archive_part import StoredCapture
    from streaming_server.engine.backups.segment_capture import SegmentCapture
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.transactions.shares import TransactionShares
    from streaming_server.engine.transactions.two_phase import (
        CommitOutcome,
        LogOffsetsOfTables,
        PreparedShare,
        ShareRequest,
    )
    from streaming_server.storage.backup.backup_manifest import BackupManifest
    from streaming_server.storage.transactions.decisions import CommittedTransaction

PLAYERS = [f"p{number}" for number in range(12)]


@dataclass
class DirectWorkers:
    """Some workers with a table each.

    Attributes:
        tables: The tables of each worker.
        names: The name of the table of each worker.
        shares: The shares of each worker.
        before: Called before each call of a worker to another one, with the method, the worker that is called, and the
            arguments. It may wait, or raise Unavailable: then the call is lost.
    """

    tables: list[Tables]
    names: list[str]
    shares: dict[int, TransactionShares] = field(default_factory=dict)
    before: Callable[..., Awaitable[None]] | None = None

    def table(self, number: int) -> LiveTable:
        """Returns the table of a worker."""
        return self.tables[number].table(self.names[number])

    async def begin(self, *, finds_conflicts: bool = False, ttl: float = 60) -> str:
        """Begins a transaction at all workers, and returns its token."""
        begun = await self.begin_again("", finds_conflicts=finds_conflicts, ttl=ttl)
        (token,) = {each.token for each in begun if isinstance(each, OpenTransaction)}
        return token

    async def begin_again(
        self, id_: str, *, finds_conflicts: bool = False, ttl: float = 60
    ) -> list[OpenTransaction | CommittedTransaction]:
        """Begins a transaction with an id at all workers, and returns their answers."""
        token = os.urandom(16).hex()
        options = TransactionOptions(id=id_, attempt=token, finds_conflicts=finds_conflicts, ttl=ttl)
        return [await tables.transactions.begin(options, token) for tables in self.tables]

    async def stage(self, token: str, value: int, *workers: int, part: str = "main") -> None:
        """Sets the scores of all players in the tables of some workers, with one request for each from number 0 on."""
        for sequence, number in enumerate(workers):
            place = StagedRequestId(token=token, part=part, sequence=sequence)
            staging = self.tables[number].transactions.staging
            await staging.stage(place, self.table(number), UPSERT, rows_of(value), kind=MERGE)

    async def put(self, number: int, value: int) -> None:
        """Sets the scores of all players in the table of a worker, outside of transactions."""
        await self.table(number).writes.upsert(rows_of(value), 0)

    async def commit(
        self, token: str, *others: int, sizes: Sequence[tuple[str, int]] = (), coordinator: int = 0
    ) -> CommittedTransaction:
        """Commits a transaction, as the router has its coordinator do it."""
        return await self.tables[coordinator].transactions.commit(token, "", sizes, others)

    async def scores(self, number: int) -> set[int | None]:
        """Returns the distinct scores in the table of a worker."""
        keys = scores(PLAYERS, [0] * len(PLAYERS)).select(["player"])
        batch, _, _ = await self.table(number).reads.lookup(ipc_stream(keys.schema, keys), None)
        return set(batch["score"].to_pylist())


@dataclass
class DirectPeers:
    """The other workers, as one of them calls them: see `two_phase.Peers`, `BackupPeers` and `ArchivePeers`."""

    number: int
    workers: DirectWorkers

    def owns(self, table: str) -> bool:
        """Whether this worker owns a table."""
        return self.workers.names[self.number] == table

    async def _call(self, method: str, worker: int, *arguments: Any) -> TransactionShares:
        if self.workers.before is not None:
            await self.workers.before(method, worker, *arguments)
        return self.workers.shares[worker]

    async def prepare(self, worker: int, request: ShareRequest) -> PreparedShare:
        """Has a worker prepare its share."""
        return await (await self._call("prepare", worker, request)).prepare(request)

    async def conclude(self, worker: int, token: str, attempt: str, micros: int | None) -> LogOffsetsOfTables:
        """Has a worker apply or undo a prepared share."""
        applied = await (await self._call("conclude", worker, token, attempt, micros)).conclude(token, attempt, micros)
        return {} if applied is None else applied.log_offsets

    async def outcome(self, worker: int, token: str, attempt: str) -> int | CommitOutcome:
        """Asks the coordinator for the outcome of an attempt."""
        return (await self._call("outcome", worker, token, attempt)).outcome(token, attempt)

    async def remaining(self, token: str) -> float:
        """Returns for how many more seconds a transaction lives elsewhere."""
        others = [shares for number, shares in self.workers.shares.items() if number != self.number]
        return max(shares.locate(token, "").remaining for shares in others)

    @property
    def others(self) -> list[int]:
        """The numbers of the other workers."""
        return [number for number in self.workers.shares if number != self.number]

    async def flush(self, worker: int) -> None:
        """Has a worker flush its buckets for a backup."""
        await self._call("flush", worker)
        await self.workers.tables[worker].backups.flush()

    async def begin_part(self, worker: int, cut_id: str) -> int:
        """Pauses the writers of a worker for a backup."""
        await self._call("begin_part", worker, cut_id)
        return await self.workers.tables[worker].backups.begin_part(cut_id)

    async def finish_part(self, worker: int, cut_id: str, micros: int | None) -> BackupManifest:
        """Has a worker store its tables."""
        await self._call("finish_part", worker, cut_id, micros)
        return await self.workers.tables[worker].backups.finish_part(cut_id, micros)

    async def capture(self, worker: int, stored: StoredCapture) -> SegmentCapture:
        """Asks a worker what the next segment of the archive must contain of its tables."""
        await self._call("capture", worker, stored)
        return await self.workers.tables[worker].archive.part.capture(stored)


@asynccontextmanager
async def direct_workers(
    data: Path,
    count: int,
    before: Callable[..., Awaitable[None]] | None = None,
    clocks: MachineClocks | None = None,
    **settings: Any,
) -> AsyncIterator[DirectWorkers]:
    """Starts the workers of a server, and creates a table for each unless it exists."""
    with closing(DataDirectory(data)) as directory:
        if directory.workers != count:
            divide_log(directory, count, ServerClock())
        config = ServerConfig(data=data, block_cache_bytes=1 << 20, storage_threads=2, **settings)
        names = [name for (name,) in names_of_workers(count, "game")]
        workers = DirectWorkers([], names, before=before)
        try:
            for number in range(count):
                tables = Tables(config, clocks=clocks, placement=Placement(number, count), lock=os.dup(directory.lock))
                workers.tables.append(tables)
                peers = DirectPeers(number, workers)
                workers.shares[number] = tables.transactions.set_peers(peers)
                tables.backups.set_peers(peers)
                tables.archive.set_peers(peers)
            for tables in workers.tables:
                await tables.recover()
            for tables, name in zip(workers.tables, names, strict=True):
                tables.start()
                if name not in [definition.name for definition in tables.definitions()]:
                    await new_table(tables, name)
            yield workers
        finally:
            await asyncio.gather(*(tables.close() for tables in workers.tables))


def rows_of(value: int) -> bytes:
    """Returns rows that set the scores of all players."""
    return ipc_stream(SCORES, scores(PLAYERS, [value] * len(PLAYERS)))


async def lose(*_: object) -> None:
    """Loses a call."""
    raise Unavailable("the call is lost", retry_after=0.1)
