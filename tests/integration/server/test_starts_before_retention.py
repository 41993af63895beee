"""A stream that starts at a time either has every change since then, or says that it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from scankv import PositionExpired, StartFrom, StopAt
from tests.integration.server.test_clocks import SCHEMA, at, changed_keys
from tests.support.clocks import DAY, FakeClocks, look_after, parts_of, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from streaming_server.server import Server

pytestmark = pytest.mark.asyncio

KINDS: Final[dict[str, dict[str, Any]]] = {
    "with a key": {"primary_key": ["k"]},
    "with tablets": {"primary_key": ["k"], "tablets": 2, "buckets": 2},
    "without a key": {"primary_key": []},
}


async def create(client: Client, kind: str, **options: Any) -> Table:
    given = {"buckets": 1, "log_retention_seconds": 1000, **KINDS[kind], **options}
    return await client.create_table("a.b", SCHEMA, **given)


async def put(table: Table, *keys: int) -> None:
    rows = [{"k": key, "v": key} for key in keys]
    await (table.upsert(rows) if table.primary_key else table.append(rows))


async def keys_since(table: Table, micros: int, *, clamp: bool = False) -> list[int]:
    """Returns the keys of the changes that were committed at or after a time."""
    changes = table.changes(StartFrom.timestamp(at(micros)), StopAt.LATEST, columns=["k"], clamp=clamp)
    return sorted((await changes.to_arrow())["k"].to_pylist())


async def check_start(table: Table, micros: int, expected: list[int] | None, *, clamped: list[int]) -> None:
    """Checks a start with and without `clamp`. `expected` is None if the start has expired."""
    assert await keys_since(table, micros, clamp=True) == clamped
    if expected is not None:
        assert await keys_since(table, micros) == expected
        return
    with pytest.raises(PositionExpired, match="are no longer in its changelog, which reaches from") as caught:
        await keys_since(table, micros)
    assert {"bucket", "earliest", "latest"} <= caught.value.details.keys()


async def rewrite_all(server: Server) -> None:
    """Joins the records of all changes, so that later removals begin within a record."""
    for part in parts_of(server, "a.b"):
        for live in part.buckets:
            async with live.mutex:
                bucket = await live.open()
                segment = await live.run(bucket.log.next_segment, live.durable_offset, part.definition)
                assert segment is not None
                await live.run(bucket.put_segment, segment)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_at_a_time_has_expired_only_if_changes_since_then_were_removed(tmp_path: Path, kind: str) -> None:
    clocks = FakeClocks()
    first = clocks.wall_micros
    async with serving(tmp_path, clocks) as (server, client):
        table = await create(client, kind)
        # No change was removed, so every earlier time is allowed, also one before the table was created.
        await check_start(table, first - 1_000_000_000, [], clamped=[])
        await put(table, *range(10))
        clocks.pass_time(100)
        second = clocks.wall_micros
        await put(table, *range(10, 20))
        clocks.pass_time(500)
        third = clocks.wall_micros
        await put(table, *range(20, 30))
        await check_start(table, first - 1_000_000_000, [*range(30)], clamped=[*range(30)])
        clocks.pass_time(950)
        await look_after(server, "a.b")
        kept = [*range(20, 30)]
        assert sorted(await changed_keys(table, StartFrom.EARLIEST)) == kept

        async def check_partly_removed() -> None:
            await check_start(table, first - 1_000_000_000, None, clamped=kept)
            await check_start(table, second, None, clamped=kept)
            await check_start(table, second + 1, kept, clamped=kept)
            await check_start(table, third, kept, clamped=kept)
            await check_start(table, third + 1, [], clamped=[])

        await check_partly_removed()
    async with serving(tmp_path, clocks) as (server, client):
        table = await client.table("a.b")
        await check_partly_removed()
        clocks.pass_time(1000)
        await look_after(server, "a.b")
        assert await changed_keys(table, StartFrom.EARLIEST) == []
        await check_start(table, third, None, clamped=[])
        await check_start(table, third + 1, [], clamped=[])
        await put(table, 50)
        await check_start(table, third, None, clamped=[50])
        await check_start(table, third + 1, [50], clamped=[50])


async def test_a_consumer_starts_and_is_reset_at_a_time_under_the_same_rule(tmp_path: Path) -> None:
    clocks = FakeClocks()
    before = StartFrom.timestamp(at(clocks.wall_micros))
    async with serving(tmp_path, clocks) as (server, client):
        table = await create(client, "with a key")
        await put(table, 1)
        clocks.pass_time(1100)
        await put(table, 2)
        await look_after(server, "a.b")
        changes = table.changes(before, StopAt.LATEST)
        with pytest.raises(PositionExpired):
            await changes.with_consumer_id("one").to_arrow()
        assert (await changes.start_from(before, clamp=True).with_consumer_id("one").to_arrow())["k"].to_pylist() == [2]
        with pytest.raises(PositionExpired):
            await table.reset_consumer("one", before)
        await table.reset_consumer("one", before, clamp=True)
        assert (await changes.with_consumer_id("one").to_arrow())["k"].to_pylist() == [2]


@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
async def test_a_removal_within_a_record_or_at_a_marker_is_known_exactly(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        table = await create(client, "with a key")
        times = []
        for key in range(8):
            times.append(clocks.wall_micros)
            if key == 5:
                await table.upsert([{"k": key, "v": key}], track_changes=False)
            else:
                await put(table, key)
            clocks.pass_time(100)
        await rewrite_all(server)
        (live,) = parts_of(server, "a.b")[0].buckets
        definition = parts_of(server, "a.b")[0].definition
        for removed in (3, 6):
            async with live.mutex:
                bucket = await live.open()
                await live.run(bucket.trim_log, bucket.log.span.offset_of(removed), definition)
            with pytest.raises(PositionExpired):
                await keys_since(table, times[removed - 1])
            changes = table.changes(StartFrom.timestamp(at(times[removed - 1] + 1)), StopAt.LATEST)
            found = await changes.with_untracked("rescan").to_arrow()
            assert set(found["k"].to_pylist()) == {*range(removed, 8)}


@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
async def test_a_start_is_refused_where_an_earlier_version_has_not_recorded_what_it_removed(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        table = await create(client, "with a key")
        await put(table, 1)
        first = clocks.wall_micros
        clocks.pass_time(1100)
        (live,) = parts_of(server, "a.b")[0].buckets

        async def forget() -> None:
            await look_after(server, "a.b")
            async with live.mutex:
                store = (await live.open())._store
                batch = store.batch()
                batch.delete_meta(b"log-removed")
                store.write(batch)

        await forget()
        await check_start(table, first, None, clamped=[])
        await check_start(table, first + 1, [], clamped=[])
        second = clocks.wall_micros
        await put(table, 2)
        await check_start(table, second, None, clamped=[2])
        await check_start(table, second + 1, [], clamped=[])
        await put(table, 3)
        # The next removal is recorded.
        clocks.pass_time(1100)
        await look_after(server, "a.b")
        await check_start(table, second + 1, [], clamped=[])


async def test_a_time_without_changelog_has_expired(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await create(client, "with a key")
        await put(table, 1)
        first = clocks.wall_micros
        clocks.pass_time(10)
        await client.alter_table("a.b", changelog="none")
        await put(table, 2)
        second = clocks.wall_micros
        clocks.pass_time(10)
        table = await client.alter_table("a.b", changelog="full")
        third = clocks.wall_micros
        clocks.pass_time(DAY)
        await check_start(table, third, [], clamped=[])
        await put(table, 3)
        await check_start(table, first, None, clamped=[3])
        await check_start(table, second, None, clamped=[3])
        await check_start(table, second + 1, [3], clamped=[3])
