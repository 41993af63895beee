"""Random histories of tables without a primary key: every reader has each row once, in the order of its bucket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import ConnectionFailed, StartFrom, connect
from tests.model.history import noted
from tests.model.log_table_history import BUCKETS, DISTRIBUTIONS, SCHEMA, LogTableHistory, rows_by_bucket
from tests.model.restarts import Restarts
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Table

pytestmark = pytest.mark.asyncio


async def follow(table: Table, found: list[dict[str, Any]]) -> None:
    """Reads the changes of a table as a consumer, until it is cancelled."""
    async with table.changes(StartFrom.FULL, consumer_id="reader").stream() as stream:
        async for changes in stream:
            found += changes.to_pylist()
            with suppress(ConnectionFailed):
                await stream.commit()


@pytest.mark.parametrize(
    ("distribution", "seed", "steps", "restarts"),
    [
        *((name, seed, 20, 1) for seed, name in enumerate(DISTRIBUTIONS)),
        *(pytest.param(name, 10 + seed, 300, 8, marks=pytest.mark.soak) for seed, name in enumerate(DISTRIBUTIONS)),
    ],
)
async def test_every_reader_has_each_row_once(
    tmp_path: Path, distribution: str, seed: int, steps: int, restarts: int
) -> None:
    random = Random(seed)
    settings = ("--set", "follow_heartbeat_seconds=0.2", "--set", "log_maintenance_seconds=0.2")
    with noted(f"{distribution}, seed {seed}"), ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url, operation_timeout=300) as client:
            table = await client.create_table(
                "test.log", SCHEMA, primary_key=[], bucket_key=DISTRIBUTIONS[distribution], buckets=BUCKETS
            )
            history = LogTableHistory(client, table, random)
            restarting = Restarts(server, random, steps=steps, restarts=restarts)
            running = asyncio.create_task(restarting.run())
            followed: list[dict[str, Any]] = []
            follower = asyncio.create_task(follow(table, followed))
            for number in range(steps):
                await history.step()
                restarting.count_step()
                if number % 10 == 9:
                    await history.check()
            await running
            await history.check()
            await history.check_pinned()

            async def has_all() -> bool:
                return len(followed) >= len(history.rows) or follower.done()

            await await_until(has_all, "the consumer has all rows")
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower
            by_bucket = {number: [row["id"] for row in rows] for number, rows in rows_by_bucket(followed).items()}
            expected = await history.changes()
            assert by_bucket == {number: [row["id"] for row in rows] for number, rows in expected.items()}
            assert all(bucket.is_consistent for bucket in await client.check_table("test.log"))
