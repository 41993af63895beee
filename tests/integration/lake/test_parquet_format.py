"""Tables are published as Parquet files, which programs find by the manifest of a version."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pytest

from aio_client import LakeDamaged, LogOffsets, UsageError
from scankv.lake.formats import open_lake_table
from scankv.lake.parquet.parquet_types import parquet_schema
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import ParquetReader, live_rows, sorted_rows

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from scankv.lake.lake_table import LakeTable
    from scankv.lake.publisher import PublishReport

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
SMALL = PublishOptions(file_rows=50)


def open_parquet(uri: str, keep_seconds: float = 3600) -> LakeTable:
    return open_lake_table(uri, "parquet", keep_seconds)


async def create(client: Client, name: str, rows: int = 500) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(pa.table({"id": list(range(rows)), "value": [1] * rows}, SCHEMA))
    return table


async def publish_and_compare(client: Client, name: str, uri: str) -> PublishReport:
    report = await publish(client, name, open_parquet(uri), SMALL)
    table = await client.table(name)
    assert sorted_rows(ParquetReader(uri).read(), table.primary_key) == await live_rows(table)
    return report


async def test_duckdb_and_polars_read_the_files_of_the_manifest(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await client.alter_table(name, add_columns=pa.schema([("note", pa.string())]))
    table = await client.table(name)
    await table.upsert([{"id": 3, "value": 3, "note": "new"}])
    await table.delete([499])
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "changes"
    assert report.files_kept > 0
    files = ParquetReader(uri).files()
    relation = duckdb.connect().read_parquet(files, union_by_name=True)
    assert sorted_rows(relation.to_arrow_table(), ["id"]) == await live_rows(table)
    assert relation.filter("id >= 490").aggregate("count(*), sum(value)").fetchall() == [(9, 9)]
    names = {"id": polars.Int64, "value": polars.Int64, "note": polars.String}
    found = polars.scan_parquet(files, schema=names, missing_columns="insert").collect()
    assert sorted_rows(found.to_arrow(), ["id"]) == await live_rows(table)


async def test_each_type_is_published(client: Client, name: str, uri: str) -> None:
    values: dict[str, tuple[pa.DataType, Any]] = {
        "u64": (pa.uint64(), 2**64 - 1),
        "f16": (pa.float16(), 0.5),
        "f64": (pa.float64(), math.inf),
        "price": (pa.decimal128(38, 10), Decimal("1234567890123456789012345678.0123456789")),
        "text": (pa.string(), "\U0001f600"),
        "blob": (pa.binary(), b"\0\xff"),
        "day": (pa.date32(), dt.date(1, 1, 1)),
        "s": (pa.timestamp("s"), dt.datetime(1969, 12, 31, 23, 59, 59)),
        "us": (pa.timestamp("us", "Europe/Berlin"), dt.datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)),
        "at": (pa.time32("s"), dt.time(23, 59, 59)),
        "micros": (pa.time64("us"), dt.time(23, 59, 59, 999999)),
        "tags": (pa.list_(pa.string()), ["a", None, ""]),
        "point": (pa.struct([("x", pa.uint8()), ("y", pa.list_(pa.timestamp("s")))]), {"x": 255, "y": None}),
        "by_day": (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)]),
    }
    schema = pa.schema([("id", pa.int64()), *((column, type_) for column, (type_, _) in values.items())])
    table = await client.create_table(name, schema, primary_key=["id"])
    rows: list[dict[str, Any]] = [{"id": 0}, {"id": 1} | {column: value for column, (_, value) in values.items()}]
    await table.upsert(pa.Table.from_pylist(rows, schema))
    await publish(client, name, open_parquet(uri), SMALL)
    found = ParquetReader(uri).read()
    live = await table.scan().to_arrow()
    assert sorted_rows(found, ["id"]) == sorted_rows(live.cast(parquet_schema(live.schema)), ["id"])
    assert found.schema.field("u64").type == pa.uint64()


async def test_a_decimal_that_parquet_lacks_is_refused_before_anything_is_written(
    client: Client, name: str, uri: str, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("price", pa.decimal128(4, -2))])
    await client.create_table(name, schema, primary_key=["id"])
    with pytest.raises(UsageError, match='column "price"'):
        await publish(client, name, open_parquet(uri))
    assert not (tmp_path / "published").exists()


async def test_the_manifest_names_the_instant_and_the_columns(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    report = await publish_and_compare(client, name, uri)
    manifest = ParquetReader(uri).manifest()
    assert manifest["columns"] == [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "value", "type": "int64", "nullable": True},
    ]
    assert manifest["properties"]["scankv.view_time"] == report.taken_at
    assert LogOffsets.from_json(manifest["properties"]["scankv.log_offsets"]) == report.log_offsets
    assert sum(file["rows"] for file in manifest["files"]) == 500


async def test_rows_of_a_table_without_a_key_are_added(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=[], buckets=2)
    for start in (0, 100):
        await table.append(pa.table({"id": list(range(start, start + 100)), "value": [1] * 100}, SCHEMA))
        report = await publish(client, name, open_parquet(uri), SMALL)
        assert report.rows == 100
        assert sorted(ParquetReader(uri).read()["id"].to_pylist()) == list(range(start + 100))


async def test_old_versions_expire(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    foreign = tmp_path / "published/notes.parquet"
    for value in range(2, 5):
        await publish_and_compare(client, name, uri)
        await table.upsert(pa.table({"id": list(range(500)), "value": [value] * 500}, SCHEMA))
    foreign.write_bytes(b"")
    reader = ParquetReader(uri)
    assert open_parquet(uri, keep_seconds=3600).expire(orphan_seconds=0) == 0
    assert open_parquet(uri, keep_seconds=0).expire(orphan_seconds=3600) == 0
    assert len(reader.read(0)) == 500
    assert open_parquet(uri, keep_seconds=0).expire(orphan_seconds=0) == 2 + 2 * len(reader.files(2))
    assert reader.versions() == [2]
    assert foreign.exists()
    report = await publish_and_compare(client, name, uri)
    assert (report.version, report.mode) == (3, "changes")


async def test_a_damaged_manifest_is_reported(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    await create(client, name)
    await publish_and_compare(client, name, uri)
    path = tmp_path / f"published/_scankv/{0:020}.json"
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"{}", re.sub(rb"scankv\.bucket", b"bucket", content)):
        path.write_bytes(damaged)
        with pytest.raises(LakeDamaged, match=r"json of the table in .* cannot be read"):
            await publish(client, name, open_parquet(uri))
    path.write_bytes(content)
    assert (await publish_and_compare(client, name, uri)).mode == "unchanged"


@pytest.mark.parametrize(("first", "second"), [("delta", "parquet"), ("parquet", "delta")])
async def test_a_location_has_one_format(client: Client, name: str, uri: str, first: str, second: str) -> None:
    await create(client, name)
    await publish(client, name, open_lake_table(uri, first))
    with pytest.raises(LakeDamaged, match=f'in the format "{first}", not "{second}"'):
        await publish(client, name, open_lake_table(uri, second))
