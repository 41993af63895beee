"""One client that makes thousands of calls at once: all of them succeed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import StartFrom, agg

if TYPE_CHECKING:
    from aio_client import Client, sync

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ROWS = 2500
"""More than the calls that a gRPC server takes at once: before calls were queued, one in ten was lost."""


@pytest.mark.asyncio
async def test_thousands_of_reads_at_once_are_all_answered(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"])
    await table.upsert(pa.table({"k": range(ROWS), "v": [str(k) for k in range(ROWS)]}))
    rows = await asyncio.gather(*(table.get(k) for k in range(ROWS)))
    assert rows == [{"k": k, "v": str(k)} for k in range(ROWS)]


@pytest.mark.asyncio
async def test_many_writes_and_writers_at_once_are_all_applied_once(client: Client, name: str) -> None:
    table = await client.create_table(
        name, SCHEMA.append(pa.field("n", pa.int64())), primary_key=["k"], merge_engine="aggregate",
        aggregators={"v": agg.last_value(), "n": agg.sum()},
    )  # fmt: skip

    async def through_a_writer(k: int) -> None:
        async with table.writer() as writer:
            await writer.upsert([{"k": k, "v": "w", "n": 1}])

    await asyncio.gather(
        *(table.upsert([{"k": k % 7, "v": "u", "n": 1}]) for k in range(400)),
        *(through_a_writer(k % 7) for k in range(50)),
    )
    assert (await table.aggregate({"n": ["sum"]}))["n_sum"][0].as_py() == 450


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_streams_that_wait_leave_reads_their_turn(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"])
    streams = [table.changes(StartFrom.LATEST).stream() for _ in range(300)]
    for stream in streams:
        await stream.__aenter__()
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.gather(*(table.upsert([{"k": 1, "v": "new"}]), *(table.get(1) for _ in range(600))))
    assert {rows.num_rows for rows in await asyncio.gather(*waiting)} == {1}
    await asyncio.gather(*(stream.aclose() for stream in streams))


def test_blocking_callers_in_many_threads_are_all_answered(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"])
    table.upsert(pa.table({"k": range(100), "v": ["x"] * 100}))
    with ThreadPoolExecutor(300) as threads:
        rows = list(threads.map(lambda k: table.get(k % 100), range(600)))
    assert [row and row["k"] for row in rows] == [k % 100 for k in range(600)]
