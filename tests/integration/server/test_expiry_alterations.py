"""When the TTL of a table changes: rows that begin to expire by their last write count as written at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.integration.server.test_expiry import SCHEMA, based_ids, ids, row, until_based
from tests.support.clocks import FakeClocks, parts_of, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from streaming_server.server import Server

pytestmark = pytest.mark.asyncio

KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "silent": {"ttl_changes": "none"},
    "merged": {"merge_engine": "partial_update", "indexes": [["value"]]},
    "with tablets": {"tablets": 2},
}
BEGINNINGS: Final[dict[str, list[dict[str, Any]]]] = {
    # The alterations after which rows expire by their last write, which they did before.
    "removed and set": [{"ttl_seconds": None}, {"ttl_seconds": 60}],
    "by a column in between": [{"ttl_column": "at"}, {"ttl_column": None}],
    "several": [
        {"ttl_seconds": 3000},
        {"ttl_seconds": None},
        {"ttl_seconds": 60, "ttl_column": "at"},
        {"ttl_seconds": 10, "ttl_column": None},
        {"ttl_seconds": None},
        {"ttl_seconds": 60},
    ],
}


async def sweep(server: Server) -> None:
    for part in parts_of(server, "t.events"):
        await server._tables._sweep.sweep_table(part.state)


async def create(client: Client, **options: Any) -> Table:
    given = {"ttl_seconds": 60, "buckets": 2, **options}
    return await client.create_table("t.events", SCHEMA, primary_key=["id"], **given)


@pytest.mark.represented_by("plain-by a column in between", "plain-removed and set")
@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("plain", "with tablets") else pytest.mark.soak) for kind in KINDS]
)
async def test_rows_count_as_written_when_they_begin_again_to_expire_by_their_last_write(
    tmp_path: Path, kind: str, beginning: str
) -> None:
    *before, last = BEGINNINGS[beginning]
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        table = await create(client, **KINDS[kind])
        await table.upsert([row(number, None, number) for number in range(200)])
        for changed in before:
            table = await client.alter_table("t.events", **changed)
        clocks.pass_time(1000)
        await table.upsert([row(500, None, 500)])  # Its time counts, too, although it had none when it was written.
        clocks.pass_time(100)
        table = await client.alter_table("t.events", **last)
        every = [*range(200), 500]
        assert await ids(table) == every
        assert await table.count() == 201
        await sweep(server)
        assert await table.get(7) == row(7, None, 7)
        clocks.pass_time(30)
        await table.upsert([row(7, None, 7)])
        await table.upsert([{"id": 8, "value": 9}], columns=["id", "value"])
        assert await ids(table) == every
    async with serving(tmp_path, clocks) as (server, client):
        table = await client.table("t.events")
        clocks.pass_time(29)
        await sweep(server)
        assert await ids(table) == every
        assert (await table.aggregate({"value": ["count"]})).to_pylist() == [{"value_count": 201}]
        clocks.pass_time(1)
        assert await ids(table) == [7, 8]
        assert await table.count() == 2
        await sweep(server)
        clocks.pass_time(30)
        assert await ids(table) == []


async def test_a_shorter_ttl_counts_from_the_last_write_and_not_from_the_alteration(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await client.create_table("t.events", SCHEMA, primary_key=["id"])
        await table.upsert([row(1, None)])
        table = await client.alter_table("t.events", ttl_seconds=1000)
        await table.upsert([row(2, None)])
        clocks.pass_time(100)
        await table.upsert([row(3, None)])
        table = await client.alter_table("t.events", ttl_seconds=60)
        assert await ids(table) == [3]
        table = await client.alter_table("t.events", ttl_seconds=200)
        # Neither was removed, and both live from the first alteration.
        assert await ids(table) == [1, 2, 3]
        clocks.pass_time(100)
        assert await ids(table) == [3]


@pytest.mark.whole_tables  # It waits for the bases of the table.
async def test_a_base_and_a_poll_show_the_rows_that_are_there_again_after_the_ttl_was_removed_and_set(
    tmp_path: Path,
) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks, base_maintenance_seconds=0.02) as (_, client):
        table = await create(client, columnar_base="eager", buckets=1)
        await table.upsert([row(number, None, number) for number in range(3000)])
        await until_based(table)
        clocks.pass_time(100)
        first = await table.top_n_if_changed(None, 1, order_by="value")
        snapshot = await table.snapshot()
        assert first is not None
        assert len(first.value) == 0
        await client.alter_table("t.events", ttl_seconds=None)
        table = await client.alter_table("t.events", ttl_seconds=60)
        again = await table.top_n_if_changed(first.version, 1, order_by="value")
        assert again is not None
        assert again.value["id"].to_pylist() == [2999]
        assert await table.scan().as_of(snapshot).to_pylist() == []
        assert len(await table.scan().as_of(await table.snapshot()).to_arrow()) == 3000
        await until_based(table)
        assert await based_ids(table) == list(range(3000))
        clocks.pass_time(60)
        assert await based_ids(table) == []
