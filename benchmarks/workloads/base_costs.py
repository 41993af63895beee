"""What columnar bases cost those who write, and what the server to build them anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from aio_client.sync import connect
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import ask_for_base, base_of, filled_table, updates, wait_for_base

if TYPE_CHECKING:
    from aio_client.sync import Table
    from benchmarks.bench import Bench

_CHANGED: Final = 0.05
_WRITTEN: Final = 0.2
_AUTO, _OFF = "updates, columnar_base=auto", "updates, columnar_base=off"


def run(bench: Bench) -> Result:
    """Writes to a table with a base and to one without in turn, then has a base built anew again and again."""
    rates = _write_rates(bench)
    return Result(
        figures=[
            Figure(
                name="base_writes",
                work=f"updates of {_WRITTEN:.0%} of {bench.rows:,} rows beside a base that is built anew, rows/s",
                against="the same without a base",
                unit="ratio",
                spread=paired_ratios(rates[_AUTO], rates[_OFF]),
                at_least=0.9,
            ),
            Figure(
                name="base_rebuild",
                work=f"base of {bench.rows:,} rows built anew with {_CHANGED:.0%} of them changed",
                against="CPU time of the server's threads that do it",
                unit="ms",
                spread=Spread.of(_rebuilds(bench)),
                at_most=1000,
            ),
        ],
        tables=[rates_table("Writes beside a base", {name: Spread.of(values) for name, values in rates.items()})],
        notes=["Writes beside a base: requests of 10,000 updates of rows chosen at random, by one client."],
    )


def _write_rates(bench: Bench) -> dict[str, list[float]]:
    rows, seed = bench.rows, 0

    def written(table: Table) -> Timing:
        nonlocal seed
        seed += 1
        batches = list(updates(rows, int(rows * _WRITTEN), seed))
        builds = 0
        if table is auto:
            builds = base_of(table).builds
            ask_for_base(table)
        started = time.perf_counter()
        for batch in batches:
            table.upsert(batch)
        seconds = time.perf_counter() - started
        if table is auto:
            # Not to be in the way of what is measured next.
            wait_for_base(table, builds + 1)
        return Timing(sum(batch.num_rows for batch in batches), seconds)

    with BenchmarkServer(bench.directory / "base-writes", base_min_rows=rows) as server, connect(server.url) as client:
        auto = filled_table(client, rows, "bench.auto")
        off = filled_table(client, rows, "bench.off", columnar_base="off")
        wait_for_base(auto)
        return interleaved(bench.runs, {_AUTO: lambda: written(auto), _OFF: lambda: written(off)})


def _rebuilds(bench: Bench) -> list[float]:
    """The CPU milliseconds of each."""
    rows = bench.rows
    # An update is two changes of the log.
    due = 1.9 * _CHANGED
    with (
        BenchmarkServer(bench.directory / "base-rebuilds", base_min_rows=rows, base_changed_share=due) as server,
        connect(server.url) as client,
    ):
        table = filled_table(client, rows)
        wait_for_base(table)
        found = []
        for number in range(1, bench.runs + 1):
            for batch in updates(rows, int(rows * _CHANGED), number):
                table.upsert(batch)
            found.append(1000 * wait_for_base(table, builds=number + 1).last_build_cpu_seconds)
        assert base_of(table).builds == bench.runs + 1
    return found
