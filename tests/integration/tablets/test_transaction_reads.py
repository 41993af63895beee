"""Reads of tables with tablets while transactions are applied: they see all of one, or nothing of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import connect
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Table

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS, COMMITS = 2000, 8


async def scanned(table: Table) -> Any:
    return (await table.scan(["v"]).to_arrow())["v"]


async def looked_up(table: Table) -> Any:
    return (await table.lookup(list(range(0, ROWS, 100))))["v"]


async def read_by_encoded_keys(table: Table) -> Any:
    return (await table.lookup([1, 2, 3, 4, 5, 6, 7]))["v"]


async def topped(table: Table) -> Any:
    return (await table.top_n(500, order_by="v"))["v"]


@pytest.mark.represented_by("topped")
@pytest.mark.asyncio
@pytest.mark.parametrize("read", [scanned, looked_up, read_by_encoded_keys, topped])
async def test_readers_see_all_of_a_transaction_or_nothing(tmp_path: Path, read: Any) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server:
        async with connect(server.url) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=6, tablets=3)
            await table.upsert(pa.table({"k": range(ROWS), "v": [0] * ROWS}, SCHEMA))
            done = False

            async def watch() -> None:
                while not done:
                    values = set((await read(table)).to_pylist())
                    assert len(values) == 1, values

            watching = asyncio.create_task(watch())
            for number in range(1, COMMITS):
                async with client.transaction() as transaction:
                    await transaction.upsert(table, pa.table({"k": range(ROWS), "v": [number] * ROWS}, SCHEMA))
            done = True
            await watching
            assert set((await read(table)).to_pylist()) == {COMMITS - 1}
