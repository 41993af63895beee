"""Streams of changes of tables with tablets are exact, even if a worker is killed or frozen in the middle."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import Resume, ScanInterrupted, ScanKvError, StartFrom, StopAt, Unavailable, connect, sync
from streaming_server.storage.tables.placement import Placement
from tests.model.replayed_table import ReplayedTable
from tests.support.server_process import ServerProcess
from tests.support.workers import freeze, kill_worker, processes_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aio_client import Table

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
KEYS = 100
WORKERS = 2


@pytest.fixture
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers."""
    data = tmp_path_factory.mktemp("interrupted") / "data"
    # A worker that is frozen is not killed while the test looks at it.
    settings = ("--set", "follow_heartbeat_seconds=0.2", "--set", "worker_timeout_seconds=120")
    with ServerProcess(data, "--workers", str(WORKERS), *settings) as server:
        yield server


def rows(keys: Sequence[int], v: int = 0) -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


async def write(table: Table, keys: Sequence[int], v: int = 0) -> None:
    """Writes rows, and tries again until the write is acknowledged."""
    while True:
        with suppress(ScanKvError):
            await table.upsert(rows(keys, v))
            return


@pytest.mark.represented_by("owner-changes")
@pytest.mark.parametrize(("victim", "phase"), [("owner", "changes"), ("other", "rows"), ("other", "changes")])
def test_a_stream_and_its_consumer_are_exact_over_the_kill_of_a_worker(
    divided: ServerProcess, victim: str, phase: str
) -> None:
    name = f"test.{victim}_{phase}"
    owner = Placement(0, WORKERS).owner_of(name)
    asyncio.run(_read_over_kill(divided, name, owner if victim == "owner" else 1 - owner, phase))


async def _read_over_kill(server: ServerProcess, name: str, number: int, phase: str) -> None:
    async with connect(server.url, operation_timeout=60) as client:
        table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=7, tablets=3)
        await table.upsert(rows(range(KEYS)))
        # An interruption among the rows may let later rows contain some changes.
        replay = ReplayedTable({}, selective=phase == "rows")
        async with table.changes(consumer_id="c").with_chunk(rows=10).stream() as stream:
            replay.play(await anext(stream))
            await table.upsert(rows([-2]))
            while stream.phase != phase:
                replay.play(await anext(stream))
            kill_worker(server, number)
            for turn in range(5):
                await write(table, range(turn, KEYS + turn * 10, 7), v=turn + 1)
            await write(table, [-1])
            async for batch in stream:
                replay.play(batch)
                if -1 in batch["k"].to_pylist():
                    break
            await stream.commit()
        await asyncio.to_thread(wait_for_worker, server, number)
        # What the worker has kept for the consumer is still there, and nothing comes twice.
        async with table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c").stream() as stream:
            async for batch in stream:
                replay.play(batch)
        assert replay.table == {row["k"]: row for row in await table.scan().to_pylist()}


@pytest.mark.breadth
def test_a_stream_over_a_frozen_worker_ends_with_a_typed_error_and_continues_exactly(divided: ServerProcess) -> None:
    name = "test.frozen"
    owner = Placement(0, WORKERS).owner_of(name)
    number = 1 - owner
    host, _, port = divided.url.rpartition(":")
    # The other worker must not be the one that passes the stream on.
    with sync.connect(f"{host}:{int(port) + 1 + owner}", operation_timeout=60) as client:
        table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=7, tablets=3)
        table.upsert(rows(range(KEYS)))
        replay, scan = ReplayedTable({}), table.changes(StartFrom.EARLIEST).resume(Resume.NEVER)
        worker = processes_of(divided)[number]
        with scan.stream() as stream:
            while len(replay.table) < KEYS:
                replay.play(next(stream))
            with freeze(worker):
                with pytest.raises((Unavailable, ScanInterrupted)) as caught:
                    next(stream)
        table.upsert(rows(range(KEYS), v=1))
        token = caught.value.resume_token
        assert token is not None
        with scan.resume_from(token).stop_at(StopAt.LATEST).resume(Resume.LATEST).stream() as stream:
            for batch in stream:
                replay.play(batch)
        assert replay.table == {row["k"]: row for row in table.scan().to_pylist()}
