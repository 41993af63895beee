"""The server dies while the option `changelog` changes: the table has the old value, or the new one in every bucket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    ConnectionFailed,
    DataLoss,
    InvalidRequest,
    PositionExpired,
    RangeNotTracked,
    StartFrom,
    StopAt,
    connect,
)
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import LogOffsets, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
BUCKETS = 3
# One WriteBatch for each bucket, and a sync of each.
AT_MARKERS = [f"write {n} {when}" for n in range(1, BUCKETS + 1) for when in ("before", "after")]
AT_SYNCS = [f"sync {n} {when}" for n in range(1, BUCKETS + 1) for when in ("before", "after")]
BEFORE_DECISION = ["definition 1 before"]
AFTER_DECISION = ["definition 1 after", *AT_MARKERS, *AT_SYNCS]
FEW = ["definition 1 before", "definition 1 after", "write 1 after", "write 3 before", "sync 2 before"]


def rows(value: int) -> list[dict[str, int]]:
    return [{"k": key, "v": value} for key in range(60)]


async def changes(table: Table, start: LogOffsets, *, rescan: bool = False) -> list[dict[str, Any]]:
    stream = table.changes(StartFrom.offsets(start), StopAt.LATEST)
    return await stream.with_untracked("rescan" if rescan else "fail").to_pylist()


async def check_recorded(table: Table, start: LogOffsets, changelog: str, value: int) -> None:
    """Writes every row, and checks the changes since `start`."""
    await table.upsert(rows(value))
    if changelog == "none":
        with pytest.raises(InvalidRequest, match='changelog="none"'):
            await changes(table, start)
        return
    found = await changes(table, start)
    kinds = ["-U", "+U"] if changelog == "full" else ["+U"]
    for key in range(60):
        of_key = [each for each in found if each["k"] == key]
        assert [each["_change_type"] for each in of_key] == kinds, key
        assert of_key[-1]["v"] == value


@pytest.mark.parametrize(("before", "after"), [("full", "upsert"), ("upsert", "full"), ("full", "none")])
@pytest.mark.parametrize("points", [FEW, pytest.param(BEFORE_DECISION + AFTER_DECISION, marks=pytest.mark.soak)])
@pytest.mark.represented_by("points0-full-upsert")
async def test_a_kill_during_the_change_leaves_all_of_it_or_nothing(
    tmp_path: Path, before: str, after: str, points: list[str]
) -> None:
    armed = tmp_path / "point"
    with ServerProcess(tmp_path / "data", wrapper=crashing(armed)) as server:
        for number, point in enumerate(points):
            if after == "none" and point.startswith("sync"):
                continue  # Nothing is acknowledged by these syncs that the next start would not do again.
            name = f"test.t{number}"
            async with connect(server.url, operation_timeout=2) as client:
                table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, changelog=before)
                await table.upsert(rows(0))
                old = await table.log_offsets()
                armed.write_text(point)
                with pytest.raises(ConnectionFailed):
                    await client.alter_table(name, changelog=after)
            await asyncio.to_thread(server.process.wait)
            assert not armed.exists(), f"the server did not reach {point}"
            server.restart()
            async with connect(server.url) as client:
                table = await client.table(name)
                found = table.options.get("changelog", "full")
                assert found == (before if point in BEFORE_DECISION else after), point
                start = await table.log_offsets()
                await check_recorded(table, start, found, 1)
                if found == "upsert" and before == "full":
                    # Every bucket has the marker.
                    for bucket in range(BUCKETS):
                        stream = table.changes(StartFrom.offsets(old), StopAt.LATEST).with_buckets([bucket])
                        with pytest.raises(RangeNotTracked):
                            await stream.to_arrow()
                if found != "none":
                    latest = {each["k"]: each["v"] for each in await changes(table, old, rescan=True)}
                    assert latest == dict.fromkeys(range(60), 1)
                # And back again.
                await client.alter_table(name, changelog=before)
                start = await table.log_offsets()
                await check_recorded(table, start, before, 2)
                if found == "none":
                    with pytest.raises(PositionExpired):
                        await changes(table, old)
                assert {row["k"]: row["v"] for row in await table.scan().to_pylist()} == dict.fromkeys(range(60), 2)
                assert all(bucket.is_consistent for bucket in await client.check_table(name))


async def test_a_bucket_is_not_served_with_an_older_definition(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        definition = tmp_path / "data" / "tables" / "test" / "t" / "table.json"
        async with connect(server.url) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=1)
            await table.upsert(rows(0))
            copy = definition.read_bytes()
            await client.alter_table("test.t", changelog="upsert")
        server.stop()
        definition.write_bytes(copy)
        server.restart()
        async with connect(server.url) as client:
            table = await client.table("test.t")
            with pytest.raises(DataLoss, match="newer definition of the table"):
                await table.upsert(rows(1))
