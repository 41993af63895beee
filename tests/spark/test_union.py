"""A published table as a DataFrame: Spark reads the files, and the server only sends what has changed since."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import spark_bridge
from aio_client import LakeVersionNotFound, SnapshotLost, UsageError, connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from spark_bridge import memory_rows
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from aio_client import sync

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("score", pa.uint64()),
        ("small", pa.uint8()),
        ("team.name", pa.string()),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
    ]
)


def rows_of(ids: range, score: int = 1) -> pa.Table:
    count = len(ids)
    columns: list[Any] = [ids, [score] * count, [200] * count, [f"t{each % 7}" for each in ids], [1000] * count]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def publish_to(client: sync.Client, name: str, uri: str, *, masks: bool = False, format_: str = "delta") -> None:
    async def publish_once() -> None:
        async with connect(client.config.address) as asynchronous:
            options = PublishOptions(file_rows=25, masks=masks)
            await publish(asynchronous, name, open_lake_table(uri, format_), options)

    client._runner.call(publish_once)


def plan_of(rows: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    rows.explain()
    return capsys.readouterr().out


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows_of(range(1000)))
    return table


@pytest.mark.parametrize("masks", [False, True], ids=["files", "vectors"])
@pytest.mark.represented_by("files")
def test_a_union_has_the_rows_and_the_types_of_the_data_source(
    spark: SparkSession,
    client: sync.Client,
    table: sync.Table,
    load: Callable[..., DataFrame],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    masks: bool,
) -> None:
    uri, url = str(tmp_path / "published table"), client.config.address
    publish_to(client, table.name, uri)
    if masks:
        table.upsert(rows_of(range(0, 1000, 50), score=2))
        table.delete([7])
        publish_to(client, table.name, uri, masks=True)
    table.upsert(rows_of(range(100, 130), score=2**64 - 1))
    table.upsert(rows_of(range(2000, 2010)))
    table.delete(list(range(500, 510)))
    expected = load(table.name)
    union = spark_bridge.table(spark, url, table.name, lake=uri)
    assert [(each.name, each.dataType) for each in union.schema] == [
        (each.name, each.dataType) for each in expected.schema
    ]
    rows = sorted(expected.collect())
    assert sorted(union.collect()) == rows
    plan = plan_of(union.select("score"), capsys)
    assert "FileScan parquet" in plan
    assert plan.count("LeftAnti") >= (2 if masks else 1)
    assert spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold") == "32"
    # Later changes are not part of it.
    table.delete(list(range(900)))
    assert union.count() == len(rows)
    few = spark_bridge.table(spark, url, table.name, lake=uri, columns=["team.name", "score"])
    assert few.columns == ["team.name", "score"]
    assert few.count() == table.count()


@pytest.mark.parametrize("format_", ["parquet", "iceberg"])
@pytest.mark.breadth
def test_spark_reads_files_of_every_format(
    spark: SparkSession,
    client: sync.Client,
    table: sync.Table,
    load: Callable[..., DataFrame],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    format_: str,
) -> None:
    uri, url = str(tmp_path / "published"), client.config.address
    table.upsert(rows_of(range(1), score=2**64 - 1))
    publish_to(client, table.name, uri, format_=format_)
    table.upsert(rows_of(range(100, 130), score=5))
    table.delete([7])
    union = spark_bridge.table(spark, url, table.name, lake=uri)
    assert sorted(union.collect()) == sorted(load(table.name).collect())
    assert "FileScan parquet" in plan_of(union, capsys)


def test_types_that_spark_does_not_read_from_files_are_read_from_the_server(
    spark: SparkSession, client: sync.Client, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri, url = str(tmp_path / "published"), client.config.address
    schema = pa.schema([("id", pa.int64()), ("half", pa.list_(pa.float16()))])
    client.create_table(name, schema, primary_key=["id"]).upsert([{"id": 1, "half": [1.5]}])
    publish_to(client, name, uri, format_="parquet")
    with caplog.at_level(logging.WARNING):
        assert spark_bridge.table(spark, url, name, lake=uri).collect() == [(1, [1.5])]
    assert "Spark does not read list<element: halffloat> from Parquet" in caplog.text
    with pytest.raises(UsageError, match="as_of cannot be used: Spark does not read"):
        spark_bridge.table(spark, url, name, lake=uri, as_of=0)


@pytest.mark.breadth
def test_an_earlier_version_is_read_by_spark_alone(
    spark: SparkSession,
    client: sync.Client,
    table: sync.Table,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, url = str(tmp_path / "published"), client.config.address
    publish_to(client, table.name, uri)
    table.upsert(rows_of(range(0, 1000, 50), score=2))
    table.delete([7])
    publish_to(client, table.name, uri, masks=True)
    table.truncate()
    versions = [spark_bridge.table(spark, url, table.name, lake=uri, as_of=number) for number in range(2)]
    assert [rows.count() for rows in versions] == [1000, 999]
    assert versions[1].where("score = 2").count() == 20
    assert "FileScan parquet" in plan_of(versions[1].select("score"), capsys)
    with pytest.raises(LakeVersionNotFound, match="no version 2 exists"):
        spark_bridge.table(spark, url, table.name, lake=uri, as_of=2)


@pytest.mark.breadth
def test_files_without_changed_keys_are_read_as_they_are(
    spark: SparkSession,
    client: sync.Client,
    table: sync.Table,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, url = str(tmp_path / "published"), client.config.address
    publish_to(client, table.name, uri)
    union = spark_bridge.table(spark, url, table.name, lake=uri)
    assert "LeftAnti" not in plan_of(union, capsys)
    table.upsert(rows_of(range(5000, 5010)))
    union = spark_bridge.table(spark, url, table.name, lake=uri)
    assert "LeftAnti" not in plan_of(union, capsys)
    assert union.count() == 1010


KEYS: dict[str, tuple[list[pa.DataType], list[Any]]] = {
    "int64": ([pa.int64()], [-(2**63), -65, -64, -63, -1, 0, 1, 63, 64, 127, 128, 2**40, 2**63 - 64, 2**63 - 1]),
    "int8": ([pa.int8()], list(range(-128, 128))),
    "uint32": ([pa.uint32()], [0, 63, 64, 2**31, 2**32 - 1]),
    "uint64": ([pa.uint64()], [0, 1, 2**63, 2**64 - 1]),
    "string": ([pa.string()], ["", "a", "b", "b ", "ü"]),
    "pair": ([pa.int64(), pa.string()], [(-1, "a"), (-1, "b"), (0, "a"), (64, "a"), (64, "b")]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.breadth
def test_exactly_the_rows_with_changed_keys_are_left_out(
    spark: SparkSession, client: sync.Client, name: str, tmp_path: Path, kind: str
) -> None:
    types, keys = KEYS[kind]
    names = [f"key.{number}" for number in range(len(types))]
    schema = pa.schema([*zip(names, types, strict=True), ("value", pa.int64())])
    parts = list(zip(*(key if len(types) > 1 else (key,) for key in keys), strict=True))
    rows = pa.table([*parts, [1] * len(keys)], schema)
    table = client.create_table(name, schema, primary_key=names, buckets=1)
    table.upsert(rows)
    publish_to(client, name, str(tmp_path))
    changed = rows.take(list(range(0, len(keys), 2)))
    deleted, updated = changed.slice(0, 1), changed.slice(1)
    table.delete(deleted.select(names))
    table.upsert(updated.set_column(len(names), schema.field("value"), pa.array([2] * len(updated))))
    union = spark_bridge.table(spark, client.config.address, name, lake=str(tmp_path))
    assert len(union.inputFiles()) > 0
    found = union.groupBy("value").count().orderBy("value").collect()
    assert found == [(1, len(keys) - len(changed)), (2, len(updated))]
    expected = table.scan().to_arrow().to_pylist()
    assert sorted(map(tuple, union.collect()), key=str) == sorted((tuple(row.values()) for row in expected), key=str)


@pytest.mark.breadth
def test_many_rows_that_have_changed_are_not_a_part_of_the_plan(
    spark: SparkSession, client: sync.Client, table: sync.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, url = str(tmp_path / "published"), client.config.address
    publish_to(client, table.name, uri)
    before = {name: spark.conf.get(name) for name in memory_rows._OUTSIDE_THE_PLAN}
    table.upsert(rows_of(range(500, 510), score=2))
    assert "Scan ExistingRDD" not in plan_of(spark_bridge.table(spark, url, table.name, lake=uri), capsys)
    table.upsert(rows_of(range(500, 20_500), score=2))
    union = spark_bridge.table(spark, url, table.name, lake=uri)
    plan = plan_of(union, capsys)
    assert "Scan ExistingRDD" in plan
    assert "BroadcastHashJoin" in plan
    assert union.groupBy("score").count().orderBy("score").collect() == [(1, 500), (2, 20_000)]
    assert {name: spark.conf.get(name) for name in memory_rows._OUTSIDE_THE_PLAN} == before


def test_a_changed_bit_in_a_file_is_an_error_and_no_wrong_answer(
    spark: SparkSession, client: sync.Client, name: str, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64())])
    table = client.create_table(name, schema, primary_key=["id"])
    table.upsert(pa.table({"id": range(1000), "value": [each / 7 for each in range(1000)]}, schema))
    publish_to(client, name, str(tmp_path))
    for path in tmp_path.glob("*.parquet"):
        value = parquet.read_metadata(path).row_group(0).column(1)
        content = bytearray(path.read_bytes())
        # Within the dictionary, which has the values.
        content[value.data_page_offset - 10] ^= 4
        path.write_bytes(content)
    rows = spark_bridge.table(spark, client.config.address, name, lake=str(tmp_path))
    with pytest.raises(Exception, match="CRC checksum verification failed"):
        rows.collect()


@pytest.mark.breadth
def test_columns_are_found_by_their_ids(
    spark: SparkSession, client: sync.Client, name: str, load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.int32()), ("gone", pa.string())])
    table = client.create_table(name, schema, primary_key=["id"])
    table.upsert(pa.table({"id": range(10), "value": range(10), "gone": ["x"] * 10}, schema))
    uri = str(tmp_path / "published")
    publish_to(client, name, uri)
    client.alter_table(
        name,
        drop_columns=["gone"],
        rename_columns={"value": "points"},
        column_types={"value": pa.int64()},
        add_columns=pa.schema([("gone", pa.int64()), ("league", pa.string())]),
        column_defaults={"league": "new"},
    )
    client.table(name).upsert([{"id": 2, "points": 2**40, "gone": 5, "league": "b"}])
    union = spark_bridge.table(spark, client.config.address, name, lake=uri)
    assert sorted(union.collect(), key=lambda row: row["id"]) == load(name).orderBy("id").collect()


@pytest.mark.breadth
def test_the_server_is_read_where_the_lake_cannot_be_used(
    spark: SparkSession,
    client: sync.Client,
    table: sync.Table,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, url = str(tmp_path / "published"), client.config.address
    with caplog.at_level(logging.WARNING):
        rows = spark_bridge.table(spark, url, table.name, lake=uri, columns=["id"])
    assert f"nothing was published in {uri}" in caplog.text
    assert "FileScan parquet" not in plan_of(rows, capsys)
    assert rows.count() == 1000
    publish_to(client, table.name, uri)
    version = open_lake_table(uri).load()
    assert version is not None
    # One that the planner does not open itself.
    last = max(version.files, key=lambda file: (file.bucket, file.first_key))
    (tmp_path / "published" / last.path).unlink()
    with caplog.at_level(logging.WARNING):
        assert spark_bridge.table(spark, url, table.name, lake=uri).count() == 1000
    assert "Spark cannot read" in caplog.text
    assert "PATH_NOT_FOUND" in caplog.text
    for path in (tmp_path / "published").glob("*.parquet"):
        path.write_bytes(b"PAR1")
    with caplog.at_level(logging.WARNING):
        assert spark_bridge.table(spark, url, table.name, lake=uri).count() == 1000
    assert "cannot be used" in caplog.text
    with pytest.raises(SnapshotLost):
        spark_bridge.table(spark, url, table.name, lake=uri, snapshot="gone")


@pytest.mark.breadth
def test_a_union_of_a_snapshot_needs_no_server_once_it_is_planned(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    with ServerProcess(tmp_path / "data") as server:
        from aio_client import sync

        with sync.connect(server.url) as client:
            table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
            table.upsert(rows_of(range(1000)))
            publish_to(client, name, uri)
            table.upsert(rows_of(range(900, 1100), score=5))
            with table.snapshot() as pinned:
                table.delete(list(range(500)))
                union = spark_bridge.table(spark, server.url, name, lake=uri, snapshot=pinned)
        server.kill()
        assert union.groupBy("score").count().orderBy("score").collect() == [(1, 900), (5, 200)]
        assert union.join(union.select("id"), "id").count() == 1100


def test_a_file_that_is_gone_is_an_error(
    spark: SparkSession, client: sync.Client, table: sync.Table, tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    publish_to(client, table.name, uri)
    union = spark_bridge.table(spark, client.config.address, table.name, lake=uri)
    next((tmp_path / "published").glob("*.parquet")).unlink()
    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST"):
        union.count()
