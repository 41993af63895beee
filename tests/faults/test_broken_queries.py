"""A query in SQL ends with a typed error or with all rows when a worker of its tables is killed, and leaves nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from aio_client import ScanInterrupted, connect
from tests.support.pinned_table import WIDE
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]  # several processes start again

ROWS: Final = 100_000
ENDLESS: Final = "select count(*) from {}, range(100_000) r where length(v) + r.range < 0"
FEW_ROWS_FOR_EACH: Final = "select count(*) from {} join {} using (k), range(200) r where r.range >= 0"


async def fill(client: Client, name: str) -> None:
    table = await client.create_table(name, WIDE, primary_key=["k"], buckets=3)
    await table.upsert(pa.table({"k": range(ROWS), "v": ["x" * 100] * ROWS}, WIDE))


async def begin(client: Client, text: str) -> asyncio.Task[pa.Table]:
    """Starts a query, and returns it while it reads."""

    async def reads() -> bool:
        return (await client.stats()).live_scans > 0

    running = asyncio.create_task(client.sql(text).to_arrow())
    await await_until(reads, "the query reads")
    assert not running.done()
    return running


async def nothing_is_left(client: Client, name: str) -> None:
    """Checks that the next query has its answer, and that the server and the client hold nothing of the last one."""
    assert (await client.sql(f"select count(*), avg(length(v)) from {name}").to_arrow()).to_pydict() == {
        "count_star()": [ROWS],
        "avg(length(v))": [100.0],
    }
    assert (await client.stats()).live_scans == 0
    assert await client.snapshots() == []
    assert client._sql is not None
    assert not client._sql._running


async def test_a_query_of_a_table_whose_worker_is_killed_says_to_run_it_again(tmp_path: Path) -> None:
    (name,), _ = names_of_workers(2)
    with ServerProcess(tmp_path / "data", "--workers", "2") as server:
        async with connect(server.url, read_ahead_bytes=64 << 10) as client:
            await fill(client, name)
            running = await begin(client, ENDLESS.format(name))
            await asyncio.to_thread(kill_worker, server, 0)
            with pytest.raises(ScanInterrupted, match=rf"the scan of {name} broke off .*; run the query again$"):
                await asyncio.wait_for(running, 60)
            await asyncio.to_thread(wait_for_worker, server, 0)
            await nothing_is_left(client, name)


async def test_a_join_survives_a_killed_worker_because_its_tables_are_pinned(tmp_path: Path) -> None:
    (one,), (other,) = names_of_workers(2)
    with ServerProcess(tmp_path / "data", "--workers", "2") as server:
        async with connect(server.url, read_ahead_bytes=64 << 10) as client:
            for name in (one, other):
                await fill(client, name)
            running = await begin(client, FEW_ROWS_FOR_EACH.format(one, other))
            await asyncio.to_thread(kill_worker, server, 0)
            (row,) = (await asyncio.wait_for(running, 120)).to_pylist()
            assert row == {"count_star()": ROWS * 200}
            await asyncio.to_thread(wait_for_worker, server, 0)
            await nothing_is_left(client, one)
