"""Columns that change while Spark reads: queries go by name, and never get the values of another column unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int32()), ("text", pa.string())])


@pytest.fixture
def own(client: sync.Client, name: str) -> sync.Table:
    """A small table for one test."""
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": k, "n": k, "text": f"t{k}"} for k in range(10)])
    return table


@pytest.mark.breadth
def test_rows_of_older_columns_are_read_and_written(
    load: Callable[..., DataFrame], client: sync.Client, own: sync.Table, shared_server: ServerProcess
) -> None:
    client.alter_table(
        own.name,
        rename_columns={"n": "text", "text": "n"},
        column_types={"n": pa.int64()},
        add_columns=pa.schema([("more", pa.string())]),
        column_defaults={"more": "x"},
    )
    found = load(own.name)
    assert found.columns == ["k", "text", "n", "more"]
    assert found.agg(F.sum("text"), F.max("n"), F.countDistinct("more")).first() == (45, "t9", 1)
    changed = found.where("k < 3").select("k", (F.col("text") + 2**40).alias("text"), "n", "more")
    changed.write.format("scankv").mode("append").options(url=shared_server.url, table=own.name).save()
    assert load(own.name).agg(F.sum("text")).first() == (45 + 3 * 2**40,)


def test_a_dataframe_without_columns_writes_their_defaults_and_named_columns_leave_null(
    spark: SparkSession, client: sync.Client, own: sync.Table, shared_server: ServerProcess
) -> None:
    added = pa.schema([("level", pa.int32()), ("tags", pa.list_(pa.string()))])
    table = client.alter_table(own.name, add_columns=added, column_defaults={"level": 7, "tags": ["a"]})
    options = {"url": shared_server.url, "table": own.name}

    def write(k: int, mode: str = "append", **more: str) -> tuple[Any, Any]:
        rows = spark.createDataFrame([(k, 1, "x")], "k long not null, n int, text string")
        rows.write.format("scankv").mode(mode).options(**options, **more).save()
        row = table.get(k)
        assert row is not None
        return row["level"], row["tags"]

    assert write(100) == (7, ["a"])
    assert write(101, columns="k,n,text") == (None, None)
    table.upsert([{"k": 102, "level": 1, "tags": []}])
    assert write(102, columns="k,n,text") == (1, [])
    assert write(103, "overwrite") == (7, ["a"])


@pytest.mark.breadth
def test_a_dataframe_of_a_column_that_was_renamed_says_to_load_it_again(
    load: Callable[..., DataFrame], client: sync.Client, own: sync.Table
) -> None:
    loaded, of_numbers = load(own.name), load(own.name, columns="k,n")
    client.alter_table(own.name, rename_columns={"text": "name"})
    with pytest.raises(Exception, match=r'has a column "text" that is not among .*: load\(\) again'):
        loaded.collect()
    assert of_numbers.agg(F.sum("n")).first() == (45,)
    assert load(own.name).agg(F.max("name")).first() == ("t9",)


@pytest.mark.breadth
def test_a_streaming_query_fails_if_a_column_is_renamed_and_continues_with_others(
    spark: SparkSession, client: sync.Client, own: sync.Table, shared_server: ServerProcess, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def run(columns: str) -> None:
        options = {"url": shared_server.url, "columns": columns, "row_kinds": "true"}
        rows = spark.readStream.format("scankv").options(**options).load(own.name)
        writing = rows.writeStream.foreachBatch(lambda batch, _: seen.extend(map(tuple, batch.collect())))
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(500)

    run("k,text")
    assert len(seen) == 10
    client.alter_table(own.name, rename_columns={"text": "name"})
    client.table(own.name).upsert([{"k": 10, "n": 1, "name": "t10"}])
    with pytest.raises(Exception, match='no column "text"'):
        run("k,text")
    assert len(seen) == 10
    run("k,n")
    assert len(seen) == 11
