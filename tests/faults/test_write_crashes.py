"""A write is applied once, at whatever step the server dies, the response is lost, or the writer dies."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import StartFrom, StopAt, connect
from aio_client.testing import Fault, FaultProxy
from streaming_server.storage.changelog.offsets import count_of
from tests.support import writing_process
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table, WriteResult

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = 24_000

# 24,000 rows are two WriteBatches for each of two buckets. The buckets may sync in any order.
FEW = ["write 1 after", "write 3 before", "sync 1 before", "sync 2 after"]
ALL = [f"write {n} {when}" for n in range(1, 5) for when in ("before", "after")] + [
    *(f"sync {n} {when}" for n in (1, 2) for when in ("before", "after")),
    "answer 1 before",
]


async def made(client: Client, name: str) -> Table:
    """Creates a table whose changelog shows each application of a write."""
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, row_deduplicate=False)


def rows(value: int, count: int = ROWS) -> pa.Table:
    return pa.table({"k": range(count), "v": [value] * count}, schema=SCHEMA)


async def death_of(server: ServerProcess, writing: asyncio.Task[WriteResult], point: str) -> None:
    """Waits until the server has died at a point of a write."""

    async def is_dead() -> bool:
        assert not writing.done(), f"the write was done before the server reached {point}; {writing}"
        return server.process.poll() is not None

    await await_until(is_dead, f"dead at: {point}", timeout=60)


async def applied(table: Table) -> Counter[tuple[str, int]]:
    """Returns how often each value was overwritten, by the kind of change."""
    changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST)
    found: Counter[tuple[str, int]] = Counter()
    async with changes.stream() as stream:
        async for batch in stream:
            for counted in batch.column("_change_type").value_counts().to_pylist():
                kind = counted["values"]
                of_kind = batch.filter(pa.compute.equal(batch.column("_change_type"), kind))
                for value in of_kind.column("v").value_counts().to_pylist():
                    found[kind, value["values"]] += value["counts"]
    return found


@pytest.mark.parametrize("points", [FEW, pytest.param(ALL * 3, marks=pytest.mark.soak)])
async def test_a_write_is_applied_once_whatever_step_of_it_the_server_dies_at(
    tmp_path: Path, points: list[str]
) -> None:
    armed = tmp_path / "point"
    with ServerProcess(tmp_path / "data", wrapper=crashing(armed)) as server:
        async with connect(server.url, operation_timeout=300) as client:
            table = await made(client, "test.crashed")
            await table.upsert(rows(0))
            for number, point in enumerate(points, 1):
                armed.write_text(point)
                writing = asyncio.create_task(table.upsert(rows(number)))
                await death_of(server, writing, point)
                server.restart()
                result = await writing
                assert result.rows == ROWS
            armed.write_text("answer 1 before")
            deleting = asyncio.create_task(table.delete(range(0, ROWS, 2)))
            await death_of(server, deleting, "answer")
            server.restart()
            result = await deleting
            expected = Counter({("+I", 0): ROWS, ("-D", len(points)): ROWS // 2})
            for number in range(1, len(points) + 1):
                expected += Counter({("-U", number - 1): ROWS, ("+U", number): ROWS})
            assert await applied(table) == expected
            # The response is the first one, which the killed server did not send.
            assert sum(map(count_of, result.log_offsets.values())) == expected.total()
            assert await table.count() == ROWS // 2


async def test_a_write_whose_response_is_cut_is_applied_once(shared_server: ServerProcess) -> None:
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address, operation_timeout=300) as client:
        table = await made(client, "test.cut")
        values = list(range(1, 250, 10))
        for value in values:
            # Cuts the response, so that the write is already applied.
            proxy.apply(Fault("reset", after_bytes=value))
            assert (await table.upsert(rows(value, 100))).rows == 100
        async with connect(shared_server.url) as direct:
            found = await applied(await direct.table("test.cut"))
        assert len(proxy.faults) >= 3, proxy
        written = {value: count for (kind, value), count in found.items() if kind in ("+I", "+U")}
        assert written == dict.fromkeys(values, 100)


def write_and_kill(command: list[str], lines: int) -> list[int]:
    """Runs a writer, kills it after some lines of output, and returns the output."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = [process.stdout.readline() for _ in range(lines)]
        finally:
            process.kill()
        return [int(line) for line in [*said, *process.stdout.read().splitlines()]]


@pytest.mark.breadth
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.soak)])
async def test_a_named_writer_continues_where_its_killed_process_stopped(
    shared_server: ServerProcess, kills: int
) -> None:
    name = "test.killed_writer"
    async with connect(shared_server.url) as client:
        table = await client.create_table(
            name, writing_process.SCHEMA, primary_key=["k"], buckets=1, row_deduplicate=False
        )
        acknowledged: list[int] = []
        for _ in range(kills):
            command = [sys.executable, "-m", writing_process.__name__, shared_server.url, name]
            acknowledged += await asyncio.to_thread(write_and_kill, command, random.randrange(1, 20))
        # The last request of the killed writer is applied by now or never will be.
        async with table.writer(id="job-1") as last:
            end = last.next_sequence
        changes = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow()
        made = changes.filter(pa.compute.is_in(changes["_change_type"], value_set=pa.array(["+I", "+U"])))
        batches = made["batch"].to_pylist()
        assert batches == [number for number in range(end) for _ in range(writing_process.ROWS)]
        assert acknowledged == sorted(set(acknowledged))
        assert set(acknowledged) <= set(range(end))
        assert end - len(acknowledged) <= kills
