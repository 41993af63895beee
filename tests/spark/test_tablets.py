"""Spark reads tables with tablets, whose owners are several worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import spark_bridge
from aio_client import sync
from spark_bridge.types import spark_schema
from tests.spark.task import task_context
from tests.support.server_process import ServerProcess
from tests.support.workers import names_of_workers, sample_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)

ROWS, TABLETS = 20_000, 3
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def workers(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def server(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("tablets") / "data", "--workers", str(workers)) as server:
        yield server


@pytest.mark.represented_by("one worker-3")
@pytest.mark.parametrize("splits", [3, 8])
def test_a_query_reads_what_the_client_reads_at_the_owners_of_all_tablets(
    spark: SparkSession, server: ServerProcess, workers: int, splits: int
) -> None:
    """With 3 splits, tasks have complete buckets; with 8, key ranges."""
    with sync.connect(server.url) as client:
        name = names_of_workers(workers, f"splits{splits}")[0][0]
        table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=6, tablets=TABLETS)
        table.upsert(pa.table({"id": range(ROWS), "value": range(ROWS)}, schema=SCHEMA))
        table.upsert([{"id": number, "value": -number} for number in range(0, ROWS, 7)])
        reads = spark.read.format("scankv").options(url=server.url, splits=splits).load(name)
        before = [sample_of(client, "scankv_scan_rows_total", number) for number in range(workers)]
        rows = reads.collect()
        after = [sample_of(client, "scankv_scan_rows_total", number) for number in range(workers)]
        few = reads.where("id > 100 AND id < 200").select("value").collect()
        expected = table.scan().to_arrow().to_pylist()
    assert sorted((row.id, row.value) for row in rows) == sorted((row["id"], row["value"]) for row in expected)
    assert sorted(row.value for row in few) == sorted(row["value"] for row in expected if 100 < row["id"] < 200)
    if workers > 1:
        # Each owner reads the rows of its own tablets: one of them has two, the other one.
        scanned = [now - then for now, then in zip(after, before, strict=True)]
        assert sum(scanned) == ROWS
        assert min(scanned) > 0.25 * ROWS


def test_a_commit_whose_answer_is_lost_is_repeated_without_effect(server: ServerProcess, workers: int) -> None:
    with sync.connect(server.url) as client:
        name = names_of_workers(workers, "committed")[0][0]
        table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=6, tablets=TABLETS)
        source = spark_bridge.ScanKvDataSource(CaseInsensitiveDict({"url": server.url, "path": name}))
        writer = source.writer(spark_schema(SCHEMA), False)
        rows = pa.RecordBatch.from_pydict({"id": range(100), "value": range(100)}, SCHEMA)
        with task_context(0):
            message = writer.write(iter([rows]))
        for _ in range(2):
            writer.commit([message])
        assert table.scan().to_arrow().num_rows == 100
        assert client.transactions() == []
