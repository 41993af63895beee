"""The changelog as a source of rows: all changes against all rows, and a start from the whole table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, interleaved, paired_ratios
from benchmarks.readers.changes import ChangesReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_SCAN, _LOG, _FULL = "full scan", "bounded read of the changelog", "full start of a stream of changes"


def run(bench: Bench) -> Result:
    """Reads T4's rows, its changes, and its rows as the beginning of its changes, in turn."""
    store = bench.store
    with BenchmarkServer(store.data) as server, Worker(ChangesReader, server.url) as reader:
        rates = interleaved(
            bench.runs,
            {
                _SCAN: lambda: reader.call(ChangesReader.read).checked(store.rows),
                _LOG: lambda: reader.call(ChangesReader.read_log).checked(store.rows),
                _FULL: lambda: reader.call(ChangesReader.read_full).checked(store.rows),
            },
        )
    return Result(
        figures=[
            Figure(
                name="log_vs_scan",
                work=f"bounded read of {store.rows:,} changes, rows/s",
                against="full scan of the same table",
                unit="ratio",
                spread=paired_ratios(rates[_LOG], rates[_SCAN]),
                at_least=2,
            ),
            Figure(
                name="full_start_vs_scan",
                work="stream of changes from a full start to the latest, no change behind it, time",
                against="full scan of the same table",
                unit="ratio",
                spread=paired_ratios(rates[_SCAN], rates[_FULL]),
                at_most=1.05,
            ),
        ],
        tables=[rates_table("Changes", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Changes: T4 was upserted once, 100,000 rows a call, so there are as many changes as rows, all `+I`, in "
            "records of 4,096. Changes come with four columns more than rows: kind, offset, bucket and commit time; "
            "these travel as runs.",
        ],
    )
