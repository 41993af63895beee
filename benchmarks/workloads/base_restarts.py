"""The first query after a restart: it opens the bucket, adopts the columnar base, and reads it from disk."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import paired_ratios, progress
from benchmarks.proc import cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import create_filled_table, updates, wait_for_base

if TYPE_CHECKING:
    from aio_client.sync import Table
    from benchmarks.bench import Bench

_CHANGED: Final = 0.01
_N: Final = 10
_WARM_QUERIES: Final = 10


def run(bench: Bench) -> Result:
    """Kills and restarts a server whose table has a base, and times the first top-N and later ones."""
    rows, first_wall, first_cpu, warm_wall, warm_cpu = bench.rows, [], [], [], []
    settings = {"base_min_rows": rows, "base_changed_share": 10, "base_cpu_share": 1}
    with BenchmarkServer(bench.directory / "base-restarts", **settings) as server:
        with connect(server.url) as client:
            table = create_filled_table(client, rows)
            wait_for_base(table)
            for batch in updates(rows, int(rows * _CHANGED), seed=1):
                table.upsert(batch)
        progress("measuring the first query after a restart")
        for number in range(-1, bench.runs):
            server.kill()
            server.restart()
            with connect(server.url) as client:
                client.wait_ready()
                table = client.table(t4.TABLE)
                wall, cpu = _time_top_n(server.pid, table, _N)
                # The numbers differ, so that the result cache never answers.
                warm = [_time_top_n(server.pid, table, _N + 1 + more) for more in range(_WARM_QUERIES)]
            if number >= 0:
                first_wall.append(wall)
                first_cpu.append(cpu)
                warm_wall.append(statistics.mean(each for each, _ in warm))
                warm_cpu.append(statistics.mean(each for _, each in warm))
    work = f"first top-{_N} after a restart, from a base of {rows:,} rows, {_CHANGED:.0%} of them updated since"
    return Result(
        figures=[
            Figure(
                name="base_first_query",
                work=f"{work}, wall clock",
                against="the same without a restart",
                unit="times",
                spread=paired_ratios(first_wall, warm_wall),
                at_most=5,
            ),
            Figure(
                name="base_first_query_cpu",
                work=f"{work}, CPU time of the server",
                against="the same without a restart",
                unit="times",
                spread=paired_ratios(first_cpu, warm_cpu),
                at_most=5,
            ),
        ],
        notes=["First query after a restart: the server is killed, and the page cache is warm."],
    )


def _time_top_n(server: int, table: Table, n: int) -> tuple[float, float]:
    """Returns the seconds that a top-N takes, and the CPU seconds of the server."""
    cpu, wall = cpu_seconds(server), time.perf_counter()
    table.top_n(n, order_by="amount")
    return time.perf_counter() - wall, cpu_seconds(server) - cpu
