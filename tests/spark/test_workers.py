"""Spark reads one table at all worker processes of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from spark_bridge.options import ReadOptions
from spark_bridge.planning import plan_read
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import names_of_workers, sample_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)

WORKERS = 2
ROWS = 20_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers."""
    with ServerProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", str(WORKERS)) as server:
        yield server


@pytest.mark.parametrize("splits", [2, 6])
def test_the_tasks_of_a_query_read_one_table_at_all_workers(
    spark: SparkSession, divided: ServerProcess, splits: int
) -> None:
    """With 2 splits, tasks have complete buckets; with 6, key ranges.

    A task that does not reach its worker within two seconds, as on a busy host, reads at any worker. So it is enough if
    one of several queries is divided evenly.
    """
    (name,), _ = names_of_workers(WORKERS, f"splits{splits}")
    with sync.connect(divided.url) as client:
        table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
        table.upsert(pa.table({"id": range(ROWS), "value": range(ROWS)}, schema=SCHEMA))
        reads = spark.read.format("scankv").options(url=divided.url, splits=splits).load(name)

        def is_divided_evenly() -> bool:
            before = [sample_of(client, "scankv_scan_rows_total", number) for number in range(WORKERS)]
            rows = reads.collect()
            after = [sample_of(client, "scankv_scan_rows_total", number) for number in range(WORKERS)]
            assert sorted((row.id, row.value) for row in rows) == [(number, number) for number in range(ROWS)]
            scanned = [now - then for now, then in zip(after, before, strict=True)]
            assert sum(scanned) == ROWS
            # Every other task, and the tasks have about equally many rows.
            return min(scanned) > 0.4 * ROWS

        wait_until(is_divided_evenly, "a query is read at all workers")


def test_the_tasks_of_a_plan_have_numbers_by_which_workers_take_turns(divided: ServerProcess) -> None:
    (name,), _ = names_of_workers(WORKERS, "plan")
    with sync.connect(divided.url) as client:
        table = client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
        table.upsert(pa.table({"id": range(ROWS), "value": range(ROWS)}, schema=SCHEMA))
    for splits in (2, 6):
        plan = plan_read(ReadOptions(url=divided.url, table=name, splits=splits))
        assert [part.spec.part for part in plan.parts] == list(range(splits))
