"""Spark with the jars of Delta Lake and Iceberg reads published tables: types, deletion vectors, columns, versions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from aio_client import connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.integration.lake import test_iceberg_format, test_published_tables
from tests.integration.lake.test_published_tables import comparable
from tests.model.lake_history import KEY, LakeHistory
from tests.support.lake_readers import IcebergReader, reader, sorted_rows
from tests.support.spark_with_jars import SparkWithJars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aio_client import Client
    from tests.support.server_process import ServerProcess

# Making the environment takes minutes.
pytestmark = [pytest.mark.asyncio, pytest.mark.soak, pytest.mark.timeout(900)]

_VALUES = {"delta": test_published_tables.VALUES, "iceberg": test_iceberg_format.VALUES}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkWithJars]:
    spark = SparkWithJars()
    yield spark
    spark.close()


def read(
    spark: SparkWithJars, format_: str, uri: str, target: Path, key: Sequence[str], version: int | None = None
) -> list[Any]:
    """Returns the rows of a version, by default of the latest, in the order of their keys."""
    if format_ == "iceberg" and version is not None:
        with IcebergReader(uri).open() as table:
            version = IcebergReader._snapshot(table, version).snapshot_id
    spark.read(format_, uri, version, target)
    return [comparable(row) for row in sorted_rows(parquet.read_table(target), key)]


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
async def test_every_type_is_read(
    client: Client, name: str, uri: str, tmp_path: Path, spark: SparkWithJars, format_: str
) -> None:
    # Spark has no time of day.
    values = {column: each for column, each in _VALUES[format_].items() if not pa.types.is_time(each[0])}
    schema = pa.schema([("id", pa.int64()), *((column, type_) for column, (type_, _) in values.items())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    # pyiceberg 0.12 reads a list of structs that is null as an empty one.
    rows: list[dict[str, Any]] = [{"id": 0, "deep": []}]
    rows += [{"id": n} | {column: v[n % len(v)] for column, (_, v) in values.items()} for n in range(1, 5)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish(client, name, open_lake_table(uri, format_), PublishOptions())
    expected = [comparable(row) for row in sorted_rows(reader(format_, uri).read(), ["id"])]
    assert read(spark, format_, uri, tmp_path / "rows", ["id"]) == expected


@pytest.mark.parametrize("options", [{}, {"partition_by": KEY[:1]}], ids=["plain", "partitions"])
@pytest.mark.parametrize(("format_", "masks"), [("delta", False), ("delta", True), ("iceberg", False)])
async def test_each_version_shows_the_table_at_its_instant(
    shared_server: ServerProcess,
    name: str,
    uri: str,
    tmp_path: Path,
    spark: SparkWithJars,
    format_: str,
    masks: bool,
    options: dict[str, Any],
) -> None:
    random = Random(f"{format_} {masks} {options}")
    async with connect(shared_server.url) as client:
        history = LakeHistory(client, name, format_, uri, random, PublishOptions(file_rows=20, masks=masks))
        await history.create(buckets=2, **options)
        for _ in range(40):
            await history.step()
        await history.publish()
    assert history.modes["changes"] > 0
    for version, rows in history.versions.items():
        assert read(spark, format_, uri, tmp_path / f"rows-{version}", KEY, version) == rows
