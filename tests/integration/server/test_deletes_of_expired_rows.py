"""Rows that were deleted after they had expired stay deleted when the TTL is removed, whatever deleted them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from scankv import TransactionConflict
from streaming_server.engine.bucket.call_point import POINT_SECONDS
from tests.integration.server.test_expiry import until_based
from tests.support.clocks import START, FakeClocks, parts_of, serving

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("day", pa.int64()), ("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
NOW = dt.datetime.fromtimestamp(START / 1e9, dt.UTC)


def row(day: int, number: int, age: float = 0) -> dict[str, Any]:
    """Returns a row whose time was `age` seconds ago when the test began."""
    return {"day": day, "id": number, "at": NOW - dt.timedelta(seconds=age), "value": number}


# Day 1 has expired, and so have the first rows of day 2.
ROWS: Final = [
    *(row(1, n, 100) for n in range(5)),
    *(row(2, n, 100) for n in range(5)),
    *(row(2, n) for n in range(5, 8)),
]


@pytest.mark.whole_tables  # It sweeps the table in this process.
@pytest.mark.parametrize("swept", ["where", "key"])
async def test_a_removal_of_selected_rows_in_the_meantime_is_no_conflict(tmp_path: Path, swept: str) -> None:
    async with serving(tmp_path, FakeClocks()) as (server, client):
        table = await client.create_table(
            "t.events", SCHEMA, primary_key=["day", "id"], ttl_seconds=60, ttl_column="at"
        )
        await table.upsert(ROWS)
        before = await table.log_offsets()
        async with client.transaction(conflict="abort") as transaction:
            await transaction.replace(table, [row(1, 0)], where="value < 6" if swept == "where" else "day = 1")
            await server._tables._sweep.sweep_table(parts_of(server, "t.events")[0].state)
            assert await table.log_offsets() != before
        rows = (await table.scan().to_arrow()).to_pylist()
        assert {(each["day"], each["id"]) for each in rows} == (
            {(1, 0), (2, 6), (2, 7)} if swept == "where" else {(1, 0), (2, 5), (2, 6), (2, 7)}
        )


@pytest.mark.whole_tables  # It sweeps the table in this process.
async def test_a_key_column_may_have_any_name_where_rows_expire(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        table = await client.create_table(
            "t.events",
            pa.schema([("stored", pa.binary()), ("value", pa.int64())]),
            primary_key=["stored"],
            ttl_seconds=9,
        )
        await table.upsert([{"stored": b"a", "value": 1}])
        clocks.pass_time(10 + POINT_SECONDS)
        await table.upsert([{"stored": b"b", "value": 2}])
        await server._tables._sweep.sweep_table(parts_of(server, "t.events")[0].state)
        assert parts_of(server, "t.events")[0].state.sweep.removed == 1
        clocks.pass_time(10)
        await table.upsert([{"stored": b"c", "value": 3}])
        assert (await table.delete(where="value > 0")).rows == 1
        table = await client.alter_table("t.events", ttl_seconds=None)
        assert await table.count() == 0


@pytest.mark.whole_tables  # It waits for the base of the table.
async def test_a_deletion_selects_expired_rows_where_scans_read_a_columnar_base(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks, base_maintenance_seconds=0.02) as (_, client):
        table = await client.create_table(
            *("t.events", SCHEMA),
            primary_key=["day", "id"],
            buckets=1,
            ttl_seconds=60,
            ttl_column="at",
            columnar_base="eager",
        )
        await table.upsert([row(day, number, day * 100) for day in range(2) for number in range(2000)])
        await until_based(table)
        assert (await table.delete(where="value < 1500")).rows == 1500
        table = await client.alter_table("t.events", ttl_seconds=None, ttl_column=None)
        assert await table.count() == 1000


@pytest.mark.whole_tables  # It sweeps the table in this process.
async def test_a_removal_of_a_row_that_was_read_for_update_is_a_conflict(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (server, client):
        table = await client.create_table(
            "t.events", SCHEMA, primary_key=["day", "id"], ttl_seconds=60, ttl_column="at"
        )
        await table.upsert([row(1, 1), row(1, 2)])
        transaction = await client.transaction()
        assert (await transaction.get_for_update(table, [(1, 1)])).num_rows == 1
        await transaction.upsert(table, [row(1, 2, -100)])
        clocks.pass_time(70)
        await server._tables._sweep.sweep_table(parts_of(server, "t.events")[0].state)
        with pytest.raises(TransactionConflict):
            await transaction.commit()
        assert await table.count() == 0
