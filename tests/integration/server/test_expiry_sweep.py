"""What the sweep of expired rows keeps to, on a clock that only the test and the sweep's own pauses advance."""

from __future__ import annotations

import datetime as dt
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.clocks import START, FakeClocks, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aio_client import Client, Table
    from streaming_server.engine.bucket.sweep_record import SweepRecord
    from streaming_server.engine.writes.expiry_sweep import ExpirySweep

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
NOW = dt.datetime.fromtimestamp(START / 1e9, dt.UTC)
MINUTE, HOUR = 60, 3600
CPU_SHARE = 0.05


class Sweeping:
    """A server whose sweep runs only when the test says so, and whose pauses pass at once on the test's clock.

    Attributes:
        paused: The seconds of all pauses.
    """

    def __init__(self, client: Client, sweep: ExpirySweep, clocks: FakeClocks) -> None:
        self.client, self.clocks, self.paused = client, clocks, 0.0
        self._sweep = sweep
        sweep._pause = self._pass_time

    async def _pass_time(self, seconds: float) -> None:
        self.paused += seconds
        self.clocks.pass_time(seconds)

    async def look(self) -> None:
        """Sweeps the tables that are due."""
        await self._sweep._look()

    def record(self) -> SweepRecord:
        (state,) = self._sweep._tables()
        return state.sweep

    async def share(self, table: Table) -> float:
        """Returns which share of the stored rows has expired."""
        stored = sum(each.rows or 0 for each in await table.stats())
        return 1 - await table.count() / stored if stored else 0.0


@asynccontextmanager
async def sweeping(data: Path) -> AsyncIterator[Sweeping]:
    clocks = FakeClocks()
    async with serving(data, clocks, sweep_cpu_share=CPU_SHARE) as (server, client):
        yield Sweeping(client, server._tables._sweep, clocks)


def rows(ids: range, at: dt.datetime | None) -> pa.Table:
    return pa.table({"id": ids, "at": [at] * len(ids)}, schema=SCHEMA)


@pytest.mark.breadth
@pytest.mark.parametrize("key", [["id"], ["at", "id"]])
async def test_at_most_a_tenth_of_a_table_has_expired_and_is_stored_while_rows_expire_steadily(
    tmp_path: Path, key: list[str]
) -> None:
    async with sweeping(tmp_path) as server:
        schema = pa.schema([SCHEMA.field(0), SCHEMA.field(1).with_nullable(key == ["id"])])
        options: dict[str, Any] = {"ttl_seconds": HOUR, "ttl_column": "at"}
        table = await server.client.create_table("t.events", schema, primary_key=key, buckets=2, **options)
        shares: list[float] = []
        passes: set[float | None] = set()
        for minute in range(120):
            now = NOW + dt.timedelta(minutes=minute)
            await table.upsert(rows(range(minute * 50, minute * 50 + 50), now).cast(schema))
            server.clocks.pass_time(MINUTE)
            if minute > 60:
                shares.append(await server.share(table))
                assert server.record().share(server.clocks.monotonic()) <= 0.1
            await server.look()
            passes.add(server.record().pass_ended)
        assert max(shares) <= 0.1, shares
        assert 0.01 < sum(shares) / len(shares) < 0.07
        # A pass about each time when a twentieth of the TTL has passed, and not all the time.
        assert 25 <= len(passes) <= 70


@pytest.mark.breadth
async def test_rows_that_expire_all_at_once_are_removed_by_the_next_pass(tmp_path: Path) -> None:
    async with sweeping(tmp_path) as server:
        options: dict[str, Any] = {"ttl_seconds": HOUR}
        table = await server.client.create_table("t.events", SCHEMA, primary_key=["id"], buckets=2, **options)
        await table.upsert(rows(range(5000), None))
        waited = 0
        while True:
            server.clocks.pass_time(MINUTE)
            await server.look()
            share = await server.share(table)
            reported = server.record().share(server.clocks.monotonic())
            if share == 1:
                # Nothing that is written or read shows that they have expired, so no estimate knows it either.
                waited += MINUTE
                assert reported == 0
            elif server.clocks.monotonic() > HOUR:
                break
        assert waited <= HOUR / 20
        assert (share, reported) == (0, 1)
        server.clocks.pass_time(HOUR / 20)
        await server.look()
        assert server.record().share(server.clocks.monotonic()) == 0


@pytest.mark.represented_by("30000-1")
@pytest.mark.parametrize(("count", "buckets"), [(30_000, 1), (4_000, 64)])
async def test_the_sweep_pauses_for_as_long_as_the_setting_of_its_share_says(
    tmp_path: Path, count: int, buckets: int
) -> None:
    async with sweeping(tmp_path) as server:
        options: dict[str, Any] = {"ttl_seconds": HOUR, "ttl_column": "at"}
        table = await server.client.create_table("t.events", SCHEMA, primary_key=["id"], buckets=buckets, **options)
        await table.upsert(rows(range(count // 2), None))
        await table.upsert(rows(range(count // 2, count), NOW))
        await server.look()
        for removed in (count // 2, count // 2):
            server.clocks.pass_time(2 * HOUR)
            began, before = time.process_time(), server.paused
            await server.look()
            worked, paused = time.process_time() - began, server.paused - before
            assert server.record().removed == removed
            # The complete process has worked, with its event loop, the test itself, and RocksDB's threads.
            assert worked / (worked + paused) < 3 * CPU_SHARE, (worked, paused)
