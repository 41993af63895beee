"""Compares appending rows from Spark with a client that writes the same rows, with and without a transaction."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from aio_client.sync import Client, Table
    from benchmarks.bench import Bench

_TABLE, _BUCKETS = "bench.spark_written", 4
_SHARE: Final = 4
"""The benchmark writes one row of this many. That is enough, since all rows cost the same."""

_APPEND, _TRANSACTION, _UPSERT = "append", "client.transaction", "table.upsert"


def run(bench: Bench, spark: SparkSession, url: str) -> Result:
    """Fills a new table with each writer in turn."""
    rows = pa.Table.from_batches(t4.batches(max(1, bench.rows // _SHARE), 10_000))
    with connect(url) as client:
        frame = spark.createDataFrame(rows, spark_schema(t4.SCHEMA)).cache()
        frame.count()
        rates = run_interleaved(
            bench.runs,
            {
                _APPEND: lambda: _time_write(client, lambda table: _append(frame, url, table), len(rows)),
                _TRANSACTION: lambda: _time_write(client, lambda table: _commit(client, table, rows), len(rows)),
                _UPSERT: lambda: _time_write(client, lambda table: table.upsert(rows), len(rows)),
            },
        )
        frame.unpersist()
    return Result(
        figures=[
            Figure(
                name=name,
                work=f"Spark append of {len(rows):,} rows of T4, rows/s",
                against=against,
                unit="ratio",
                spread=paired_ratios(rates[_APPEND], rates[reference]),
                at_least=0.5,
            )
            for name, against, reference in (
                ("spark_append_transaction", "a client's transaction of the same rows", _TRANSACTION),
                ("spark_append_upsert", "a client's upserts of the same rows, each request durable", _UPSERT),
            )
        ],
        tables=[rates_table("Writing from Spark", {name: Spread.of(each) for name, each in rates.items()})],
        notes=[
            "Writing from Spark: into a new table with 4 buckets each time, from a cached DataFrame with one partition "
            "for each of the two cores. The single client runs in the driver's process and has the rows as Arrow data.",
        ],
    )


def _time_write(client: Client, write: Callable[[Table], object], expected: int) -> Timing:
    table = client.create_table(_TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=_BUCKETS)
    begun = time.perf_counter()
    write(table)
    seconds = time.perf_counter() - begun
    timing = Timing(table.count(), seconds).check_rows(expected)
    client.drop_table(_TABLE)
    return timing


def _append(rows: DataFrame, url: str, table: Table) -> None:
    rows.write.format("scankv").option("url", url).mode("append").save(table.name)


def _commit(client: Client, table: Table, rows: pa.Table) -> None:
    with client.transaction() as transaction:
        transaction.upsert(table, rows)
