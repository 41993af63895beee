"""Clients that know a change of a table work with all tablets, even those whose workers have never heard of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ScanKvError, connect
from streaming_server.storage.tables.placement import Placement
from tests.support.server_process import ServerProcess
from tests.support.workers import wait_for_worker

if TYPE_CHECKING:
    from aio_client import Table

WORKERS = 2
TABLETS = 8
KILLED = Path(__file__).parents[2] / "support" / "killed_at_stores"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("c", pa.int64())])


@pytest.mark.breadth
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.soak)])
def test_rows_with_added_columns_are_written_if_the_owner_is_killed_before_it_tells_others(
    tmp_path: Path, rounds: int
) -> None:
    data, kill, name = tmp_path / "data", tmp_path / "kill", "test.killed"
    owner = Placement(0, WORKERS).owner_of(name)

    async def add_column(server: ServerProcess, number: int) -> None:
        """Adds a column, and has the owner of the table be killed once it has stored the definition."""
        kill.touch()
        async with connect(server.url) as client:
            with suppress(ScanKvError):
                await client.alter_table(name, add_columns=pa.schema([(f"d{number}", pa.int64())]))
        assert not kill.exists()
        await asyncio.to_thread(wait_for_worker, server, owner)

    async def run(server: ServerProcess) -> None:
        async with connect(server.url) as client:
            await client.create_table(name, SCHEMA, primary_key=["k"], buckets=TABLETS, tablets=TABLETS)
        for number in range(rounds):
            await add_column(server, number)
            async with connect(server.url) as client:
                table = await client.table(name)
                assert f"d{number}" in table.schema.names
                await write_all(table, number)

    async def write_all(table: Table, value: int) -> None:
        rows = [{"k": k, **dict.fromkeys(table.schema.names[1:], value)} for k in range(5 * TABLETS)]
        await table.upsert(rows[TABLETS:])
        for row in rows[:TABLETS]:
            await table.upsert([row])
        assert sorted(await table.scan().to_pylist(), key=lambda row: int(row["k"])) == rows

    wrapper = ("env", f"PYTHONPATH={KILLED}", f"KILL={kill}")
    with ServerProcess(data, "--workers", str(WORKERS), wrapper=wrapper) as server:
        asyncio.run(run(server))
