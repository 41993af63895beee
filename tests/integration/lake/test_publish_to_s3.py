"""A table is published to an object store, where a commit is a conditional request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from aio_client import LakeConflict, LakeUnavailable
from scankv.lake.formats import open_lake_table
from scankv.lake.location import LakeLocation
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import live_rows, sorted_rows
from tests.support.monitoring import free_port
from tests.support.s3_server import CREDENTIALS, s3_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import Client

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("lake") as uri:
        yield uri


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
    assert lake.expire(orphan_seconds=0) > 20
    address = uri.partition("endpoint_override=")[2].partition("&")[0]
    options = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{address}", "AWS_ALLOW_HTTP": "true"}
    published = deltalake.DeltaTable(uri.partition("?")[0], storage_options=options)
    found = pa.table(deltalake.QueryBuilder().register("t", published).execute("select * from t"))
    assert sorted_rows(found, ["id"]) == await live_rows(table)


async def test_an_object_is_created_once(bucket: str) -> None:
    location = LakeLocation(bucket % "once")
    location.create_if_absent("a/commit", b"first")
    location.create_if_absent("a/commit", b"first")  # as a request that is repeated on the way
    with pytest.raises(LakeConflict):
        location.create_if_absent("a/commit", b"second")
    assert location.read("a/commit") == b"first"


async def test_a_store_that_does_not_answer_is_reported(client: Client, name: str, bucket: str) -> None:
    await client.create_table(name, SCHEMA, primary_key=["id"])
    lake = open_lake_table(f"s3://lake/t?endpoint_override=127.0.0.1:{free_port()}&scheme=http")
    with pytest.raises(LakeUnavailable, match="can be reached"):
        await publish(client, name, lake)
