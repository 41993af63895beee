"""Spark reads published Parquet files with its own reader, by the manifest, without ScanKV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import ParquetReader

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int32())])


@pytest.mark.breadth
async def test_spark_reads_the_files_of_the_manifest(
    spark: SparkSession, shared_server: ServerProcess, tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    async with connect(shared_server.url) as client:
        table = await client.create_table("lake.spark_parquet", SCHEMA, primary_key=["id"], buckets=2)
        await table.upsert(pa.table({"id": list(range(300)), "value": [1] * 300}, SCHEMA))
        await publish(client, table.name, open_lake_table(uri, "parquet"), PublishOptions(file_rows=50))
        await client.alter_table(table.name, add_columns=pa.schema([("day", pa.date32())]))
        await table.upsert([{"id": 5, "value": 2}])
        await table.delete([7])
        report = await publish(client, table.name, open_lake_table(uri, "parquet"), PublishOptions(file_rows=50))
    assert report.files_kept > 0
    rows = spark.read.schema("id bigint, value int, day date").parquet(*ParquetReader(uri).files())
    assert rows.count() == 299
    assert rows.where("day is null").groupBy().sum("value").collect()[0][0] == 300
    assert rows.where("id in (5, 7)").collect() == [(5, 2, None)]
