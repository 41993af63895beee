"""Whether a client's event loop keeps its time while changes stream through it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final

from aio_client import StartFrom, StopAt
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from benchmarks.bench import Bench

_MOST_CHANGES: Final = 1_000_000
_PERIOD_SECONDS: Final = 0.005


class Ticking(ClientReader):
    """A client beside a ticker."""

    def round(self, changes: int) -> tuple[float, float]:
        """The share of ticks that were kept beside so many changes, and beside nothing for as long."""
        return self._runner.run(self._round(changes))

    async def _round(self, changes: int) -> tuple[float, float]:
        scan = self._table.changes(StartFrom.EARLIEST, StopAt.LATEST).limit(changes)
        started = time.perf_counter()
        timing, kept = await _ticks_beside(self._timed(scan))
        seconds = time.perf_counter() - started
        timing.checked(changes)
        _, kept_idle = await _ticks_beside(asyncio.sleep(seconds))
        return kept, kept_idle


async def _ticks_beside(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """What the work gives, and the share of ticks that came before the next one was due while it was done."""
    task = asyncio.create_task(work)
    started = time.perf_counter()
    ticks = due = 0
    while not task.done():
        passed = (time.perf_counter() - started) / _PERIOD_SECONDS
        # Those that could not come are left out, not made up for.
        due = max(math.floor(passed), due) + 1
        await asyncio.sleep((due - passed) * _PERIOD_SECONDS)
        ticks += 1
    passed = (time.perf_counter() - started) / _PERIOD_SECONDS
    return task.result(), ticks / max(math.floor(passed), due)


def run(bench: Bench) -> Result:
    """Streams changes beside a ticker, then lets it tick alone."""
    store, found = bench.store, []
    changes = min(store.rows, _MOST_CHANGES)
    with BenchmarkServer(store.data) as server, Worker(Ticking, server.url) as client:
        for number in range(-1, bench.runs):
            kept, kept_idle = client.call(Ticking.round, changes)
            if number >= 0:
                found.append((kept, kept_idle))
                progress(f"  run {number + 1} of {bench.runs}: {kept:.0%} of the ticks, {kept_idle:.0%} when idle")
    beside, alone = Spread.of(100 * kept for kept, _ in found), Spread.of(100 * kept for _, kept in found)
    return Result(
        figures=[
            Figure(
                name="ticks",
                work=f"ticks that a 5 ms ticker keeps in the client's loop while {changes:,} changes stream",
                against="all of its ticks",
                unit="%",
                spread=beside,
                at_least=80,
            )
        ],
        tables=[
            ResultTable(
                "A 5 ms ticker in the client's event loop",
                ("% of the ticks kept", "median", "least", "greatest"),
                [
                    (f"while {changes:,} changes stream", beside.median, beside.least, beside.greatest),
                    ("for as long, alone", alone.median, alone.least, alone.greatest),
                ],
            )
        ],
        notes=[
            "Ticker: a tick that comes when the next one is due already is lost, not made up for. The client opens "
            "and counts the batches as they come, as fast as it can.",
        ],
    )
