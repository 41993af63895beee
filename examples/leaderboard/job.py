"""`python -m examples.leaderboard.job NAME URL`: follows the flights, and adds each to the totals exactly once.

The job commits a change at once, but at most once per second, because a commit of few rows costs the server about as
much as one of many. The job reads changes in the meantime, and each commit takes all changes that have arrived. So
under load its commits become larger, and it catches up instead of falling further behind.

One transaction commits the totals together with the job's position in the changes. So if the job or the server is
killed, either both are committed or neither is, and the next process continues after the last commit. Column locks make
sure that only one process of a job writes: a lock is granted after the commits of the previous holder, and later
requests of that holder are refused.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from anyio import create_task_group

from examples.leaderboard.replay import FLIGHTS
from examples.leaderboard.totals import JOBS, KEYS, PROGRESS, make_total_rows, net_flights
from scankv import ConnectionFailed, StartFrom, TransactionLost, connect

if TYPE_CHECKING:
    from examples.leaderboard.totals import Job
    from scankv import Client, ColumnLock, ScanStream, Table

MOST_WAITING: Final = 32
"""The most batches to read ahead, and to wait for before a commit, of up to some 2 MiB each."""

COMMIT_SECONDS: Final = 1.0
"""The least time between two commits, unless many batches wait. The page shows changes no more often."""

WAIT_SECONDS: Final = 3600.0
"""How often a job reports that the server is still unreachable."""


async def main(job: Job, url: str) -> None:
    """Runs until the process ends or another process of the same job replaces it (ColumnLocked, LockLost)."""
    async with connect(url) as client:
        while True:
            try:
                await follow(client, job)
            except* (ConnectionFailed, TransactionLost) as errors:
                sys.stderr.write(f"{job.name} continues from its last commit: {errors.exceptions[0]}\n")


async def follow(client: Client, job: Job) -> None:
    """Waits for the server, takes over the job, and runs it until something fails."""
    await client.wait_ready(WAIT_SECONDS)
    totals = {await client.table(name) for name in KEYS}
    progress = await client.table(PROGRESS)
    async with AsyncExitStack() as stack:
        locks = {table: await _lock_columns(stack, client, table, job) for table in totals}
        # After taking the locks: now the last transaction of the previous process is committed, or never will be.
        done = await progress.get(job.name)
        changes = (await client.table(FLIGHTS)).changes(StartFrom.FULL)
        if done is not None:
            changes = changes.resume_from(done["resume_token"])
        stream = await stack.enter_async_context(changes.stream())
        counted = 0 if done is None else done["flights"]
        waiting: asyncio.Queue[Read] = asyncio.Queue(MOST_WAITING)
        clock = asyncio.get_running_loop().time
        due = clock()
        async with create_task_group() as tasks:
            tasks.start_soon(_read, stream, waiting)
            while True:
                reads = await _take_all(waiting, due)
                due = clock() + COMMIT_SECONDS
                changed = pa.Table.from_batches([each.changes for each in reads])
                counted += net_flights(changed)
                row = {
                    "job": job.name,
                    "resume_token": reads[-1].resume_token,
                    "flights": counted,
                    "at": datetime.now(UTC),
                }
                await _commit(client, job, changed, locks, progress, row)


@dataclass(frozen=True, slots=True)
class Read:
    """Some changes, and the resume token after them."""

    changes: pa.RecordBatch
    resume_token: bytes


async def _read(stream: ScanStream, waiting: asyncio.Queue[Read]) -> None:
    # Without a stop position, the stream never ends.
    async for changes in stream:
        assert stream.resume_token is not None
        await waiting.put(Read(changes, stream.resume_token))


async def _take_all(waiting: asyncio.Queue[Read], due: float) -> list[Read]:
    """Waits for changes, at least until the instant `due` of the event loop's clock. Returns all that have arrived.

    Returns earlier once many batches have arrived.
    """
    reads = [await waiting.get()]
    with suppress(TimeoutError):
        async with asyncio.timeout_at(due):
            while len(reads) < MOST_WAITING:
                reads.append(await waiting.get())
    while not waiting.empty():
        reads.append(waiting.get_nowait())
    return reads


async def _lock_columns(stack: AsyncExitStack, client: Client, table: Table, job: Job) -> ColumnLock:
    """Locks the job's columns, after releasing the lock of a previous process."""
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
            await tx.upsert(table, make_total_rows(job, table.name, changes), columns, locks=[lock])
        await tx.upsert(progress, [row])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(main(JOBS[sys.argv[1]], sys.argv[2]))
