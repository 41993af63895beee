"""What two hundred dashboards cost the server while nothing changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Self

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.store import INDEXED_COLUMN
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence

    from aio_client import ServerStats, Table, TopNWatch
    from benchmarks.bench import Bench

_DASHBOARDS: Final = 200
_N: Final = 10
_EVERY_SECONDS: Final = 1.0
_WINDOW_SECONDS: Final = 2.0
# For as long as a question of a watch waits, so that each of them is answered once in it.
_WATCHED_SECONDS: Final = 30.0


class Dashboards:
    """Clients with a connection each, that look at the first rows of T4: half of them the same, the others others."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._calls = 0
        self._version: bytes | None = None

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def watch(self, server: int, windows: int) -> list[float]:
        """Watches for some windows of time; the server's processor time for it, in seconds a second."""
        return self._runner.run(self._watch(server, windows))

    def poll(self, server: int, windows: int) -> list[float]:
        """Asks so often what has changed, without waiting for it; the server's processor time for it, the same way."""
        return self._runner.run(self._call(self._polls(), server, windows))

    def call_nothing(self, server: int, windows: int) -> list[float]:
        """Makes as many calls that do nothing; the server's processor time for it, the same way."""
        return self._runner.run(self._call([client.wait_ready for client in self._clients], server, windows))

    async def _open(self) -> None:
        self._client = await self._stack.enter_async_context(connect(self._url))
        self._clients = [await self._stack.enter_async_context(connect(self._url)) for _ in range(self._count)]
        self._tables = [(await client.table(t4.TABLE), _rows_of(each)) for each, client in enumerate(self._clients)]

    async def _watch(self, server: int, windows: int) -> list[float]:
        watches = [table.watch_top_n(n, by=INDEXED_COLUMN, every=_EVERY_SECONDS) for table, n in self._tables]
        for watch in watches:
            await anext(watch)
        async with _running(_fail_on_news(watch) for watch in watches):
            await asyncio.sleep(_EVERY_SECONDS)
            shares = []
            for _ in range(windows):
                before, began = await self._client.server_stats(), cpu_seconds(server)
                await asyncio.sleep(_WATCHED_SECONDS)
                shares.append((cpu_seconds(server) - began) / _WATCHED_SECONDS)
                _check_idle(before, await self._client.server_stats(), self._count)
            return shares

    def _polls(self) -> list[Callable[[], Awaitable[None]]]:
        return [partial(self._poll, *args) for args in self._tables]

    async def _poll(self, table: Table, n: int) -> None:
        if self._version is None:
            counted = await table.count_if_changed(None)
            assert counted is not None
            self._version = counted.version
        if await table.top_n_if_changed(self._version, n, by=INDEXED_COLUMN) is not None:
            _changed()

    async def _call(self, calls: Sequence[Callable[[], Awaitable[None]]], server: int, windows: int) -> list[float]:
        # One after another, so that they are spread over each second.
        delays = [_EVERY_SECONDS * number / self._count for number in range(self._count)]
        async with _running(self._each_time(*args) for args in zip(calls, delays, strict=True)):
            await asyncio.sleep(_EVERY_SECONDS)
            shares = []
            for _ in range(windows):
                before, began = self._calls, cpu_seconds(server)
                await asyncio.sleep(_WINDOW_SECONDS)
                shares.append(self._share(cpu_seconds(server) - began, self._calls - before))
            return shares

    async def _each_time(self, call: Callable[[], Awaitable[None]], delay: float) -> None:
        due = asyncio.get_running_loop().time() + delay
        while True:
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await call()
            self._calls += 1
            due += _EVERY_SECONDS

    def _share(self, cost: float, calls: int) -> float:
        """The processor time a second if all call as often as they should: on a busy machine they are late."""
        return cost / max(1, calls) * self._count / _EVERY_SECONDS


def _rows_of(number: int) -> int:
    """How many rows a dashboard shows."""
    return _N if number % 2 == 0 else _N + number


def _changed() -> NoReturn:
    raise RuntimeError("a dashboard was told of a change, and nothing was written")


def _check_idle(before: ServerStats, now: ServerStats, count: int) -> None:
    """Raises RuntimeError when watches did not wait, or rows were read for them."""
    if now.rows_scanned != before.rows_scanned:
        raise RuntimeError(f"{now.rows_scanned - before.rows_scanned:,} rows were read for unchanged answers")
    if not 0 < (answers := now.unchanged_results - before.unchanged_results) <= 2 * count:
        raise RuntimeError(f"{count} watches had {answers:,} answers in the time that a question waits")


@asynccontextmanager
async def _running(endless: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Runs what does not end beside the block. Raises RuntimeError when one of them did."""
    tasks = [asyncio.create_task(each) for each in endless]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise RuntimeError("a dashboard has ended") from error


async def _fail_on_news(watch: TopNWatch) -> NoReturn:
    await anext(watch)
    _changed()


def run(bench: Bench) -> Result:
    """Lets them watch for a while."""
    with (
        BenchmarkServer(bench.store.indexed) as server,
        Worker(Dashboards, server.url, _DASHBOARDS) as dashboards,
    ):
        shares = Spread.of(100 * share for share in dashboards.call(Dashboards.watch, server.pid, bench.runs))
        polls = Spread.of(100 * share for share in dashboards.call(Dashboards.poll, server.pid, bench.runs))
        calls = Spread.of(100 * share for share in dashboards.call(Dashboards.call_nothing, server.pid, bench.runs))
    progress(f"  {shares.median:.1f} % of a core, polls {polls.median:.1f} %, empty calls {calls.median:.1f} %")
    return Result(
        figures=[
            Figure(
                name="dashboards",
                work=f"{_DASHBOARDS} dashboards that watch a top-N, every second at most, nothing changes: server",
                against="one core",
                unit="%",
                spread=shares,
                at_most=10,
            )
        ],
        tables=[
            ResultTable(
                f"{_DASHBOARDS} dashboards, and {_DASHBOARDS} calls a second in their place",
                ("% of a core, server", "median", "least", "greatest"),
                [
                    ("watches of a top-N, nothing changes", shares.median, shares.least, shares.greatest),
                    ("polls of a top-N, unchanged", polls.median, polls.least, polls.greatest),
                    ("calls that do nothing (the health check)", calls.median, calls.least, calls.greatest),
                ],
            )
        ],
        notes=[
            f"Dashboards: `watch_top_n` of {_DASHBOARDS} clients of one process, each with its own connection; half of "
            f"them ask for the same {_N} rows, of the others each for another number. A question waits at the server "
            f"for up to {_WATCHED_SECONDS:g} seconds, and runs are as long; that no row was read, and about one answer "
            "given to each watch, is checked. Polls (`top_n_if_changed`) and calls that do nothing: each client makes "
            f"one a second, in windows of {_WINDOW_SECONDS:g} seconds. Their processor time is divided by the number "
            "of calls that there were.",
        ],
    )
