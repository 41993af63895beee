"""The server for test suites: started, killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from functools import partial
from traceback import walk_stack
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import Unavailable, UsageError, sync
from streaming_server.testing import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Not the one of the other tests, which is forked."""
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.mark.breadth
def test_a_server_that_is_killed_or_stopped_starts_again_at_the_same_url_with_its_data(server: ServerProcess) -> None:
    url, rows = server.url, [{"k": 1}]
    with sync.connect(url) as client:
        table = client.create_table("test.kept", pa.schema([("k", pa.int64())]), primary_key=["k"])
        table.upsert(rows)
        server.kill()
        assert server.process.returncode == -signal.SIGKILL
        server.kill()
        server.restart()
        assert server.url == url
        client.wait_ready()
        assert table.scan().to_pylist() == rows
        assert server.stop() == 0
        assert server.stop() == 0
        server.restart()
        client.wait_ready()
        assert table.scan().to_pylist() == rows
    assert server.log.count("serving ") == 3


BESIDE_A_SERVER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE)
child.stdout.readline()
os.execv(sys.argv[3], sys.argv[3:])
"""
SLOW_TO_END = """
import socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
# The last thread gives all memory back before it closes the port.
memory = b"x" * (200 << 20)
for _ in range(50):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
with open(sys.argv[1], "w") as file:
    file.write(str(listener.getsockname()[1]))
print(flush=True)
time.sleep(600)
"""


@pytest.mark.breadth
def test_a_kill_waits_until_every_process_of_the_group_has_closed_its_ports(tmp_path: Path) -> None:
    """A process is a zombie once its first thread has ended, and its other threads end later."""
    wrapper = (sys.executable, "-c", BESIDE_A_SERVER, SLOW_TO_END, str(tmp_path / "port"))
    with ServerProcess(tmp_path / "data", wrapper=wrapper) as server:
        server.kill()
    with socket.create_server(("127.0.0.1", int((tmp_path / "port").read_text()))):
        pass


def test_a_running_server_is_not_started_twice(shared_server: ServerProcess) -> None:
    process = shared_server.process
    with pytest.raises(UsageError, match="still running"):
        shared_server.restart()
    assert shared_server.process is process
    assert process.poll() is None


@pytest.mark.breadth
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="max_live_scanz"):
        ServerProcess(tmp_path / "data", "--set", "max_live_scanz=3")


@pytest.mark.breadth
def test_leaving_the_block_ends_the_process(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "max_live_scans=3") as server:
        assert server.process.poll() is None
        # It says that it is ready first, and notes it in its log then.
        wait_until(partial(getattr, server, "log"), "a line in its log")
    assert server.process.returncode == -signal.SIGKILL
    with ServerProcess(tmp_path / "data") as server:
        assert server.stop() == 0


def test_a_start_that_is_interrupted_leaves_no_process_behind(tmp_path: Path) -> None:
    noted, threads = tmp_path / "pid", threading.active_count()
    wrapper = ("sh", "-c", f"echo $$ > {noted}.new; mv {noted}.new {noted}; exec sleep 600")

    def interrupt(_: int, frame: FrameType | None) -> None:
        # Not before it waits: until then, nothing else has the process.
        if noted.exists() and "_first_line" in [each.f_code.co_name for each, _ in walk_stack(frame)]:
            signal.setitimer(signal.ITIMER_REAL, 0)
            # A thread that is started as the interrupt comes would never be ended.
            assert threading.active_count() <= threads
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            ServerProcess(tmp_path / "data", wrapper=wrapper)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)
