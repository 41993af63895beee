"""`readStream` in Spark is exact over failed batches and restarts of query and server, and checks options early."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from aio_client import sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = 300


def filled(client: sync.Client, name: str, buckets: int = 2, tablets: int = 1) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=buckets, tablets=tablets)
    table.upsert(pa.table({"k": range(ROWS), "v": ["old"] * ROWS}, schema=SCHEMA))
    return table


def followed(spark: SparkSession, url: str, table: str, **options: Any) -> DataFrame:
    return spark.readStream.format("scankv").options(url=url, **options).load(table)


class Sink:
    """Stores the rows of each micro-batch, and fails on request."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.failing: int | None = None

    def take(self, rows: DataFrame, batch: int) -> None:
        """Stores a micro-batch, and checks that a repeated one is equal."""
        found = sorted(rows.collect(), key=str)
        assert self.batches.setdefault(batch, found) == found
        if batch == self.failing:
            raise RuntimeError("the sink is full")

    def state(self) -> dict[int, str]:
        """Replays the changes, and returns the rows."""
        state: dict[int, str] = {}
        changes = [row for _, batch in sorted(self.batches.items()) for row in batch]
        for row in sorted(changes, key=lambda row: -1 if row["_log_offset"] is None else row["_log_offset"]):
            if row["_change_type"] in ("-U", "-D"):
                assert state.pop(row.k) == row.v
            else:
                assert row.k not in state
                state[row.k] = row.v
        return state


def rows_of(table: sync.Table) -> dict[int, str]:
    return {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def test_existing_changes_are_delivered_once_despite_failures_and_restarts(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    table, sink = filled(client, name), Sink()

    def run() -> None:
        rows = followed(spark, shared_server.url, name, row_kinds="true", max_rows_per_trigger=200)
        writing = rows.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path))
        query = writing.trigger(availableNow=True).start()
        assert query.awaitTermination(500)

    sink.failing = 1
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run()
    sink.failing = None
    table.upsert([{"k": 1, "v": "new"}, {"k": ROWS, "v": "new"}])
    table.delete([2])
    run()
    assert len(sink.batches) == 3
    assert {row["_log_offset"] for batch in (0, 1) for row in sink.batches[batch]} == {None}
    assert sink.state() == rows_of(table)
    before = len(sink.batches)
    table.upsert([{"k": 3, "v": "newer"}])
    run()
    assert len(sink.batches) == before + 1
    assert sink.state() == rows_of(table)
    # A run releases what the previous run has read, and the snapshot.
    assert client.snapshots(name) == []
    assert [each.lag for each in table.consumers()] == [2]


@pytest.mark.breadth
def test_changes_of_all_tablets_are_delivered_once_despite_failures_and_restarts(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    table, sink = filled(client, name, buckets=4, tablets=3), Sink()

    def run() -> None:
        rows = followed(spark, shared_server.url, name, row_kinds="true", start="earliest", max_rows_per_trigger=200)
        writing = rows.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path))
        assert writing.trigger(availableNow=True).start().awaitTermination(500)

    sink.failing = 1
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run()
    sink.failing = None
    table.upsert([{"k": 1, "v": "new"}, {"k": ROWS, "v": "new"}])
    table.delete([2])
    for _ in range(2):
        run()
        assert sink.state() == rows_of(table)
        table.upsert([{"k": 3, "v": "newer"}])


@pytest.mark.breadth
def test_a_query_that_runs_goes_on_when_the_server_is_killed_and_started_again(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    with sync.connect(server.url) as client:
        table, sink = filled(client, "test.followed"), Sink()
        rows = followed(spark, server.url, table.name, row_kinds="true")
        counted = rows.select("*", F.lit(1).alias("one"))
        query = counted.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path)).start()
        try:
            wait_until(lambda: len(sink.state()) == ROWS or query.exception(), "the rows", timeout=300)
            server.kill()
            server.restart()
            client.wait_ready()
            table.upsert([{"k": ROWS, "v": "behind"}])
            wait_until(lambda: ROWS in sink.state() or query.exception(), "the change", timeout=300)
            assert query.exception() is None
            progress = query.lastProgress
            assert progress is not None
            (source,) = progress["sources"]
            assert json.loads(source["endOffset"])["offsets"].keys() == {"0", "1"}
        finally:
            query.stop()
        assert sink.state() == rows_of(table)


def test_wrong_options_are_refused_before_any_task_starts(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> None:
    filled(client, name)
    with pytest.raises(AnalysisException, match='there is no option "row_kind"'):
        followed(spark, shared_server.url, name, row_kind="true")
    with pytest.raises(AnalysisException, match="option row_kinds is an option of readStream only"):
        spark.read.format("scankv").options(url=shared_server.url, row_kinds="true").load(name).collect()
    for options, message in [
        ({}, 'option("row_kinds", "true")'),
        ({"limit": 3}, "option limit cannot be used with readStream"),
    ]:
        writing = followed(spark, shared_server.url, name, **options).writeStream.format("noop")
        query = writing.option("checkpointLocation", str(tmp_path / str(len(options)))).start()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(300)
        assert message in str(caught.value)
    assert client.table(name).consumers() == []
    assert client.snapshots(name) == []
