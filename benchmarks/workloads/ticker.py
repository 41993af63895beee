"""Measures whether a client's event loop stays responsive while it receives changes."""

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
    """A client with a ticker in its event loop."""

    def round(self, changes: int) -> tuple[float, float]:
        """Returns the share of punctual ticks while changes arrive, and in an idle loop for as long."""
        return self._runner.run(self._round(changes))

    async def _round(self, changes: int) -> tuple[float, float]:
        scan = self._table.changes(StartFrom.EARLIEST, StopAt.LATEST).limit(changes)
        started = time.perf_counter()
        timing, kept = await _count_ticks_during(self._time_scan(scan))
        seconds = time.perf_counter() - started
        timing.check_rows(changes)
        _, kept_idle = await _count_ticks_during(asyncio.sleep(seconds))
        return kept, kept_idle


async def _count_ticks_during(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Returns the result of the work, and the share of ticks during it that came before the next tick was due."""
    task = asyncio.create_task(work)
    started = time.perf_counter()
    ticks = due = 0
    while not task.done():
        passed = (time.perf_counter() - started) / _PERIOD_SECONDS
        # Missed ticks are lost; the ticker does not make up for them.
        due = max(math.floor(passed), due) + 1
        await asyncio.sleep((due - passed) * _PERIOD_SECONDS)
        ticks += 1
    passed = (time.perf_counter() - started) / _PERIOD_SECONDS
    return task.result(), ticks / max(math.floor(passed), due)


def run(bench: Bench) -> Result:
    """Runs the ticker while changes arrive, and then alone."""
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
            "Ticker: a tick that is so late that the next one is due counts as lost. The client opens and counts the "
            "batches as fast as it can.",
        ],
    )
