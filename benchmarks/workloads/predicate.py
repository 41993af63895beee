"""A scan that keeps one row of a hundred, against the full scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

# Amounts are scattered evenly over 0 to 10,000.
_BELOW: Final = 100.0
_WHERE: Final = f"amount < {_BELOW}"
_FULL, _KEPT = "full scan", f"where {_WHERE}"
_BATCH_ROWS: Final = 100_000
_MILLIS: Final = 1000.0


def run(bench: Bench) -> Result:
    """Reads all rows, and those that are kept, in turn."""
    store = bench.store
    kept = sum(pc.sum(pc.less(b.column("amount"), _BELOW)).as_py() for b in t4.batches(store.rows, _BATCH_ROWS))
    with BenchmarkServer(store.data) as server, Worker(ClientReader, server.url) as reader:

        def some() -> Timing:
            timing = reader.call(ClientReader.read_some, None, _WHERE).checked(kept)
            return Timing(store.rows, timing.seconds)

        rates = interleaved(
            bench.runs, {_FULL: lambda: reader.call(ClientReader.read).checked(store.rows), _KEPT: some}
        )
    times = {name: Spread.of(_MILLIS * store.rows / rate for rate in found) for name, found in rates.items()}
    return Result(
        figures=[
            Figure(
                name="predicate_vs_scan",
                work=f"scan with a predicate that keeps {kept:,} of {store.rows:,} rows, time",
                against="full scan of the same table",
                unit="ratio",
                spread=paired_ratios(rates[_FULL], rates[_KEPT]),
                at_most=1,
            )
        ],
        tables=[
            ResultTable(
                "A predicate that keeps 1 %",
                ("milliseconds", "median", "least", "greatest"),
                [(name, s.median, s.least, s.greatest) for name, s in times.items()],
            )
        ],
        notes=[
            f"Predicate: `{_WHERE}` is about a column that is neither key nor indexed, so that the server looks at "
            "every row; all columns of those kept are returned.",
        ],
    )
