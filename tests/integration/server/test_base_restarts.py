"""After a restart, the first query reads columnar bases, and explain and the statistics agree with it."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from aio_client import StartFrom, connect
from tests.support.bases import SOON, await_bases, bases_on_disk, built_at, is_of_bases
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aio_client import Client, Table

    Query: TypeAlias = Callable[[Table], Awaitable[object]]

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
TABLE, UNLOGGED, CHANGED = "test.based", "test.unlogged", "test.changed"
BUCKETS = 2
ROWS = 60_000
BUILDING = (*SOON, "--set", "base_min_rows=1000", "--set", "base_changed_share=10")
WITHOUT_MAINTENANCE = ("--set", "base_maintenance_seconds=3600")
"""Arguments of a server whose maintenance does not look at bases while a test runs."""


def rows_of(keys: range, factor: int = 1) -> pa.Table:
    numbers = np.arange(keys.start, keys.stop, keys.step)
    return pa.table({"k": numbers, "v": numbers * factor}, schema=SCHEMA)


def rows_after_updates(step: int) -> pa.Table:
    """Returns all rows in key order, with every `step`-th one updated."""
    values = np.arange(ROWS)
    values[::step] *= -1
    return pa.table({"k": np.arange(ROWS), "v": values}, schema=SCHEMA)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a data directory with complete bases and changes since. Its server was killed.

    The changelog has few changes since the bases of the first table, none for the second, and many for the third.
    """
    data = tmp_path_factory.mktemp("stored") / "data"

    async def fill(server: ServerProcess) -> None:
        async with connect(server.url) as client:
            for name, changelog, step in (TABLE, "full", 100), (UNLOGGED, "none", 100), (CHANGED, "full", 2):
                table = await client.create_table(
                    name, SCHEMA, primary_key=["k"], buckets=BUCKETS, columnar_base="auto", changelog=changelog
                )
                await table.upsert(rows_of(range(ROWS)))
                await await_bases(table)
                await table.upsert(rows_of(range(0, ROWS, step), factor=-1))
        server.kill()

    with ServerProcess(data, *BUILDING) as server:
        asyncio.run(fill(server))
    return data


@pytest.fixture
def data(stored: Path, tmp_path: Path) -> Path:
    """Copies the data directory for one test."""
    return shutil.copytree(stored, tmp_path / "data")


async def open_cursors_of_a_scan(server: ServerProcess, name: str = TABLE) -> int:
    """Begins a scan of all rows. Returns how many RocksDB cursors the server has open for it."""
    async with connect(server.url, read_ahead_bytes=64 << 10) as client:
        table = await client.table(name)
        async with table.scan().with_chunk(rows=500).stream() as stream:
            await anext(stream)
            return (await client.stats()).open_cursors


async def bases_in_use(client: Client) -> int:
    """Returns how many buckets are read from bases, without opening anything."""
    return sum(each.bases for each in (await client.stats()).bases)


async def read_first_changes(table: Table) -> None:
    async with table.changes().start_from(StartFrom.FULL).stream() as stream:
        await anext(stream)


async def pin(table: Table) -> None:
    async with table.snapshot():
        pass


QUERIES: dict[str, Query] = {
    "scan": lambda table: table.scan().to_arrow(),
    "ordered scan": lambda table: table.scan().ordered().to_arrow(),
    "scan that demands bases": lambda table: table.scan().read_path("columnar").to_arrow(),
    "explain": lambda table: table.scan().explain(),
    "statistics": lambda table: table.stats(),
    "count": lambda table: table.count("v > 10"),
    "top-N": lambda table: table.top_n(3, order_by="v"),
    "changes after all rows": read_first_changes,
    "snapshot": pin,
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.breadth
async def test_the_first_query_after_a_restart_uses_the_bases_on_disk(data: Path, query: Query) -> None:
    built = built_at(data, TABLE)
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        for kill in True, False:
            async with connect(server.url) as client:
                table = await client.table(TABLE)
                assert await bases_in_use(client) == 0
                await query(table)
                assert await bases_in_use(client) == BUCKETS
                rows = await table.scan().read_path("columnar").ordered().to_arrow()
                assert rows.equals(rows_after_updates(100))
            assert built_at(data, TABLE) == built
            if kill:
                server.kill()
            else:
                assert server.stop() == 0
            server.restart()


async def test_queries_that_read_no_base_open_none(data: Path) -> None:
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        async with connect(server.url) as client:
            table = await client.table(TABLE)
            assert (await table.get(100)) == {"k": 100, "v": -100}
            assert (await table.scan().limit(10).to_arrow()).num_rows == 10
            assert (await table.scan().limit(10).explain()).read_path == "rocksdb"
            assert await bases_in_use(client) == 0


@pytest.mark.soak
async def test_explain_and_the_statistics_agree_with_the_first_scan(data: Path) -> None:
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        for name, has_bases in {TABLE: True, UNLOGGED: False, CHANGED: False}.items():
            for first in "explain", "statistics", "scan":
                server.kill()
                server.restart()
                async with connect(server.url) as client:
                    table = await client.table(name)
                    for _ in range(2):
                        if first != "statistics":
                            assert is_of_bases(await table.scan().explain()) == has_bases
                        if first != "explain":
                            found = [bucket.base for bucket in await table.stats()]
                            assert [base is not None and base.unused_reason is None for base in found] == [
                                has_bases
                            ] * BUCKETS
                        assert await open_cursors_of_a_scan(server, name) == (0 if has_bases else 1)
                        first = "scan"


async def test_bases_with_later_writes_that_no_changelog_has_are_removed(data: Path) -> None:
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        async with connect(server.url) as client:
            table = await client.table(UNLOGGED)
            assert (await table.scan().ordered().to_arrow()).equals(rows_after_updates(100))
            found = [bucket.base for bucket in await table.stats()]
            assert all(
                base is not None and base.unused_reason is not None and "could not be completed" in base.unused_reason
                for base in found
            )
        assert not any(bases_on_disk(data, UNLOGGED).values())


async def test_a_scan_waits_for_bases_with_many_changes_since_only_if_it_demands_them(data: Path) -> None:
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        async with connect(server.url) as client:
            table = await client.table(CHANGED)
            assert (await table.scan().ordered().to_arrow()).equals(rows_after_updates(2))
            (base, _) = [bucket.base for bucket in await table.stats()]
            assert base is not None
            assert base.unused_reason == "the many changes since the base on disk are being read from the changelog"
            assert await bases_in_use(client) == 0
            rows = await table.scan().read_path("columnar").ordered().to_arrow()
            assert rows.equals(rows_after_updates(2))
            assert await bases_in_use(client) == BUCKETS


async def test_maintenance_adopts_bases_with_many_changes_since(data: Path) -> None:
    with ServerProcess(data, *BUILDING) as server:
        built = built_at(data, CHANGED)
        async with connect(server.url) as client:
            table = await client.table(CHANGED)
            await await_bases(table)
            assert (await table.scan().ordered().to_arrow()).equals(rows_after_updates(2))
        assert built_at(data, CHANGED) == built


async def test_concurrent_first_queries_agree_and_one_that_is_cancelled_leaves_the_base_to_the_next(
    data: Path,
) -> None:
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        async with connect(server.url) as client:
            table = await client.table(TABLE)
            cancelled = asyncio.create_task(table.count("v > 11"))
            await asyncio.sleep(0)
            results = [asyncio.create_task(table.count(f"v > {n}")) for n in (1, 1, 2, 3)]
            cancelled.cancel()
            values = rows_after_updates(100)["v"].to_numpy()
            assert await asyncio.gather(*results) == [int((values > n).sum()) for n in (1, 1, 2, 3)]
            assert await bases_in_use(client) == BUCKETS


async def test_writes_before_the_first_scan_are_in_it(data: Path) -> None:
    with ServerProcess(data, *WITHOUT_MAINTENANCE) as server:
        async with connect(server.url) as client:
            table = await client.table(TABLE)
            await table.upsert(rows_of(range(0, ROWS, 7), factor=5))
            await table.delete(list(range(0, ROWS, 11)))
            rows = await table.scan().read_path("columnar").ordered().to_arrow()
            expected = rows_after_updates(100)["v"].to_numpy().copy()
            expected[::7] = np.arange(0, ROWS, 7) * 5
            kept = np.arange(ROWS) % 11 != 0
            assert rows["k"].to_pylist() == np.arange(ROWS)[kept].tolist()
            assert rows["v"].to_pylist() == expected[kept].tolist()
