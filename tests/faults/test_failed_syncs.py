"""After a failed sync nothing is acknowledged, the error names the cause, and writes work once syncs succeed again."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import DiskFull, ScanKvError, ScanSource, StartFrom, StopAt
from aio_client import connect as connect_async
from aio_client.sync import connect
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client.sync import Client, Table

pytestmark = pytest.mark.usefixtures("strace")

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@contextmanager
def failing(server: ServerProcess, error: str, *calls: str) -> Iterator[None]:
    """Makes system calls of the server fail during the block."""
    names = ",".join(calls)
    command = ["strace", "-f", "-p", str(server.process.pid), "-o", "/dev/null", "-e", f"trace={names}"]
    tracer = subprocess.Popen(
        [*command, "-e", f"inject={names}:error={error}"], stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert tracer.stderr is not None
    drained = threading.Thread(target=tracer.stderr.read)
    try:
        assert "attached" in tracer.stderr.readline()
        drained.start()
        yield
    finally:
        tracer.terminate()
        tracer.wait()
        if drained.ident is not None:
            drained.join()
        tracer.stderr.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


def new_table(client: Client, name: str) -> Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)


def rows_of(table: Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def can_write(table: Table, k: int, v: int) -> bool:
    try:
        table.upsert([{"k": k, "v": v}])
    except ScanKvError:
        return False
    return True


@pytest.mark.parametrize(
    ("error", "calls", "expected"),
    [
        ("ENOSPC", ("fdatasync",), DiskFull),
        ("ENOSPC", ("fdatasync", "fsync"), DiskFull),
        ("EIO", ("fdatasync", "fsync"), ScanKvError),
    ],
)
@pytest.mark.breadth
def test_writes_go_on_after_a_failed_sync_and_nothing_that_was_acknowledged_is_lost(
    server: ServerProcess, error: str, calls: tuple[str, ...], expected: type[ScanKvError]
) -> None:
    with connect(server.url, operation_timeout=20) as client:
        table = new_table(client, "test.synced")
        table.upsert([{"k": k, "v": 1} for k in range(100)])
        acknowledged = dict.fromkeys(range(100), 1)
        with table.changes(StartFrom.EARLIEST).stream() as changes:
            assert len(next(changes)) == 100
            with failing(server, error, *calls):
                for k in range(5):
                    with pytest.raises(expected) as refused:
                        table.upsert([{"k": k, "v": 2}])
                    if expected is DiskFull:
                        assert refused.value.reason == "DISK_FULL"
                        assert "free some space" in refused.value.message
            wait_until(lambda: can_write(table, 50, 3), "writing")
            acknowledged[50] = 3
            table.upsert([{"k": 51, "v": 3}])
            acknowledged[51] = 3
            told: dict[int, int] = {}
            while told.get(51) != 3:
                rows = next(changes)
                told.update(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
        there = rows_of(table)
        for k, v in acknowledged.items():
            assert there[k] in ((1, 2) if k < 5 else (v,))
        assert all(there[k] == 2 for k in told if k < 5), "a stream has delivered a change that does not exist"
        server.kill()
        server.restart()
        assert rows_of(table) == there
    assert "Traceback" not in server.log


@pytest.mark.asyncio
@pytest.mark.timeout(180)  # Each repair takes 5 s, and strace slows everything down.
async def test_writes_that_share_syncs_are_acknowledged_only_when_durable_and_applied_once(
    server: ServerProcess,
) -> None:
    """Writers of few rows, readers, snapshots and transactions, until syncs fail, and a little longer."""
    async with connect_async(server.url, operation_timeout=20) as client:
        table = await client.create_table(
            "test.shared", SCHEMA, primary_key=["k"], buckets=2, changelog="full", row_deduplicate=False
        )
        acknowledged: dict[int, list[int]] = {k: [] for k in range(8)}
        refused: set[tuple[int, int]] = set()
        failed = asyncio.Event()

        async def write(k: int) -> None:
            later = 0
            for v in count(1):
                later += failed.is_set()
                if later > 2:
                    return
                try:
                    if k == 7:
                        async with client.transaction() as transaction:
                            await transaction.upsert(table, [{"k": k, "v": v}])
                    else:
                        await table.upsert([{"k": k, "v": v}])
                except ScanKvError:
                    refused.add((k, v))
                    failed.set()
                else:
                    acknowledged[k].append(v)

        async def read() -> None:
            while not failed.is_set():
                known = {k: values[-1] for k, values in acknowledged.items() if values}
                try:
                    async with table.snapshot() as snapshot:
                        rows = {row["k"]: row["v"] for row in await table.scan().as_of(snapshot).to_pylist()}
                except ScanKvError:
                    return  # a sync has failed
                assert all(rows[k] >= v for k, v in known.items())

        with failing(server, "EIO:when=20+20", "fdatasync", "fsync"):
            await asyncio.gather(*map(write, acknowledged), read())

        async def can_write() -> bool:
            try:
                await table.upsert([{"k": 100, "v": 1}, {"k": 101, "v": 1}, {"k": 102, "v": 1}, {"k": 103, "v": 1}])
            except ScanKvError:
                return False
            return True

        await await_until(can_write, "writing")
        server.kill()
        server.restart()
        scan = table.scan().with_source(ScanSource.LOG).with_row_kind().start_from(StartFrom.EARLIEST)
        changes = await scan.stop_at(StopAt.LATEST).to_pylist()
        for k, values in acknowledged.items():
            applied = [row["v"] for row in changes if row["k"] == k and row["_change_type"] != "-U"]
            assert applied == sorted(set(applied)), "a write was applied twice, or after a later one"
            assert [v for v in applied if (k, v) not in refused] == values
