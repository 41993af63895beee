"""What the example in examples/leaderboard costs while it replays four hours of flights per second."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from aio_client import connect
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import TopNWatch
    from benchmarks.bench import Bench

_ROOT: Final = Path(__file__).parents[2]
_HOURS_PER_SECOND: Final = 4
# The jobs are still computing the totals of the first half of the year then.
_CATCH_UP_SECONDS: Final = 20.0
_WINDOW_SECONDS: Final = 20.0


class _Watch(NamedTuple):
    table: str
    n: int
    by: str
    where: str | None = None


# The watches of examples/leaderboard/page.py, which it opens with its first tab.
_WATCHES: Final = (
    _Watch("demo.route", 10, "flights"),
    _Watch("demo.route", 10, "mean_delay", "flights >= 50"),
    _Watch("demo.flights", 5, "dep_delay"),
    _Watch("demo.carrier_day", 5, "mean_arrival_delay", "arrivals >= 50"),
    _Watch("demo.flights", 1, "time_hour"),
    _Watch("demo.progress", 2, "at"),
)


class LeaderboardPage:
    """A client with the watches of the page."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._answers = 0

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def watch(self, seconds: float) -> int:
        """Reads all watches for some seconds. Returns the number of answers."""
        return self._runner.run(self._watch(seconds))

    async def _open(self) -> None:
        client = await self._stack.enter_async_context(connect(self._url))
        self._watches: list[TopNWatch] = []
        for table, n, by, where in _WATCHES:
            self._watches.append((await client.table(table)).watch_top_n(n, by, where, every=1.0))

    async def _watch(self, seconds: float) -> int:
        self._answers = 0
        tasks = [asyncio.create_task(self._read(watch)) for watch in self._watches]
        _, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(error, asyncio.CancelledError):
                raise RuntimeError("a watch ended early") from error
        return self._answers

    async def _read(self, watch: TopNWatch) -> None:
        async for _ in watch:
            self._answers += 1


@contextmanager
def _run_example(url: str) -> Iterator[int]:
    """Runs the example during the block, after it has loaded its data. Yields the id of its process."""
    command = [sys.executable, "-m", "examples.leaderboard", "--url", url, "--port", "0", "--no-browser"]
    command.append(f"--hours-per-second={_HOURS_PER_SECOND}")
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not any(line.startswith("page") for line in process.stdout):
            raise RuntimeError("the example ended early; see its output above")
        yield process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # it is a pipe


def _processes_of(pid: int) -> list[int]:
    """Returns a process and all that it has started, directly or not."""
    children = [int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in _words(task / "children")]
    return [pid, *(process for child in children for process in _processes_of(child))]


def _words(path: Path) -> list[str]:
    return path.read_text().split()


def run(bench: Bench) -> Result:
    """Measures the server alone, and together with the processes of the example."""
    servers, totals = [], []
    with (
        BenchmarkServer(bench.directory / "leaderboard") as server,
        _run_example(server.url) as example,
        Worker(LeaderboardPage, server.url) as page,
    ):
        page.call(LeaderboardPage.watch, _CATCH_UP_SECONDS)
        for number in range(bench.runs):
            processes = _processes_of(example)
            page.wait_ready()
            began, of_server, of_example = time.monotonic(), cpu_seconds(server.pid), sum(map(cpu_seconds, processes))
            answers = page.call(LeaderboardPage.watch, _WINDOW_SECONDS)
            seconds = time.monotonic() - began
            of_server = (cpu_seconds(server.pid) - of_server) / seconds
            of_example = (sum(map(cpu_seconds, processes)) - of_example) / seconds
            servers.append(100 * of_server)
            totals.append(100 * (of_server + of_example))
            progress(f"  run {number + 1} of {bench.runs}: server {servers[-1]:.1f} %, all {totals[-1]:.1f} %")
            if not answers:
                raise RuntimeError("the watches received nothing, although flights depart")
    alone, together = Spread.of(servers), Spread.of(totals)
    return Result(
        figures=[
            Figure(
                name="leaderboard",
                work=f"the leaderboard example at {_HOURS_PER_SECOND} hours per second: server, replay, jobs and page",
                against="one core",
                unit="%",
                spread=together,
                at_most=25,
            )
        ],
        tables=[
            ResultTable(
                f"The leaderboard example at {_HOURS_PER_SECOND} hours per second",
                ("% of a core", "median", "least", "greatest"),
                [
                    ("server", alone.median, alone.least, alone.greatest),
                    ("server, replay, jobs and page", together.median, together.least, together.greatest),
                ],
            )
        ],
        notes=[
            "Leaderboard: `python -m examples.leaderboard`, with a client in another process that reads the six "
            "watches of its page, because no browser opens the page. Neither that client nor the drawing of the page "
            f"is counted. Windows of {_WINDOW_SECONDS:g} seconds.",
        ],
    )
