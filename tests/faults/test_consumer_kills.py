"""After kills of consumers and servers, committed changes are not read again and no other change is left out."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import StartFrom, StopAt, connect, sync
from tests.model.replayed_table import ReplayedTable
from tests.support.consuming_process import ConsumingProcess
from tests.support.noted import noted

if TYPE_CHECKING:
    from aio_client import Table
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
TABLE = "test.consumed"


def rows(*keys: int, v: int = 0) -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


def test_a_consumer_killed_before_its_commit_gets_the_changes_again_and_after_it_does_not(
    shared_server: ServerProcess,
) -> None:
    with sync.connect(shared_server.url) as client:
        table = client.create_table(TABLE, SCHEMA, primary_key=["k"], buckets=2)
        table.upsert(rows(*range(100)))
        committed: list[dict[str, Any]] = []
        for turn in range(2):
            with ConsumingProcess(shared_server.url, TABLE, "c") as consumer:
                batch = consumer.next_batch()
                consumer.go_on()
                consumer.next_batch()  # requested and received, but not committed
                consumer.kill()
            with ConsumingProcess(shared_server.url, TABLE, "c") as consumer:
                assert consumer.next_batch() == batch, turn
                consumer.commit()
                consumer.kill()
            committed += batch
            if turn == 0:
                table.upsert(rows(*range(0, 100, 9), v=1))
        with table.changes(stop=StopAt.LATEST, consumer_id="c").stream() as stream:
            for left in stream:
                committed += left.drop_columns(["_commit_timestamp"]).to_pylist()
        values: dict[int, int] = {}
        for change in committed:
            if change["_change_type"] in ("-U", "-D"):
                assert values.pop(change["k"]) == change["v"]
            else:
                assert change["k"] not in values
                values[change["k"]] = change["v"]
        assert values == {row["k"]: row["v"] for row in table.scan().to_pylist()}
        client.drop_table(TABLE)


@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.soak)])
async def test_a_consumer_continues_at_its_commit_wherever_the_server_is_killed(
    server: ServerProcess, kills: int
) -> None:
    """An acknowledged commit holds; another one may hold. The stream continues over the kills."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            table = await client.create_table(TABLE, SCHEMA, primary_key=["k"], buckets=3)
            await table.upsert(rows(*range(300)))
            committed, offsets = ReplayedTable({}, selective=True), dict.fromkeys(range(3), 0)
            for _ in range(kills):
                restarted = asyncio.Event()
                writing = asyncio.create_task(write(table, rng))
                consuming = asyncio.create_task(consume(table, rng, committed, offsets, restarted))
                await asyncio.sleep(rng.uniform(0.05, 0.5))
                server.kill()
                writing.cancel()
                await asyncio.wait([writing])
                server.restart()
                restarted.set()
                await client.wait_ready()
                # The stream may have received everything before the kill.
                await table.upsert(rows(*range(400), v=rng.randrange(10**6)))
                committed, offsets = await consuming
            async for batch in table.changes(stop=StopAt.LATEST, consumer_id="c").stream():
                committed.play(batch)
            assert committed.table == {row["k"]: row for row in await table.scan().to_pylist()}


async def write(table: Table, rng: random.Random) -> None:
    """Writes until it is cancelled."""
    while True:
        keys = [rng.randrange(400) for _ in range(30)]
        await table.upsert(rows(*keys, v=rng.randrange(10**6)))
        await table.delete(keys[:7])


async def consume(
    table: Table, rng: random.Random, known: ReplayedTable, offsets: dict[int, int], restarted: asyncio.Event
) -> tuple[ReplayedTable, dict[int, int]]:
    """Reads and commits until the stream has continued after a kill. Returns the committed offsets."""
    scan = table.changes(StartFrom.FULL, consumer_id="c").with_chunk(rows=25)
    reading = ReplayedTable(known.rows, selective=True)
    async with scan.stream() as stream:
        batches_since = 0
        async for batch in stream:
            reading.play(batch)
            if rng.random() < 0.3:
                now = await stream.commit()
                assert all(now[bucket] >= offset for bucket, offset in offsets.items())
                known, offsets = ReplayedTable(reading.rows, selective=True), now
            batches_since += restarted.is_set()
            if batches_since > 3:
                break
    return known, offsets
