"""The limits of a pin (leases, disk, and how long writers wait), and that a failed or cancelled pin leaves nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import SnapshotNotTaken, TooManySnapshots
from tests.support.snapshots import new_table, put, tables_in, views_on_disk
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

pytestmark = pytest.mark.asyncio

SCORES_THEN: dict[str, int | None] = {f"player {i}": i for i in range(100)}


async def test_more_leases_than_the_limit_are_refused(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=2) as tables:
        table = await new_table(tables)
        first = await tables.snapshots.pin(table.pinning)
        await tables.snapshots.pin(table.pinning, lease_id="second")
        with pytest.raises(TooManySnapshots, match="there are 2 leases on snapshots, and the limit is 2"):
            await tables.snapshots.pin(table.pinning)
        assert (await tables.snapshots.pin(table.pinning, lease_id="second")).snapshot_id == "second"
        await tables.snapshots.release(first.snapshot_id)
        await tables.snapshots.pin(table.pinning)


async def test_views_beyond_the_disk_limit_are_refused_until_some_go(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_bytes=100_000) as tables:
        table = await new_table(tables, buckets=1)
        await put(table, {f"{i}": i for i in range(30_000)})
        first = await tables.snapshots.pin(table.pinning, lease_id="first")
        # The table still contains all of the view's large files.
        assert await tables.snapshots.held_bytes() < 100_000
        await put(table, {f"{i}": -i for i in range(30_000)})
        compact(table.buckets[0])
        held = await tables.snapshots.held_bytes()
        assert held > 100_000
        with pytest.raises(TooManySnapshots, match=r"snapshots hold \d+ bytes on disk, and the limit is 100000"):
            await tables.snapshots.pin(table.pinning)
        # A lease on an existing view costs nothing.
        await tables.snapshots.pin(table.pinning, same_view_as="first")
        await tables.snapshots.release(first.snapshot_id)


def compact(live: Any) -> None:
    """Rewrites a bucket's files, so that only the snapshot has its old files."""
    store = live._bucket._store
    store.flush()
    for family in (store.rows, store.log, store.meta):
        family.compact_range(None, None)


async def test_a_pin_that_waits_too_long_for_writers_lets_them_go_on(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_hold_seconds=0.05) as tables:
        table = await new_table(tables)
        await put(table, SCORES_THEN)
        mutexes = [live.mutex for live in table.buckets]
        await mutexes[2].acquire()
        pinning = asyncio.create_task(tables.snapshots.pin(table.pinning))

        async def waits() -> bool:
            return mutexes[1].locked()

        async def busy_writer() -> None:
            async with mutexes[2]:
                await asyncio.wait([pinning])

        # The pin is flushing all buckets when this writer arrives. Then the writer has the bucket.
        await await_until(waits, "the pin at the third bucket")
        writer = asyncio.create_task(busy_writer())
        await asyncio.sleep(0)
        mutexes[2].release()
        with pytest.raises(SnapshotNotTaken, match=r"paused its writers for \d+\.\d s .* its 3 buckets") as caught:
            await pinning
        assert not mutexes[0].locked()
        assert not mutexes[1].locked()
        await writer
        assert caught.value.retry_after == 1.0
        await put(table, {"player 1": 1_000})
        await assert_nothing_left(tables, tmp_path)


async def test_a_pin_whose_checkpoints_take_too_long_leaves_nothing(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_hold_seconds=0.0, storage_threads=1) as tables:
        table = await new_table(tables, buckets=8)
        await put(table, SCORES_THEN)
        for _ in range(5):
            with pytest.raises(SnapshotNotTaken):
                await tables.snapshots.pin(table.pinning)
            await put(table, SCORES_THEN)
        await assert_nothing_left(tables, tmp_path)


async def assert_nothing_left(tables: Tables, data_dir: Path) -> None:
    async def gone() -> bool:
        return views_on_disk(data_dir) == [] and list((data_dir / "trash").iterdir()) == []

    await await_until(gone, "nothing left on disk")
    assert not any(live.mutex.locked() for table in tables.live_tables() for live in table.buckets)
    assert tables.snapshots.views == tables.snapshots.leases == 0


async def test_a_pin_cancelled_at_any_step_leaves_nothing(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await put(table, SCORES_THEN)
        steps = cancelled = 0
        while True:
            steps += 1 + steps // 8
            pinning = asyncio.create_task(tables.snapshots.pin(table.pinning, lease_id="mine"))
            for _ in range(steps):
                await asyncio.sleep(0)
            if pinning.done():
                break
            pinning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pinning
            cancelled += 1
            await put(table, {"player 1": steps})
        assert cancelled > 20
        await tables.snapshots.release("mine")
        await assert_nothing_left(tables, tmp_path)
