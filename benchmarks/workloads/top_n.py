"""Measures the top-10 by a column: with an index, unchanged, and without an index."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final, Self

from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, Timing, paired_ratios, progress, run_interleaved
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.store import INDEXED_COLUMN
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_N: Final = 10
_NOT_INDEXED: Final = "amount"
_CALLS: Final = 100
_MILLIS: Final = 1000.0
_MOST_READ: Final = 10 * _N
"""Entries and rows that the server may read for a top-10 by an index."""

_NOTHING, _COMPUTED, _KEPT, _UNCHANGED = (
    "a unary call that does nothing",
    "top-10 by an index, computed",
    "the same again, from the server's result cache",
    "the same again, if changed: unchanged",
)
_SCAN, _TOP_N = "full scan", "top-10 without an index"


class Asker(ClientReader):
    """A client that queries a top-N of a table in which a row has changed before each query."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._row = t4.rows(0, 1).to_pylist()[0]
        return self

    def round(self) -> dict[str, float]:
        """Returns the median seconds of each kind of call."""
        return self._runner.run(self._round())

    def top_n_of_all(self) -> Timing:
        """Returns the timing of a top-N without an index, for which the server reads all rows."""
        return self._runner.run(self._top_n_of_all())

    async def _round(self) -> dict[str, float]:
        seconds: dict[str, list[float]] = {name: [] for name in (_NOTHING, _COMPUTED, _KEPT, _UNCHANGED)}
        before = await self._client.stats()
        for _ in range(_CALLS):
            await self._change()
            # Not measured: lets the connection and the server come to rest after the write.
            await self._client.wait_ready()
            marks = [time.perf_counter()]
            await self._client.wait_ready()
            marks.append(time.perf_counter())
            computed = await self._table.top_n_if_changed(None, _N, order_by=INDEXED_COLUMN)
            marks.append(time.perf_counter())
            kept = await self._table.top_n_if_changed(None, _N, order_by=INDEXED_COLUMN)
            marks.append(time.perf_counter())
            assert computed is not None
            unchanged = await self._table.top_n_if_changed(computed.version, _N, order_by=INDEXED_COLUMN)
            marks.append(time.perf_counter())
            if unchanged is not None or kept != computed:
                raise RuntimeError("the result has changed, although nothing was written")
            for number, name in enumerate(seconds):
                seconds[name].append(marks[number + 1] - marks[number])
        await self._check(before.rows_scanned, before.computed_results)
        return {name: statistics.median(values) for name, values in seconds.items()}

    async def _check(self, rows_scanned: int, computed_results: int) -> None:
        now = await self._client.stats()
        if now.computed_results - computed_results != _CALLS:
            raise RuntimeError(
                f"the server must compute {_CALLS} results, not {now.computed_results - computed_results}"
            )
        if now.rows_scanned - rows_scanned > _CALLS * _MOST_READ:
            raise RuntimeError(f"{now.rows_scanned - rows_scanned:,} rows were read: the index was not used")

    async def _top_n_of_all(self) -> Timing:
        await self._change()
        before = await self._client.stats()
        started = time.perf_counter()
        await self._table.top_n(_N, order_by=_NOT_INDEXED)
        seconds = time.perf_counter() - started
        now = await self._client.stats()
        return Timing(now.rows_scanned - before.rows_scanned, seconds)

    async def _change(self) -> None:
        self._row["amount"] -= 1
        await self._table.upsert([self._row])


def run(bench: Bench) -> Result:
    """Makes four kinds of calls in turn, then compares the top-N without an index with a scan."""
    store, found = bench.store, []
    with BenchmarkServer(store.indexed) as server, Worker(Asker, server.url) as asker:
        for number in range(-1, bench.runs):
            seconds = asker.call(Asker.round)
            if number >= 0:
                found.append(seconds)
                millis = ", ".join(f"{_MILLIS * value:.2f}" for value in seconds.values())
                progress(f"  run {number + 1} of {bench.runs}: {millis} ms")
        rates = run_interleaved(
            bench.runs,
            {
                _SCAN: lambda: asker.call(Asker.read).check_rows(store.rows),
                _TOP_N: lambda: asker.call(Asker.top_n_of_all).check_rows(store.rows),
            },
        )
    spreads = {name: Spread.of(_MILLIS * seconds[name] for seconds in found) for name in found[0]}
    return Result(
        figures=[
            Figure(
                name="top_n_vs_call",
                work=f"top-{_N} of {store.rows:,} rows by an indexed column, a row changed since the last",
                against=_NOTHING,
                unit="times",
                spread=Spread.of(seconds[_COMPUTED] / seconds[_NOTHING] for seconds in found),
                at_most=4,
            ),
            Figure(
                name="poll_vs_call",
                work=f"top-{_N}, if changed, when nothing has",
                against=_NOTHING,
                unit="times",
                spread=Spread.of(seconds[_UNCHANGED] / seconds[_NOTHING] for seconds in found),
                at_most=2,
            ),
            Figure(
                name="top_n_vs_scan",
                work=f"top-{_N} by a column without an index, rows/s",
                against="full scan of the same table",
                unit="ratio",
                spread=paired_ratios(rates[_TOP_N], rates[_SCAN]),
                at_least=0.8,
            ),
        ],
        tables=[
            ResultTable(
                f"Top-{_N}",
                ("milliseconds", "median", "least", "greatest"),
                [(name, s.median, s.least, s.greatest) for name, s in spreads.items()],
            )
        ],
        notes=[
            f"Top-{_N}: {_CALLS} calls of each kind per run, in turn over one connection, of which the median counts. "
            "Before each round of four calls, a row is upserted, so that the server has to compute the result again; "
            "the upsert and one call after it do not count. With the index, the server reads at most "
            f"{_MOST_READ} entries and rows for each call, which is checked.",
            f"Without an index, the order is that of `{_NOT_INDEXED}`, whose values are scattered. The calls return "
            "all columns of ten rows; the scan for comparison returns all columns of all rows.",
        ],
    )
