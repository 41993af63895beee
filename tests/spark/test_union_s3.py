"""Spark reads published files in an object store, and says what it lacks if it cannot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import spark_bridge
from scankv import UsageError
from tests.spark import java, union_over_s3
from tests.spark.test_union import publish_to
from tests.support.s3_server import s3_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
WHAT_TO_DO = re.compile(
    r"Spark cannot read s3a://lake/.*, because it lacks the file system \(.*S3AFileSystem not found\): start it with "
    r"spark\.jars\.packages=org\.apache\.hadoop:hadoop-aws:3\.\d+\.\d+"
)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("lake") as uri:
        yield uri


@pytest.fixture
def published(client: sync.Client, name: str, bucket: str) -> str:
    """A table whose published rows have value 1, of which 5 are masked, and whose rows of value 3 are fresh."""
    table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(pa.table({"id": range(200), "value": [1] * 200}, SCHEMA))
    publish_to(client, name, bucket % name)
    table.upsert(pa.table({"id": range(0, 200, 40), "value": [2] * 5}, SCHEMA))
    publish_to(client, name, bucket % name, masks=True)
    table.upsert(pa.table({"id": range(190, 210), "value": [3] * 20}, SCHEMA))
    return bucket % name


def said(server: ServerProcess, table: str, uri: str, **variables: str) -> list[str]:
    done = java.run(union_over_s3.__name__, server.url, table, uri, **variables)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


@pytest.mark.breadth
def test_the_package_that_spark_lacks_is_named(
    spark: SparkSession, client: sync.Client, name: str, published: str
) -> None:
    with pytest.raises(UsageError, match=WHAT_TO_DO):
        spark_bridge.table(spark, client.config.address, name, lake=published)


@pytest.mark.soak
def test_spark_reads_s3_with_packages_of_maven(shared_server: ServerProcess, name: str, published: str) -> None:
    files, values = said(shared_server, name, published)
    assert int(files) > 4
    assert values == "[(1, 185), (2, 5), (3, 20)]"


@pytest.mark.soak
def test_a_client_of_spark_connect_learns_what_the_server_lacks(
    shared_server: ServerProcess, name: str, published: str, spark_remote: str
) -> None:
    (line,) = said(shared_server, name, published, SPARK_REMOTE=spark_remote)
    assert WHAT_TO_DO.match(line)
