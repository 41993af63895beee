"""Compares the time to the first rows of a full scan with an empty call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_CALLS: Final = 100
_MILLIS: Final = 1000.0


class Caller(ClientReader):
    """A client that makes both calls in turn."""

    def round(self) -> tuple[float, float]:
        """Returns the mean seconds of an empty call, and of a scan up to its first rows."""
        return self._runner.run(self._round())

    async def _round(self) -> tuple[float, float]:
        nothing = rows = 0.0
        for _ in range(_CALLS):
            # Not measured: after this call, the server has finished the previous scan, which was aborted.
            await self._client.wait_ready()
            started = time.perf_counter()
            await self._client.wait_ready()
            nothing += time.perf_counter() - started
            started = time.perf_counter()
            async with self._table.scan().read_path("rocksdb").stream() as stream:
                await anext(stream)
                rows += time.perf_counter() - started
        return nothing / _CALLS, rows / _CALLS


def run(bench: Bench) -> Result:
    """Makes both calls in turn, in rounds."""
    store, found = bench.store, []
    with BenchmarkServer(store.data) as server, Worker(Caller, server.url) as caller:
        for number in range(-1, bench.runs):
            nothing, rows = caller.call(Caller.round)
            if number >= 0:
                found.append((nothing, rows))
                progress(f"  run {number + 1} of {bench.runs}: {_MILLIS * nothing:.2f} and {_MILLIS * rows:.2f} ms")
    nothing_millis = Spread.of(_MILLIS * nothing for nothing, _ in found)
    rows_millis = Spread.of(_MILLIS * rows for _, rows in found)
    return Result(
        figures=[
            Figure(
                name="first_row_vs_call",
                work=f"first rows of a scan of {store.rows:,} rows, received",
                against="one unary call that does nothing (the health check)",
                unit="times",
                spread=Spread.of(rows / nothing for nothing, rows in found),
                at_most=5,
            )
        ],
        tables=[
            ResultTable(
                "Latency",
                ("milliseconds", "median", "least", "greatest"),
                [
                    (
                        "a unary call that does nothing",
                        nothing_millis.median,
                        nothing_millis.least,
                        nothing_millis.greatest,
                    ),
                    ("the first rows of a full scan", rows_millis.median, rows_millis.least, rows_millis.greatest),
                ],
            )
        ],
        notes=[
            f"Latency: {_CALLS} calls of each kind per run, in turn over one connection, through the client. The scan "
            "is aborted after its first batch; another call, which does not count, lets the server finish it.",
        ],
    )
