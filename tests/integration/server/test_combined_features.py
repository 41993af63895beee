"""Expiry, partitions, deletes, isolation and tables without a key work together, or are refused together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv import InvalidOption, InvalidRequest, NoPrimaryKey, UpgradeNotConfirmed, connect
from streaming_server.storage.files.checked_json import write_checked_json
from streaming_server.storage.tables.data_directory import EVOLUTION_FORMAT
from tests.support.clocks import FakeClocks, serving
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("value", pa.int64())])


async def expiring_partitions(client: Client, **options: Any) -> Table:
    """Creates a partitioned table whose rows expire a minute after they were written, with ten rows on three days."""
    table = await client.create_table(
        "t.days", SCHEMA, primary_key=["day", "id"], partition_by=["day"], buckets=2, ttl_seconds=60, **options
    )
    await table.upsert([{"day": day, "id": n, "value": n} for day in range(3) for n in range(10)])
    return table


async def live_rows(table: Table) -> dict[int, int]:
    found = await table.scan(columns=["day"]).to_arrow()
    return {day: found["day"].to_pylist().count(day) for day in range(3)}


@pytest.mark.parametrize("indexes", [[], [["value"]]])
async def test_rows_of_partitions_expire_are_written_again_and_are_dropped(tmp_path: Path, indexes: list[Any]) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await expiring_partitions(client, indexes=indexes)
        clocks.pass_time(59)
        await table.upsert([{"day": 1, "id": n, "value": n} for n in range(4)])
        clocks.pass_time(2)
        assert await live_rows(table) == {0: 0, 1: 4, 2: 0}
        assert await table.count() == 4
        # Written over expired rows, which the partition no longer counts.
        await table.upsert([{"day": 2, "id": n, "value": -n} for n in range(3)])
        assert await live_rows(table) == {0: 0, 1: 4, 2: 3}
        counted = {part.values["day"]: part.rows for part in await table.partitions()}
        assert counted[2] == 10  # Seven of them have expired, and are still stored.
        await table.drop_partition({"day": 2})
        assert await live_rows(table) == {0: 0, 1: 4, 2: 0}
        assert [part.values["day"] for part in await table.partitions()] == [0, 1]
        assert all(bucket.is_consistent for bucket in await client.check_table("t.days"))


async def test_a_delete_by_predicate_counts_only_rows_that_have_not_expired(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await expiring_partitions(client)
        clocks.pass_time(61)
        await table.upsert([{"day": 0, "id": n, "value": n} for n in range(5)])
        assert (await table.delete(where="value >= 3")).rows == 2
        assert await live_rows(table) == {0: 3, 1: 0, 2: 0}


async def test_a_range_is_deleted_with_its_expired_rows(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await expiring_partitions(client)
        clocks.pass_time(61)
        await table.upsert([{"day": 0, "id": n, "value": n} for n in range(5)])
        await table.delete(where="day = 0", track_changes=False)
        assert await live_rows(table) == {0: 0, 1: 0, 2: 0}
        assert {part.values["day"]: part.rows for part in await table.partitions()}.get(0, 0) == 0
        await table.truncate(track_changes=False)
        assert sum(part.rows or 0 for part in await table.partitions()) == 0
        assert all(bucket.is_consistent for bucket in await client.check_table("t.days"))


async def test_the_latest_rows_have_not_expired_either(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await expiring_partitions(client)
        clocks.pass_time(61)
        await table.upsert([{"day": 0, "id": 1, "value": 1}])
        scan = table.scan(columns=["id"]).isolation("read_latest")
        assert (await scan.to_arrow())["id"].to_pylist() == [1]
        assert await table.get((1, 1), isolation="read_latest") is None
        assert await table.count(isolation="read_latest") == 1


async def test_a_table_without_a_key_has_no_partitions_expiry_or_deletes(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeClocks()) as (_, client):
        with pytest.raises(InvalidOption, match=r'"ttl_seconds" must be .* in a table without a primary key'):
            await client.create_table("t.log", SCHEMA, primary_key=[], ttl_seconds=60)
        with pytest.raises(InvalidRequest, match="primary key"):
            await client.create_table("t.log", SCHEMA, primary_key=[], partition_by=["day"])
        table = await client.create_table("t.log", SCHEMA, primary_key=[])
        await table.append([{"day": 1, "id": 1, "value": 1}])
        for refused in (
            table.delete(where="day = 1"),
            table.delete(where="day = 1", track_changes=False),
            table.truncate(),
            table.replace([{"day": 1, "id": 1, "value": 2}]),
        ):
            with pytest.raises(NoPrimaryKey):
                await refused
        assert await table.count() == 1


@pytest.mark.one_process  # Several workers need a later format.
async def test_a_directory_of_an_earlier_format_gets_neither_expiry_nor_partitions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        server.stop()
    write_checked_json(data / "scankv.json", {"format": EVOLUTION_FORMAT})
    with ServerProcess(data) as server:
        async with connect(server.url) as client:
            with pytest.raises(UpgradeNotConfirmed, match="tables whose rows expire need format 5"):
                await client.create_table("t.expiring", SCHEMA, primary_key=["id"], ttl_seconds=60)
            with pytest.raises(UpgradeNotConfirmed, match="partitioned tables need format 5"):
                await client.create_table("t.parts", SCHEMA, primary_key=["day", "id"], partition_by=["day"])
            table = await client.create_table("t.plain", SCHEMA, primary_key=["id"])
            with pytest.raises(UpgradeNotConfirmed, match="tables whose rows expire need format 5"):
                await client.alter_table(table.name, ttl_seconds=60)
