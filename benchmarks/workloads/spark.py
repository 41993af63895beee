"""Spark over T4 in four buckets, against sources that do nothing but yield batches which are there already."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import spark_bridge
from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios, progress
from benchmarks.server import ServerProcess
from spark_bridge.conform import arrow_schema, conform
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from benchmarks.bench import Bench

_TABLE, _SMALL, _BUCKETS, _SMALL_ROWS = "bench.spark", "bench.small", 4, 1000
_LOAD_ROWS: Final = 100_000
_BATCH_ROWS: Final = 65_536
_MILLIS: Final = 1000.0

_COUNT, _SUM, _FAST, _FAST_ONE = "count()", "sum()", "sum() of scan_dataframe", "sum() of scan_dataframe, one column"
_THERE_COUNT, _THERE_SUM, _THERE_FAST = "count() of batches", "sum() of batches", "sum() of batches, mapInArrow"


def run(bench: Bench) -> Result:
    """Loads the tables, and has one session run all contenders in turn."""
    data = bench.directory / "spark"
    progress(f"loading {bench.rows:,} rows of T4 into {_BUCKETS} buckets")
    with ServerProcess(data) as server, connect(server.url) as client:
        for name, rows in ((_TABLE, bench.rows), (_SMALL, _SMALL_ROWS)):
            table = client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=_BUCKETS)
            for batch in t4.batches(rows, _LOAD_ROWS):
                table.upsert(batch)
    # Another one, so that no rows are in its write buffers.
    with ServerProcess(data) as server, _session(bench.directory) as spark:
        spark.dataSource.register(Prebuilt)
        rates = interleaved(bench.runs, _contenders(spark, server.url, bench.rows))
        beyond = [_small(spark, server.url) for _ in range(bench.runs + 1)][1:]
    return Result(
        figures=[
            _figure("spark_count", "Spark count() of T4 in 4 buckets, rows/s", rates[_COUNT], rates[_THERE_COUNT]),
            _figure("spark_sum", "Spark sum() of T4 in 4 buckets, rows/s", rates[_SUM], rates[_THERE_SUM]),
            _figure("spark_fast_path", "the same by scan_dataframe, all columns", rates[_FAST], rates[_THERE_FAST]),
            Figure(
                name="spark_small_table",
                work=f"load() and count() of {_SMALL_ROWS:,} rows in Spark",
                against="beyond those of a source with one batch",
                unit="ms",
                spread=Spread.of(beyond),
                at_most=500,
            ),
        ],
        tables=[rates_table("Spark", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Spark: local[2], one session; each run is a load() of its own, with planning and all tasks. The reference "
            "yields batches of 65,536 rows that its worker processes keep, in as many tasks, as a Python data source "
            "or from mapInArrow. Server, JVM and Python workers share the machine.",
        ],
    )


def _contenders(spark: SparkSession, url: str, rows: int) -> dict[str, Callable[[], Timing]]:
    def loaded() -> DataFrame:
        return spark.read.format("scankv").option("url", url).load(_TABLE)

    def there() -> DataFrame:
        return spark.read.format("prebuilt").option("rows", str(rows)).load()

    def mapped() -> DataFrame:
        numbers = spark.range(0, _BUCKETS, 1, _BUCKETS)
        return numbers.mapInArrow(partial(_batches_for, rows=rows), spark_schema(t4.SCHEMA))

    fast = partial(spark_bridge.scan_dataframe, spark, url, _TABLE)
    return {
        _COUNT: lambda: _counted(loaded, rows),
        _THERE_COUNT: lambda: _counted(there, rows),
        _SUM: lambda: _summed(loaded, rows),
        _THERE_SUM: lambda: _summed(there, rows),
        _FAST: lambda: _summed(fast, rows),
        _FAST_ONE: lambda: _summed(partial(fast, columns=["amount"]), rows),
        _THERE_FAST: lambda: _summed(mapped, rows),
    }


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
    ours = _counted(lambda: spark.read.format("scankv").option("url", url).load(_SMALL), _SMALL_ROWS)
    there = _counted(lambda: spark.read.format("prebuilt").options(rows=_SMALL_ROWS, parts=1).load(), _SMALL_ROWS)
    return (ours.seconds - there.seconds) * _MILLIS


def _figure(name: str, work: str, measured: list[float], reference: list[float]) -> Figure:
    return Figure(
        name=name,
        work=work,
        against="batches that are there already",
        unit="ratio",
        spread=paired_ratios(measured, reference),
        at_least=0.5,
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


class Prebuilt(DataSource):
    """A data source of T4's columns that reads nothing."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "prebuilt"

    def schema(self) -> StructType:
        """T4's."""
        return spark_schema(t4.SCHEMA)

    def reader(self, schema: StructType) -> PrebuiltReader:
        """Of as many rows as the option says."""
        return PrebuiltReader(int(self.options["rows"]), int(self.options.get("parts", _BUCKETS)))


class PrebuiltReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, rows: int, parts: int) -> None:
        """So many rows in so many tasks."""
        self._rows = rows
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [InputPartition(number) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one of them."""
        return _yielded(_share(self._rows, self._parts, partition.value))


def _batches_for(numbers: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _yielded(_share(rows, _BUCKETS, number))


def _share(rows: int, parts: int, number: int) -> int:
    return rows // parts + (number < rows % parts)


def _yielded(rows: int) -> Iterator[pa.RecordBatch]:
    batch = _batch()
    for left in range(rows, 0, -_BATCH_ROWS):
        yield batch.slice(0, min(left, _BATCH_ROWS))


@cache
def _batch() -> pa.RecordBatch:
    """Made once in each worker process."""
    return conform(t4.rows(0, _BATCH_ROWS), arrow_schema(spark_schema(t4.SCHEMA)))
