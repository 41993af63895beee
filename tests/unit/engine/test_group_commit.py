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


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[StorageExecutor]:
    executor = StorageExecutor(2)
    yield executor
    executor.close()


async def test_what_took_no_offset_waits_for_a_sync_that_begins_behind_it(executor: StorageExecutor) -> None:
    disk = Disk()
    commit = GroupCommit(written=lambda: disk.offset, sync=disk.sync, executor=executor, durable=0)
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


async def test_who_waits_for_an_offset_and_who_waits_for_all_share_a_sync(executor: StorageExecutor) -> None:
    disk = Disk()
    commit = GroupCommit(written=lambda: disk.offset, sync=disk.sync, executor=executor, durable=0)
    disk.offset = 7
    waiting = [asyncio.create_task(commit.wait(7)), asyncio.create_task(commit.wait_written())]
    await asyncio.to_thread(disk.begun.acquire)
    disk.let.release(2)
    await asyncio.gather(*waiting)
    assert commit.durable == 7
    assert commit.syncs <= 2


async def test_a_sync_that_fails_fails_all_who_wait_now_and_later(executor: StorageExecutor) -> None:
    disk = Disk()
    commit = GroupCommit(written=lambda: disk.offset, sync=disk.sync, executor=executor, durable=0)
    disk.failure = OSError("no space left")
    disk.let.release()
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            await commit.wait_written()
    with pytest.raises(OSError, match="no space left"):
        await commit.wait(1)
