"""Partitions expire by the server's clock, on a clock that the test sets."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.clocks import DAY, HOUR, FakeClocks, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Table
    from streaming_server.server import Server

SCHEMA = pa.schema([("region", pa.string()), ("day", pa.date32()), ("id", pa.int64())])


async def drop_expired(server: Server) -> None:
    """Does what the server does once in `partition_expiry_seconds`."""
    await server._tables._expiry._check_all()


async def days(table: Table) -> list[object]:
    return [each.values["day"] for each in await table.partitions()]


def rows(*found: dt.date | str, column: str = "day") -> list[dict[str, object]]:
    return [{"region": "a", "day": dt.date(2026, 1, 1), "id": n} | {column: each} for each in found for n in range(3)]


@pytest.mark.asyncio
async def test_expired_partitions_are_dropped_and_no_others(tmp_path: Path) -> None:
    machine = FakeClocks()
    today = dt.datetime.fromtimestamp(machine.wall_micros / 1e6, dt.UTC).date()
    async with serving(tmp_path, machine, partition_expiry_seconds=86_400) as (server, client):
        arguments: dict[str, Any] = {"primary_key": ["day", "id", "region"], "partition_by": ["day"]}
        table = await client.create_table("test.t", SCHEMA, **arguments, partition_ttl="3 days")
        kept = await client.create_table("test.kept", SCHEMA, **arguments)
        recent = [today - dt.timedelta(days=age) for age in range(6)]
        for each in (table, kept):
            await each.upsert(rows(*recent))
        assert [each.expires_at for each in await kept.partitions()] == [None] * 6
        midnight = dt.datetime(today.year, today.month, today.day, tzinfo=dt.UTC)
        assert (await table.partitions())[-1].expires_at == midnight + dt.timedelta(days=3)
        await drop_expired(server)
        assert await days(table) == recent[2::-1]
        assert await table.count() == 9
        await drop_expired(server)
        machine.pass_time(DAY)
        await drop_expired(server)
        assert await days(table) == recent[1::-1]
        # A late row of an expired partition creates it, and is dropped with it again.
        await table.upsert(rows(recent[5]))
        await drop_expired(server)
        assert await days(table) == recent[1::-1]
        table = await client.alter_table("test.t", partition_ttl="1 month")
        machine.pass_time(20 * DAY)
        await drop_expired(server)
        assert await days(table) == recent[1::-1]
        table = await client.alter_table("test.t", partition_ttl=None)
        machine.pass_time(100 * DAY)
        await drop_expired(server)
        assert await days(table) == recent[1::-1]
        table = await client.alter_table("test.t", partition_ttl="1 hour")
        await drop_expired(server)
        assert await days(table) == []
        assert len(await kept.partitions()) == 6


@pytest.mark.asyncio
async def test_values_that_are_no_times_never_expire(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = FakeClocks()
    async with serving(tmp_path, machine, partition_expiry_seconds=86_400) as (server, client):
        table = await client.create_table(
            "test.t", SCHEMA, primary_key=["region", "id"], partition_by=["region"], partition_ttl="1 day"
        )
        await table.upsert(rows("2020-01-01", "never", "2100-01-01", column="region"))
        await drop_expired(server)
        found = await table.partitions()
        assert [each.values["region"] for each in found] == ["2100-01-01", "never"]
        assert [each.expires_at for each in found] == [dt.datetime(2100, 1, 2, tzinfo=dt.UTC), None]
        assert "1 partitions of test.t never expire" in caplog.text
        assert "never," not in caplog.text.replace("never expire", "")


@pytest.mark.asyncio
async def test_a_table_without_changes_is_not_opened_to_find_that_nothing_has_expired(tmp_path: Path) -> None:
    machine = FakeClocks()
    machine.set_wall(HOUR)
    async with serving(tmp_path, machine, partition_expiry_seconds=86_400) as (server, client):
        table = await client.create_table(
            "test.t", SCHEMA, primary_key=["day", "id"], partition_by=["day"], partition_ttl="7 days"
        )
        await table.upsert(rows(dt.datetime.fromtimestamp(machine.wall_micros / 1e6, dt.UTC).date()))
        await drop_expired(server)
        await drop_expired(server)
        live = server._tables.table("test.t").buckets[0]
        used = live.used
        await drop_expired(server)
        machine.pass_time(5 * DAY)
        await drop_expired(server)
        assert live.used == used
        machine.pass_time(3 * DAY)
        await drop_expired(server)
        assert live.used > used
        assert await table.partitions() == []
