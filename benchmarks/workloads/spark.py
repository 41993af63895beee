"""Compares Spark queries over T4 in four buckets with sources that only yield prebuilt batches."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

import spark_bridge
from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, progress, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workloads import spark_writes
from benchmarks.workloads.spark_prebuilt import PARTS, Prebuilt, yield_rows
from benchmarks.workloads.spark_session import spark_session
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

_TABLE, _BASE_TABLE, _SMALL, _SMALL_ROWS = "bench.spark", "bench.spark_base", "bench.small", 1000
_LOAD_ROWS: Final = 100_000
_BUILT_WITHIN, _POLL_SECONDS = 300.0, 0.05
_MILLIS: Final = 1000.0

_COUNT, _SUM, _FAST, _FAST_ONE = "count()", "sum()", "sum() of scan_dataframe", "sum() of scan_dataframe, one column"
_BASE_COUNT, _BASE_SUM, _BASE_FAST = "count(), base", "sum(), base", "sum() of scan_dataframe, base"
_PREBUILT_COUNT, _PREBUILT_SUM, _PREBUILT_FAST = (
    "count() of batches",
    "sum() of batches",
    "sum() of batches, mapInArrow",
)


def run(bench: Bench) -> Result:
    """Loads the tables, and runs all contenders in turn in one session."""
    data = bench.directory / "spark"
    with BenchmarkServer(data) as server, connect(server.url) as client:
        for name, rows, base in (
            (_TABLE, bench.rows, "off"),
            (_BASE_TABLE, bench.rows, "eager"),
            (_SMALL, _SMALL_ROWS, "off"),
        ):
            _fill_table(client, name, rows, base)
    # A new server has no rows in write buffers, so all rows are read from table files.
    with BenchmarkServer(data, base_cpu_share=1) as server, spark_session(bench.directory) as spark:
        with connect(server.url) as client:
            _wait_for_bases(client.table(_BASE_TABLE))
        spark.dataSource.register(Prebuilt)
        rates = run_interleaved(bench.runs, _contenders(spark, server.url, bench.rows))
        beyond = [_time_small_table(spark, server.url) for _ in range(bench.runs + 1)][1:]
        writes = spark_writes.run(bench, spark, server.url)
    return Result(
        figures=[*_figures(rates), _small_figure(beyond), *writes.figures],
        tables=[rates_table("Spark", {name: Spread.of(values) for name, values in rates.items()}), *writes.tables],
        notes=[
            "Spark: local[2], one session. Each run is a load() of its own, with planning and all tasks. The reference "
            "yields batches of 65,536 rows that its worker processes keep in memory, in as many tasks, as a Python "
            "data source or in mapInArrow. Server, JVM and Python workers share the machine. The bases exist before.",
            *writes.notes,
        ],
    )


def _fill_table(client: Client, name: str, rows: int, columnar_base: str) -> None:
    progress(f"loading {rows:,} rows of T4 into {PARTS} buckets of {name}")
    table = client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=PARTS, columnar_base=columnar_base)
    for batch in t4.batches(rows, _LOAD_ROWS):
        table.upsert(batch)


def _wait_for_bases(table: Table) -> None:
    progress("waiting for the bases")
    deadline = time.monotonic() + _BUILT_WITHIN
    while any(each.base is None or each.base.unused_reason is not None for each in table.stats()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server has not built all bases within {_BUILT_WITHIN:g} s")
        time.sleep(_POLL_SECONDS)


def _contenders(spark: SparkSession, url: str, rows: int) -> dict[str, Callable[[], Timing]]:
    def prebuilt() -> DataFrame:
        return spark.read.format("prebuilt").option("rows", str(rows)).load()

    def mapped() -> DataFrame:
        numbers = spark.range(0, PARTS, 1, PARTS)
        return numbers.mapInArrow(partial(yield_rows, rows=rows), spark_schema(t4.SCHEMA))

    loaded, fast = partial(_load, spark, url), partial(spark_bridge.scan_dataframe, spark, url)
    return {
        _COUNT: lambda: _time_count(partial(loaded, _TABLE), rows),
        _BASE_COUNT: lambda: _time_count(partial(loaded, _BASE_TABLE), rows),
        _PREBUILT_COUNT: lambda: _time_count(prebuilt, rows),
        _SUM: lambda: _time_sum(partial(loaded, _TABLE), rows),
        _BASE_SUM: lambda: _time_sum(partial(loaded, _BASE_TABLE), rows),
        _PREBUILT_SUM: lambda: _time_sum(prebuilt, rows),
        _FAST: lambda: _time_sum(partial(fast, _TABLE), rows),
        _BASE_FAST: lambda: _time_sum(partial(fast, _BASE_TABLE), rows),
        _FAST_ONE: lambda: _time_sum(partial(fast, _TABLE, columns=["amount"]), rows),
        _PREBUILT_FAST: lambda: _time_sum(mapped, rows),
    }


def _load(spark: SparkSession, url: str, table: str) -> DataFrame:
    return spark.read.format("scankv").option("url", url).load(table)


def _time_count(load: Callable[[], DataFrame], expected: int) -> Timing:
    begun = time.perf_counter()
    rows = load().count()
    return Timing(rows, time.perf_counter() - begun).check_rows(expected)


def _time_sum(load: Callable[[], DataFrame], expected: int) -> Timing:
    begun = time.perf_counter()
    (found,) = load().agg(F.sum("amount"), F.count("amount")).collect()
    return Timing(found[1], time.perf_counter() - begun).check_rows(expected)


def _time_small_table(spark: SparkSession, url: str) -> float:
    """Returns how many milliseconds longer a small table takes than a source with as many prebuilt rows."""
    ours = _time_count(partial(_load, spark, url, _SMALL), _SMALL_ROWS)
    prebuilt = _time_count(lambda: spark.read.format("prebuilt").options(rows=_SMALL_ROWS, parts=1).load(), _SMALL_ROWS)
    return (ours.seconds - prebuilt.seconds) * _MILLIS


def _figures(rates: dict[str, list[float]]) -> list[Figure]:
    return [
        Figure(
            name=name,
            work=work,
            against="prebuilt batches",
            unit="ratio",
            spread=paired_ratios(rates[measured], rates[reference]),
            at_least=0.5,
        )
        for name, work, measured, reference in (
            ("spark_count", "Spark count() of T4 in 4 buckets, rows/s", _COUNT, _PREBUILT_COUNT),
            ("spark_count_base", "the same from a columnar base", _BASE_COUNT, _PREBUILT_COUNT),
            ("spark_sum", "Spark sum() of T4 in 4 buckets, rows/s", _SUM, _PREBUILT_SUM),
            ("spark_sum_base", "the same from a columnar base", _BASE_SUM, _PREBUILT_SUM),
            ("spark_fast_path", "Spark sum() of scan_dataframe, all columns", _FAST, _PREBUILT_FAST),
            ("spark_fast_path_base", "the same from a columnar base", _BASE_FAST, _PREBUILT_FAST),
            ("spark_fast_path_one", "Spark sum() of scan_dataframe, one column", _FAST_ONE, _PREBUILT_FAST),
        )
    ]


def _small_figure(beyond: list[float]) -> Figure:
    return Figure(
        name="spark_small_table",
        work=f"load() and count() of {_SMALL_ROWS:,} rows in Spark",
        against="time beyond that of a source with one batch",
        unit="ms",
        spread=Spread.of(beyond),
        at_most=500,
    )
