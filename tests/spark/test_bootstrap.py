"""Tables are bootstrapped from DataFrames: tasks stage in parallel, failed attempts do not count, one commit."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_bridge
from aio_client import DuplicateKeys, SchemaMismatch, TableExists, TableNotFound, agg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from aio_client import sync
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.breadth


def rows(spark: SparkSession, count: int = 10_000, partitions: int = 5) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(
        "id",
        (f.col("id") % 7).cast("int").alias("v"),
        f.concat(f.lit("name "), "id").alias("name"),
        f.timestamp_micros(f.col("id") * 1_000_000).alias("at"),
    )


def test_a_table_gets_all_rows_of_all_tasks(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    made = spark_bridge.bootstrap(
        rows(spark), shared_server.url, name, primary_key=["id"], buckets=3, indexes=["v"], changelog="none"
    )
    table = client.table(name)
    assert made == table.count() == 10_000
    assert table.count(where="v = 3") == rows(spark).filter("v = 3").count()
    assert table.get(61) == {
        "id": 61,
        "v": 5,
        "name": "name 61",
        "at": dt.datetime(1970, 1, 1, 0, 1, 1, tzinfo=dt.UTC),
    }
    assert all(check.is_consistent for check in client.check_table(name))
    with pytest.raises(TableExists):
        spark_bridge.bootstrap(rows(spark), shared_server.url, name, primary_key=["id"])


def test_a_failed_attempt_of_a_task_does_not_count(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    mark = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pathlib

        for batch in batches:
            yield batch
            if 6000 in batch.column("id").to_pylist() and not pathlib.Path(mark).exists():
                pathlib.Path(mark).touch()
                raise RuntimeError("the first attempt")

    # `local[2]` does not try tasks again, so the stage fails, and the next job begins again.
    frame = rows(spark, partitions=2)
    failing = frame.mapInArrow(fail_once, frame.schema)
    with pytest.raises(PySparkException, match="the first attempt"):
        spark_bridge.bootstrap(failing, shared_server.url, name, primary_key=["id"])
    with pytest.raises(TableNotFound):
        client.table(name)
    assert spark_bridge.bootstrap(failing, shared_server.url, name, primary_key=["id"]) == 10_000


def test_rows_of_a_key_are_an_error_or_merged(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    url, frame = shared_server.url, rows(spark).select("v", f.col("id").alias("n"))
    with pytest.raises(DuplicateKeys, match="have the key v="):
        spark_bridge.bootstrap(frame, url, name, primary_key=["v"])
    options: dict[str, Any] = {"merge_engine": "aggregate", "aggregators": {"n": agg.sum()}}
    assert spark_bridge.bootstrap(frame, url, name, primary_key=["v"], duplicates="merge", **options) == 7
    expected = {row["v"]: row["n"] for row in frame.groupBy("v").agg(f.sum("n").alias("n")).collect()}
    assert {row["v"]: row["n"] for row in client.table(name).scan().to_arrow().to_pylist()} == expected


def test_no_rows_make_an_empty_table_and_wrong_rows_none(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    empty = rows(spark).filter("id < 0")
    assert spark_bridge.bootstrap(empty, shared_server.url, name, primary_key=["id"]) == 0
    assert client.table(name).schema.names == ["id", "v", "name", "at"]
    nulls = rows(spark).withColumn("id", f.when(f.col("id") != 7, f.col("id")))
    with pytest.raises(PySparkException, match="id"):
        spark_bridge.bootstrap(nulls, shared_server.url, f"{name}_nulls", primary_key=["id"])
    with pytest.raises(TableNotFound):
        client.table(f"{name}_nulls")
    variant = spark.sql("select 1 as id, parse_json('1') as v")
    with pytest.raises(SchemaMismatch, match="variant"):
        spark_bridge.bootstrap(variant, shared_server.url, f"{name}_variant", primary_key=["id"])
