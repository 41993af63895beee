"""A transaction of several workers stays whole when its tables, callers or disks change in any phase of its commit."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import DiskFull, ScanKvError, TableNotFound, Unavailable
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.direct_workers import DirectWorkers, direct_workers
from tests.support.snapshots import new_table

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.transactions.decisions import CommittedTransaction

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

WORKERS = 3
PHASES = [("prepare", 1), ("prepare", 2), ("conclude", 1), ("conclude", 2)]
MOST_ATTEMPTS = 20

soak = pytest.mark.soak


async def commit(workers: DirectWorkers, token: str) -> CommittedTransaction:
    """Commits as a client does, which repeats what may succeed later, and lets the workers retry in between.

    Raises:
        TableNotFound: A table was dropped before the commit.
    """
    for _ in range(MOST_ATTEMPTS):
        try:
            return await asyncio.wait_for(workers.commit(token, *range(1, WORKERS)), 60)
        except TableNotFound:
            raise
        except (ScanKvError, OSError) as error:
            last = error
        await retry(workers)
    raise AssertionError("the commit has failed too often") from last


async def retry(workers: DirectWorkers) -> None:
    """Has all workers apply what they can."""
    for tables in workers.tables:
        with suppress(ScanKvError, OSError):
            await tables.transactions.retry()


def copy_at_rest(data: Path, target: Path) -> None:
    """Copies a data directory once no worker changes it any more: a copy of files that change is of no instant."""
    while True:
        before = _times_of(data)
        with suppress(OSError):  # A file is gone.
            shutil.copytree(data, target)
            if _times_of(data) == before:
                return
        shutil.rmtree(target, ignore_errors=True)


def _times_of(data: Path) -> dict[Path, tuple[int, int]]:
    times = {}
    for path in data.rglob("*"):
        with suppress(FileNotFoundError):
            times[path] = path.stat().st_size, path.stat().st_mtime_ns
    return times


async def scores_of(workers: DirectWorkers) -> list[set[int | None]]:
    """Returns the distinct scores at each worker, none of which has a stuck transaction."""
    await retry(workers)
    assert not any(tables.transactions.stuck for tables in workers.tables)
    return [await asyncio.wait_for(workers.scores(number), 60) for number in range(WORKERS)]


async def put_everywhere(workers: DirectWorkers, value: int) -> None:
    for number in range(WORKERS):
        await workers.put(number, value)


@pytest.mark.represented_by("2-phase2", "1-phase0", "2-phase3", "0-phase3", "0-phase1", "0-phase0", "1-phase3")
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("dropped", [0, 1, 2])
async def test_a_table_that_is_dropped_and_created_again_gets_no_rows_of_an_earlier_transaction(
    tmp_path: Path, phase: tuple[str, int], dropped: int
) -> None:
    drops: list[asyncio.Task[None]] = []
    # After that, the drop waits for the end of the commit.
    is_early = phase[0] == "prepare" and dropped >= phase[1]
    async with direct_workers(tmp_path / "data", WORKERS) as workers:

        async def drop() -> None:
            await workers.tables[dropped].drop(workers.names[dropped])
            await new_table(workers.tables[dropped], workers.names[dropped])

        async def drop_at(method: str, worker: int, *_: object) -> None:
            if (method, worker) == phase and not drops:
                drops.append(asyncio.create_task(drop()))
                if is_early:
                    await drops[0]

        workers.before = drop_at
        token = await workers.begin()
        await workers.stage(token, 2, *range(WORKERS))
        await put_everywhere(workers, 1)
        with pytest.raises(TableNotFound) if is_early else nullcontext():
            await commit(workers, token)
        await drops[0]
        expected: list[set[int | None]] = [{1} if is_early else {2}] * WORKERS
        expected[dropped] = set()
        assert await scores_of(workers) == expected


@pytest.mark.breadth
@pytest.mark.parametrize("phase", PHASES)
async def test_a_deletion_of_a_range_that_a_crash_left_in_doubt_is_whole(
    tmp_path: Path, phase: tuple[str, int]
) -> None:
    crashed = tmp_path / "crashed"

    async def crash(method: str, worker: int, *_: object) -> None:
        if (method, worker) == phase:
            await asyncio.to_thread(copy_at_rest, tmp_path / "data", crashed)

    async with direct_workers(tmp_path / "data", WORKERS, before=crash) as workers:
        await put_everywhere(workers, 1)
        token = await workers.begin()
        for number in range(WORKERS):
            staging = workers.tables[number].transactions.staging
            place = StagedRequestId(token=token, part="main", sequence=number)
            kind = WriteKind(overwrite=True, tracks_changes=False)
            await staging.stage_delete_all(place, workers.table(number), kind, [], 60.0, alone=True)
        await commit(workers, token)
        assert await scores_of(workers) == [set()] * WORKERS
    async with direct_workers(crashed, WORKERS) as workers:
        assert await scores_of(workers) == [{1} if phase[0] == "prepare" else set()] * WORKERS
        await commit(workers, token)
        assert await scores_of(workers) == [set()] * WORKERS
        await put_everywhere(workers, 3)
        assert await scores_of(workers) == [{3}] * WORKERS


@pytest.mark.parametrize("who", ["commit", "prepare", "conclude"])
@pytest.mark.parametrize("turns", [range(0, 60, 20), pytest.param(range(200), marks=soak)])
async def test_a_commit_goes_on_when_its_caller_is_cancelled_at_any_turn(
    tmp_path: Path, who: str, turns: range
) -> None:
    """The caller is the client, or the coordinator whose deadline has passed."""
    async with direct_workers(tmp_path / "data", WORKERS) as workers:
        for number, turn in enumerate(turns):
            left = [turn]

            async def cancel(method: str, worker: int, *arguments: Any, left: list[int] = left) -> None:
                if method == who and left:
                    await cancel_after(getattr(workers.shares[worker], method)(*arguments), left.pop())
                    raise Unavailable("the answer is lost", retry_after=0.1)

            workers.before = cancel
            token = await workers.begin()
            await workers.stage(token, number, *range(WORKERS))
            if who == "commit":
                await cancel_after(workers.commit(token, *range(1, WORKERS)), turn)
            assert (await commit(workers, token)).rows == WORKERS * 12
            assert await scores_of(workers) == [{number}] * WORKERS


async def cancel_after(call: Any, turns: int) -> None:
    """Cancels a call after some turns of the event loop, unless it has ended."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError, ScanKvError):
        await task


@pytest.mark.represented_by("steps0-0-sync", "steps0-1-write", "steps0-2-write", "steps0-0-write", "steps0-2-rows")
@pytest.mark.parametrize("what", ["sync", "write", "rows"])
@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("steps", [range(1, 3), pytest.param(range(1, 8), marks=soak)])
async def test_a_commit_is_whole_when_the_disk_of_a_worker_fails_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, worker: int, steps: range
) -> None:
    failing: list[int] = []
    done = failed = 0

    def fail_at(number: str | int, error: Exception) -> None:
        """Fails at the steps of the worker that are named in `failing`."""
        nonlocal done, failed
        if str(number) == str(worker):
            done += 1
            if done in failing:
                failed += 1
                raise error

    def write(path: Path, *arguments: Any, sync: bool) -> None:
        number = path.parent.parent.name
        if what == "sync" and sync:
            fail_at(number, OSError(errno.EIO, os.strerror(errno.EIO)))
        if what == "write" and not sync:
            fail_at(number, DiskFull("the disk is full"))
        write_at(path, *arguments, sync=sync)

    async with direct_workers(tmp_path / "data", WORKERS) as workers:

        def apply(live: LiveBucket, *arguments: Any) -> Any:
            if what == "rows":
                fail_at(workers.names.index(live.table), DiskFull("the disk is full"))
            return apply_rows(live, *arguments)

        monkeypatch.setattr(f"{TransactionLog.__module__}.write_at", write)
        monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", apply)
        for step in steps:
            for times in (1, 3):
                token = await workers.begin()
                await workers.stage(token, step, *range(WORKERS))
                failing[:], done = range(step, step + times), 0
                assert (await commit(workers, token)).rows == WORKERS * 12
                failing.clear()
                assert await scores_of(workers) == [{step}] * WORKERS
    assert failed > 1
