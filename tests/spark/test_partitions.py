"""Planning derives the number and content of tasks from the server's `explain`, without reading the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_bridge.options import ReadOptions
from spark_bridge.planning import plan_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

ROWS = 20_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False)])


@pytest.fixture(scope="module")
def numbers(client: sync.Client) -> sync.Table:
    """20,000 rows in 4 buckets, by the complete key."""
    table = client.create_table("spark.numbers", SCHEMA, primary_key=["id", "part"], buckets=4)
    table.upsert(pa.table({"id": range(ROWS), "part": [f"p{n % 10}" for n in range(ROWS)]}, schema=SCHEMA))
    return table


@pytest.mark.parametrize(
    ("options", "tasks", "rows"),
    [
        ({"where": "id = 5 AND part = 'p5'"}, 1, 1),
        ({"where": "id = 5"}, 1, 1),
        ({"where": "id IN (5, 700, 19000)"}, 1, 3),
        ({"where": "(id = 5 AND part = 'p5') OR (id = 6 AND part = 'p6')"}, 1, 2),
        ({"where": "id < 5 AND id > 5"}, 1, 0),
        ({"key_prefix": "17"}, 1, 1),
        ({"key_start": "100", "key_end": "299"}, 1, 200),
        ({"key_start": "100", "key_end": "299", "splits": 3}, 3, 200),
        ({"where": "id < 8000"}, 4, 8000),
        ({"where": "id < 4000 OR id >= 16000"}, 4, 8000),
        ({"where": "part = 'p3'"}, 10, 2000),
        ({"splits": 4}, 4, ROWS),
        ({"splits": 9}, 9, ROWS),
        ({}, 10, ROWS),
    ],
)
@pytest.mark.represented_by("options0-1-1", "options13-10-20000")
def test_the_number_of_tasks_depends_on_the_rows_to_read(
    load: Callable[..., DataFrame], numbers: sync.Table, options: dict[str, object], tasks: int, rows: int
) -> None:
    limits = {} if "splits" in options else {"rows_per_split": 2000}
    read = load(numbers.name, **options, **limits)
    assert read.rdd.getNumPartitions() == tasks
    found = [row.id for row in read.collect()]
    assert (len(found), len(set(found))) == (rows, rows)


def test_tasks_read_complete_buckets_where_that_is_enough(shared_server: ServerProcess, numbers: sync.Table) -> None:
    for options in ({"splits": 4}, {"splits": 2, "key_start": "100", "key_end": "299"}, {"rows_per_split": 5000}):
        read = ReadOptions(table=numbers.name, url=shared_server.url, **options)
        parts = [part.spec for part in plan_read(read).parts]
        assert len(parts) == options.get("splits", 4)
        assert sorted(bucket for part in parts for bucket in part.buckets or ()) == [0, 1, 2, 3]
        assert len({part.key_range for part in parts}) == 1


def test_a_predicate_on_the_partition_column_reads_one_partition(
    load: Callable[..., DataFrame], client: sync.Client
) -> None:
    schema = pa.schema([pa.field("day", pa.int64(), nullable=False), *SCHEMA])
    table = client.create_table(
        "spark.days", schema, primary_key=["day", "id", "part"], partition_by=["day"], buckets=4
    )
    table.upsert(pa.table({"day": [n // 1000 for n in range(ROWS)], "id": range(ROWS), "part": ["p"] * ROWS}))
    for read in (load(table.name, rows_per_split=2000), load(table.name, where="day = 7", rows_per_split=2000)):
        days = read.where("day = 7")
        assert sorted(row.id for row in days.collect()) == list(range(7000, 8000))
    assert read.rdd.getNumPartitions() == 1
    assert load(table.name, rows_per_split=2000).rdd.getNumPartitions() == 10


@pytest.mark.breadth
def test_a_stream_finds_partitions_that_are_created_while_it_runs(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"primary_key": ["day", "id", "part"], "partition_by": ["day"], "delete_behavior": "ignore"}
    schema = pa.schema([pa.field("day", pa.int64(), nullable=False), *SCHEMA])
    table = client.create_table("spark.new_days", schema, **keys)
    copy = client.create_table("spark.copied_days", schema, **keys)
    changes = spark.readStream.format("scankv").option("url", shared_server.url).load(table.name)
    for number in range(3):
        table.upsert([{"day": number, "id": number, "part": "p"}])
        writing = changes.select("day", "id", "part").writeStream.format("scankv").option("url", shared_server.url)
        writing = writing.option("table", copy.name).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()
        assert [each.values["day"] for each in copy.partitions()] == list(range(number + 1))
