"""A backup and a segment of the archive take their instants one after the other, at all workers of a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.backup_store import BackupStore
from tests.support.archived import wait_archived
from tests.support.direct_workers import DirectWorkers, direct_workers
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path


async def put_everywhere(workers: DirectWorkers, value: int) -> None:
    for number in range(len(workers.tables)):
        await workers.put(number, value)


@pytest.mark.asyncio
async def test_a_backup_waits_for_the_captures_of_a_segment(tmp_path: Path) -> None:
    """Otherwise, the segment would be before the backup, and have writes of one worker that are after it."""
    store = BackupStore(str(tmp_path / "backups"))
    holds, held, released = asyncio.Event(), asyncio.Event(), asyncio.Event()
    paused: list[int] = []

    async def hold(method: str, worker: int, *_: object) -> None:
        if method == "begin_part" and held.is_set():
            paused.append(worker)
        if method == "capture" and holds.is_set() and not released.is_set():
            held.set()
            await released.wait()

    async with direct_workers(
        tmp_path / "data", 2, hold, backup_location=store.location, archive_every_seconds=0.05
    ) as workers:
        first = workers.tables[0]

        async def has_backed_up() -> bool:
            return not first.backups.progress.is_running

        async def is_about_to_pause() -> bool:
            return bool(paused or first.archive.instants._waiters)

        await put_everywhere(workers, 1)
        first.backups.create()
        await await_until(has_backed_up, "the backup")
        await asyncio.to_thread(wait_archived, store)
        holds.set()
        await held.wait()
        first.backups.create()
        await await_until(is_about_to_pause, "the backup is about to take its instant")
        await put_everywhere(workers, 2)
        released.set()
        await await_until(has_backed_up, "the backup")
        await put_everywhere(workers, 3)
        await asyncio.to_thread(wait_archived, store)
        names = workers.names
    assert len(store.manifests()) == 2
    result = restore_all(store, plan_instant(store, None), tmp_path / "restored")
    assert [(each.name, each.why) for each in result.tables] == [(name, "") for name in sorted(names)]
    async with direct_workers(tmp_path / "restored", 2) as restored:
        assert [await restored.scores(number) for number in range(2)] == [{3}, {3}]
