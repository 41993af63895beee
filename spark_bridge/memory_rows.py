"""Rows that the driver has in memory as DataFrames for larger queries."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_bridge.server_queries import local_dataframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_MOST_BROADCAST_BYTES: Final = 64 << 20
_OUTSIDE_THE_PLAN: Final = {
    "spark.sql.execution.arrow.localRelationThreshold": "64k",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}


def memory_rows(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns rows as a DataFrame that costs the planner nothing.

    By default, rows up to 48 MB are a part of the plan, and most rules of the optimizer visit each of them. With
    100,000 rows, that took as long as reading some million rows of a file. So only few rows are a part of it here.
    """
    with session_options(spark, _OUTSIDE_THE_PLAN):
        return local_dataframe(spark, rows)


def broadcast_rows(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns rows as `memory_rows` does, which joins send to all executors unless there are too many."""
    found = memory_rows(spark, rows)
    return F.broadcast(found) if rows.nbytes <= _MOST_BROADCAST_BYTES else found


@contextmanager
def session_options(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Sets options of a session for the length of the block."""
    before = [(name, spark.conf.get(name)) for name in options]
    try:
        for name, value in options.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before:
            assert old is not None
            spark.conf.set(name, old)
