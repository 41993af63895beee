"""`python -m examples.leaderboard.job NAME URL`: follows the flights, and adds each to the totals exactly once.

The job reads changes while it commits those before, and the next commit takes all that have come meanwhile: the more it
is behind, the more it does at once, so that it catches up instead of falling further behind.

With the totals, in one transaction, the job commits how far it has come among the changes of the flights. So whatever
ends it, or the server, both are there or neither, and the next process goes on behind what was committed last. Locks
see to it that there is one of it: they are given when the commits of the one before are over, and what that one still
sends then is refused.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from anyio import create_task_group

from examples.leaderboard.replay import FLIGHTS
from examples.leaderboard.totals import JOBS, KEYS, PROGRESS, added_up, net_flights
from scankv import ConnectionFailed, StartFrom, TransactionLost, connect

if TYPE_CHECKING:
    from examples.leaderboard.totals import Job
    from scankv import Client, ColumnLock, ScanStream, Table

MOST_WAITING: Final = 32
"""Batches that are read ahead: some 2 MiB each at most."""

WAIT_SECONDS: Final = 3600.0
"""How often a job says that the server is still away."""


async def main(job: Job, url: str) -> None:
    """Runs until it is ended, or replaced by another process of the same job (ColumnLocked, LockLost)."""
    async with connect(url) as client:
        while True:
            try:
                await follow(client, job)
            except* (ConnectionFailed, TransactionLost) as errors:
                sys.stderr.write(f"{job.name} goes on with what is committed: {errors.exceptions[0]}\n")


async def follow(client: Client, job: Job) -> None:
    """Takes the job over, once the server serves, and does it until something fails."""
    await client.wait_ready(WAIT_SECONDS)
    totals = {await client.table(name) for name in KEYS}
    progress = await client.table(PROGRESS)
    async with AsyncExitStack() as stack:
        locks = {table: await _locked(stack, client, table, job) for table in totals}
        # Only now: what the process before had under way is committed, or never will be.
        done = await progress.get(job.name)
        changes = (await client.table(FLIGHTS)).changes(StartFrom.FULL)
        if done is not None:
            changes = changes.resume_from(done["behind"])
        stream = await stack.enter_async_context(changes.stream())
        counted = 0 if done is None else done["flights"]
        waiting: asyncio.Queue[Read] = asyncio.Queue(MOST_WAITING)
        async with create_task_group() as tasks:
            tasks.start_soon(_read, stream, waiting)
            while True:
                reads = await _all_of(waiting)
                changed = pa.Table.from_batches([each.changes for each in reads])
                counted += net_flights(changed)
                row = {"job": job.name, "behind": reads[-1].behind, "flights": counted, "at": datetime.now(UTC)}
                await _commit(client, job, changed, locks, progress, row)


@dataclass(frozen=True, slots=True)
class Read:
    """Some changes, and the token behind them."""

    changes: pa.RecordBatch
    behind: bytes


async def _read(stream: ScanStream, waiting: asyncio.Queue[Read]) -> None:
    # Without a stop the stream does not end.
    async for changes in stream:
        assert stream.resume_token is not None
        await waiting.put(Read(changes, stream.resume_token))


async def _all_of(waiting: asyncio.Queue[Read]) -> list[Read]:
    """Waits for changes, and takes all that have come by then."""
    reads = [await waiting.get()]
    while not waiting.empty():
        reads.append(waiting.get_nowait())
    return reads


async def _locked(stack: AsyncExitStack, client: Client, table: Table, job: Job) -> ColumnLock:
    """Locks the job's columns, in place of the process before."""
    for lock in await client.column_locks(table.name):
        if lock.owner == job.name:
            await lock.release()
    return await stack.enter_async_context(table.lock_columns(list(job.columns), owner=job.name))


async def _commit(
    client: Client,
    job: Job,
    changes: pa.Table,
    locks: dict[Table, ColumnLock],
    progress: Table,
    row: dict[str, object],
) -> None:
    async with client.transaction() as tx:
        for table, lock in locks.items():
            columns = [*table.primary_key, *job.columns]
            await tx.upsert(table, added_up(job, table.name, changes), columns, locks=[lock])
        await tx.upsert(progress, [row])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(main(JOBS[sys.argv[1]], sys.argv[2]))
