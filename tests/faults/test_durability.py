"""An acknowledged write is on the disk, as the system calls of the server process show."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aio_client import connect, sync
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("strace")

WRITES = 40
# `123 1700000000.123456 fdatasync(12</data/.../000008.log>) = 0 <0.000123>`, or two lines if a call of another thread
# comes in between.
_WHOLE = re.compile(r"^(\d+) +(\d+\.\d+) f(?:data)?sync\(\d+<([^>]+)>\) += 0 (?:\(DELAYED\) )?<(\d+\.\d+)>")
_BEGUN = re.compile(r"^(\d+) +(\d+\.\d+) f(?:data)?sync\(\d+<([^>]+)> <unfinished")
_ENDED = re.compile(r"^(\d+) +(\d+\.\d+) <\.\.\. f(?:data)?sync resumed>\) += 0 ")


@dataclass(frozen=True)
class Sync:
    """One successful sync of a file, with its start and end in seconds since 1970."""

    file: str
    begun: float
    ended: float


def stopped(server: ServerProcess, trace: Path) -> list[Sync]:
    """Stops the server, and returns the syncs in the complete trace."""
    assert server.stop() == 0
    end = f"{server.process.pid} "
    lines = wait_until(lambda: _lines_until_exit(trace, end), "the trace complete")
    return list(syncs_in(lines))


def _lines_until_exit(trace: Path, process: str) -> list[str]:
    lines = trace.read_text().splitlines()
    return lines if any(line.startswith(process) and "+++ exited" in line for line in lines[-5:]) else []


def syncs_in(lines: list[str]) -> Iterator[Sync]:
    """Returns the syncs in the lines of strace, ordered by their ends."""
    begun: dict[str, tuple[float, str]] = {}
    for line in lines:
        if match := _WHOLE.match(line):
            start = float(match[2])
            yield Sync(match[3], start, start + float(match[4]))
        elif match := _BEGUN.match(line):
            begun[match[1]] = (float(match[2]), match[3])
        elif match := _ENDED.match(line):
            start, file = begun.pop(match[1])
            yield Sync(file, start, float(match[2]))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def traced(tmp_path: Path, trace: Path) -> Iterator[ServerProcess]:
    """Runs a server whose syncs are recorded with time and file and take as long as on a slow disk."""
    # -D makes strace the child, so that signals reach the server. The delay follows the sync, so that the
    # recorded end is that of the sync. Without a delay, a sync takes microseconds, and no other writer can share it.
    calls = ("-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_exit=2000")
    wrapper = ("strace", "-D", "-f", "-q", "-ttt", "-T", "-y", *calls, "-o", str(trace))
    with ServerProcess(tmp_path / "data", wrapper=wrapper) as server:
        yield server


def test_every_acknowledgement_follows_a_sync_of_the_log_that_covers_it(traced: ServerProcess, trace: Path) -> None:
    acknowledged: list[tuple[float, float]] = []
    with sync.connect(traced.url) as client:
        table = client.create_table("test.synced", SCORES, primary_key=["player"], buckets=1)
        for number in range(WRITES):
            sent = time.time()
            if number % 4 == 3:
                table.delete([f"player {number - 1}"])
            else:
                table.upsert([{"player": f"player {number}", "score": number}])
            acknowledged.append((sent, time.time()))
    log_syncs = [s for s in stopped(traced, trace) if re.search(r"/test/synced/buckets/0000/\d+\.log$", s.file)]
    for number, (sent, answered) in enumerate(acknowledged):
        covering = [s for s in log_syncs if sent < s.begun and s.ended < answered]
        assert covering, f"write {number} was acknowledged without a sync of the log"


@pytest.mark.breadth
def test_concurrent_writers_share_syncs_and_each_write_is_covered(traced: ServerProcess, trace: Path) -> None:
    acknowledged: list[tuple[float, float]] = []

    async def write(url: str) -> int:
        async with connect(url) as client:
            table = await client.create_table("test.shared", SCORES, primary_key=["player"], buckets=1)

            async def one(number: int) -> None:
                for step in range(5):
                    sent = time.time()
                    await table.upsert([{"player": f"player {number}", "score": step}])
                    acknowledged.append((sent, time.time()))

            await asyncio.gather(*(one(number) for number in range(30)))
            return (await client.stats()).log_syncs

    shared = asyncio.run(write(traced.url))
    log_syncs = [s for s in stopped(traced, trace) if s.file.endswith(".log") and "/shared/" in s.file]
    for sent, answered in acknowledged:
        assert any(sent < s.begun and s.ended < answered for s in log_syncs)
    assert shared <= len(log_syncs)
    assert len(log_syncs) < len(acknowledged), "no writer shared the sync of another"


def test_a_created_table_is_on_the_disk_when_it_is_answered(traced: ServerProcess, trace: Path) -> None:
    with sync.connect(traced.url) as client:
        sent = time.time()
        client.create_table("test.made", SCORES, primary_key=["player"])
        answered = time.time()
    files = [s.file for s in stopped(traced, trace) if sent < s.begun and s.ended < answered]
    assert any("table.json" in file for file in files)
    assert any(file.endswith("/tables/test") for file in files), "the name of the table's directory"
