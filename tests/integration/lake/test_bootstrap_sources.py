"""Tables are bootstrapped from Delta tables, Iceberg tables and Parquet files of any program, without deleted rows."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from glob import glob
from os import unlink
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from aio_client import LakeDamaged, LakeUnavailable, SchemaMismatch, UsageError
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import live_rows
from tests.support.s3_server import s3_bucket

if TYPE_CHECKING:
    from aio_client import BootstrapProgress, Client, Table

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.int32())])


def rows(count: int, text: str = "a") -> pa.Table:
    return pa.table([range(count), [f"{text}{n}" for n in range(count)], [n % 3 for n in range(count)]], schema=SCHEMA)


async def published(client: Client, name: str, uri: str, format_: str, *, masks: bool = False) -> Table:
    """Publishes a table several times, so that files of earlier versions and masked rows are there."""
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    lake, options = open_lake_table(uri, format_), PublishOptions(file_rows=500, masks=masks)
    await table.upsert(rows(2000))
    await publish(client, name, lake, options)
    await table.upsert(rows(50, "changed"))
    await table.delete(where="id > 1900")
    await publish(client, name, lake, options)
    return table


@pytest.mark.parametrize(
    ("format_", "masks"), [("delta", False), ("delta", True), ("iceberg", False), ("parquet", False)]
)
@pytest.mark.represented_by("delta-False")
async def test_a_published_table_comes_back_as_its_newest_version(
    client: Client, name: str, uri: str, format_: str, masks: bool
) -> None:
    table = await published(client, name, uri, format_, masks=masks)
    reports: list[BootstrapProgress] = []
    copy = await client.bootstrap(f"{name}_copy", uri, schema=SCHEMA, primary_key=["id"], on_progress=reports.append)
    assert await live_rows(copy) == await live_rows(table)
    assert reports[0].total_rows == (None if masks else 1901)


async def test_a_partitioned_delta_table_of_another_program(client: Client, name: str, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", rows(1000), partition_by=["day"])
    source = deltalake.DeltaTable(tmp_path / "t")
    source.delete("id >= 500")
    source.optimize.compact()
    copy = await client.bootstrap(name, tmp_path / "t", primary_key=["day", "id"], partition_by=["day"])
    assert (await copy.scan().to_arrow()).sort_by("id").select(SCHEMA.names).equals(rows(500).cast(copy_schema(copy)))
    assert len(await copy.partitions()) == 3


def copy_schema(table: Table) -> pa.Schema:
    return pa.schema([table.schema.field(name) for name in SCHEMA.names])


async def test_an_iceberg_table_of_another_catalog_is_named_by_its_metadata(
    client: Client, name: str, tmp_path: Path
) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/other.db", "warehouse": str(tmp_path)}
    with closing(SqlCatalog("other", **properties)) as catalog:
        catalog.create_namespace("db")
        source = catalog.create_table("db.t", SCHEMA)
        source.append(rows(300))
        source.delete("id >= 200")
        metadata, location = source.metadata_location, source.location()
    copy = await client.bootstrap(name, metadata, primary_key=["id"])
    assert [row["id"] for row in await live_rows(copy)] == list(range(200))
    with pytest.raises(UsageError, match=r"does not say which version of the Iceberg table is the newest"):
        await client.bootstrap(f"{name}_2", location, primary_key=["id"])
    hint = Path(location.removeprefix("file://")) / "metadata" / "version-hint.text"
    hint.write_text(Path(metadata).name)
    copy = await client.bootstrap(f"{name}_2", location, primary_key=["id"])
    assert await copy.count() == 200


@pytest.mark.parametrize("format_", ["parquet", "delta"])
@pytest.mark.breadth
async def test_sources_on_an_object_store(client: Client, name: str, format_: str) -> None:
    with s3_bucket("sources") as bucket:
        uri = bucket % name
        table = await published(client, name, uri, format_)
        copy = await client.bootstrap(f"{name}_copy", uri, schema=SCHEMA, primary_key=["id"])
        assert await live_rows(copy) == await live_rows(table)


async def test_one_file_is_a_source(client: Client, name: str, tmp_path: Path) -> None:
    parquet.write_table(rows(100), tmp_path / "rows.pq")
    copy = await client.bootstrap(name, tmp_path / "rows.pq", primary_key=["id"])
    assert await copy.count() == 100


async def test_files_with_different_columns_lose_no_column_and_no_value(
    client: Client, name: str, tmp_path: Path
) -> None:
    parquet.write_table(pa.table({"id": pa.array([1], pa.int32()), "old": ["a"]}), tmp_path / "1.parquet")
    parquet.write_table(pa.table({"new": [1.5], "id": [2**40]}), tmp_path / "2.parquet")
    copy = await client.bootstrap(name, tmp_path, primary_key=["id"])
    assert await live_rows(copy) == [{"id": 1, "old": "a", "new": None}, {"id": 2**40, "old": None, "new": 1.5}]
    parquet.write_table(pa.table({"id": ["text"]}), tmp_path / "3.parquet")
    with pytest.raises(UsageError, match=r"cannot be read as Parquet files of one table: .* id has incompatible types"):
        await client.bootstrap(f"{name}_2", tmp_path, primary_key=["id"])


async def test_what_cannot_be_read_is_an_error_that_names_it(client: Client, name: str, tmp_path: Path) -> None:
    async def bootstrap(source: Path, format_: str | None = None) -> None:
        await client.bootstrap(name, source, primary_key=["id"], source_format=format_)  # type: ignore[arg-type]

    with pytest.raises(LakeUnavailable, match="missing does not exist"):
        await bootstrap(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no Parquet files"):
        await bootstrap(tmp_path / "empty")
    with pytest.raises(LakeUnavailable, match="Delta table"):
        await bootstrap(tmp_path / "empty", "delta")
    with pytest.raises(UsageError, match='must be "delta", "iceberg" or "parquet", not \'orc\''):
        await bootstrap(tmp_path / "empty", "orc")
    (tmp_path / "rows.parquet").write_bytes(b"no rows")
    with pytest.raises(UsageError, match="cannot be read as Parquet files"):
        await bootstrap(tmp_path / "rows.parquet")
    deltalake.write_deltalake(tmp_path / "t", rows(10))
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    with pytest.raises((LakeUnavailable, LakeDamaged), match="cannot be read to its end"):
        await bootstrap(tmp_path / "t")
    assert name not in {table.name for table in await client.tables()}


FAR = [dt.datetime(1, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 123456), dt.datetime(9999, 12, 31), None]
TIMES = pa.table(
    {
        "id": range(4),
        "at": pa.array(FAR, pa.timestamp("us")),
        "all": pa.array([[at] for at in FAR], pa.list_(pa.timestamp("us"))),
    }
)


def write_int96(rows: pa.Table, path: Path) -> None:
    # Other programs do not store Arrow's types, of which deltalake would make use.
    parquet.write_table(rows, path, use_deprecated_int96_timestamps=True, store_schema=False)


async def test_int96_timestamps_of_every_year_come_from_parquet_files(
    client: Client, name: str, tmp_path: Path, uri: str
) -> None:
    for day in (1, 2):
        (tmp_path / f"source/day={day}").mkdir(parents=True)
    write_int96(TIMES, tmp_path / "source/day=1/a.parquet")
    parquet.write_table(TIMES, tmp_path / "source/day=2/a.parquet")
    copy = await client.bootstrap(name, tmp_path / "source", primary_key=["day", "id"])
    expected = [{**row, "day": day} for day in (1, 2) for row in TIMES.to_pylist()]
    assert await live_rows(copy) == expected
    # Delta Lake has no nanoseconds.
    await publish(client, name, open_lake_table(uri))
    nanos = pa.schema([("day", pa.int32()), *TIMES.schema.set(1, TIMES.schema.field(1).with_type(pa.timestamp("ns")))])
    with pytest.raises(SchemaMismatch, match=r'column "at", row 0: 0001-01-01 .* does not fit a timestamp in nanosec'):
        await client.bootstrap(f"{name}_2", tmp_path / "source", schema=nanos, primary_key=["day", "id"])


async def test_int96_timestamps_with_nanoseconds_need_such_a_column(client: Client, name: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "at": pa.array([0, 1, None], pa.timestamp("ns"))})
    write_int96(rows, tmp_path / "a.parquet")
    parquet.write_table(rows.set_column(0, "id", [pa.array([4, 5, 6])]), tmp_path / "b.parquet")
    write_int96(TIMES.select(["id", "at"]), tmp_path / "c.parquet")
    with pytest.raises(SchemaMismatch, match=r'column "at", row 0: 0001-01-01 .* does not fit a timestamp in nanosec'):
        await client.bootstrap(name, tmp_path, primary_key=["id"])
    unlink(tmp_path / "c.parquet")
    with pytest.raises(SchemaMismatch, match=r'column "at", row 1: 1970-01-01 00:00:00.000000001 does not fit'):
        await client.bootstrap(name, tmp_path / "a.parquet", primary_key=["id"])
    copy = await client.bootstrap(name, tmp_path, schema=rows.schema, primary_key=["id"])
    assert (await copy.scan().to_arrow()).sort_by("id")["at"].combine_chunks().cast(pa.int64()).to_pylist() == [
        *(0, 1, None),
        *(0, 1, None),
    ]


async def test_int96_timestamps_of_every_year_come_from_delta_tables(client: Client, name: str, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", TIMES)
    (file,) = (tmp_path / "t").glob("*.parquet")
    size = file.stat().st_size
    write_int96(TIMES, file)
    (log,) = (tmp_path / "t/_delta_log").glob("*.json")
    log.write_text(log.read_text().replace(f'"size":{size}', f'"size":{file.stat().st_size}'))
    copy = await client.bootstrap(name, tmp_path / "t", primary_key=["id"])
    assert await live_rows(copy) == TIMES.to_pylist()


async def test_int96_timestamps_of_every_year_come_from_iceberg_tables(
    client: Client, name: str, tmp_path: Path
) -> None:
    zoned = TIMES.append_column("zoned", TIMES["at"].cast(pa.timestamp("us", "UTC")))
    times = zoned.append_column("inner", pa.array([{"at": at} for at in FAR], pa.struct([("at", pa.timestamp("us"))])))
    properties = {"uri": f"sqlite:///{tmp_path}/other.db", "warehouse": str(tmp_path)}
    with closing(SqlCatalog("other", **properties)) as catalog:
        catalog.create_namespace("db")
        source = catalog.create_table("db.t", times.schema)
        source.append(times)
        metadata = source.metadata_location
    (file,) = glob(f"{tmp_path}/**/*.parquet", recursive=True)
    write_int96(parquet.read_table(file), Path(file))
    copy = await client.bootstrap(name, metadata, primary_key=["id"])
    assert await live_rows(copy) == times.to_pylist()
