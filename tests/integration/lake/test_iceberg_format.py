"""Tables are published as Iceberg tables, one snapshot for each version."""

from __future__ import annotations

import datetime as dt
import math
from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from aio_client import LakeDamaged, LogOffsets, UsageError
from scankv.lake.formats import open_lake_table
from scankv.lake.iceberg.iceberg_types import iceberg_schema
from scankv.lake.lake_table import FIELD_ID
from scankv.lake.publisher import PublishOptions, publish
from tests.integration.lake.test_published_tables import VALUES as DELTA_VALUES
from tests.support.lake_readers import IcebergReader, live_rows, sorted_rows

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from scankv.lake.lake_table import LakeTable
    from scankv.lake.publisher import PublishReport

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
SMALL = PublishOptions(file_rows=50)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    **DELTA_VALUES,
    # NaN would not equal itself.
    "f32": (pa.float32(), [0.5, math.inf]),
    "f64": (pa.float64(), [-0.0, -math.inf, 1e300]),
    "at": (pa.time32("s"), [dt.time(23, 59, 59)]),
    "micros": (pa.time64("us"), [dt.time(0, 0, 0, 1)]),
}


def open_iceberg(uri: str, keep_seconds: float = 3600) -> LakeTable:
    return open_lake_table(uri, "iceberg", keep_seconds)


def ids(numbers: range, value: int = 1) -> pa.Table:
    return pa.table({"id": list(numbers), "value": [value] * len(numbers)}, SCHEMA)


async def create(client: Client, name: str, rows: int = 500) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(ids(range(rows)))
    return table


def with_ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_metadata({FIELD_ID: str(number)}) for number, field in enumerate(schema)])


async def publish_and_compare(client: Client, name: str, uri: str, options: PublishOptions = SMALL) -> PublishReport:
    report = await publish(client, name, open_iceberg(uri), options)
    table = await client.table(name)
    live = await table.scan().to_arrow()
    expected = sorted_rows(live.cast(iceberg_schema(with_ids(live.schema))), table.primary_key)
    found = IcebergReader(uri).read()
    assert sorted_rows(found, table.primary_key) == expected
    assert found.schema.names == live.schema.names
    return report


async def test_polars_and_duckdb_read_the_table(
    client: Client, name: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert([{"id": 3, "value": 3}])
    await table.delete([499])
    report = await publish_and_compare(client, name, uri)
    assert (report.version, report.mode) == (2, "changes")
    assert report.files_kept > 0
    with IcebergReader(uri).open() as published:
        found = polars.scan_iceberg(published).collect()
        assert sorted_rows(found.to_arrow(), ["id"]) == await live_rows(table)
        rows = published.scan(row_filter="id >= 490").to_arrow_batch_reader()
        assert duckdb.from_arrow(rows).aggregate("count(*), sum(value)").fetchall() == [(9, 9)]


async def test_each_version_is_one_snapshot(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    before = await live_rows(table)
    first = await publish_and_compare(client, name, uri)
    await table.upsert(ids(range(100), value=2))
    second = await publish_and_compare(client, name, uri)
    reader = IcebergReader(uri)
    assert reader.versions() == [1, 2]
    assert sorted_rows(reader.read(1), ["id"]) == before
    assert sorted_rows(reader.read(2), ["id"]) == await live_rows(table)
    for report in (first, second):
        properties = reader.properties(report.version)
        assert LogOffsets.from_json(properties["scankv.log_offsets"]) == report.log_offsets
        assert properties["scankv.view_time"] == report.taken_at
    assert reader.properties(2)["total-records"] == "500"


async def test_each_type_is_published(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), *((column, type_) for column, (type_, _) in VALUES.items())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    # pyiceberg 0.12 reads a list of structs that is null as an empty one.
    rows: list[dict[str, Any]] = [{"id": 0, "deep": []}]
    rows += [{"id": n} | {column: v[n % len(v)] for column, (_, v) in VALUES.items()} for n in range(1, 5)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri)
    await table.delete([0])
    assert (await publish_and_compare(client, name, uri)).mode == "changes"


@pytest.mark.breadth
async def test_readers_skip_no_file_with_a_row_that_they_want(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("f", pa.float64()), ("text", pa.string())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    rows = [{"id": n, "n": n % 4, "f": [math.nan, 1.0, None][n % 3], "text": "ä" * (n * 3)} for n in range(24)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish(client, name, open_iceberg(uri), PublishOptions(file_rows=1))
    with IcebergReader(uri).open() as published:
        assert len(list(published.scan(row_filter="n = 3").plan_files())) == 6
        for condition, count in [
            ("n >= 2", 12),
            ("f >= 1", 8),
            ("f is null", 8),
            ("f is nan", 8),
            (f"text > '{'ä' * 20}'", 17),
            ("text = ''", 1),
        ]:
            assert len(published.scan(row_filter=condition).to_arrow()) == count, condition


@pytest.mark.parametrize("type_", [pa.timestamp("ns"), pa.time64("ns"), pa.decimal128(4, -2)])
async def test_a_column_that_iceberg_lacks_is_refused_before_anything_is_written(
    client: Client, name: str, uri: str, tmp_path: Path, type_: pa.DataType
) -> None:
    await client.create_table(name, pa.schema([("id", pa.int64()), ("odd", type_)]), primary_key=["id"])
    with pytest.raises(UsageError, match='column "odd" cannot be published'):
        await publish(client, name, open_iceberg(uri))
    assert not (tmp_path / "published").exists()


@pytest.mark.breadth
async def test_columns_are_found_by_their_ids(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", pa.int32()), ("text", pa.string())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=2)
    rows = [{"id": n, "value": n, "text": "a"} for n in range(300)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri)
    for change in (
        {"rename_columns": {"value": "points"}},
        {"column_types": {"points": pa.int64()}},
        {"drop_columns": ["text"]},
        {"add_columns": pa.schema([("text", pa.int32())])},
        {"rename_columns": {"text": "value"}},
    ):
        table = await client.alter_table(name, **change)
        report = await publish_and_compare(client, name, uri)
        assert (report.mode, report.files_added) == ("changes", 0), change
        await table.upsert(
            [{"id": 5, "points": 2**40}]
            if "points" in table.schema.names and table.schema.field("points").type == pa.int64()
            else [{"id": 5}]
        )
        assert (await publish_and_compare(client, name, uri)).files_kept > 3
    await client.alter_table(name, add_columns=pa.schema([("league", pa.string())]), column_defaults={"league": "a"})
    report = await publish_and_compare(client, name, uri)
    assert report.reason == 'column "league" was added with a default'
    assert sorted_rows(IcebergReader(uri).read(1), ["id"]) == rows


@pytest.mark.breadth
async def test_partitions_carry_over(client: Client, name: str, uri: str) -> None:
    schema = pa.schema([("day", pa.date32()), ("region", pa.string()), ("id", pa.int64()), ("value", pa.int64())])
    table = await client.create_table(
        name, schema, primary_key=["day", "region", "id"], partition_by=["day", "region"], buckets=2
    )
    days = [dt.date(2026, 11, 1 + number) for number in range(3)]
    rows = [{"day": d, "region": r, "id": n, "value": 1} for d in days for r in ("", "é/=") for n in range(60)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri)
    with IcebergReader(uri).open() as published:
        assert [field.name for field in published.spec().fields] == ["day", "region"]
        files = list(published.scan(row_filter="day = '2026-11-02'").plan_files())
        assert {(file.file.partition[0], file.file.partition[1]) for file in files} == {(20759, ""), (20759, "é/=")}
    await table.drop_partition({"day": days[0]})
    assert (await publish_and_compare(client, name, uri)).mode == "changes"
    report = await publish_and_compare(client, name, uri, PublishOptions(file_rows=50, partitioned=False))
    assert report.reason == "the partition columns are others"
    await publish_and_compare(client, name, uri)
    with IcebergReader(uri).open() as published:
        assert len(published.specs()) == 2


@pytest.mark.parametrize("column", ["flag", "i64", "u64", "price", "day", "s", "us", "text", "at"])
@pytest.mark.breadth
async def test_partition_columns_of_every_type_carry_over(client: Client, name: str, uri: str, column: str) -> None:
    type_, values = VALUES[column]
    schema = pa.schema([(column, type_), ("id", pa.int64())])
    table = await client.create_table(name, schema, primary_key=[column, "id"], partition_by=[column], buckets=2)
    rows = [{column: value, "id": number} for value in values for number in range(9)]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish_and_compare(client, name, uri)


async def test_rows_of_a_table_without_a_key_are_added(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=[], buckets=2)
    for start in (0, 100):
        await table.append(ids(range(start, start + 100)))
        report = await publish(client, name, open_iceberg(uri), SMALL)
        assert report.rows == 100
        assert sorted(IcebergReader(uri).read()["id"].to_pylist()) == list(range(start + 100))


@pytest.mark.soak
async def test_manifests_do_not_add_up(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    for value in range(2, 27):
        await publish_and_compare(client, name, uri)
        await table.upsert([{"id": value, "value": value}])
    with IcebergReader(uri).open() as published:
        snapshot = published.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(published.io)) <= 21
        assert len(list(published.scan().plan_files())) < 15


@pytest.mark.parametrize("change", ["delete", "append", "rollback", "list"])
@pytest.mark.breadth
async def test_what_another_program_has_changed_is_replaced(
    client: Client, name: str, uri: str, tmp_path: Path, change: str
) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert([{"id": 1, "value": 7}])
    await publish_and_compare(client, name, uri)
    with IcebergReader(uri).open() as published:
        if change == "delete":
            published.delete("id < 10")
        elif change == "append":
            published.append(ids(range(1000, 1005)).cast(published.schema().as_arrow()))
        elif change == "rollback":
            published.manage_snapshots().rollback_to_snapshot(published.snapshots()[0].snapshot_id).commit()
        else:
            for path in (tmp_path / "published/metadata").glob("scankv-*.json"):
                path.unlink()
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.reason) == ("full", "another program has changed the files of the published table")
    assert (await publish_and_compare(client, name, uri)).mode == "unchanged"


@pytest.mark.breadth
async def test_old_snapshots_expire(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    for value in range(2, 5):
        await publish_and_compare(client, name, uri)
        await table.upsert(ids(range(500), value=value))
    reader = IcebergReader(uri)
    foreign = tmp_path / "published/notes.parquet"
    foreign.write_bytes(b"")
    assert len(list((tmp_path / "published/metadata").glob("scankv-*.json"))) == 3
    assert open_iceberg(uri, keep_seconds=3600).expire(orphan_seconds=0) == 0
    assert len(reader.read(1)) == 500
    assert open_iceberg(uri, keep_seconds=0).expire(orphan_seconds=0) > 20
    assert reader.versions() == [3]
    assert len(list((tmp_path / "published/metadata").glob("scankv-*.json"))) == 1
    assert foreign.exists()
    with reader.open() as published:
        files = {task.file.file_path for task in published.scan().plan_files()}
    assert {str(path) for path in (tmp_path / "published").glob("scankv-*.parquet")} == files
    report = await publish_and_compare(client, name, uri)
    assert (report.version, report.mode) == (4, "changes")


async def test_tables_of_others_are_left_alone(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    await create(client, name)
    await create(client, f"{name}_other")
    await publish_and_compare(client, name, uri)
    with pytest.raises(LakeDamaged, match="was published from the rows of table"):
        await publish(client, f"{name}_other", open_iceberg(uri))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    with closing(SqlCatalog("scankv", uri=f"sqlite:///{foreign}/catalog.db")) as catalog:
        catalog.create_namespace("scankv")
        catalog.create_table("scankv.published", SCHEMA, location=str(foreign))
    with pytest.raises(LakeDamaged, match="ScanKV has not published"):
        await publish(client, name, open_iceberg(str(foreign)))


async def test_missing_metadata_is_reported(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    await create(client, name)
    await publish_and_compare(client, name, uri)
    (metadata,) = (tmp_path / "published/metadata").glob("*.metadata.json")
    content = metadata.read_bytes()
    for damage in (metadata.unlink, lambda: metadata.write_bytes(content[:-100])):
        damage()
        with pytest.raises(LakeDamaged, match=r"the Iceberg table in .* cannot be read"):
            await publish(client, name, open_iceberg(uri))
    metadata.write_bytes(content)
    assert (await publish_and_compare(client, name, uri)).mode == "unchanged"


@pytest.mark.breadth
async def test_a_catalog_of_the_user_names_the_table(
    client: Client, name: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await create(client, name)
    catalog_uri = f"sqlite:///{tmp_path}/prod.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", catalog_uri)
    # pyiceberg reads its configuration when it is imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    for value in (2, 3):
        lake = open_lake_table(uri, "iceberg", catalog="prod:game.scores")
        assert (await publish(client, name, lake, SMALL)).version == value - 1
        await table.upsert([{"id": 1, "value": value}])
    with closing(SqlCatalog("prod", uri=catalog_uri)) as catalog:
        assert len(catalog.load_table("game.scores").scan().to_arrow()) == 500
    with pytest.raises(UsageError, match="cannot have a table"):
        await publish(client, name, open_lake_table(f"{uri}3", "iceberg", catalog="prod:game.live.scores"))
    with pytest.raises(LakeDamaged, match="give that location"):
        await publish(client, name, open_lake_table(f"{uri}2", "iceberg", catalog="prod:game.scores"))


@pytest.mark.parametrize(
    ("uri", "catalog", "message"),
    [
        ("s3://bucket/scores?region=us-east-1", None, "needs a catalog"),
        ("scores", "prod", "such as prod:game.scores"),
        ("scores", "prod:scores", "such as prod:game.scores"),
    ],
)
async def test_a_wrong_catalog_is_refused(uri: str, catalog: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_lake_table(uri, "iceberg", catalog=catalog)
    with pytest.raises(UsageError, match='needs the format "iceberg"'):
        open_lake_table("scores", "delta", catalog="prod:game.scores")


async def test_an_unknown_catalog_is_refused(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    with pytest.raises(UsageError, match="PYICEBERG_CATALOG__MISSING__URI"):
        await publish(client, name, open_lake_table(uri, "iceberg", catalog="missing:game.scores"))
