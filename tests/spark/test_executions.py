"""One snapshot for each query execution: all of its branches and tasks read one instant, and the next query another."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import spark_bridge
from tests.spark.instants import INSTANT_SCHEMA, writing
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

ROWS = 10


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, INSTANT_SCHEMA, primary_key=["k"], buckets=2)
    table.upsert(pa.table({"k": range(ROWS)}, schema=INSTANT_SCHEMA))
    return table


@pytest.fixture(params=["true", "false"], ids=["adaptive", "not adaptive"])
def adaptive(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    spark.conf.set("spark.sql.adaptive.enabled", request.param)
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")


@pytest.mark.breadth
@pytest.mark.usefixtures("adaptive")
def test_branches_of_a_query_that_loads_a_table_twice_read_one_instant(
    shared_server: ServerProcess, load: Callable[..., DataFrame], table: sync.Table
) -> None:
    first, second = load(table.name, splits=2), load(table.name)
    # One task, which writes after reading the first branch and then reads the second.
    both = first.mapInArrow(writing(shared_server.url, table.name), "k bigint").union(second).coalesce(1)
    counts = [both.count() for _ in range(3)]
    # Each of two parts of the first query wrote a row.
    assert counts == [2 * ROWS, 2 * (ROWS + 2), 2 * (ROWS + 4)]


@pytest.mark.usefixtures("adaptive")
@pytest.mark.breadth
def test_a_subquery_that_ends_before_the_query_begins_reads_the_same_instant(
    spark: SparkSession, shared_server: ServerProcess, load: Callable[..., DataFrame], table: sync.Table
) -> None:
    written, plain = (f"view_{uuid.uuid4().hex}" for _ in range(2))
    load(table.name, splits=1).mapInArrow(writing(shared_server.url, table.name), "k bigint").createOrReplaceTempView(
        written
    )
    load(table.name).createOrReplaceTempView(plain)
    text = f"select (select count(*) from {written}), count(*), sum(a.k - b.k) from {plain} a join {plain} b using (k)"
    for before in (ROWS, ROWS + 1):
        assert tuple(spark.sql(text).first() or ()) == (before, before, 0)


@pytest.mark.breadth
def test_every_action_reads_the_table_as_of_its_own_instant(
    spark: SparkSession, shared_server: ServerProcess, load: Callable[..., DataFrame], table: sync.Table
) -> None:
    rows = load(table.name)
    rows.createOrReplaceTempView("of_now")
    fast = spark_bridge.scan_dataframe(spark, shared_server.url, table.name)
    for key in range(ROWS, ROWS + 3):
        assert len(rows.collect()) == rows.count() == rows.rdd.count() == rows.toArrow().num_rows == key
        assert spark.sql("select count(*) from of_now").first() == (key,)
        assert fast.count() == len(fast.collect()) == key
        table.upsert([{"k": key}])


@pytest.mark.breadth
def test_a_view_outlives_every_snapshot(
    spark: SparkSession, load: Callable[..., DataFrame], client: sync.Client, table: sync.Table
) -> None:
    load(table.name, snapshot_ttl=1).createOrReplaceTempView("old")
    assert spark.sql("select count(*) from old").first() == (ROWS,)
    for snapshot in client.snapshots(table.name):
        snapshot.release()
    assert spark.sql("select count(*) from old").first() == (ROWS,)
    wait_until(lambda: client.snapshots(table.name) == [], "expired", timeout=60)


def test_a_query_whose_snapshot_ends_fails_and_returns_no_rows_of_another_instant(
    spark: SparkSession, shared_server: ServerProcess, load: Callable[..., DataFrame], table: sync.Table
) -> None:
    ending = writing(shared_server.url, table.name, ends_snapshots=True)
    both = load(table.name, splits=1).mapInArrow(ending, "k bigint").union(load(table.name)).coalesce(1)
    with pytest.raises(PythonException) as caught:
        both.collect()
    assert "Run the query again; a greater option snapshot_ttl" in str(caught.value)


@pytest.mark.breadth
def test_a_stream_joined_with_a_table_reads_the_table_as_of_each_micro_batch(
    spark: SparkSession, load: Callable[..., DataFrame], table: sync.Table, tmp_path: Path
) -> None:
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    name = f"joined_{uuid.uuid4().hex}"
    joined = numbers.crossJoin(load(table.name).groupBy().count()).select("value", "count")
    query = joined.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path)).start()
    try:
        counted: list[int] = []
        for wanted in (ROWS, ROWS + 1):
            wait_until(lambda: wanted in {row["count"] for row in spark.table(name).collect()}, "read", timeout=120)  # noqa: B023
            table.upsert([{"k": wanted}])
        counted = [row["count"] for row in spark.table(name).orderBy("value").collect()]
    finally:
        query.stop()
    assert counted == sorted(counted)
