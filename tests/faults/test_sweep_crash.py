"""The server dies while it removes expired rows: readers, indexes and the changelog agree afterwards."""

from __future__ import annotations

import asyncio
import datetime as dt
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, StartFrom, StopAt, connect
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BUCKETS = 2
ALIVE = [{"k": key, "at": None, "v": key} for key in range(0, 60, 2)]
OLD = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
EXPIRED = [{"k": key, "at": OLD, "v": key} for key in range(1, 60, 2)]
# The upsert has one WriteBatch for each bucket, and the sweep has another one.
POINTS = [f"write {number} {when}" for number in (BUCKETS + 1, BUCKETS + 2) for when in ("before", "after")]


async def replayed(table: Table) -> dict[int, dict[str, Any]]:
    """Returns the rows that a strict reader of the changelog has."""
    rows: dict[int, dict[str, Any]] = {}
    for change in await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist():
        row = {name: change[name] for name in SCHEMA.names}
        if change["_change_type"] in ("-D", "-U"):
            assert rows.pop(row["k"]) == row
        else:
            assert row["k"] not in rows
            rows[row["k"]] = row
    return rows


@pytest.mark.parametrize("changes", ["delete", "none"])
@pytest.mark.breadth
async def test_a_kill_during_the_sweep_loses_and_revives_nothing(tmp_path: Path, changes: str) -> None:
    armed = tmp_path / "point"
    sweep = ("--set", "sweep_seconds=0.05", "--set", "sweep_cpu_share=1")
    with ServerProcess(tmp_path / "data", *sweep, wrapper=crashing(armed)) as server:
        for number, point in enumerate(POINTS):
            name = f"test.t{number}"
            async with connect(server.url, operation_timeout=3) as client:
                options: dict[str, Any] = {"ttl_seconds": 1, "ttl_column": "at", "ttl_changes": changes}
                table = await client.create_table(
                    name, SCHEMA, primary_key=["k"], buckets=BUCKETS, indexes=[["v"]], **options
                )
                await table.upsert(ALIVE)
                armed.write_text(point)
                with suppress(ConnectionFailed):
                    await table.upsert(EXPIRED)
            await asyncio.to_thread(server.process.wait)
            assert not armed.exists(), f"the server did not reach {point}"
            server.restart()
            async with connect(server.url) as client:
                table = await client.table(name)
                while sum(each.rows or 0 for each in await table.stats()) > len(ALIVE):
                    assert sorted(await table.scan().to_pylist(), key=lambda row: row["k"]) == ALIVE
                    assert await table.lookup([1, 2, 3]) == pa.Table.from_pylist(ALIVE[1:2], table.schema)
                assert await table.count() == len(ALIVE)
                assert all(bucket.is_consistent for bucket in await client.check_table(name))
                rows = await replayed(table)
                assert [rows[key] for key in sorted(rows) if rows[key]["at"] is None] == ALIVE
                if changes == "delete":
                    assert len(rows) == len(ALIVE)
