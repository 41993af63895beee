"""`readStream` in Spark over range markers: it fails there, or continues exactly with the option `untracked`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from aio_client import SchemaMismatch, UsageError
from tests.spark.streaming_query import Query

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
ROWS = 300


class UpsertSink:
    """Keeps the last row of each key, as a table that is upserted does. Fails on request, after a micro-batch.

    Attributes:
        rows: The rows.
        kinds: The row kinds that it has seen.
        deleted: The last row of each key before a change.
        fails: Whether it fails after the next micro-batch.
    """

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.kinds: list[str] = []
        self.deleted: dict[int, int | None] = {}
        self.fails = False

    def take(self, batch: DataFrame, _: int) -> None:
        """Applies a micro-batch. A repeated one leads to the same rows."""
        changes: list[Row] = batch.collect()
        for change in sorted(changes, key=lambda row: -1 if row["_log_offset"] is None else row["_log_offset"]):
            self.kinds.append(change["_change_type"])
            if change["_change_type"] in ("-U", "-D"):
                self.rows.pop(change["k"], None)
                self.deleted[change["k"]] = change["v"]
            else:
                self.rows[change["k"]] = change["v"]
        if self.fails:
            self.fails = False
            raise RuntimeError("the sink is full")


class Following:
    """A query that follows a table into a sink, each time until it has read everything."""

    def __init__(self, spark: SparkSession, url: str, table: sync.Table, checkpoint: Path) -> None:
        self._spark, self._url, self._table, self._checkpoint = spark, url, table, checkpoint
        self.sink = UpsertSink()

    def run(self, **options: Any) -> None:
        """Starts the query from its checkpoint, and waits until it ends. Raises its error."""
        options = {"url": self._url, "row_kinds": "true", "max_rows_per_trigger": 100, **options}
        rows = self._spark.readStream.format("scankv").options(**options).load(self._table.name)
        writing = rows.writeStream.foreachBatch(self.sink.take).option("checkpointLocation", str(self._checkpoint))
        assert writing.trigger(availableNow=True).start().awaitTermination(500)

    def check(self) -> None:
        """Checks that the sink has the rows of the table."""
        assert self.sink.rows == {row["k"]: row["v"] for row in self._table.scan().to_arrow().to_pylist()}


def rows(keys: range | list[int], value: int) -> pa.Table:
    return pa.table({"k": keys, "v": [value] * len(keys)}, schema=SCHEMA)


@pytest.fixture
def following(
    spark: SparkSession, shared_server: ServerProcess, client: sync.Client, name: str, tmp_path: Path
) -> Following:
    """A query that has read all rows of a table."""
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    table.upsert(rows(range(ROWS), 0))
    query = Following(spark, shared_server.url, table, tmp_path)
    query.run()
    query.check()
    return query


@pytest.mark.breadth
def test_a_query_reads_an_untracked_range_again_and_repeats_a_failed_micro_batch(
    following: Following, client: sync.Client, name: str
) -> None:
    table = client.table(name)
    table.upsert(rows([5, 20, 1000], 7), track_changes=False)
    table.delete([6])
    table.upsert(rows(range(100, 110), 8))
    with pytest.raises(StreamingQueryException, match="track_changes=False"):
        following.run()
    following.sink.fails = True
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        following.run(untracked="rescan")
    # The micro-batch that failed is read again, with rows that are newer.
    table.upsert(rows([5], 9), track_changes=False)
    following.run(untracked="rescan")
    following.check()
    table.upsert(rows([7], 9))
    following.run(untracked="rescan")
    following.check()


@pytest.mark.breadth
def test_a_query_learns_that_the_changelog_no_longer_has_the_rows_before(
    following: Following, client: sync.Client, name: str
) -> None:
    table = client.table(name)
    client.alter_table(name, changelog="upsert")
    table.upsert(rows([5, 2000], 7))
    table.delete([6])
    with pytest.raises(StreamingQueryException, match='"changelog" was changed from "full" to "upsert"'):
        following.run()
    before = len(following.sink.kinds)
    following.run(untracked="rescan")
    following.check()
    assert sorted(following.sink.kinds[before:]) == ["+U", "+U", "-D"]
    assert following.sink.deleted == {6: None}
    client.alter_table(name, changelog="full")
    table.upsert(rows([5], 8))
    following.run(untracked="rescan")
    following.check()
    assert following.sink.kinds[-2:] == ["-U", "+U"]


def test_a_query_that_runs_during_the_change_fails_rather_than_read_nulls_as_values(
    shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    table.upsert(rows(range(10), 3))
    query = Query(shared_server.url, name, untracked="rescan")
    query.start()
    query.run()
    client.alter_table(name, changelog="upsert")
    table.upsert(rows([5], 4))
    query.run()
    table.delete([6])
    with pytest.raises(SchemaMismatch, match=r'column "v" now has nulls.*start the query again'):
        query.run()
    query.stop()
    again = Query(shared_server.url, name, untracked="rescan")
    again.offsets, again.batches = query.offsets, query.batches
    again.start()
    again.run()
    again.stop()
    assert [(row["_change_type"], row["k"], row["v"]) for row in again.batches[-1]] == [("-D", 6, None)]


def test_a_query_reads_what_was_written_but_not_after_the_rows(
    shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, changelog="input")
    table.upsert(rows([1, 1, 2], 3))
    refused = Query(shared_server.url, name)
    refused.start()
    with pytest.raises(UsageError, match=r'option start must not be full .*changelog="input"'):
        refused.run()
    refused.stop()
    query = Query(shared_server.url, name, start="earliest")
    query.start()
    query.run()
    table.delete([1])
    query.run()
    query.stop()
    found = [(row["_change_type"], row["k"], row["v"]) for batch in query.batches for row in batch]
    assert sorted(found, key=lambda change: change[1:2])[:3] == [("+U", 1, 3), ("+U", 1, 3), ("-D", 1, None)]
    assert len(found) == 4


@pytest.mark.breadth
def test_a_query_stops_at_a_deleted_range_and_continues_only_if_it_is_told_to(
    following: Following, client: sync.Client, name: str
) -> None:
    table = client.table(name)
    table.delete(where="k >= 100 AND k < 200", track_changes=False)
    table.upsert(rows([5, 150], 7))
    refused: list[dict[str, str]] = [{}, {"untracked": "rescan"}]
    for options in refused:
        with pytest.raises(StreamingQueryException, match=r"deleted at offset .*deleted_ranges=skip"):
            following.run(**options)
    with pytest.raises(AnalysisException, match="deleted_ranges can be skip only with option"):
        following.run(deleted_ranges="skip")
    following.run(untracked="rescan", deleted_ranges="skip")
    # Only the rows that the query has not been told of are left over.
    here = {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert here == {key: value for key, value in following.sink.rows.items() if key in here}
    assert following.sink.rows.keys() - here.keys() == set(range(100, 200)) - {150}
    table.truncate(track_changes=False)
    table.upsert(rows([6], 8))
    following.run(untracked="rescan", deleted_ranges="skip")
    assert following.sink.rows[6] == 8


def test_a_query_of_rows_survives_that_partitions_are_dropped(
    shared_server: ServerProcess, client: sync.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema = pa.schema([pa.field("day", pa.int64(), nullable=False), *SCHEMA])
    table = client.create_table(
        name, schema, primary_key=["day", "k"], buckets=2, partition_by=["day"], delete_behavior="disable"
    )
    days = pa.table({"day": [1, 2, 3] * 10, "k": range(30), "v": [0] * 30}, schema=schema)
    table.upsert(days)
    query = Query(shared_server.url, name, row_kinds="false", untracked="rescan", deleted_ranges="skip")
    query.start()
    query.run()
    table.drop_partition({"day": 1})
    table.upsert(pa.table({"day": [4], "k": [1], "v": [1]}, schema=schema))
    query.run()
    query.stop()
    assert query.batches[-1] == [{"day": 4, "k": 1, "v": 1}]
    assert f"table {name}, bucket 0" in caplog.text
