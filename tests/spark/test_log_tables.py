"""Tables without a primary key in Spark: created, appended to, read, and followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("line", pa.string())])


def test_the_bucket_key_of_a_created_table_is_an_option(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    options = {"url": shared_server.url, "create": "true", "primary_key": "", "buckets": "4", "bucket_key": "line"}
    rows = spark.range(40).selectExpr("id", "concat('line ', id % 2) as line")
    rows.write.format("scankv").options(**options).mode("append").save(name)
    table = client.table(name)
    assert (table.bucket_key, table.count()) == (["line"], 40)
    assert len(table.scan(where="line = 'line 1'").explain().buckets) == 1


@pytest.mark.breadth
def test_rows_make_a_round_trip(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    options = {"url": shared_server.url, "create": "true", "primary_key": "", "buckets": "2"}
    rows = spark.range(2000).selectExpr("id", "concat('line ', id) as line").repartition(3)
    for _ in range(2):
        rows.write.format("scankv").options(**options).mode("append").save(name)
    table = client.table(name)
    assert (table.primary_key, table.count()) == ([], 4000)
    read = spark.read.format("scankv").option("url", shared_server.url).load(name)
    assert read.count() == 4000
    assert sorted(row["id"] for row in read.where("id < 3").collect()) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(AnalysisException, match="has no primary key: its rows are not replaced"):
        rows.write.format("scankv").options(**options).mode("overwrite").save(name)

    # A stream from this table to another one, with each row once.
    copy = f"{name}copy"
    client.create_table(copy, SCHEMA, primary_key=[], bucket_key=["line"])
    changes = spark.readStream.format("scankv").option("url", shared_server.url).load(name).select("id", "line")
    for _ in range(2):
        writing = changes.writeStream.format("scankv").option("url", shared_server.url).option("table", copy)
        writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        table.append([{"id": 5000, "line": "last"}])
    found = client.table(copy).scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == sorted([*range(2000), *range(2000), 5000])
