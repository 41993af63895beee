"""The server dies while partitions are dropped: all buckets have the partition, or none has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, DataLoss, connect
from aio_client.mirror import mirror
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
BUCKETS = 3
IDS = 40
# One WriteBatch for each bucket, and a sync of each.
AT_WRITES = [f"write {n} {when}" for n in range(1, BUCKETS + 1) for when in ("before", "after")]
AT_SYNCS = [f"sync {n} {when}" for n in range(1, BUCKETS + 1) for when in ("before", "after")]
BEFORE_DECISION = ["definition 1 before"]
AFTER_DECISION = ["definition 1 after", *AT_WRITES, *AT_SYNCS]
FEW = ["definition 1 before", "definition 1 after", "write 1 after", "write 3 before", "sync 2 before"]


def rows(*partitions: str, value: int = 0) -> list[dict[str, str | int]]:
    return [{"p": each, "k": key, "v": value} for each in partitions for key in range(IDS)]


@pytest.mark.parametrize("changelog", ["full", "none"])
@pytest.mark.parametrize("points", [FEW, pytest.param(BEFORE_DECISION + AFTER_DECISION, marks=pytest.mark.soak)])
@pytest.mark.represented_by("points0-full")
async def test_a_kill_during_a_drop_leaves_all_of_the_partition_or_nothing(
    tmp_path: Path, changelog: str, points: list[str]
) -> None:
    armed = tmp_path / "point"
    with ServerProcess(tmp_path / "data", wrapper=crashing(armed)) as server:
        for number, point in enumerate(points):
            name = f"test.t{number}"
            async with connect(server.url, operation_timeout=2) as client:
                table = await client.create_table(
                    name,
                    SCHEMA,
                    primary_key=["p", "k"],
                    partition_by=["p"],
                    buckets=BUCKETS,
                    changelog=changelog,
                    indexes=["v"],
                )
                await table.upsert(rows("a", "b", "c"))
                armed.write_text(point)
                with pytest.raises(ConnectionFailed):
                    await table.drop_partition({"p": "b"})
            await asyncio.to_thread(server.process.wait)
            assert not armed.exists(), f"the server did not reach {point}"
            server.restart()
            async with connect(server.url) as client:
                table = await client.table(name)
                left = ["a", "b", "c"] if point in BEFORE_DECISION else ["a", "c"]
                assert [(each.values["p"], each.rows) for each in await table.partitions()] == [
                    (each, IDS) for each in left
                ], point
                found = await table.scan().to_pylist()
                assert sorted((row["p"], row["k"]) for row in found) == [(p, k) for p in left for k in range(IDS)]
                assert await table.count() == len(found)
                assert all(bucket.is_consistent for bucket in await client.check_table(name))
                # And once more.
                await table.upsert(rows("b", value=2))
                assert [each.rows for each in await table.drop_partition({"p": "b"})] == [IDS]
                assert await table.count() == 2 * IDS
                if changelog == "full":
                    async with mirror(table) as copy:
                        await copy.wait_for(await table.log_offsets())
                        assert len(copy) == 2 * IDS


async def test_a_bucket_is_not_served_with_an_older_definition(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        definition = tmp_path / "data" / "tables" / "test" / "t" / "table.json"
        async with connect(server.url) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["p", "k"], partition_by=["p"], buckets=1)
            await table.upsert(rows("a", "b"))
            await table.drop_partition({"p": "b"})
            copy = definition.read_bytes()
            await table.upsert(rows("b"))
            await table.drop_partition({"p": "b"})
        server.stop()
        definition.write_bytes(copy)
        server.restart()
        async with connect(server.url) as client:
            table = await client.table("test.t")
            with pytest.raises(DataLoss, match="newer definition of the table"):
                await table.upsert(rows("a"))
