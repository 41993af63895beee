"""Spark over T4 in four buckets, against sources that do nothing but yield batches which are there already."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_bridge
from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios, progress
from benchmarks.server import BenchmarkServer
from benchmarks.workloads import spark_writes
from benchmarks.workloads.spark_there import PARTS, Prebuilt, batches_for
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

_TABLE, _BASE_TABLE, _SMALL, _SMALL_ROWS = "bench.spark", "bench.spark_base", "bench.small", 1000
_LOAD_ROWS: Final = 100_000
_BUILT_WITHIN, _POLL_SECONDS = 300.0, 0.05
_MILLIS: Final = 1000.0

_COUNT, _SUM, _FAST, _FAST_ONE = "count()", "sum()", "sum() of scan_dataframe", "sum() of scan_dataframe, one column"
_BASE_COUNT, _BASE_SUM, _BASE_FAST = "count(), base", "sum(), base", "sum() of scan_dataframe, base"
_THERE_COUNT, _THERE_SUM, _THERE_FAST = "count() of batches", "sum() of batches", "sum() of batches, mapInArrow"


def run(bench: Bench) -> Result:
    """Loads the tables, and has one session run all contenders in turn."""
    data = bench.directory / "spark"
    with BenchmarkServer(data) as server, connect(server.url) as client:
        for name, rows, base in (
            (_TABLE, bench.rows, "off"),
            (_BASE_TABLE, bench.rows, "eager"),
            (_SMALL, _SMALL_ROWS, "off"),
        ):
            _load(client, name, rows, base)
    # Another one, so that no rows are in its write buffers.
    with BenchmarkServer(data, base_cpu_share=1) as server, _session(bench.directory) as spark:
        with connect(server.url) as client:
            _wait_for_bases(client.table(_BASE_TABLE))
        spark.dataSource.register(Prebuilt)
        rates = interleaved(bench.runs, _contenders(spark, server.url, bench.rows))
        beyond = [_small(spark, server.url) for _ in range(bench.runs + 1)][1:]
        writes = spark_writes.run(bench, spark, server.url)
    return Result(
        figures=[*_figures(rates), _small_figure(beyond), *writes.figures],
        tables=[rates_table("Spark", {name: Spread.of(values) for name, values in rates.items()}), *writes.tables],
        notes=[
            "Spark: local[2], one session; each run is a load() of its own, with planning and all tasks. The reference "
            "yields batches of 65,536 rows that its worker processes keep, in as many tasks, as a Python data source "
            "or from mapInArrow. Server, JVM and Python workers share the machine. The bases were built before.",
            *writes.notes,
        ],
    )


def _load(client: Client, name: str, rows: int, columnar_base: str) -> None:
    progress(f"loading {rows:,} rows of T4 into {PARTS} buckets of {name}")
    table = client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=PARTS, columnar_base=columnar_base)
    for batch in t4.batches(rows, _LOAD_ROWS):
        table.upsert(batch)


def _wait_for_bases(table: Table) -> None:
    progress("waiting for the bases")
    deadline = time.monotonic() + _BUILT_WITHIN
    while any(each.base is None or each.base.unused_reason is not None for each in table.statistics()):
        if time.monotonic() > deadline:
            raise RuntimeError("the server does not build the bases")
        time.sleep(_POLL_SECONDS)


def _contenders(spark: SparkSession, url: str, rows: int) -> dict[str, Callable[[], Timing]]:
    def there() -> DataFrame:
        return spark.read.format("prebuilt").option("rows", str(rows)).load()

    def mapped() -> DataFrame:
        numbers = spark.range(0, PARTS, 1, PARTS)
        return numbers.mapInArrow(partial(batches_for, rows=rows), spark_schema(t4.SCHEMA))

    loaded, fast = partial(_loaded, spark, url), partial(spark_bridge.scan_dataframe, spark, url)
    return {
        _COUNT: lambda: _counted(partial(loaded, _TABLE), rows),
        _BASE_COUNT: lambda: _counted(partial(loaded, _BASE_TABLE), rows),
        _THERE_COUNT: lambda: _counted(there, rows),
        _SUM: lambda: _summed(partial(loaded, _TABLE), rows),
        _BASE_SUM: lambda: _summed(partial(loaded, _BASE_TABLE), rows),
        _THERE_SUM: lambda: _summed(there, rows),
        _FAST: lambda: _summed(partial(fast, _TABLE), rows),
        _BASE_FAST: lambda: _summed(partial(fast, _BASE_TABLE), rows),
        _FAST_ONE: lambda: _summed(partial(fast, _TABLE, columns=["amount"]), rows),
        _THERE_FAST: lambda: _summed(mapped, rows),
    }


def _loaded(spark: SparkSession, url: str, table: str) -> DataFrame:
    return spark.read.format("scankv").option("url", url).load(table)


def _counted(load: Callable[[], DataFrame], expected: int) -> Timing:
    begun = time.perf_counter()
    rows = load().count()
    return Timing(rows, time.perf_counter() - begun).checked(expected)


def _summed(load: Callable[[], DataFrame], expected: int) -> Timing:
    begun = time.perf_counter()
    (found,) = load().agg(F.sum("amount"), F.count("amount")).collect()
    return Timing(found[1], time.perf_counter() - begun).checked(expected)


def _small(spark: SparkSession, url: str) -> float:
    """Milliseconds of a small table beyond those of a source that has as many rows at hand."""
    ours = _counted(partial(_loaded, spark, url, _SMALL), _SMALL_ROWS)
    there = _counted(lambda: spark.read.format("prebuilt").options(rows=_SMALL_ROWS, parts=1).load(), _SMALL_ROWS)
    return (ours.seconds - there.seconds) * _MILLIS


def _figures(rates: dict[str, list[float]]) -> list[Figure]:
    return [
        Figure(
            name=name,
            work=work,
            against="batches that are there already",
            unit="ratio",
            spread=paired_ratios(rates[measured], rates[reference]),
            at_least=0.5,
        )
        for name, work, measured, reference in (
            ("spark_count", "Spark count() of T4 in 4 buckets, rows/s", _COUNT, _THERE_COUNT),
            ("spark_count_base", "the same out of a columnar base", _BASE_COUNT, _THERE_COUNT),
            ("spark_sum", "Spark sum() of T4 in 4 buckets, rows/s", _SUM, _THERE_SUM),
            ("spark_sum_base", "the same out of a columnar base", _BASE_SUM, _THERE_SUM),
            ("spark_fast_path", "Spark sum() of scan_dataframe, all columns", _FAST, _THERE_FAST),
            ("spark_fast_path_base", "the same out of a columnar base", _BASE_FAST, _THERE_FAST),
            ("spark_fast_path_one", "Spark sum() of scan_dataframe, one column", _FAST_ONE, _THERE_FAST),
        )
    ]


def _small_figure(beyond: list[float]) -> Figure:
    return Figure(
        name="spark_small_table",
        work=f"load() and count() of {_SMALL_ROWS:,} rows in Spark",
        against="beyond those of a source with one batch",
        unit="ms",
        spread=Spread.of(beyond),
        at_most=500,
    )


@contextmanager
def _session(directory: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    builder: SparkSession.Builder = SparkSession.builder.master("local[2]")
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
