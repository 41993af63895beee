"""The blocking client at the boundaries of a process: exit, fork, and Ctrl-C."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import sync
    from tests.support.server_process import ServerProcess

ROWS = 100_000
PRELUDE = """
import asyncio, os, signal, sys
from aio_client import UsageError, connect, sync
url, server, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def in_child(action):
    pid = os.fork()
    if not pid:
        try:
            action()
        except UsageError as error:
            print("refused:", error)
        sys.stdout.flush()
        sys.exit(0)
    print("child ended with", os.waitpid(pid, 0)[1])

"""


@pytest.fixture
def run(shared_server: ServerProcess, sync_client: sync.Client, name: str) -> Callable[..., str]:
    """Runs a script in its own process, in which `url`, `server` and `name` are defined; returns its output."""
    table = sync_client.create_table(name, pa.schema([("k", pa.int64())]), primary_key=["k"])
    table.upsert(pa.table({"k": range(ROWS)}))

    def run(script: str, exit_code: int = 0) -> str:
        arguments = [shared_server.url, str(shared_server.process.pid), name]
        # Python 3.12 and later warn about every fork of a process with threads, which these tests do on purpose.
        options = ["-X", "dev", "-W", "ignore:This process:DeprecationWarning"]
        done = subprocess.run(
            [sys.executable, *options, "-c", PRELUDE + script, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == exit_code, done.stderr
        if not exit_code:
            # gRPC logs a fork with running threads, and asyncio logs what took long on a busy machine, by its
            said = re.sub(r"^Executing <.*? took [\d.]+ seconds$", "", done.stderr, flags=re.DOTALL | re.MULTILINE)
            assert [line for line in said.splitlines() if line and "fork_posix" not in line] == []
        return done.stdout

    return run


@pytest.mark.breadth
def test_a_client_without_with_is_closed_at_exit(run: Callable[..., str]) -> None:
    assert run("print(sync.connect(url).table(name).count())") == f"{ROWS}\n"


@pytest.mark.breadth
def test_a_client_kept_is_closed_at_exit_also_in_the_middle_of_a_scan(run: Callable[..., str]) -> None:
    script = "client = sync.connect(url); stream = iter(client.table(name).scan().with_chunk(rows=10)); "
    assert run(script + "print(next(stream).num_rows)") == "10\n"
    assert run(script + "print(next(stream).num_rows); 1 / 0", exit_code=1) == "10\n"


@pytest.mark.breadth
def test_a_stream_without_a_loop_is_closed_at_exit(run: Callable[..., str]) -> None:
    script = """
async def scan():
    async with connect(url) as client:
        return (await client.table(name)).scan().with_chunk(rows=10)

stream = asyncio.run(scan()).stream_sync()
print(next(stream).num_rows)
"""
    assert run(script) == "10\n"


@pytest.mark.breadth
def test_a_client_of_before_a_fork_is_refused_after_it(run: Callable[..., str]) -> None:
    script = """
table = sync.connect(url).table(name)
in_child(table.count)
print(table.count())
"""
    assert run(script).splitlines() == [
        "refused: the client was made before this process was forked; connect in the child process instead",
        "child ended with 0",
        str(ROWS),
    ]


@pytest.mark.breadth
def test_connecting_after_a_fork_is_refused_when_a_client_was_open(run: Callable[..., str]) -> None:
    script = """
client = sync.connect(url)
client.tables()
in_child(lambda: sync.connect(url))
"""
    refused, ended = run(script).splitlines()
    assert refused.startswith("refused: this process was forked while a client was open")
    assert ended == "child ended with 0"


@pytest.mark.parametrize("opened", ["sync.connect(url)", "asyncio.run(opened())"])
@pytest.mark.breadth
def test_connecting_after_a_fork_works_when_all_clients_were_closed(run: Callable[..., str], opened: str) -> None:
    script = f"""
async def opened():
    async with connect(url) as client:
        await client.tables()
        return client

client = {opened}
if isinstance(client, sync.Client):
    client.tables()
    client.close()
in_child(lambda: print(sync.connect(url).table(name).count()))
"""
    assert run(script).splitlines() == [str(ROWS), "child ended with 0"]


@pytest.mark.breadth
@pytest.mark.one_process
def test_ctrl_c_ends_a_call_that_hangs(run: Callable[..., str]) -> None:
    script = """
def interrupt(*_):
    os.kill(server, signal.SIGCONT)
    raise KeyboardInterrupt

table = sync.connect(url).table(name)
signal.signal(signal.SIGALRM, interrupt)
os.kill(server, signal.SIGSTOP)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    table.count()
except KeyboardInterrupt:
    print("interrupted")
print(table.count())
"""
    assert run(script).splitlines() == ["interrupted", str(ROWS)]


@pytest.mark.parametrize("waiting", ["table.changes(StartFrom.LATEST).stream()", "table.watch_top_n(1, 'k')"])
@pytest.mark.breadth
def test_ctrl_c_that_does_not_wake_the_thread_that_waits_is_noticed(run: Callable[..., str], waiting: str) -> None:
    """As a Ctrl-C right before the wait.

    A Ctrl-C to another thread has the same effect, and can be produced at any time.
    """
    script = f"""
import threading
from aio_client import StartFrom

def interrupt():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

with sync.connect(url) as client:
    table = client.table(name)
    waiting = {waiting}
    if isinstance(waiting, sync.TopNWatch):
        next(waiting)
    try:
        threading.Timer(1, interrupt).start()
        next(waiting)
    except KeyboardInterrupt:
        print("interrupted")
"""
    assert run(script) == "interrupted\n"
