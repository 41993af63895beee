"""What two hundred dashboards cost the server while nothing changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, Table
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds
from benchmarks.server import ServerProcess
from benchmarks.store import INDEXED_COLUMN
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from aio_client import Client, ServerStats, TopNWatch
    from benchmarks.bench import Bench

_DASHBOARDS: Final = 200
_N: Final = 10
_EVERY_SECONDS: Final = 1.0
_WINDOW_SECONDS: Final = 2.0


class Dashboards:
    """Clients with a connection each, that watch the first rows of T4: half of them the same, the others others."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._calls = 0

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def watch(self, server: int, windows: int) -> list[float]:
        """Watches for some windows of time; the server's processor time for it, in seconds a second."""
        return self._runner.run(self._watch(server, windows))

    def call_nothing(self, server: int, windows: int) -> list[float]:
        """Makes as many calls that do nothing for some windows of time; the processor time of the server in each."""
        return self._runner.run(self._call_nothing(server, windows))

    async def _open(self) -> None:
        self._client = await self._stack.enter_async_context(connect(self._url))
        self._clients: list[Client] = []
        self._watches: list[TopNWatch] = []
        for number in range(self._count):
            client = await self._stack.enter_async_context(connect(self._url))
            self._clients.append(client)
            table = await client.table(t4.TABLE)
            n = _N if number % 2 == 0 else _N + number
            self._watches.append(table.watch_top_n(n, by=INDEXED_COLUMN, every=_EVERY_SECONDS))

    async def _watch(self, server: int, windows: int) -> list[float]:
        for watch in self._watches:
            await anext(watch)
        tasks = [asyncio.create_task(_fail_on_news(watch)) for watch in self._watches]
        try:
            await asyncio.sleep(_EVERY_SECONDS)
            shares = []
            for _ in range(windows):
                before, began = await self._client.server_stats(), cpu_seconds(server)
                await asyncio.sleep(_WINDOW_SECONDS)
                cost = cpu_seconds(server) - began
                shares.append(self._share(cost, _unchanged(before, await self._client.server_stats())))
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise RuntimeError("a dashboard has ended") from error
        return shares

    async def _call_nothing(self, server: int, windows: int) -> list[float]:
        # One after another, as the watches have begun.
        delays = [_EVERY_SECONDS * number / self._count for number in range(self._count)]
        tasks = [asyncio.create_task(self._call_each_time(*args)) for args in zip(self._clients, delays, strict=True)]
        try:
            await asyncio.sleep(_EVERY_SECONDS)
            shares = []
            for _ in range(windows):
                before, began = self._calls, cpu_seconds(server)
                await asyncio.sleep(_WINDOW_SECONDS)
                shares.append(self._share(cpu_seconds(server) - began, self._calls - before))
            return shares
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call_each_time(self, client: Client, delay: float) -> None:
        due = asyncio.get_running_loop().time() + delay
        while True:
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await client.wait_ready()
            self._calls += 1
            due += _EVERY_SECONDS

    def _share(self, cost: float, calls: int) -> float:
        """The processor time a second if all call as often as they should: on a busy machine they are late."""
        return cost / max(1, calls) * self._count / _EVERY_SECONDS


def _unchanged(before: ServerStats, now: ServerStats) -> int:
    """How many polls there were. Raises RuntimeError when rows were read for them."""
    if now.rows_scanned != before.rows_scanned:
        raise RuntimeError(f"{now.rows_scanned - before.rows_scanned:,} rows were read for unchanged answers")
    return now.unchanged_answers - before.unchanged_answers


async def _fail_on_news(watch: TopNWatch) -> None:
    await anext(watch)
    raise RuntimeError("a dashboard was told of a change, and nothing was written")


def run(bench: Bench) -> Result:
    """Lets them watch for a while."""
    with (
        ServerProcess(bench.store.indexed) as server,
        Worker(Dashboards, server.url, _DASHBOARDS) as dashboards,
    ):
        shares = Spread.of(100 * share for share in dashboards.call(Dashboards.watch, server.pid, bench.runs))
        calls = Spread.of(100 * share for share in dashboards.call(Dashboards.call_nothing, server.pid, bench.runs))
    progress(f"  {shares.median:.1f} % of a core, calls that do nothing {calls.median:.1f} %")
    return Result(
        figures=[
            Figure(
                name="dashboards",
                work=f"{_DASHBOARDS} dashboards that poll a top-N every second, nothing changes: server",
                against="one core",
                unit="%",
                spread=shares,
                at_most=10,
            )
        ],
        tables=[
            Table(
                f"{_DASHBOARDS} calls a second",
                ("% of a core, server", "median", "least", "greatest"),
                [
                    ("polls of a top-N, unchanged", shares.median, shares.least, shares.greatest),
                    ("calls that do nothing (the health check)", calls.median, calls.least, calls.greatest),
                ],
            )
        ],
        notes=[
            f"Dashboards: `watch_top_n` of {_DASHBOARDS} clients of one process, each with its own connection; half of "
            f"them ask for the same {_N} rows, of the others each for another number. Runs are windows of "
            f"{_WINDOW_SECONDS:g} seconds, whose processor time is divided by the polls that there were; that no row "
            "was read for them is checked.",
        ],
    )
