"""What columnar bases cost: the slowdown of writes, and the processor time of rebuilding a base."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from aio_client.sync import connect
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import base_of, create_filled_table, request_base, updates, wait_for_base

if TYPE_CHECKING:
    from aio_client.sync import Table
    from benchmarks.bench import Bench

_CHANGED: Final = 0.05
_WRITTEN: Final = 0.2
_AUTO, _OFF = "updates, columnar_base=auto", "updates, columnar_base=off"


def run(bench: Bench) -> Result:
    """Writes to a table with a base and to a table without one in turn, then makes the server rebuild a base."""
    rates = _write_rates(bench)
    return Result(
        figures=[
            Figure(
                name="base_writes",
                work=f"updates of {_WRITTEN:.0%} of {bench.rows:,} rows while the base is rebuilt, rows/s",
                against="the same without a base",
                unit="ratio",
                spread=paired_ratios(rates[_AUTO], rates[_OFF]),
                at_least=0.9,
            ),
            Figure(
                name="base_rebuild",
                work=f"rebuild of a base of {bench.rows:,} rows, {_CHANGED:.0%} of them changed",
                against="CPU time of the building threads of the server",
                unit="ms",
                spread=Spread.of(_rebuild_millis(bench)),
                at_most=1000,
            ),
        ],
        tables=[rates_table("Writes with a base", {name: Spread.of(values) for name, values in rates.items()})],
        notes=["Writes with a base: one client sends requests of 10,000 updates of random rows."],
    )


def _write_rates(bench: Bench) -> dict[str, list[float]]:
    rows, seed = bench.rows, 0

    def time_updates(table: Table) -> Timing:
        nonlocal seed
        seed += 1
        batches = list(updates(rows, int(rows * _WRITTEN), seed))
        builds = 0
        if table is auto:
            builds = base_of(table).builds
            request_base(table)
        started = time.perf_counter()
        for batch in batches:
            table.upsert(batch)
        seconds = time.perf_counter() - started
        if table is auto:
            # The rebuild must not disturb the next measurement.
            wait_for_base(table, builds + 1)
        return Timing(sum(batch.num_rows for batch in batches), seconds)

    with BenchmarkServer(bench.directory / "base-writes", base_min_rows=rows) as server, connect(server.url) as client:
        auto = create_filled_table(client, rows, "bench.auto")
        off = create_filled_table(client, rows, "bench.off", columnar_base="off")
        wait_for_base(auto)
        return run_interleaved(bench.runs, {_AUTO: lambda: time_updates(auto), _OFF: lambda: time_updates(off)})


def _rebuild_millis(bench: Bench) -> list[float]:
    """Returns the CPU milliseconds of each rebuild."""
    rows = bench.rows
    # An update is two changes in the changelog.
    due = 1.9 * _CHANGED
    with (
        BenchmarkServer(bench.directory / "base-rebuilds", base_min_rows=rows, base_changed_share=due) as server,
        connect(server.url) as client,
    ):
        table = create_filled_table(client, rows)
        wait_for_base(table)
        found = []
        for number in range(1, bench.runs + 1):
            for batch in updates(rows, int(rows * _CHANGED), number):
                table.upsert(batch)
            found.append(1000 * wait_for_base(table, builds=number + 1).last_build_cpu)
        assert base_of(table).builds == bench.runs + 1
    return found
