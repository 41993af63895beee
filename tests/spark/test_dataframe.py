"""Tests of `scan_dataframe`, with everything pushed down, and of queries that the server computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import spark_bridge
from aio_client import SchemaMismatch, SnapshotLost, TableNotFound, UsageError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("score", pa.uint64()), ("team", pa.string())])


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=3)
    numbers = range(1000)
    table.upsert(
        pa.table({"id": numbers, "score": numbers, "team": [f"t{each % 7}" for each in numbers]}, schema=SCHEMA)
    )
    return table


@pytest.mark.breadth
def test_scan_dataframe_pushes_everything_down_and_each_query_reads_one_instant(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, table: sync.Table
) -> None:
    url = shared_server.url
    rows = spark_bridge.scan_dataframe(spark, url, table.name, columns=["team", "id"], where="id < 100", splits=4)
    assert [(each.name, each.dataType.simpleString()) for each in rows.schema] == [("team", "string"), ("id", "bigint")]
    assert sorted(rows.collect()) == sorted((f"t{each % 7}", each) for each in range(100))
    table.delete(list(range(50)))
    # Another action, and an action that uses the DataFrame twice.
    assert rows.union(rows.filter("id = 60")).count() == 51
    assert sorted(each.ttl for each in client.snapshots(table.name)) == [60, 600, 600]
    assert spark_bridge.scan_dataframe(spark, url, table.name, rows_per_split=300).count() == 950
    assert spark_bridge.scan_dataframe(spark, url, table.name, limit=7).count() == 7


def test_a_scan_of_a_named_snapshot_leaves_it_to_its_holder(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, table: sync.Table
) -> None:
    with table.snapshot(ttl=300) as snapshot:
        table.delete([1])
        rows = spark_bridge.scan_dataframe(spark, shared_server.url, table.name, snapshot=snapshot, splits=2)
        assert rows.count() == 1000
        assert [each.ttl for each in client.snapshots(table.name)] == [300]
    with pytest.raises(PythonException) as caught:
        rows.collect()
    assert "pin another snapshot" in str(caught.value)
    with pytest.raises(SnapshotLost):
        spark_bridge.scan_dataframe(spark, shared_server.url, table.name, snapshot=snapshot.id)


@pytest.mark.breadth
def test_a_limit_after_the_scan_leaves_no_live_scan(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    rows = spark_bridge.scan_dataframe(spark, shared_server.url, large.name, splits=2)
    assert len(rows.limit(5).collect()) == 5
    wait_until(lambda: all(each.table != large.name for each in client.live_scans()), "no live scan", timeout=60)


def test_wrong_arguments_are_an_error_before_the_dataframe_is_created(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, table: sync.Table
) -> None:
    url = shared_server.url
    with pytest.raises(UsageError, match="option splits"):
        spark_bridge.scan_dataframe(spark, url, table.name, splits=0)
    with pytest.raises(SchemaMismatch, match='"idd"'):
        spark_bridge.scan_dataframe(spark, url, table.name, columns=["idd"])
    with pytest.raises(SchemaMismatch, match='"idd"'):
        spark_bridge.scan_dataframe(spark, url, table.name, where="idd = 3")
    with pytest.raises(TableNotFound):
        spark_bridge.scan_dataframe(spark, url, "test.none")
    assert client.snapshots(table.name) == []


def test_the_server_computes_counts_aggregates_and_top_n(
    spark: SparkSession, shared_server: ServerProcess, table: sync.Table
) -> None:
    url = shared_server.url
    assert spark_bridge.count(url, table.name) == 1000
    assert spark_bridge.count(url, table.name, "team = 't0'") == 143
    best = spark_bridge.top_n(spark, url, table.name, 2, "score", "team = 't1'", columns=["id", "score"])
    assert [(row.id, int(row.score)) for row in best.collect()] == [(995, 995), (988, 988)]
    sums = spark_bridge.aggregate(spark, url, table.name, {"id": ["sum", "max"]}, "id < 14", group_by=["team"])
    assert sorted(tuple(row) for row in sums.collect())[:2] == [("t0", 7, 7), ("t1", 9, 8)]


def test_the_tables_of_a_server_can_be_read_as_a_dataframe(
    spark: SparkSession, shared_server: ServerProcess, table: sync.Table
) -> None:
    (row,) = spark_bridge.tables(spark, shared_server.url).filter(f"name = '{table.name}'").collect()
    assert (row.name, row["columns"]) == (table.name, "id int64 not null, score uint64, team string")
    assert (row.primary_key, row.buckets, row.options) == (["id"], 3, {})
