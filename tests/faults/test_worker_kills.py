"""Whatever process of a server with several workers is killed or frozen, nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest

from aio_client import sync
from scankv.v1 import lookup_pb2
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
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
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.timeout(240)  # several processes start again and again

WORKERS = 2


@pytest.fixture
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers."""
    with ServerProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", str(WORKERS)) as server:
        yield server


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
