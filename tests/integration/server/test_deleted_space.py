"""The disk space of rows that were deleted at once is free soon, although nothing else is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import connect
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aio_client import Table

pytestmark = pytest.mark.asyncio

ROWS, DAYS = 200_000, 10
SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("team", pa.string())])
DELETES: dict[str, tuple[Callable[[Table], Awaitable[Any]], int]] = {
    "a key range, untracked": (lambda table: table.delete(where="day >= 1", track_changes=False), ROWS // DAYS),
    "a key range": (lambda table: table.delete(where="day >= 1"), ROWS // DAYS),
    "all rows": (lambda table: table.truncate(), 0),
    "all rows, untracked": (lambda table: table.truncate(track_changes=False), 0),
    "a partition": (lambda table: table.drop_partition({"day": 1}), ROWS // DAYS * (DAYS - 1)),
}


@pytest.mark.parametrize("delete", DELETES)
@pytest.mark.represented_by("a key range, untracked")
async def test_deleted_rows_soon_take_no_space(tmp_path: Path, delete: str) -> None:
    # A partition has nine times the rows, to delete as much as the others.
    scale = DAYS - 1 if delete == "a partition" else 1
    with ServerProcess(tmp_path / "data", "--set", "log_maintenance_seconds=0.05") as server:
        async with connect(server.url) as client:
            table = await client.create_table(
                "test.space",
                SCHEMA,
                primary_key=["day", "id"],
                partition_by=["day"],
                buckets=1,
                changelog="none",
                compression="none",
                indexes=[["day", "team"]] if delete == "all rows, untracked" else [],
            )
            for day in range(DAYS):
                count = ROWS // DAYS * (scale if day == 1 else 1)
                ids = pa.array(range(count), pa.int64())
                teams = pa.array([f"team {number:030}" for number in range(count)])
                await table.upsert(pa.table([pa.array([day] * count, pa.int32()), ids, teams], schema=SCHEMA))
            before, rows = await disk_bytes(table), await table.count()
            await DELETES[delete][0](table)
            left = await table.count()
            assert left == DELETES[delete][1]

            async def is_free() -> bool:
                return await disk_bytes(table) < before * (left / rows) * 1.2 + (1 << 20)

            await await_until(is_free, f"the space of {before:,} bytes is free")
            assert await table.count() == left == (await table.scan().to_arrow()).num_rows
            assert all(bucket.is_consistent for bucket in await client.check_table(table.name))


async def disk_bytes(table: Table) -> int:
    return sum(bucket.disk_bytes for bucket in await table.stats())
