"""A bucket that is opened again after a failed sync acknowledges no write that the system has dropped."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss, DiskFull, Unavailable
from streaming_server.storage.bucket.bucket import Bucket
from tests.support.snapshots import TABLE, new_table, put, tables_in
from tests.support.tables import ipc_stream, scores
from tests.unit.engine.test_idle_buckets import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket

pytestmark = pytest.mark.asyncio

ROWS: dict[str, int | None] = {f"player {i}": i for i in range(200)}


def full(_: int) -> None:
    raise DiskFull("the disk is full")


def fail_syncs(live: LiveBucket) -> None:
    """Makes syncs fail until the bucket is opened again."""
    assert live._commit is not None
    live._commit._sync = full


async def test_a_bucket_of_which_the_system_has_dropped_writes_is_not_served_before_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=1)
        await put(table, ROWS)
        (live,) = table.buckets
        offset = live.durable_offset
        directory = table.state.path / "buckets" / "0000"
        durable, abandon = shutil.copytree(directory, tmp_path / "durable"), Bucket.abandon

        def drop_writes(bucket: Bucket) -> None:
            abandon(bucket)
            shutil.rmtree(directory)
            shutil.copytree(durable, directory)

        monkeypatch.setattr(Bucket, "abandon", drop_writes)
        fail_syncs(live)
        with pytest.raises(DiskFull):
            await put(table, {"player 1": 7})
        with pytest.raises(DataLoss, match=r"has lost writes that were not durable, .* restart the server"):
            await put(table, {"player 2": 8})
        # A write from before that waits only now is not acknowledged as durable; earlier durable writes are.
        with pytest.raises(DiskFull):
            await live.wait_durable(offset + 1)
        with pytest.raises(DiskFull):
            await live.wait_written()
        await live.wait_durable(offset)
        assert tables.find_damaged().keys() == {TABLE}
    async with tables_in(tmp_path) as tables:
        table = tables.table(TABLE)
        assert await rows_of(table) == ROWS
        await put(table, {"player 2": 8})
        assert await rows_of(table) == {**ROWS, "player 2": 8}


async def test_who_waits_for_a_write_until_after_the_reopening_is_told_that_it_is_durable(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=1)
        await put(table, ROWS)
        (live,) = table.buckets
        before = live.durable_offset
        fail_syncs(live)
        with pytest.raises(DiskFull):
            await put(table, {"player 1": 7})
        assert live.durable_offset == before
        assert await rows_of(table) == {**ROWS, "player 1": 7}
        await live.wait_durable(before + 1)
        await live.wait_written()
        assert live.durable_offset >= before + 1


async def test_reads_that_wait_for_what_cannot_be_made_durable_may_be_repeated(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=1)
        await put(table, ROWS)
        (live,) = table.buckets
        fail_syncs(live)
        live._repair_at = math.inf
        with pytest.raises(DiskFull):
            await put(table, {"player 1": 7})
        with pytest.raises(Unavailable, match="cannot be made durable: the disk is full"):
            await rows_of(table)
        keys = scores(["player 1"], [0]).select(["player"])
        with pytest.raises(Unavailable, match="cannot be made durable: the disk is full"):
            await table.reads.lookup(ipc_stream(keys.schema, keys), None)


async def test_a_bucket_is_opened_again_only_behind_its_last_reader(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=1)
        await put(table, ROWS)
        (live,) = table.buckets
        fail_syncs(live)
        with pytest.raises(DiskFull):
            await put(table, {"player 1": 7})
        bucket = live.open_bucket
        assert bucket is not None
        reader = bucket._store.readers.add(lambda: None)
        with pytest.raises(DiskFull):
            await put(table, {"player 2": 8})
        assert live.open_bucket is bucket
        reader.close()
        await put(table, {"player 3": 9})
        assert live.open_bucket is not bucket
