"""Group commit: a waiting write is acknowledged after a sync that began after the write."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from streaming_server.engine.bucket.group_commit import GroupCommit
from streaming_server.engine.tasks.executor import StorageExecutor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio


class Disk:
    """Syncs when the test allows it."""

    def __init__(self) -> None:
        self.offset = 0
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.failure: Exception | None = None

    def sync(self, _: int) -> None:
        self.begun.release()
        assert self.let.acquire(timeout=60)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest_asyncio.fixture
async def commit(disk: Disk) -> AsyncIterator[GroupCommit]:
    executor = StorageExecutor(2)
    yield GroupCommit(written=lambda: disk.offset, sync=disk.sync, executor=executor, durable=0)
    executor.close()


async def test_what_took_no_offset_waits_for_a_sync_that_begins_behind_it(disk: Disk, commit: GroupCommit) -> None:
    first = asyncio.create_task(commit.wait_written())
    await asyncio.to_thread(disk.begun.acquire)
    # Written while the first sync runs, which may not include it.
    second, third = (asyncio.create_task(commit.wait_written()) for _ in range(2))
    disk.let.release()
    await first
    await asyncio.to_thread(disk.begun.acquire)
    assert not second.done()
    disk.let.release()
    await asyncio.gather(second, third)
    assert commit.syncs == 2


async def test_who_waits_for_an_offset_and_who_waits_for_all_share_a_sync(disk: Disk, commit: GroupCommit) -> None:
    disk.offset = 7
    waiting = [asyncio.create_task(commit.wait(7)), asyncio.create_task(commit.wait_written())]
    await asyncio.to_thread(disk.begun.acquire)
    disk.let.release(2)
    await asyncio.gather(*waiting)
    assert commit.durable == 7
    assert commit.syncs <= 2


async def test_a_sync_that_fails_fails_all_who_wait_now_and_later(disk: Disk, commit: GroupCommit) -> None:
    disk.failure = OSError("no space left")
    disk.let.release()
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            await commit.wait_written()
    with pytest.raises(OSError, match="no space left"):
        await commit.wait(1)


async def test_the_steps_of_a_long_request_share_syncs_in_the_background(disk: Disk, commit: GroupCommit) -> None:
    for step in range(1, 4):
        disk.offset = step
        commit.record_step()
    assert commit.is_idle
    disk.offset = 4
    commit.record_step()
    await asyncio.to_thread(disk.begun.acquire)
    # While the sync runs, further steps begin no other.
    for step in range(5, 10):
        disk.offset = step
        commit.record_step()
    assert commit.durable == 0
    last = asyncio.create_task(commit.wait(9))
    disk.let.release(2)
    await last
    assert commit.durable == 9
    assert commit.syncs == 2


async def test_a_sync_that_fails_in_the_background_fails_the_end_of_its_request(
    disk: Disk, commit: GroupCommit
) -> None:
    disk.failure = OSError("no space left")
    disk.let.release(2)
    disk.offset = 4
    for _ in range(4):
        commit.record_step()
    with pytest.raises(OSError, match="no space left"):
        await commit.wait(4)
    commit.record_step()
    assert not commit.can_sync


async def test_steps_of_a_request_that_ends_early_are_synced(disk: Disk, commit: GroupCommit) -> None:
    became_durable = asyncio.Event()
    commit.listen(became_durable.set)
    disk.offset = 1
    commit.record_step()
    commit.abandon_steps()
    await asyncio.to_thread(disk.begun.acquire)
    # The running sync may not include this step, so another follows it.
    disk.offset = 2
    commit.record_step()
    commit.abandon_steps()
    disk.let.release(2)
    while commit.durable < 2:
        await became_durable.wait()
        became_durable.clear()
    assert commit.syncs == 2
    commit.abandon_steps()
    assert commit.can_sync
