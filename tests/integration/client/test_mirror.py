"""How a mirror begins, waits, survives a crash and ends; the checker compares it with its table after any writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidKey, Table, TableNotFound, UsageError, connect
from aio_client.mirror import Mirror, mirror

if TYPE_CHECKING:
    from aio_client import Client, WriteResult
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("team", pa.string()), ("n", pa.int64()), ("v", pa.float64())])
KEY = ["team", "n"]

pytestmark = pytest.mark.asyncio


async def make(client: Client, name: str, rows: int = 0) -> Table:
    table = await client.create_table(f"mirror.{name}", SCHEMA, primary_key=KEY, buckets=3)
    if rows:
        await table.upsert([row(n) for n in range(rows)])
    return table


def row(n: int, v: float = 0.0) -> dict[str, Any]:
    return {"team": f"t{n % 7}", "n": n, "v": v}


def key(n: int) -> tuple[str, int]:
    return f"t{n % 7}", n


async def same(local: Mirror, table: Table, written: WriteResult, where: str | None = None) -> None:
    await local.wait_for(written.log_offsets)
    expected = await table.scan(where=where).to_arrow()
    assert local.to_arrow().sort_by("n").to_pylist() == expected.sort_by("n").to_pylist()
    assert len(local) == expected.num_rows


async def test_an_empty_table_is_mirrored_at_once(shared_server: ServerProcess) -> None:
    async with connect(shared_server.url) as client:
        table = await make(client, "empty")
        async with asyncio.timeout(60), mirror(table) as local:
            assert len(local) == 0
            assert local.to_arrow().schema.names == SCHEMA.names


async def test_a_mirror_rides_through_a_crash_of_the_server(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await make(client, "crash", 100)
        async with mirror(table) as local:
            server.kill()
            server.restart()
            last = await table.upsert([row(n, 2.0) for n in range(40, 140)])
            await same(local, table, last)


@pytest.mark.soak
async def test_a_mirror_reaches_the_offsets_of_buckets_without_writes_since_a_crash(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await make(client, "quiet", 10)
        async with mirror(table) as local:
            server.kill()
            server.restart()
            offsets = await table.log_offsets()
            assert max(offsets.values()) > 10  # They are of a later epoch.
            async with asyncio.timeout(30):
                await local.wait_for(offsets)
            assert len(local.to_arrow()) == 10


async def test_changed_returns_when_something_has(shared_server: ServerProcess) -> None:
    async with connect(shared_server.url) as client:
        table = await make(client, "changed", 10)
        async with mirror(table) as local:
            await local.wait_for_change()  # the initial rows
            waiting = asyncio.create_task(local.wait_for_change())
            await table.upsert([row(3)])  # writes the same row again
            await table.upsert([row(3, 7.0)])
            await waiting
            assert local.get(key(3)) == row(3, 7.0)


async def test_what_ends_the_stream_is_raised_by_every_read(shared_server: ServerProcess) -> None:
    async with connect(shared_server.url) as client:
        table = await make(client, "dropped", 10)
        async with mirror(table) as local:
            await local.wait_for_change()
            await client.drop_table(table.name)
            with pytest.raises(TableNotFound):
                await local.wait_for_change()
            with pytest.raises(TableNotFound):
                local.get(key(1))


async def test_a_mirror_says_how_it_is_used(shared_server: ServerProcess) -> None:
    async with connect(shared_server.url) as client:
        table = await make(client, "usage", 1)
        local = mirror(table)
        with pytest.raises(UsageError, match="entered"):
            local.get(key(1))
        async with local:
            with pytest.raises(InvalidKey):
                local.get([key(1)])
            with pytest.raises(InvalidKey):
                local.get("t1")
