"""`to_duckdb` creates a table in DuckDB from a scan, completely or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import ScanSpec, TableNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aio_client import Client, Table, sync

ROWS = 50_000
DATA = pa.table(
    {
        "k": range(ROWS),
        "name": [None if number % 7 == 0 else f"n{number % 100}" for number in range(ROWS)],
        "x": [number / 3 for number in range(ROWS)],
        "at": pa.array([number * 1000 for number in range(ROWS)], pa.timestamp("us", "UTC")),
    }
)


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> AsyncIterator[Table]:
    table = await client.create_table(name, DATA.schema, primary_key=["k"], buckets=3)
    await table.upsert(DATA)
    yield table
    await client.drop_table(name)


@pytest.fixture
def sync_table(sync_client: sync.Client, name: str) -> Iterator[sync.Table]:
    table = sync_client.create_table(name, DATA.schema, primary_key=["k"], buckets=3)
    table.upsert(DATA)
    yield table
    sync_client.drop_table(name)


@pytest.mark.asyncio
async def test_a_scan_becomes_a_table_with_the_rows_of_the_scan(table: Table, con: duckdb.DuckDBPyConnection) -> None:
    relation = await table.scan().to_duckdb(con, "rows")
    assert relation.order("k").to_arrow_table().cast(DATA.schema).equals(DATA)
    chosen = await table.scan(["name", "k"], where="k < 10").ordered().to_duckdb(con, '"odd name"')
    assert chosen.to_arrow_table().equals(DATA.select(["name", "k"]).slice(0, 10))


@pytest.mark.asyncio
async def test_the_event_loop_goes_on_while_duckdb_reads(table: Table, con: duckdb.DuckDBPyConnection) -> None:
    filling = asyncio.create_task(table.scan().with_chunk(rows=500).to_duckdb(con, "rows"))
    turns = 0
    while not filling.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await filling).count("*").fetchall() == [(ROWS,)]
    assert turns > ROWS // 500


def test_a_blocking_scan_becomes_a_table(sync_table: sync.Table, con: duckdb.DuckDBPyConnection) -> None:
    relation = sync_table.scan().to_duckdb(con, "rows")
    assert relation.order("k").to_arrow_table().cast(DATA.schema).equals(DATA)
    assert sync_table.scan(limit=0).to_duckdb(con, "none").fetchall() == []
    assert con.table("none").columns == DATA.schema.names


def test_a_table_that_is_there_is_kept(sync_table: sync.Table, con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TABLE rows AS SELECT 1 AS mine")
    with pytest.raises(duckdb.CatalogException, match="already exists"):
        sync_table.scan().to_duckdb(con, "rows")
    assert con.table("rows").fetchall() == [(1,)]


def test_what_is_no_connection_is_refused_before_a_scan_starts(sync_table: sync.Table) -> None:
    with pytest.raises(UsageError, match=r"duckdb\.connect\(\), not a str"):
        sync_table.scan().to_duckdb("rows.db", "rows")  # type: ignore[arg-type]
    with duckdb.connect() as con, pytest.raises(UsageError, match="must be text, not 7"):
        sync_table.scan().to_duckdb(con, 7)  # type: ignore[arg-type]


def test_no_such_table_is_the_error_that_every_scan_raises(
    sync_client: sync.Client, con: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises(TableNotFound):
        sync_client.scan(ScanSpec("test.missing")).to_duckdb(con, "rows")
    assert con.execute("SHOW TABLES").fetchall() == []
