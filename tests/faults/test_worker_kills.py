"""Whatever process of a server with several workers is killed or frozen, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, TransactionLost, connect, sync
from scankv.v1 import lookup_pb2
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import await_until, wait_until
from tests.support.wire import Wire, refusal_of
from tests.support.workers import (
    has_ended,
    is_running,
    kill_worker,
    names_of_workers,
    processes_of,
    rows_of,
    wait_for_worker,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
WORKERS = 2


@pytest.fixture
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers."""
    with ServerProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", str(WORKERS)) as server:
        yield server


@dataclass
class OwnedTableWriter:
    """Writes to the table of one worker: single rows, and transactions of two rows with an id.

    Attributes:
        acknowledged: The value of each key after the last acknowledged write.
        in_doubt: The value of a key whose write was not acknowledged.
        ids: The transactions that were committed.
    """

    table: str
    acknowledged: dict[int, int] = field(default_factory=dict)
    in_doubt: dict[int, set[int]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    writes: int = 0

    async def write_until(self, client: Client, stop: asyncio.Event, rng: random.Random) -> None:
        """Writes until the event is set. Failures of connections leave a write in doubt."""
        table = await client.table(self.table)
        while not stop.is_set():
            self.writes += 1
            keys = [2 * rng.randrange(100), 2 * rng.randrange(100) + 1]
            value, id_ = self.writes, f"{self.table}:{self.writes}"
            try:
                if rng.random() < 0.5:
                    keys = keys[:1]
                    await table.upsert([{"k": keys[0], "v": value}])
                else:
                    async with client.transaction(id=id_) as tx:
                        await tx.upsert(table, [{"k": key, "v": value} for key in keys])
                        await tx.commit()
                    self.ids.add(id_)
            except (ConnectionFailed, TransactionLost):
                for key in keys:
                    self.in_doubt.setdefault(key, set()).add(value)
            else:
                for key in keys:
                    self.acknowledged[key] = value

    async def check(self, client: Client) -> None:
        """Compares the table with what was acknowledged, and continues with what it has."""
        found = {row["k"]: row["v"] for row in (await (await client.table(self.table)).scan().to_arrow()).to_pylist()}
        for key in found.keys() | self.acknowledged.keys():
            known = self.acknowledged.get(key)
            later = {value for value in self.in_doubt.get(key, set()) if known is None or value > known}
            assert found.get(key) in {known, *later}, (self.table, key, found.get(key), known, later)
        for id_ in self.ids:
            async with client.transaction(id=id_) as again:
                assert again.result is not None, f"the commit {id_} was forgotten"
        self.acknowledged, self.in_doubt = found, {}


@dataclass
class DividedTableWriter:
    """Writes the same rows to a table of each worker, each time with one transaction.

    Attributes:
        acknowledged: The value of each key after the last acknowledged commit.
        in_doubt: The values of a key whose commit was not acknowledged.
    """

    tables: list[str]
    acknowledged: dict[int, int] = field(default_factory=dict)
    in_doubt: dict[int, set[int]] = field(default_factory=dict)
    writes: int = 0

    async def write_until(self, client: Client, stop: asyncio.Event, rng: random.Random) -> None:
        """Writes until the event is set. Failures of connections leave a commit in doubt."""
        tables = [await client.table(name) for name in self.tables]
        while not stop.is_set():
            self.writes += 1
            key, value = rng.randrange(20), self.writes
            try:
                async with client.transaction(id=f"both:{value}") as tx:
                    for table in rng.sample(tables, len(tables)):
                        await tx.upsert(table, [{"k": key, "v": value}])
                    await tx.commit()
            except (ConnectionFailed, TransactionLost):
                self.in_doubt.setdefault(key, set()).add(value)
            else:
                self.acknowledged[key] = value

    async def check(self, client: Client) -> None:
        """Compares the tables with each other, and with what was acknowledged, and continues with what they have."""
        found = []
        for name in self.tables:
            rows = (await (await client.table(name)).scan().to_arrow()).to_pylist()
            found.append({row["k"]: row["v"] for row in rows})
        assert all(each == found[0] for each in found), found
        for key in found[0].keys() | self.acknowledged.keys():
            known = self.acknowledged.get(key)
            later = {value for value in self.in_doubt.get(key, set()) if known is None or value > known}
            assert found[0].get(key) in {known, *later}, (key, found[0].get(key), known, later)
        self.acknowledged, self.in_doubt = found[0], {}


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.soak)])
async def test_every_acknowledged_write_survives_kills_of_any_process(divided: ServerProcess, kills: int) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    writers = [OwnedTableWriter(name) for (name,) in names_of_workers(WORKERS)]
    both = DividedTableWriter([name for (name,) in names_of_workers(WORKERS, "both")])
    all_writers: list[OwnedTableWriter | DividedTableWriter] = [*writers, both]
    try:
        async with connect(divided.url, operation_timeout=20) as client:
            for name in (*(writer.table for writer in writers), *both.tables):
                await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
        for _ in range(kills):
            async with connect(divided.url, operation_timeout=20) as client:
                for each in all_writers:
                    await each.check(client)
                stop = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    for each in all_writers:
                        group.create_task(each.write_until(client, stop, random.Random(rng.random())))
                    before = {writer.table: writer.writes for writer in writers}
                    await _until_more_writes(before, writers)
                    await asyncio.sleep(rng.uniform(0, 0.3))
                    victim = rng.choice([0, 1, 0, 1, None])
                    if victim is None:
                        stop.set()
                        await asyncio.to_thread(_kill_supervisor, divided)
                    else:
                        await asyncio.to_thread(kill_worker, divided, victim)
                        other = writers[1 - victim]
                        await _until_more_writes({other.table: other.writes + 1}, [other])
                        await asyncio.to_thread(wait_for_worker, divided, victim)
                    stop.set()
            if victim is None:
                await asyncio.to_thread(divided.restart)
        async with connect(divided.url) as client:
            for each in all_writers:
                await each.check(client)
        assert both.writes > kills
        assert divided.stop() == 0
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


async def _until_more_writes(before: Mapping[str, int], writers: Sequence[OwnedTableWriter]) -> None:
    async def have_written() -> bool:
        return all(writer.writes > before[writer.table] for writer in writers)

    await await_until(have_written, "all writers write")


def _kill_supervisor(server: ServerProcess) -> None:
    """Kills the supervisor alone, and waits for the end of its workers."""
    workers = processes_of(server).values()
    os.kill(server.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in workers), "the workers ended")


def test_tables_of_a_killed_worker_are_unavailable_until_it_is_back_and_others_are_served(
    divided: ServerProcess,
) -> None:
    (killed,), (served,) = names_of_workers(WORKERS)
    with sync.connect(divided.url) as client:
        port = client.create_table(served, SCORES, primary_key=["player"]).owner_port
        client.create_table(killed, SCORES, primary_key=["player"]).upsert(rows_of(10))
        wire = Wire(f"127.0.0.1:{port}")
        try:
            assert wire.lookups.Count(lookup_pb2.CountRequest(table=killed), timeout=60).rows == 10
            kill_worker(divided, 0)
            with pytest.raises(grpc.RpcError) as down:
                wire.lookups.Count(lookup_pb2.CountRequest(table=killed), timeout=60)
            refusal = refusal_of(down.value)
            assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "UNAVAILABLE")
            assert refusal.retry_after
            assert f'"{killed}"' in refusal.message
            assert wire.lookups.Count(lookup_pb2.CountRequest(table=served), timeout=60).rows == 0
        finally:
            wire.channel.close()
        assert client.table(killed).count() == 10


@pytest.mark.breadth
def test_a_directory_has_one_owner_whatever_is_killed_or_frozen(divided: ServerProcess) -> None:
    """As long as a worker of a dead server exists, no other server starts."""
    frozen = processes_of(divided)[1]
    others = [pid for number, pid in processes_of(divided).items() if number != 1]
    os.kill(frozen, signal.SIGSTOP)
    os.kill(divided.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in others), "the other workers ended")
    command = [sys.executable, "-m", "scankv", "serve", "--port", "0", "--data", str(divided.data_dir)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, refused.stdout) == (3, "")
    os.kill(frozen, signal.SIGKILL)
    wait_until(lambda: not is_running(frozen), "the frozen worker ended")
    divided.restart()
    with sync.connect(divided.url) as client:
        assert client.tables() == []


@pytest.mark.breadth
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_kill_while_the_number_of_workers_changes_loses_nothing(tmp_path: Path, kills: int) -> None:
    data, names = tmp_path / "data", [name for (name,) in names_of_workers(WORKERS)]
    with ServerProcess(data, "--workers", "1") as server, sync.connect(server.url) as client:
        results = {}
        for name in names:
            table = client.create_table(name, SCORES, primary_key=["player"], buckets=2)
            with client.transaction(id=f"load:{name}") as tx:
                tx.upsert(table, rows_of(30))
                results[name] = tx.commit()
    rng = random.Random()
    for round_ in range(kills):
        workers = 2 + round_ % 2
        command = [sys.executable, "-m", "scankv", "serve", "--port", "0", "--data", str(data)]
        starting = subprocess.Popen(
            [*command, "--workers", str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert starting.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            starting.wait(rng.uniform(0.5, 3.0))
        os.killpg(starting.pid, signal.SIGKILL)
        starting.wait()
        starting.stdout.close()
        wait_until(partial(has_ended, starting.pid), "the processes ended")
        for serving in ("1", "3"):
            with ServerProcess(data, "--workers", serving) as server, sync.connect(server.url) as client:
                for name in names:
                    assert client.table(name).count() == 30
                    with client.transaction(id=f"load:{name}") as again:
                        assert again.result == results[name]


@pytest.mark.represented_by("1")
@pytest.mark.parametrize("step", [1, 2])
def test_workers_apply_what_a_single_process_had_decided(tmp_path: Path, step: int) -> None:
    points, data = tmp_path / "points", tmp_path / "data"
    name = names_of_workers(WORKERS)[1][0]
    with (
        ServerProcess(data, wrapper=crashing(points)) as server,
        sync.connect(server.url, operation_timeout=5) as client,
    ):
        table = client.create_table(name, SCORES, primary_key=["player"], buckets=2)
        tx = client.transaction(id="job:1")
        tx.upsert(table, rows_of(50))
        points.write_text(f"write {step} after")
        with pytest.raises(ConnectionFailed):
            tx.commit()
        wait_until(lambda: server.process.poll() is not None, "the server died")
    with ServerProcess(data, "--workers", "2") as server, sync.connect(server.url) as client:
        with client.transaction(id="job:1") as again:
            committed = again.result is not None
            if not committed:
                again.abort()
        assert client.table(name).count() == (50 if committed else 0)
        assert committed, "a bucket had been written, so the transaction was decided"


@pytest.mark.breadth
def test_a_frozen_worker_is_killed_and_started_again(tmp_path: Path) -> None:
    """The system gives it a part of the new connections, and its tables belong to it as long as it exists."""
    settings = ("--workers", str(WORKERS), "--set", "worker_timeout_seconds=5")
    with ServerProcess(tmp_path / "data", *settings) as server, sync.connect(server.url) as client:
        names = [name for (name,) in names_of_workers(WORKERS)]
        for name in names:
            client.create_table(name, SCORES, primary_key=["player"]).upsert(rows_of(10))
        before = processes_of(server)
        os.kill(before[1], signal.SIGSTOP)
        wait_until(lambda: not is_running(before[1]), "the frozen worker was killed")
        wait_for_worker(server, 1)
        for name in names:
            # A new connection, which may belong to any worker.
            with sync.connect(server.url) as another:
                assert another.table(name).count() == 10
        assert processes_of(server)[0] == before[0]
        assert server.stop() == 0
    assert "worker 1 has not run for 5 s, and is killed" in server.log
