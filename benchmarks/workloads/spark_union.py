"""Compares Spark over published files and what has changed since with the files alone, and with the data source."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

import spark_bridge
from aio_client import connect, sync
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, progress, run_interleaved
from benchmarks.proc import cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import create_filled_table, updates
from benchmarks.workloads.spark_session import spark_session
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from benchmarks.bench import Bench

_TABLE: Final = "bench.union"
_FRESH: Final = 100
"""One in so many rows has changed since the table was published."""
_PARQUET, _UNION, _SOURCE = "sum() of Parquet files", "sum() of files and fresh rows", "sum() of the data source"


def run(bench: Bench) -> Result:
    """Publishes T4, changes some rows, and sums one column of all rows in three ways."""
    uri = str(bench.directory / "union_files")
    with BenchmarkServer(bench.directory / "union_data") as server:
        with sync.connect(server.url) as client:
            table = create_filled_table(client, bench.rows, _TABLE, "off")
            asyncio.run(_publish(server.url, uri))
            for batch in updates(bench.rows, bench.rows // _FRESH, 1):
                table.upsert(batch)
        used: dict[str, list[float]] = {_UNION: [], _SOURCE: []}

        def serve(name: str, load: Callable[[], DataFrame]) -> Timing:
            before = cpu_seconds(server.pid)
            timing = _time_sum(load, bench.rows)
            used[name].append(cpu_seconds(server.pid) - before)
            progress(f"  processor time of the server: {used[name][-1]:.2f} s")
            return timing

        with spark_session(bench.directory) as spark:
            rates = run_interleaved(
                bench.runs,
                {
                    _PARQUET: lambda: _time_sum(lambda: spark.read.parquet(uri), bench.rows),
                    _UNION: lambda: serve(_UNION, lambda: spark_bridge.table(spark, server.url, _TABLE, lake=uri)),
                    _SOURCE: lambda: serve(
                        _SOURCE, lambda: spark.read.format("scankv").option("url", server.url).load(_TABLE)
                    ),
                },
            )
    changed = f"{bench.rows // _FRESH:,} of {bench.rows:,} rows changed since"
    return Result(
        figures=[
            Figure(
                name="spark_union",
                work=f"Spark sum() of published files and fresh rows, {changed}, rows/s",
                against="sum() of the Parquet files alone",
                unit="ratio",
                spread=paired_ratios(rates[_UNION], rates[_PARQUET]),
                at_least=0.6,
            ),
            Figure(
                name="spark_union_server",
                work="the same: processor time of the server",
                against="the data source",
                unit="ratio",
                # The first run of each warms up.
                spread=paired_ratios(used[_UNION][1:], used[_SOURCE][1:]),
                at_most=0.1,
            ),
        ],
        tables=[rates_table("Spark", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Published files: local[2], one session, T4 as a Delta table on the same disk, with files of 65,536 rows. "
            "Each run plans again, which reads the changes from the server."
        ],
    )


async def _publish(url: str, uri: str) -> None:
    async with connect(url) as client:
        await publish(client, _TABLE, open_lake_table(uri))


def _time_sum(load: Callable[[], DataFrame], expected: int) -> Timing:
    begun = time.perf_counter()
    (found,) = load().agg(F.sum("amount"), F.count("amount")).collect()
    return Timing(found[1], time.perf_counter() - begun).check_rows(expected)
