"""What a hundred dashboards cost the server while nothing changes: that watch, and that poll."""

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

_DASHBOARDS: Final = 100
_N: Final = 10
_EVERY_SECONDS: Final = 1.0
_WINDOW_SECONDS: Final = 4.0
# As long as the server delays the reply to an unchanged watch, so that each watch gets one reply.
_WATCHED_SECONDS: Final = 30.0


class Dashboards:
    """Clients with a connection each that show a top-N of T4. Half show the same rows, the others different numbers."""

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
        """Watches for some windows of time. Returns the server's processor time in seconds per second, by window."""
        return self._runner.run(self._watch(server, windows))

    def poll(self, server: int) -> float:
        """Polls for changes as often, without waiting for them: a top-N and a count in turn.

        Returns the server's processor time in seconds per second.
        """
        return self._runner.run(self._call([partial(self._poll, *args) for args in self._tables], server))

    def call_nothing(self, server: int) -> float:
        """Makes as many empty calls. Returns the processor time as `poll` does."""
        return self._runner.run(self._call([client.wait_ready for client in self._clients], server))

    async def _open(self) -> None:
        self._client = await self._stack.enter_async_context(connect(self._url))
        self._clients = [await self._stack.enter_async_context(connect(self._url)) for _ in range(self._count)]
        self._tables = [(await client.table(t4.TABLE), _row_count(each)) for each, client in enumerate(self._clients)]

    async def _watch(self, server: int, windows: int) -> list[float]:
        watches = [table.watch_top_n(n, order_by=INDEXED_COLUMN, every=_EVERY_SECONDS) for table, n in self._tables]
        for watch in watches:
            await anext(watch)
        async with _run_in_background(_fail_on_result(watch) for watch in watches):
            await asyncio.sleep(_EVERY_SECONDS)
            shares = []
            for _ in range(windows):
                before, began = await self._client.stats(), cpu_seconds(server)
                await asyncio.sleep(_WATCHED_SECONDS)
                shares.append((cpu_seconds(server) - began) / _WATCHED_SECONDS)
                _check_idle(before, await self._client.stats(), self._count)
            return shares

    async def _poll(self, table: Table, n: int) -> None:
        if self._version is None:
            counted = await table.count_if_changed(None)
            assert counted is not None
            self._version = counted.version
        if self._calls % 2:
            changed = await table.count_if_changed(self._version) is not None
        else:
            changed = await table.top_n_if_changed(self._version, n, order_by=INDEXED_COLUMN) is not None
        if changed:
            _fail_on_change()

    async def _call(self, calls: Sequence[Callable[[], Awaitable[None]]], server: int) -> float:
        # The delays spread the calls over each second.
        delays = [_EVERY_SECONDS * number / self._count for number in range(self._count)]
        async with _run_in_background(self._call_periodically(*args) for args in zip(calls, delays, strict=True)):
            await asyncio.sleep(_EVERY_SECONDS)
            before, began = self._calls, cpu_seconds(server)
            await asyncio.sleep(_WINDOW_SECONDS)
            return self._share(cpu_seconds(server) - began, self._calls - before)

    async def _call_periodically(self, call: Callable[[], Awaitable[None]], delay: float) -> None:
        due = asyncio.get_running_loop().time() + delay
        while True:
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await call()
            self._calls += 1
            due += _EVERY_SECONDS

    def _share(self, cost: float, calls: int) -> float:
        """Returns the processor time per second for the planned number of calls. A busy machine makes fewer."""
        return cost / max(1, calls) * self._count / _EVERY_SECONDS


def _row_count(number: int) -> int:
    """Returns how many rows a dashboard shows."""
    return _N if number % 2 == 0 else _N + number


def _fail_on_change() -> NoReturn:
    raise RuntimeError("a dashboard received a change, although nothing was written")


def _check_idle(before: ServerStats, now: ServerStats, count: int) -> None:
    """Raises RuntimeError if the server did not delay the replies to watches, or read rows for them."""
    if now.rows_scanned != before.rows_scanned:
        raise RuntimeError(f"{now.rows_scanned - before.rows_scanned:,} rows were read for unchanged results")
    if not 0 < (replies := now.unchanged_results - before.unchanged_results) <= 2 * count:
        raise RuntimeError(f"{count} watches must get 1 to {2 * count:,} replies in a window, not {replies:,}")


@asynccontextmanager
async def _run_in_background(endless: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Runs endless coroutines during the block. Raises RuntimeError if one of them ended."""
    tasks = [asyncio.create_task(each) for each in endless]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise RuntimeError("a dashboard ended early") from error


async def _fail_on_result(watch: TopNWatch) -> NoReturn:
    await anext(watch)
    _fail_on_change()


def run(bench: Bench) -> Result:
    """Measures watches, then polls and empty calls in turn."""
    polls, calls = [], []
    with (
        BenchmarkServer(bench.store.indexed) as server,
        Worker(Dashboards, server.url, _DASHBOARDS) as dashboards,
    ):
        watched = Spread.of(100 * share for share in dashboards.call(Dashboards.watch, server.pid, bench.runs))
        for _ in range(bench.runs):
            polls.append(100 * dashboards.call(Dashboards.poll, server.pid))
            calls.append(100 * dashboards.call(Dashboards.call_nothing, server.pid))
    ratio = Spread.of(poll / call for poll, call in zip(polls, calls, strict=True))
    polled, empty = Spread.of(polls), Spread.of(calls)
    progress(f"  {watched.median:.1f} % of a core, polls {polled.median:.1f} %, empty calls {empty.median:.1f} %")
    return Result(
        figures=[
            Figure(
                name="dashboards",
                work=f"{_DASHBOARDS} dashboards that watch a top-N, at most every second, nothing changes: server",
                against="one core",
                unit="%",
                spread=watched,
                at_most=2,
            ),
            Figure(
                name="polls",
                work=f"{_DASHBOARDS} polls per second of a top-N or a count, nothing changes: processor time, server",
                against="as many calls that do nothing",
                unit="times",
                spread=ratio,
                at_most=1.5,
            ),
        ],
        tables=[
            ResultTable(
                f"{_DASHBOARDS} dashboards, or {_DASHBOARDS} calls per second instead",
                ("% of a core, server", "median", "least", "greatest"),
                [
                    ("watches of a top-N, nothing changes", watched.median, watched.least, watched.greatest),
                    ("polls of a top-N or a count, unchanged", polled.median, polled.least, polled.greatest),
                    ("calls that do nothing (the health check)", empty.median, empty.least, empty.greatest),
                ],
            )
        ],
        notes=[
            f"Dashboards: `watch_top_n` of {_DASHBOARDS} clients in one process, each with its own connection. Half of "
            f"them show the same {_N} rows; each of the others shows another number of rows. The server delays an "
            f"unchanged reply by up to {_WATCHED_SECONDS:g} seconds, and a run is as long; the benchmark checks that "
            "the server reads no rows and sends about one reply to each watch. Polls (`top_n_if_changed` and "
            "`count_if_changed` in turn) and empty calls: each client makes one per second, in windows of "
            f"{_WINDOW_SECONDS:g} seconds that alternate. Their processor time is scaled by the number of calls that "
            "were made.",
        ],
    )
