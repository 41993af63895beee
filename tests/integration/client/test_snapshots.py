"""Pinned snapshots, live scans and their cancellation, as users of the client see them."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    InvalidRequest,
    ScanSource,
    SnapshotExists,
    SnapshotLost,
    TableNotFound,
    UsageError,
    connect,
    sync,
)
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_client import Client, Scan, Snapshot, Table
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROWS = 5_000


def rows(keys: range, value: str) -> pa.Table:
    return pa.table({"k": keys, "value": [value] * len(keys)}, schema=SCHEMA)


async def content(scan: Scan) -> set[tuple[int, str]]:
    found = await scan.to_arrow()
    pairs = list(zip(found["k"].to_pylist(), found["value"].to_pylist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


OLD = {(k, "old") for k in range(ROWS)}


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await table.upsert(rows(range(ROWS), "old"))
    return table


async def overwrite(table: Table) -> None:
    """Changes every row, deletes some, adds some."""
    await table.upsert(rows(range(ROWS + 10), "new"))
    await table.delete(list(range(10)))


@pytest.mark.asyncio
async def test_a_snapshot_shows_the_rows_of_its_pin_and_a_live_scan_those_of_now(table: Table) -> None:
    async with table.snapshot(ttl=60) as snapshot:
        await overwrite(table)
        assert await content(table.scan().as_of(snapshot)) == OLD
        assert await content(table.scan()) == {(k, "new") for k in range(10, ROWS + 10)}
        assert await content(table.scan().as_of(snapshot)) == OLD
    with pytest.raises(SnapshotLost):
        await table.scan().as_of(snapshot).to_arrow()


@pytest.mark.asyncio
async def test_a_snapshot_says_what_it_holds(client: Client, table: Table) -> None:
    written = await table.upsert([{"k": 0, "value": "newer"}])
    async with table.snapshot(ttl=90) as snapshot:
        await client.alter_table(table.name, add_columns=pa.schema([("later", pa.int8())]))
        assert (snapshot.table, snapshot.rows, snapshot.ttl, snapshot.schema) == (table.name, ROWS, 90, SCHEMA)
        assert sorted(snapshot.log_offsets) == [0, 1, 2]
        assert all(snapshot.log_offsets[bucket] == offset for bucket, offset in written.log_offsets.items())
        assert abs(snapshot.taken_at.timestamp() - time.time()) < 60
        assert 60 < snapshot.remaining <= 90
        async with table.scan().as_of(snapshot).stream() as stream:
            assert stream.schema == SCHEMA
            assert stream.log_offsets == snapshot.log_offsets
            assert stream.consistency == "pinned"


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_an_awaited_snapshot_expires_unless_its_holder_renews_it(client: Client, table: Table) -> None:
    snapshot = await table.snapshot(ttl=3)
    kept = await table.snapshot(ttl=3)
    await kept.renew(60)
    await await_until(lambda: has_expired(client, snapshot), "expired")
    assert snapshot.remaining == 0
    await assert_lost(table, snapshot)
    assert await content(table.scan().as_of(kept)) == OLD
    await kept.release()


async def has_expired(client: Client, snapshot: Snapshot) -> bool:
    return snapshot.id not in [each.id for each in await client.snapshots()]


async def assert_lost(table: Table, snapshot: Snapshot) -> None:
    lost: list[Callable[[], Awaitable[Any]]] = [
        table.scan().as_of(snapshot).to_arrow,
        snapshot.renew,
        lambda: table.snapshot(same_view_as=snapshot),
    ]
    for call in lost:
        with pytest.raises(SnapshotLost):
            await call()
    await snapshot.release()


@pytest.mark.asyncio
async def test_readers_that_give_the_same_id_read_the_same_view_and_none_of_them_ends_it(
    client: Client, table: Table
) -> None:
    id_ = f"job-{uuid.uuid4().hex}"
    async with table.snapshot(ttl=300, id=id_) as snapshot:
        assert snapshot.id == id_
    await overwrite(table)
    elsewhere = await client.table(table.name)
    again = await elsewhere.snapshot(ttl=3, id=id_)
    assert (again.view_id, again.ttl) == (snapshot.view_id, 300)
    assert await content(table.scan().as_of(id_)) == OLD
    with pytest.raises(UsageError, match="id"):
        table.snapshot(id="")
    with pytest.raises(InvalidRequest):
        await table.snapshot(id="a b")
    await again.release()
    with pytest.raises(SnapshotLost):
        await table.snapshot(id=id_)


@pytest.mark.asyncio
@pytest.mark.one_process
async def test_a_snapshot_of_another_table_is_not_read(client: Client, table: Table, name: str) -> None:
    other = await client.create_table(f"{name}_other", SCHEMA, primary_key=["k"])
    async with table.snapshot() as snapshot:
        with pytest.raises(InvalidRequest, match=f"is of table {name}, not of"):
            await other.scan().as_of(snapshot).to_arrow()
        with pytest.raises(InvalidRequest, match=f"is of table {name}, not of"):
            await other.snapshot(same_view_as=snapshot)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_scan_goes_on_when_the_snapshot_under_it_is_released(table: Table) -> None:
    async with table.snapshot() as snapshot:
        stream = table.scan().as_of(snapshot).with_chunk(rows=10).stream()
        read = (await anext(stream)).num_rows
    await overwrite(table)
    assert read + sum([batch.num_rows async for batch in stream]) == ROWS


@pytest.mark.asyncio
async def test_snapshots_of_an_unchanged_table_share_a_view_and_are_released_one_by_one(
    client: Client, table: Table
) -> None:
    first, second = await table.snapshot(), await table.snapshot(ttl=300)
    assert first.id != second.id
    assert first.view_id == second.view_id
    await overwrite(table)
    third, again = await table.snapshot(), await table.snapshot(same_view_as=first.id)
    assert third.view_id != first.view_id
    assert again.view_id == first.view_id
    listed = await client.snapshots(table.name)
    assert {each.id: each.view_id for each in listed} == {
        each.id: each.view_id for each in (first, second, third, again)
    }
    assert [each.view_id for each in listed][-1] == third.view_id
    assert {each.ttl for each in listed} == {300, 600}
    for each in (first, second):
        await each.release()
    assert await content(table.scan().as_of(again)) == OLD
    for each in (third, again):
        await each.release()
    assert await client.snapshots(table.name) == []


@pytest.mark.asyncio
async def test_listed_snapshots_are_renewed_and_released_by_whoever_listed_them(client: Client, table: Table) -> None:
    snapshot = await table.snapshot(ttl=600)
    (listed,) = await client.snapshots(table.name)
    await listed.renew(1200)
    await snapshot.renew()
    assert snapshot.ttl == 1200
    assert snapshot.id in [each.id for each in await client.snapshots()]
    await listed.release()
    await assert_lost(table, snapshot)


@pytest.mark.asyncio
async def test_snapshots_go_with_their_table(client: Client, table: Table) -> None:
    snapshot = await table.snapshot()
    await client.drop_table(table.name)
    with pytest.raises(SnapshotLost):
        await snapshot.renew()
    with pytest.raises(TableNotFound):
        await client.snapshots(table.name)
    with pytest.raises(TableNotFound):
        await table.snapshot()
    assert snapshot.id not in [each.id for each in await client.snapshots()]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_context_outlives_a_restart_of_the_server(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("game.scores", SCHEMA, primary_key=["k"], buckets=2)
        await table.upsert(rows(range(ROWS), "old"))
        async with table.snapshot(ttl=60) as snapshot:
            await overwrite(table)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.restart)
            await client.wait_ready()
            assert await content(table.scan().as_of(snapshot)) == OLD
            await snapshot.renew()
            statistics = await client.stats()
            assert (statistics.snapshot_views, statistics.snapshot_leases) == (1, 1)
            assert statistics.snapshot_bytes > 0
        assert (await client.stats()).snapshot_leases == 0
        await await_until(lambda: no_view_is_kept(client), "the view gone")


async def no_view_is_kept(client: Client) -> bool:
    return (await client.stats()).snapshot_views == 0


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_named_snapshot_is_found_again_after_client_and_server_were_restarted(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("game.scores", SCHEMA, primary_key=["k"], buckets=3)
        await table.upsert(rows(range(ROWS), "old"))
        snapshot = await table.snapshot(name="nightly", ttl=3600)
        assert (snapshot.name, (await table.snapshot()).name) == ("nightly", None)
        source = table.scan().with_source(ScanSource.SNAPSHOT, snapshot)
        await overwrite(table)
        assert await content(source) == OLD
        assert await content(source.with_source(ScanSource.KV)) == await content(table.scan()) != OLD
    server.kill()
    server.restart()
    async with connect(server.url) as client:
        table = await client.table("game.scores")
        with pytest.raises(SnapshotExists) as caught:
            await table.snapshot(name="nightly")
        assert caught.value.details == {"table": "game.scores", "snapshot": snapshot.id}
        async with await table.adopt_snapshot("nightly") as found:
            assert (found.id, found.name, found.ttl) == (snapshot.id, "nightly", 3600)
            assert await content(table.scan().as_of(found)) == OLD
        with pytest.raises(SnapshotLost, match='has no snapshot named "nightly"'):
            await table.adopt_snapshot("nightly")
        async with table.snapshot(name="nightly") as again:
            assert (await table.scan().as_of(again).to_arrow()).num_rows == ROWS


@pytest.mark.asyncio
async def test_names_that_no_snapshot_can_have_are_refused_before_any_call(table: Table) -> None:
    for name in ("", "a b", "x" * 129):
        with pytest.raises(UsageError, match="is not the name of a snapshot"):
            table.snapshot(name=name)
        with pytest.raises(UsageError, match="is not the name of a snapshot"):
            await table.adopt_snapshot(name)
    with pytest.raises(UsageError, match="give id or name, not both"):
        table.snapshot(id="all", name="nightly")


@pytest.mark.asyncio
async def test_a_pin_rides_through_a_restart_of_the_server(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("game.scores", SCHEMA, primary_key=["k"])
        await asyncio.to_thread(server.kill)
        pinning = asyncio.ensure_future(_pin(table))
        await asyncio.to_thread(server.restart)
        assert (await pinning).table == "game.scores"
        assert len(await client.snapshots()) == 1


async def _pin(table: Table) -> Snapshot:
    return await table.snapshot()


def test_a_blocking_client_closed_inside_the_context_is_no_error(shared_server: ServerProcess, name: str) -> None:
    client = sync.connect(shared_server.url)
    table = client.create_table(name, SCHEMA, primary_key=["k"])
    with table.snapshot():
        client.close()
