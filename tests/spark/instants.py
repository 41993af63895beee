"""Queries that change the table that they read, so that their rows show which instant they belong to."""

from __future__ import annotations

import os
import signal
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

INSTANT_SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])


def writing(
    url: str, table: str, *, ends_snapshots: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `mapInArrow` that yields the same rows, and then adds a row or ends the snapshots."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from aio_client import sync

        yield from batches
        with sync.connect(url) as client:
            if ends_snapshots:
                for snapshot in client.snapshots(table):
                    snapshot.release()
            else:
                client.table(table).upsert([{"k": uuid.uuid4().int >> 66}])

    return write


def written_and_killed(url: str, table: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """As `writing`, but the first attempt of each task kills its process after writing."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from writing(url, table)(batches)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return write


def counts_of_one_instant(
    spark: SparkSession,
    url: str,
    table: str,
    through: Callable[[str, str], Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]],
) -> list[int]:
    """Creates a table of ten rows, and counts it twice in each of two queries, which also add rows to it."""
    from aio_client import sync

    with sync.connect(url) as client:
        rows = client.create_table(table, INSTANT_SCHEMA, primary_key=["k"], buckets=2)
        rows.upsert(pa.table({"k": range(10)}, schema=INSTANT_SCHEMA))
    reading = spark.read.format("scankv").options(url=url)
    first, second = reading.option("splits", 2).load(table), reading.load(table)
    both = first.mapInArrow(through(url, table), "k bigint").groupBy("k").count().union(second.groupBy("k").count())
    return [both.count() for _ in range(2)]
