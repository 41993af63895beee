"""Expired rows are in a published table until the changelog has their removal."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import read_delta
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
OLD = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
NEVER = ("--set", "sweep_seconds=3600")
ALWAYS = ("--set", "sweep_seconds=0.05", "--set", "sweep_cpu_share=1")


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("masks", [False, True])
async def test_expired_rows_go_when_the_server_removes_them(tmp_path: Path, masks: bool) -> None:
    uri, options = str(tmp_path / "published"), PublishOptions(file_rows=50, masks=masks)

    def published() -> list[int]:
        return sorted(read_delta(uri)["id"].to_pylist())

    with ServerProcess(tmp_path / "data", *NEVER) as server:
        async with connect(server.url) as client:
            table = await client.create_table(
                "lake.expiring", SCHEMA, primary_key=["id"], buckets=2, ttl_seconds=1, ttl_column="at"
            )
            await table.upsert([{"id": 1, "at": None}, {"id": 2, "at": OLD}])
            await publish(client, table.name, open_lake_table(uri), options)
            assert published() == [1, 2]
            await table.upsert([{"id": 3, "at": OLD}])
            await publish(client, table.name, open_lake_table(uri), options)
            assert published() == [1, 2, 3]
            assert await table.count() == 1
    with ServerProcess(tmp_path / "data", *ALWAYS) as server:
        async with connect(server.url) as client:

            async def is_removed() -> bool:
                await publish(client, "lake.expiring", open_lake_table(uri), options)
                return published() == [1]

            await await_until(is_removed, "expired rows are removed from the published table")
