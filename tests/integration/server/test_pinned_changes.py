"""A pinned snapshot keeps the changes from its log offsets on, so that its reader can follow the table from there."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import PositionExpired, ScanSource, SnapshotNotTaken, StartFrom, StopAt
from tests.support.clocks import FakeClocks, look_after, serving
from tests.support.snapshots import TABLE, new_table, tables_in
from tests.support.snapshots import put as store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aio_client import Client, Table
    from streaming_server.server import Server

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
RETENTION = 10
NAME = "a.b"


with_and_without_tablets = pytest.mark.parametrize("tablets", [1, 2], ids=["no tablets", "two tablets"])


async def make(client: Client, buckets: int = 2, tablets: int = 1) -> Table:
    table = await client.create_table(
        NAME,
        SCHEMA,
        primary_key=["k"],
        buckets=buckets,
        tablets=tablets,
        log_retention_seconds=RETENTION,
        compression="none",
    )
    await put(table, range(10))
    return table


async def put(table: Table, keys: range, value: str = "v") -> None:
    await table.upsert(pa.table({"k": keys, "v": [value] * len(keys)}))


async def keys_since(table: Table, offsets: Mapping[int, int]) -> set[int]:
    """Returns the keys of all changes since some offsets."""
    start = StartFrom.offsets(offsets)
    scan = table.scan().with_source(ScanSource.LOG).start_from(start).stop_at(StopAt.LATEST).with_row_kind()
    return set((await scan.to_arrow())["k"].to_pylist())


async def pass_retention(server: Server, machine: FakeClocks) -> None:
    machine.pass_time(2 * RETENTION)
    await look_after(server, NAME)


@with_and_without_tablets
async def test_changes_from_a_snapshot_on_are_kept_until_its_lease_ends_also_over_a_restart(
    tmp_path: Path, tablets: int
) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, tablets=tablets)
        snapshot = await table.snapshot(ttl=86_400)
        await put(table, range(20, 30))
        await pass_retention(server, machine)
        assert await keys_since(table, snapshot.log_offsets) == set(range(20, 30))
        with pytest.raises(PositionExpired):
            await keys_since(table, dict.fromkeys(snapshot.log_offsets, 0))
    async with serving(tmp_path / "data", machine) as (server, client):
        await pass_retention(server, machine)
        table = await client.table(NAME)
        await put(table, range(30, 40))
        await pass_retention(server, machine)
        assert await keys_since(table, snapshot.log_offsets) == set(range(20, 40))
        [again] = await client.snapshots(NAME)
        await again.release()
        await look_after(server, NAME)
        with pytest.raises(PositionExpired):
            await keys_since(table, snapshot.log_offsets)


@with_and_without_tablets
async def test_a_lease_that_expires_lets_the_changes_go(tmp_path: Path, tablets: int) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, tablets=tablets)
        snapshot = await table.snapshot(ttl=RETENTION)
        await put(table, range(20, 30))
        await pass_retention(server, machine)
        assert await keys_since(table, snapshot.log_offsets), "it has not been looked at yet"
        await server._tables.snapshots._expire()
        await look_after(server, NAME)
        with pytest.raises(PositionExpired):
            await keys_since(table, snapshot.log_offsets)


@with_and_without_tablets
async def test_the_last_lease_of_a_view_lets_the_changes_go(tmp_path: Path, tablets: int) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, tablets=tablets)
        first, second = await table.snapshot(ttl=86_400), await table.snapshot(ttl=86_400)
        assert first.log_offsets == second.log_offsets
        await put(table, range(20, 30))
        await first.release()
        await pass_retention(server, machine)
        assert await keys_since(table, second.log_offsets) == set(range(20, 30))
        async with table.scan().as_of(second).stream():
            await second.release()
            await look_after(server, NAME)
            with pytest.raises(PositionExpired):
                await keys_since(table, second.log_offsets)


async def test_a_snapshot_that_would_keep_too_much_loses_its_hold_and_stays_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine, max_retention_hold_bytes=2 << 20) as (server, client):
        table = await make(client, buckets=1)
        snapshot = await table.snapshot(ttl=86_400)
        for _ in range(6):
            await table.upsert(pa.table({"k": range(10_000), "v": [os.urandom(40).hex() for _ in range(10_000)]}))
        await pass_retention(server, machine)
        assert "loses them" in caplog.text
        with pytest.raises(PositionExpired):
            await keys_since(table, snapshot.log_offsets)
        assert len(await table.scan().as_of(snapshot).to_pylist()) == 10
        # Another lease on the same view does not hold changes that are already gone.
        again = await table.snapshot(ttl=86_400)
        await put(table, range(20, 30))
        await pass_retention(server, machine)
        assert await keys_since(table, again.log_offsets) == set(range(20, 30))


@pytest.mark.represented_by("no tablets")
@with_and_without_tablets
async def test_nothing_is_trimmed_between_a_view_and_its_hold(tmp_path: Path, tablets: int) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, tablets=tablets)
        done = asyncio.Event()

        async def write() -> None:
            number = 0
            while not done.is_set():
                number += 1
                await put(table, range(number % 50, number % 50 + 20), f"{number}")

        async def trim() -> None:
            while not done.is_set():
                await pass_retention(server, machine)
                # Hours have passed by the clocks of the test. A pin of two tablets begins again if they pass within it.
                await asyncio.sleep(0.1)

        async def pin() -> None:
            try:
                for _ in range(8):
                    snapshot = await table.snapshot(ttl=604_800)
                    await put(table, range(1000, 1001), snapshot.id)
                    assert 1000 in await keys_since(table, snapshot.log_offsets)
                    await snapshot.release()
            finally:
                done.set()

        async with asyncio.TaskGroup() as group:
            for each in (write(), trim(), pin()):
                group.create_task(each)


async def test_a_view_that_could_not_be_taken_holds_nothing(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_hold_seconds=1e-6) as tables:
        table = await new_table(tables, buckets=1)
        await store(table, {"ann": 1})
        with pytest.raises(SnapshotNotTaken):
            await tables.snapshots.pin(table.pinning)
        bucket = table.buckets[0].open_bucket
        assert bucket is not None
        assert bucket.log.holds.oldest() is None


async def test_holds_that_change_while_a_bucket_is_opened_are_as_they_are_afterwards(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=1)
        await store(table, {"ann": 1})
        released, kept = [await tables.snapshots.pin(table.pinning) for _ in range(2)]
        await store(table, {"ann": 2})
        later = await tables.snapshots.pin(table.pinning)
    async with tables_in(tmp_path) as tables:
        live = tables.table(TABLE).buckets[0]
        async with live.mutex:
            live._open()
            # As seen by an observer before the thread has ended.
            opened, live._bucket = live._bucket, None
            await tables.snapshots.release(kept.snapshot_id)
            await tables.snapshots.release(released.snapshot_id)
            live._bucket = opened
            bucket = await live.open()
            held = bucket.log.holds.oldest()
        assert held is not None
        assert held[1] == later.manifest.buckets[0].log_offset
