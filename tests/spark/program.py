"""A Spark program in a process of its own, which prints what it found: `python -m tests.spark.program HOW URL TABLE`.

`cluster`: executors in processes of their own, of which one is killed while it reads. `connect`: the session is a
client of a Spark Connect server. `retries`: tasks are tried again, and the first try of one is killed while it writes.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_bridge
from tests.spark import java

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def cluster(url: str, table: str) -> None:
    """Reads the table in four tasks; the first try of one of them kills its executor."""
    spark = java.configured(SparkSession.builder.master("local-cluster[2,1,1024]")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.read.format("scankv").options(url=url, columns="k", splits=4).load(table)
    say(found(rows.mapInArrow(kill_executor, "k bigint")))
    spark.stop()


def kill_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Ends the executor of the first try of partition 0 behind its first batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            signal.pause()
        yield batch


def parent_of(pid: int) -> int:
    """A worker's parent is Spark's daemon, and the daemon's the executor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def connect(url: str, table: str) -> None:
    """Reads the table through data source, view and fast path."""
    builder: SparkSession.Builder = SparkSession.builder.remote("local[2]")
    spark = java.configured(builder).getOrCreate()
    say(found(spark.read.format("scankv").options(url=url, columns="k").load(table)))
    spark.sql(f"create temporary view large using scankv options (url '{url}', table '{table}', columns 'k')")
    say(found(spark.sql("select k from large")))
    say(found(spark_bridge.scan_dataframe(spark, url, table, columns=["k"], splits=2)))
    try:
        spark.read.format("scankv").options(url=url, splitz=2).load(table).schema  # noqa: B018  # asks the server
    except Exception as error:
        say('there is no option "splitz"' in str(error))
    spark.stop()


RETRIED_ROWS = 50_000


def retries(url: str, table: str) -> None:
    """Writes `RETRIED_ROWS` rows in two tasks, of some 25 MB each; the first try of one of them does not end."""
    spark = java.configured(SparkSession.builder.master("local[2,3]")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(0, RETRIED_ROWS, 1, 2).selectExpr("id AS k", "1L AS n", "repeat('x', 1000) AS v")
    rows = rows.mapInArrow(kill_worker, rows.schema)
    rows.write.format("scankv").options(url=url).mode("append").save(table)
    say("written")
    spark.stop()


def kill_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Kills its process behind the last batch of the first try of partition 0."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def say(found: object) -> None:
    """Prints a line."""
    sys.stdout.write(f"{found}\n")


def found(rows: object) -> object:
    """Rows, different keys, and their sum."""
    (row,) = rows.agg(F.count("*"), F.countDistinct("k"), F.sum("k")).collect()  # type: ignore[attr-defined]
    return tuple(row)


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    {"cluster": cluster, "connect": connect, "retries": retries}[sys.argv[1]](*sys.argv[2:])
