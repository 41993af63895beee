"""Expired rows are invisible to every read at once, with a clock that only the test advances."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv import InvalidOption, SchemaMismatch, StartFrom, StopAt, col
from scankv.mirror import mirror
from scankv.model.expressions import any_of
from streaming_server.engine.bucket.call_point import POINT_SECONDS
from tests.support.clocks import START, FakeClocks, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
NOW = dt.datetime.fromtimestamp(START / 1e9, dt.UTC)


def row(number: int, age: float | None, value: int | None = 0) -> dict[str, Any]:
    """Returns a row whose time was `age` seconds ago when the test began."""
    return {"id": number, "at": None if age is None else NOW - dt.timedelta(seconds=age), "value": value}


async def by_event_time(client: Client, **options: Any) -> Table:
    """Creates a table whose rows expire a minute after their time."""
    given = {"ttl_seconds": 60, "ttl_column": "at", **options}
    return await client.create_table("t.events", SCHEMA, primary_key=["id"], **given)


async def by_write_time(client: Client, **options: Any) -> Table:
    """Creates a table whose rows expire a minute after their last write."""
    return await client.create_table("t.events", SCHEMA, primary_key=["id"], **{"ttl_seconds": 60, **options})


async def ids(table: Table) -> list[int]:
    """Returns the ids that a scan sees, ascending."""
    return sorted((await table.scan(columns=["id"]).to_arrow())["id"].to_pylist())


async def test_a_row_disappears_from_every_read_once_its_time_has_passed(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client, indexes=[["value"]])
        await table.upsert([row(1, 0, 10), row(2, 30, 20), row(3, None, 30), row(4, 61, 40)])

        async def check(alive: list[int]) -> None:
            values = [number * 10 for number in alive]
            assert await ids(table) == alive
            assert sorted((await table.scan(columns=["value"]).to_arrow())["value"].to_pylist()) == values
            assert await table.count() == len(alive)
            assert await table.count(where=col("value") >= 20) == sum(value >= 20 for value in values)
            assert [await table.get(number) is not None for number in range(1, 5)] == [n in alive for n in range(1, 5)]
            assert sorted((await table.lookup([1, 2, 3, 4]))["id"].to_pylist()) == alive
            assert (await table.top_n(10, order_by="value"))["id"].to_pylist() == alive[::-1]
            assert (await table.aggregate({"value": ["sum"]})).to_pylist()[0]["value_sum"] == sum(values)
            for value in (10, 20, 30, 40):
                found = await table.scan(where=col("value") == value).to_arrow()
                assert found["id"].to_pylist() == [number for number in alive if number * 10 == value]

        await check([1, 2, 3])
        clocks.pass_time(29)
        await check([1, 2, 3])
        clocks.pass_time(1)
        await check([1, 3])
        clocks.pass_time(1000)
        await check([3])


async def changes_of(table: Table) -> list[tuple[str, int, int | None]]:
    """Returns the row kind, id and value of each change so far, in order."""
    changes = await table.changes(StartFrom.EARLIEST, stop=StopAt.LATEST).to_arrow()
    return [(each["_change_type"], each["id"], each["value"]) for each in changes.to_pylist()]


async def test_a_row_lives_a_minute_from_its_last_write_even_if_that_write_changes_nothing(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_write_time(client, indexes=[["value"]])
        few, many = [row(1, None, 1), row(2, None, 2)], [row(number, None, number) for number in range(10, 500)]
        await table.upsert(few)
        await table.upsert(many)
        clocks.pass_time(40)
        first = await table.top_n_if_changed(None, 1, order_by="value")
        assert first is not None
        offsets = (await table.upsert(few[:1])).log_offsets
        await table.upsert(many[:200])
        assert (await table.upsert(few[:1])).log_offsets == offsets
        assert (await table.top_n_if_changed(first.version, 1, order_by="value")) is None
        async with client.transaction() as transaction:
            await transaction.upsert(table, [row(3, None, 3)])
        assert await ids(table) == [1, 2, 3, *range(10, 500)]
        clocks.pass_time(20)
        assert await ids(table) == [1, 3, *range(10, 210)]
        assert await table.get(1) == row(1, None, 1)
        assert await table.get(2) is None
        assert await table.lookup([1, 2, 3, 10, 499]) == pa.Table.from_pylist(
            [row(1, None, 1), row(3, None, 3), row(10, None, 10)], (await table.scan().to_arrow()).schema
        )
        clocks.pass_time(40)
        assert await ids(table) == []
        assert (await table.count()) == 0


async def test_a_scan_that_resumes_goes_on_as_of_the_time_of_its_first_view(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client)
        await table.upsert([row(number, number % 60) for number in range(600)])
        scan = table.scan(columns=["id"]).with_chunk(rows=100)
        found: list[int] = []
        token: bytes | None = None
        for number in range(8):
            resumed = scan.resume_from(token) if token else scan
            async with resumed.stream() as stream:
                async for rows in stream:
                    found += rows["id"].to_pylist()
                    token = stream.resume_token
                    break
            clocks.pass_time(10 if number else 0.4)
        assert token is not None
        async for rows in scan.resume_from(token).stream():
            found += rows["id"].to_pylist()
        assert sorted(found) == list(range(600))
        assert await ids(table) == []


async def test_a_pinned_snapshot_keeps_the_rows_of_its_own_time(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client, indexes=[["value"]])
        await table.upsert([row(1, 0, 1), row(2, 30, 2), row(3, 90, 3)])
        async with table.snapshot(ttl=3600) as snapshot:
            for _ in range(3):
                assert sorted((await table.scan().as_of(snapshot).to_arrow())["id"].to_pylist()) == [1, 2]
                assert await table.count(as_of=snapshot) == 2
                assert (await table.top_n(5, order_by="value", as_of=snapshot))["id"].to_pylist() == [2, 1]
                clocks.pass_time(100)
        assert await ids(table) == []


@pytest.mark.parametrize("type_", [pa.date32(), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))])
async def test_times_of_every_type_expire_and_the_most_distant_ones_do_not_overflow(
    tmp_path: Path, type_: pa.DataType
) -> None:
    clocks = FakeClocks()
    schema = pa.schema([("id", pa.int64()), ("at", type_)])
    storage = pa.int32() if type_ == pa.date32() else pa.int64()
    day = 86_400 * {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}.get(getattr(type_, "unit", ""), 1)
    today = START // 86_400_000_000_000 * (1 if type_ == pa.date32() else day)
    most = 2 ** (storage.bit_width - 1)
    one = 1 if type_ == pa.date32() else day
    times = pa.array([-most, today - 2 * one, today - one, today, most - 1, None], storage).cast(type_)
    async with serving(tmp_path, clocks) as (_, client):
        table = await client.create_table("t.days", schema, primary_key=["id"], ttl_seconds=86_400, ttl_column="at")
        await table.upsert(pa.table([pa.array(range(6), pa.int64()), times], schema=schema))
        assert await ids(table) == [3, 4, 5]
        assert sorted((await table.lookup(list(range(6))))["id"].to_pylist()) == [3, 4, 5]
        clocks.pass_time(86_400)
        assert await ids(table) == [4, 5]


@pytest.mark.represented_by("by_event_time-none")
@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
@pytest.mark.parametrize("changes", ["delete", "none"])
@pytest.mark.parametrize("kind", [by_event_time, by_write_time])
async def test_the_sweep_removes_expired_rows_with_their_entries_and_from_the_base(
    tmp_path: Path, kind: Any, changes: str
) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks, base_maintenance_seconds=0.02) as (server, client):
        table = await kind(client, ttl_changes=changes, indexes=[["value"]], columnar_base="eager")
        await table.upsert([row(number, number % 2 * 30, number) for number in range(1000)])
        if kind is by_write_time:
            clocks.pass_time(30)
            await table.upsert([row(number, 0, number) for number in range(0, 1000, 2)])
        await until_based(table)
        clocks.pass_time(30 + POINT_SECONDS)
        state = server._tables.table("t.events").state
        await server._tables._sweep.sweep_table(state)
        assert sum(each.rows or 0 for each in await table.stats()) == 500
        assert all(bucket.is_consistent for bucket in await client.check_table("t.events"))
        assert await ids(table) == list(range(0, 1000, 2))
        assert state.sweep.removed == 500
        kinds = Counter(kind for kind, *_ in await changes_of(table))
        assert kinds == Counter({"+I": 1000, **({"-D": 500} if changes == "delete" else {})})
    async with serving(tmp_path, clocks) as (server, client):
        table = await client.table("t.events")
        assert await ids(table) == list(range(0, 1000, 2))
        # A longer TTL makes rows visible again only if they are stored.
        table = await client.alter_table("t.events", ttl_seconds=10_000)
        assert await ids(table) == list(range(0, 1000, 2))
        assert await table.count() == 500


async def until_based(table: Table) -> None:
    """Waits until scans read columnar bases."""
    while not all(each.base is not None and not each.base.unused_reason for each in await table.stats()):
        await table.scan(columns=["id"]).to_arrow()


async def based_ids(table: Table) -> list[int]:
    """Returns the ids that a scan of columnar bases sees, ascending."""
    return sorted((await table.scan(columns=["id"]).read_path("columnar").to_arrow())["id"].to_pylist())


async def test_a_base_has_the_times_of_the_last_writes_and_older_rows_that_of_the_alteration(tmp_path: Path) -> None:
    clocks = FakeClocks()
    rows = [row(number, None, number) for number in range(3000)]
    async with serving(tmp_path, clocks, base_maintenance_seconds=0.02) as (_, client):
        table = await client.create_table(
            "t.events", SCHEMA, primary_key=["id"], buckets=2, columnar_base="eager", indexes=[["value"]]
        )
        await table.upsert(rows)
        await until_based(table)
        clocks.pass_time(100)
        table = await client.alter_table("t.events", ttl_seconds=60)
        await until_based(table)
        clocks.pass_time(30)
        await table.upsert(rows[:10])  # into the delta
        snapshot = await table.snapshot()
        clocks.pass_time(29)
        assert await based_ids(table) == list(range(3000))
        clocks.pass_time(1)
        assert await based_ids(table) == await ids(table) == list(range(10))
        assert (await table.top_n(3, order_by="value")).column("id").to_pylist() == [9, 8, 7]
        assert await table.count(where=col("value") < 20) == 10
        pinned = await table.scan(columns=["id"]).as_of(snapshot).to_arrow()
        assert len(pinned) == 3000


@pytest.mark.parametrize("touched", [range(0), range(0, 3000, 3)])
async def test_a_base_on_disk_is_not_read_if_rows_were_written_again_without_a_change(
    tmp_path: Path, touched: range
) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks, base_maintenance_seconds=0.02) as (_, client):
        table = await by_write_time(client, columnar_base="eager", buckets=1)
        await table.upsert([row(number, None, number) for number in range(3000)])
        await until_based(table)
    # These build no base.
    async with serving(tmp_path, clocks, base_maintenance_seconds=1000) as (_, client):
        table = await client.table("t.events")
        clocks.pass_time(30)
        await table.upsert([row(7, None, 8)])
        if touched:
            await table.upsert([row(number, None, number) for number in touched])
    async with serving(tmp_path, clocks, base_maintenance_seconds=1000) as (_, client):
        table = await client.table("t.events")
        assert len(await ids(table)) == 3000
        (bucket,) = await table.stats()
        assert bucket.base is not None
        assert bool(bucket.base.unused_reason) == bool(touched)
        clocks.pass_time(30)
        assert await ids(table) == sorted({7, *touched})


async def test_a_mirror_leaves_out_expired_rows_before_the_sweep_has_removed_them(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client)
        await table.upsert([row(1, 0), row(2, 30), row(3, None), row(4, 100)])
        local = mirror(table)
        local._clock = lambda: clocks.wall_micros / 1e6
        async with local:
            assert sorted(local.to_arrow()["id"].to_pylist()) == [1, 2, 3]
            assert (len(local), 2 in local, 4 in local, local.get(4)) == (3, True, False, None)
            await client.alter_table("t.events", rename_columns={"at": "zeit"})
            await local.wait_for((await (await client.table("t.events")).delete([1])).log_offsets)
            clocks.pass_time(30)
            assert sorted(local.to_arrow()["id"].to_pylist()) == [3]
            assert (len(local), 2 in local, local.get(2)) == (1, False, None)


async def test_a_watch_emits_when_rows_expire_although_nothing_is_written(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client)
        await table.upsert([row(1, 0, 10), row(2, 30, 20)])
        async with table.watch_top_n(5, order_by="value", every=0.1) as watch:
            assert (await anext(watch)).rows["id"].to_pylist() == [2, 1]
            waiting = asyncio.create_task(anext(watch))
            clocks.pass_time(30)
            top = await waiting
            assert top.rows["id"].to_pylist() == [1]
            assert top.left["id"].to_pylist() == [2]


async def test_a_poll_is_computed_again_at_most_once_a_second(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client)
        await table.upsert([row(1, 0, 10)])
        first = await table.aggregate_if_changed(None, {"value": ["sum"]})
        assert first is not None
        clocks.pass_time(0.9)
        assert await table.aggregate_if_changed(first.version, {"value": ["sum"]}) is None
        again = await table.aggregate_if_changed(None, {"value": ["sum"]})
        assert again is not None
        assert again.version == first.version
        clocks.pass_time(0.1)
        second = await table.aggregate_if_changed(first.version, {"value": ["sum"]})
        assert second is not None
        assert second.version != first.version


async def test_bad_options_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeClocks()) as (_, client):
        for options, message in (
            ({"ttl_seconds": 60, "ttl_column": "value"}, "must name a date or timestamp column.*the table has at"),
            ({"ttl_seconds": 60, "ttl_column": "att"}, 'does not exist, "att".*"at"'),
            ({"ttl_seconds": -1}, "between 0 and 3,153,600,000"),
            ({"ttl_column": "at"}, "set both or neither"),
            ({"ttl_seconds": 60, "ttl_changes": "some"}, '"delete" or "none"'),
        ):
            with pytest.raises(InvalidOption, match=message):
                await client.create_table("t.bad", SCHEMA, primary_key=["id"], **options)
        by_write = await client.create_table("t.w", SCHEMA, primary_key=["id"], ttl_seconds=60, ttl_column=None)
        assert by_write.options == {"ttl_seconds": "60"}
        table = await by_event_time(client)
        with pytest.raises(SchemaMismatch, match="rows expire by it"):
            await client.alter_table("t.events", drop_columns=["at"])
        with pytest.raises(InvalidOption, match="set both or neither"):
            await client.alter_table("t.events", ttl_seconds=None)
        await table.upsert([row(1, 61)])
        assert await table.count() == 0
        await client.alter_table("t.events", ttl_seconds=None, ttl_column=None, drop_columns=["at"])
        assert await table.count() == 1


async def test_rows_that_exist_live_from_the_moment_when_write_times_begin_to_count(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await client.create_table("t.events", SCHEMA, primary_key=["id"])
        await table.upsert([row(number, None) for number in range(200)])
        clocks.pass_time(1000)
        table = await client.alter_table("t.events", ttl_seconds=60)
        clocks.pass_time(30)
        await table.upsert([row(1, None)])
        assert await table.count() == 200
        clocks.pass_time(30)
        assert await ids(table) == [1]
    async with serving(tmp_path, clocks) as (_, client):
        table = await client.table("t.events")
        assert await ids(table) == [1]
        assert await table.lookup([1, 2]) == pa.Table.from_pylist([row(1, None)], table.schema)
        clocks.pass_time(30)
        assert await ids(table) == []


async def test_a_time_in_the_key_bounds_what_scans_and_the_sweep_read(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])
        table = await client.create_table(
            "t.events", schema, primary_key=["at", "id"], buckets=1, ttl_seconds=60, ttl_column="at"
        )
        rows = [{"at": NOW - dt.timedelta(seconds=number), "id": number} for number in range(1000)]
        await table.upsert(rows)
        async with table.scan().stream() as stream:
            found = [each for batch in [batch async for batch in stream] for each in batch["id"].to_pylist()]
            assert stream.stats().rows_scanned == 60
        assert sorted(found) == list(range(60))
        explanation = await table.scan().explain()
        assert "at" in str(explanation)
        state = server._tables.table("t.events").state
        clocks.pass_time(POINT_SECONDS)
        await server._tables._sweep.sweep_table(state)
        assert state.sweep.removed == 940


async def test_explain_of_a_top_n_has_the_rows_that_have_not_expired(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeClocks()) as (_, client):
        table = await by_event_time(client, indexes=[["value"]])
        await table.upsert([row(number, 10 * number, number) for number in range(10)])
        assert (await table.top_n(3, "value", "value >= 2"))["id"].to_pylist() == [5, 4, 3]
        told = await table.explain_top_n(3, "value", "value >= 2")
        # The entries lack the time, so their order does not show which rows count.
        assert (told.index_order, told.index, told.index_ranges) == (False, ("value",), ("value >= 2",))
        assert told.residual is not None
        assert "NOW" in told.residual.replace("2023-11-14 22:12:20", "NOW")
        assert told.columns_read == ("at", "value")
        unindexed = await table.explain_top_n(3, "id", "value <> 2")
        assert unindexed.residual is not None
        assert 'col("value") != 2' in unindexed.residual
        assert 'col("at") >' in unindexed.residual


async def test_the_longest_predicate_still_fits_a_table_whose_rows_expire(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeClocks()) as (_, client):
        table = await by_event_time(client, indexes=[["value"]])
        await table.upsert([row(1, 0, 7), row(2, 90, 7)])
        where = any_of([col("value") == number for number in range(999)])
        assert where.nodes == 1000
        assert (await table.scan(where=where).to_arrow())["id"].to_pylist() == [1]
        assert await table.count(where=where) == 1


async def test_untracked_writes_restart_the_time(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_write_time(client)
        await table.upsert([row(number, None, number) for number in range(200)])
        clocks.pass_time(50)
        await table.upsert([row(number, None, number) for number in range(100)], track_changes=False)
        clocks.pass_time(10)
        assert await ids(table) == list(range(100))


async def test_a_date_that_becomes_a_timestamp_goes_on_expiring(tmp_path: Path) -> None:
    clocks = FakeClocks()
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    async with serving(tmp_path, clocks) as (_, client):
        table = await client.create_table("t.days", schema, primary_key=["id"], ttl_seconds=86_400, ttl_column="day")
        await table.upsert([{"id": number, "day": NOW.date() - dt.timedelta(days=number)} for number in range(200)])
        assert await ids(table) == [0]
        table = await client.alter_table("t.days", column_types={"day": pa.timestamp("ms")})
        assert await ids(table) == [0]
        noon = dt.datetime.combine(NOW.date(), dt.time(12))
        await table.upsert([{"id": 1, "day": noon}])
        assert await ids(table) == [0, 1]
        assert await table.get(5) is None
        midnight = dt.datetime.combine(NOW.date() + dt.timedelta(days=1), dt.time(), dt.UTC)
        clocks.pass_time((midnight - NOW).total_seconds())
        assert await ids(table) == [1]


async def test_a_later_snapshot_of_an_unchanged_table_lacks_the_rows_that_have_expired_since(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await by_event_time(client)
        await table.upsert([row(1, 0), row(2, 30)])
        first = await table.snapshot()
        clocks.pass_time(30)
        second = await table.snapshot()
        clocks.pass_time(30)
        for snapshot, expected in ((first, [1, 2]), (second, [1])):
            found = await table.scan(columns=["id"]).as_of(snapshot).to_arrow()
            assert sorted(found["id"].to_pylist()) == expected


@pytest.mark.parametrize("options", [{}, {"ttl_changes": "none", "changelog": "upsert"}])
@pytest.mark.parametrize("kind", [by_event_time, by_write_time])
async def test_a_rescan_returns_expired_rows_as_deletes(tmp_path: Path, kind: Any, options: dict[str, Any]) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await kind(client, buckets=1, **options)
        await table.upsert([row(number, 0, number) for number in range(200)], track_changes=False)
        clocks.pass_time(50)
        await table.upsert([row(number, -50, number) for number in range(100)], track_changes=False)
        clocks.pass_time(10)
        changes = table.changes(StartFrom.EARLIEST, stop=StopAt.LATEST).with_untracked("rescan")
        found = {each["id"]: each["_change_type"] for each in (await changes.to_arrow()).to_pylist()}
        assert found == {number: "+U" if number < 100 else "-D" for number in range(200)}


@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
@pytest.mark.parametrize("removed", [False, True])
async def test_an_undo_restores_rows_whose_successors_have_expired_unless_these_were_removed(
    tmp_path: Path, *, removed: bool
) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        table = await by_event_time(client)
        await table.upsert([row(1, 30, 10), row(2, 0, 20), row(3, 0, 30)])
        before = await table.log_offsets()
        async with table.writer(id="job") as writer:
            await writer.upsert([row(1, None, 11), row(2, None, 21), row(3, 30, 31), row(4, 30, 41), row(5, None, 51)])
        clocks.pass_time(30)
        assert await ids(table) == [1, 2, 5]
        if removed:
            clocks.pass_time(POINT_SECONDS)
            await server._tables._sweep.sweep_table(server._tables.table("t.events").state)
        # A removal is a later change of another writer, so it is kept and reported.
        assert (await table.undo("job", before)).conflicts == (2 if removed else 0)
        found = {each["id"]: each["value"] for each in (await table.scan().to_arrow()).to_pylist()}
        # Row 1 is restored, too, and has expired.
        assert found == ({2: 20} if removed else {2: 20, 3: 30})
