"""A table is published to an object store, where a commit is a conditional request."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyarrow import fs, parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from aio_client import LakeConflict, LakeUnavailable, LakeVersionNotFound, StartFrom, StopAt
from scankv.lake.formats import open_lake_table
from scankv.lake.location import LakeLocation
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import live_rows, read_with_polars, sorted_rows
from tests.support.monitoring import free_port
from tests.support.s3_server import CREDENTIALS, s3_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("lake") as uri:
        yield uri


@pytest.mark.soak
async def test_versions_are_committed_to_an_object_store(client: Client, name: str, bucket: str) -> None:
    uri = bucket % name
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(pa.table({"id": list(range(500)), "value": [1] * 500}, SCHEMA))
    lake = open_lake_table(uri, keep_seconds=0)
    for value in range(2, 24):  # enough for a checkpoint
        await publish(client, name, lake, PublishOptions(file_rows=50))
        await table.upsert([{"id": value, "value": value}])
    report = await publish(client, name, lake, PublishOptions(file_rows=50))
    assert (report.version, report.mode) == (22, "changes")
    base = lake.load()
    assert base is not None
    assert base.stored.checkpoint >= 19
    past = table.scan().as_of(21).read_path("lake", uri)
    assert {row["id"]: row["value"] for row in await past.to_pylist()}.items() >= {(22, 22), (23, 1)}
    changes = await table.changes(StartFrom.lake(uri), StopAt.LATEST).to_arrow()
    assert changes["_log_offset"].null_count == 500
    assert lake.expire(orphan_seconds=0) > 20
    with pytest.raises(LakeVersionNotFound, match="has expired"):
        await past.to_arrow()
    address = uri.partition("endpoint_override=")[2].partition("&")[0]
    options = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{address}", "AWS_ALLOW_HTTP": "true"}
    published = deltalake.DeltaTable(uri.partition("?")[0], storage_options=options)
    found = pa.table(deltalake.QueryBuilder().register("t", published).execute("select * from t"))
    assert sorted_rows(found, ["id"]) == await live_rows(table)


@pytest.mark.parametrize("format_", ["parquet", "iceberg"])
@pytest.mark.breadth
async def test_other_formats_are_committed_to_an_object_store(
    client: Client, name: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    uri = bucket % name
    catalog_uri = f"sqlite:///{tmp_path}/prod.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", catalog_uri)
    # pyiceberg reads its configuration when it is imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(pa.table({"id": list(range(500)), "value": [1] * 500}, SCHEMA))
    catalog = "prod:game.scores" if format_ == "iceberg" else None
    lake = open_lake_table(uri, format_, keep_seconds=0, catalog=catalog)
    for value in range(2, 5):
        await publish(client, name, lake, PublishOptions(file_rows=50))
        await table.upsert([{"id": value, "value": value}])
    late, base = open_lake_table(uri, format_, catalog=catalog), lake.load()
    assert (await publish(client, name, lake, PublishOptions(file_rows=50))).mode == "changes"
    async with table.scan().read_path("lake", uri).stream() as stream:
        elsewhere = None if format_ == "parquet" else "an Iceberg table whose catalog is elsewhere"
        assert (elsewhere or "") in (stream.lake_fallback or "")
        assert (stream.lake_fallback is None) is (elsewhere is None)
        assert sum([rows.num_rows async for rows in stream]) == await table.count()
    late.load = lambda: base  # type: ignore[method-assign]  # it has read the version before
    with pytest.raises(LakeConflict):
        await publish(client, name, late, PublishOptions(file_rows=50))
    assert lake.expire(orphan_seconds=0) > 3
    if format_ == "iceberg":
        options = lake.location.object_store_options()
        with closing(SqlCatalog("prod", uri=catalog_uri, **{"s3.endpoint": options["endpoint"]})) as prod:
            found = prod.load_table("game.scores").scan().to_arrow()
    else:
        files, root = fs.FileSystem.from_uri(uri)
        last = max(info.path for info in files.get_file_info(fs.FileSelector(f"{root}/_scankv")))
        manifest = json.loads(files.open_input_stream(last).read())
        paths = [f"{root}/{file['path']}" for file in manifest["files"]]
        found = parquet.ParquetDataset(paths, filesystem=files).read()
    assert sorted_rows(found, ["id"]) == await live_rows(table)


@pytest.mark.breadth
async def test_the_endpoint_may_come_from_the_environment(
    client: Client, name: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, _, options = (bucket % name).partition("?")
    address = options.partition("endpoint_override=")[2].partition("&")[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    await table.upsert([{"id": 1, "value": 1}])
    await publish(client, name, open_lake_table(uri))
    await table.upsert([{"id": 2, "value": 2}])
    await publish(client, name, open_lake_table(uri))
    assert sorted_rows(read_with_polars(uri), ["id"]) == await live_rows(table)


async def test_an_object_is_created_once(bucket: str) -> None:
    location = LakeLocation(bucket % "once")
    location.create_if_absent("a/commit", b"first")
    location.create_if_absent("a/commit", b"first")  # as a request that is repeated on the way
    with pytest.raises(LakeConflict):
        location.create_if_absent("a/commit", b"second")
    assert location.read("a/commit") == b"first"


@pytest.mark.breadth
async def test_a_store_that_does_not_answer_is_reported(client: Client, name: str, bucket: str) -> None:
    await client.create_table(name, SCHEMA, primary_key=["id"])
    lake = open_lake_table(f"s3://lake/t?endpoint_override=127.0.0.1:{free_port()}&scheme=http")
    with pytest.raises(LakeUnavailable, match="can be reached"):
        await publish(client, name, lake)
