"""Compacted catch-up: streams of net changes, where they are interrupted, and what they show of altered tables."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import Client, LogOffsets, Scan, ScanSource, StartFrom, StopAt, Table, UsageError, connect
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
KEYS = 600
EARLIER = 3
"""Changes that a bucket of this server may be behind without catching up."""

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server that catches up at once, with little memory for it."""
    arguments = ("--set", f"catch_up_changes={EARLIER}", "--set", f"catch_up_memory_bytes={1 << 20}")
    with ServerProcess(tmp_path_factory.mktemp("net") / "data", *arguments) as server:
        yield server


async def write_something(table: Table, chance: random.Random, commits: int) -> None:
    for _ in range(commits):
        numbers = [chance.randrange(KEYS) for _ in range(chance.randrange(1, 300))]
        if chance.random() < 0.35:
            await table.delete(numbers)
        else:
            # Few values, so that rows often return to an earlier state.
            await table.upsert([{"k": n, "v": f"v{chance.randrange(3)}"} for n in numbers])


async def state_of(table: Table) -> tuple[dict[int, int], dict[int, Any]]:
    async with table.scan().stream() as stream:
        rows = {row["k"]: row["v"] async for batch in stream for row in batch.to_pylist()}
        return stream.log_offsets, rows


def replay(changes: list[dict[str, Any]], before: Mapping[int, Any]) -> dict[int, Any]:
    """Returns the state after the changes. Each change fits the state before it, and no key has two net changes."""
    rows = dict(before)
    seen: set[tuple[int, str]] = set()
    for change in changes:
        key, kind, value = change["k"], change["_change_type"], change["v"]
        assert (key, kind) not in seen
        seen.add((key, kind))
        if kind == "+I":
            assert key not in rows
            rows[key] = value
        elif kind == "-D":
            assert rows.pop(key) == value
        elif kind == "-U":
            assert rows[key] == value
        else:
            assert rows[key] != value
            rows[key] = value
    return rows


def net(table: Table, offsets: Mapping[int, int]) -> Scan:
    changes = table.scan().with_source(ScanSource.LOG).with_row_kind().with_catch_up("net")
    return changes.start_from(StartFrom.offsets(offsets)).stop_at(StopAt.LATEST)


async def test_net_updates_stay_together_in_chunks_of_one_row(hasty: ServerProcess) -> None:
    async with connect(hasty.url) as client:
        table = await client.create_table("net.pairs", SCHEMA, primary_key=["k"], buckets=1)
        await table.upsert([{"k": n, "v": "before"} for n in range(10)])
        offsets, _ = await state_of(table)
        await table.upsert([{"k": n, "v": "after"} for n in range(10)])
        for scan in (net(table, offsets), net(table, offsets).where("v < 'c'")):
            batches = [rows["_change_type"].to_pylist() async for rows in scan.with_chunk(rows=1).stream()]
            assert batches == [["-U", "+U"]] * 10


def _place(change: dict[str, Any]) -> tuple[int, int, str]:
    return change["_bucket"], change["_log_offset"], change["_change_type"]


async def test_a_stream_that_is_not_far_behind_has_every_change(hasty: ServerProcess) -> None:
    async with connect(hasty.url) as client:
        table = await client.create_table("net.near", SCHEMA, primary_key=["k"], buckets=1)
        async with table.scan().with_source(ScanSource.LOG).with_row_kind().with_catch_up("net").stream() as stream:
            for value in range(5):
                await table.upsert([{"k": 1, "v": str(value)}])
                kinds = (await anext(stream))["_change_type"].to_pylist()
                assert kinds == (["-U", "+U"] if value else ["+I"])


@pytest.mark.parametrize("where", [None, "k < 100", "v = 'v1'"])
async def test_without_rows_before_the_last_change_of_each_key_is_the_net_one(
    hasty: ServerProcess, where: str | None
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    schema = pa.schema([SCHEMA[0], SCHEMA[1].with_nullable(False)])
    async with connect(hasty.url) as client:
        name = f"net.upsert{chance.random():.9f}".replace("0.", "")
        table = await client.create_table(name, schema, primary_key=["k"], buckets=3, changelog="upsert")
        await write_something(table, chance, 4)
        async with table.scan(where=where).stream() as stream:
            rows = {row["k"]: row["v"] async for batch in stream for row in batch.to_pylist()}
            offsets = stream.log_offsets
        await write_something(table, chance, 12)
        scan = net(table, offsets) if where is None else net(table, offsets).where(where)
        changes = await scan.with_unmatched("delete").to_pylist()
        for change in changes:
            assert change["_change_type"] in ("+U", "-D"), seed
            if change["_change_type"] == "+U":
                rows[change["k"]] = change["v"]
            else:
                assert change["v"] is None
                rows.pop(change["k"], None)
        assert len({change["k"] for change in changes}) == len(changes) > 0
        assert rows == {row["k"]: row["v"] for row in await table.scan(where=where).to_pylist()}, seed


async def test_nothing_is_left_on_disk(hasty: ServerProcess) -> None:
    async with connect(hasty.url) as client:
        table = await client.create_table("net.spilled", SCHEMA, primary_key=["k"], buckets=1)
        offsets, _ = await state_of(table)
        await table.upsert(pa.table({"k": range(60_000), "v": [f"value {n} of many" for n in range(60_000)]}))
        assert len(await net(table, offsets).to_arrow()) == 60_000
        async for _ in net(table, offsets).stream():
            break
        await client.drop_table(table.name)
    assert not list(hasty.data_dir.rglob("net-*"))


async def test_an_unknown_way_to_catch_up_is_refused(hasty: ServerProcess) -> None:
    async with connect(hasty.url) as client:
        table = await client.create_table("net.usage", SCHEMA, primary_key=["k"])
        with pytest.raises(UsageError, match='"all" or "net"'):
            table.scan().with_source(ScanSource.LOG).with_catch_up("some")  # type: ignore[arg-type]


async def test_a_consumer_goes_on_in_the_middle_of_net_changes(hasty: ServerProcess) -> None:
    chance = random.Random(11)
    async with connect(hasty.url) as client:
        table = await client.create_table("net.consumer", SCHEMA, primary_key=["k"], buckets=2)
        offsets, before = await state_of(table)
        await write_something(table, chance, 15)
        whole = await net(table, offsets).to_pylist()
        changes: list[dict[str, Any]] = []
        scan = net(table, offsets).with_chunk(rows=25).with_consumer_id("slow")
        batches = 1
        while batches:
            batches = 0
            async with scan.stream() as stream:
                async for rows in stream:
                    changes += rows.to_pylist()
                    await stream.commit()
                    batches += 1
                    if batches == 3:
                        break
        assert sorted(changes, key=_place) == sorted(whole, key=_place)
        assert replay(changes, before) == (await state_of(table))[1]


async def test_a_full_start_that_is_cut_among_net_changes_continues_after_them(hasty: ServerProcess, name: str) -> None:
    async with connect(hasty.url) as client:
        table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)
        await table.upsert([{"k": n, "v": "old"} for n in range(40)])
        scan = table.changes(StartFrom.FULL).with_catch_up("net").with_chunk(rows=10)
        async with scan.stream() as stream:
            batches = aiter(stream)
            found = (await anext(batches)).to_pylist()
            await table.upsert([{"k": n, "v": "new"} for n in range(40)])
            while found[-1]["_change_type"] == "+I":
                found += (await anext(batches)).to_pylist()
            token = stream.resume_token
        assert token is not None
        found += (await scan.resume_from(token).stop_at(StopAt.LATEST).to_arrow()).to_pylist()
        kinds = [change["_change_type"] for change in found]
        assert kinds == ["+I"] * 40 + ["-U", "+U"] * 40
        assert replay(found[40:], {change["k"]: change["v"] for change in found[:40]}) == (await state_of(table))[1]


async def create_altered(client: Client, name: str, buckets: int) -> tuple[Table, LogOffsets]:
    """Returns a table and an offset after which `a` changes in rows with even keys, and `b` in the others."""
    columns = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    table = await client.create_table(name, columns, primary_key=["k"], buckets=buckets)
    before = await table.upsert([{"k": k, "a": k, "b": -k} for k in range(KEYS)])
    await table.upsert([{"k": k, "a": k + (k % 2 == 0), "b": -k - (k % 2 == 1)} for k in range(KEYS)])
    return table, before.log_offsets


async def test_net_changes_have_the_columns_of_their_header_if_the_table_is_altered_in_between(
    hasty: ServerProcess, name: str
) -> None:
    async with connect(hasty.url) as client:
        table, start = await create_altered(client, name, buckets=2)
        found: dict[int, tuple[int, int]] = {}
        async with net(table, start).with_chunk(rows=50).stream() as stream:
            batches = 0
            async for batch in stream:
                batches += 1
                if batches == 1:
                    # The net changes of one bucket are computed, those of the other one maybe not yet.
                    await client.alter_table(name, rename_columns={"a": "b", "b": "a"})
                ids = dict(zip(stream.column_ids, batch.columns[4:], strict=True))
                values = zip(ids[2].to_pylist(), ids[3].to_pylist(), strict=True)
                found |= dict(zip(ids[1].to_pylist(), values, strict=True))
        assert found == {k: (k + (k % 2 == 0), -k - (k % 2 == 1)) for k in range(KEYS)}


async def test_a_stream_among_net_changes_goes_on_after_them_if_a_column_is_dropped(
    hasty: ServerProcess, name: str
) -> None:
    async with connect(hasty.url) as client:
        table, start = await create_altered(client, name, buckets=1)
        scan = net(table, start).with_chunk(rows=100)
        async with scan.stream() as stream:
            seen = (await anext(stream))["k"].to_pylist()
            token = stream.resume_token
        assert token is not None
        # Rows that differ in this column alone would have no net change any more.
        await client.alter_table(name, drop_columns=["b"])
        seen += (await scan.resume_from(token).to_arrow())["k"].to_pylist()
        assert sorted(seen) == sorted([*range(KEYS), *range(KEYS)])
