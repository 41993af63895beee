"""Spark and rows that expire: queries see the rows of one instant, and streams get the removals of the sweep."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import spark_bridge
from aio_client import sync
from tests.spark.streaming_query import Query
from tests.support.jumping_clock import jumping
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))]
)
KEPT, EXPIRING, EXPIRED = range(100), range(100, 150), range(150, 170)
EXPIRY: dict[str, Any] = {"ttl_seconds": 1, "ttl_column": "at"}
LATER = 250
"""By how many seconds the tests set the clock forward: less than a jump that the server would not follow."""


class ExpiringServer:
    """A server whose clock a test sets, and tables of it whose rows expire."""

    def __init__(self, server: ServerProcess, client: sync.Client, clock: Path) -> None:
        self.url, self.client, self.clock = server.url, client, clock

    def table(self, **options: Any) -> sync.Table:
        """Creates a table. Its rows are kept, expire when the clock is set forward, or have expired."""
        self.clock.write_text("0")
        name = f"spark.t{uuid.uuid4().hex}"
        table = self.client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, **EXPIRY, **options)
        now = dt.datetime.now(dt.UTC)
        for keys, at in ((KEPT, None), (EXPIRING, now + dt.timedelta(seconds=200)), (EXPIRED, now - dt.timedelta(1))):
            table.upsert(pa.table({"k": keys, "v": keys, "at": [at] * len(keys)}, schema=SCHEMA))
        return table

    def set_forward(self) -> None:
        """Sets the clock forward, so that rows expire."""
        self.clock.write_text(str(LATER))


def start(directory: Path, **settings: float) -> Iterator[ExpiringServer]:
    clock = directory / "clock"
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with (
        ServerProcess(directory / "data", *arguments, wrapper=jumping(clock)) as server,
        sync.connect(server.url) as client,
    ):
        yield ExpiringServer(server, client, clock)


@pytest.fixture
def unswept(tmp_path: Path) -> Iterator[ExpiringServer]:
    """A server that does not remove expired rows while the test runs."""
    yield from start(tmp_path, sweep_seconds=3600)


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[ExpiringServer]:
    """A server that removes expired rows all the time."""
    yield from start(tmp_path, sweep_seconds=0.05, sweep_cpu_share=1)


def setting_forward(clock: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `mapInArrow` that yields the same rows, and then sets the clock forward."""
    path = str(clock)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        yield from batches
        Path(path).write_text(str(LATER))

    return pass_on


@pytest.mark.breadth
def test_all_stages_of_a_query_read_the_rows_that_had_not_expired_at_one_time(
    spark: SparkSession, unswept: ExpiringServer
) -> None:
    table = unswept.table()

    def load(**options: Any) -> DataFrame:
        return spark.read.format("scankv").options(url=unswept.url, **options).load(table.name).select("k")

    passing, plain = (f"view_{uuid.uuid4().hex}" for _ in range(2))
    load(splits=1).mapInArrow(setting_forward(unswept.clock), "k bigint").createOrReplaceTempView(passing)
    load(splits=3).createOrReplaceTempView(plain)
    fast = spark_bridge.scan_dataframe(spark, unswept.url, table.name)
    alive = len(KEPT) + len(EXPIRING)
    assert sorted(row.k for row in load(where="v >= 90").collect()) == [*range(90, alive)]
    # The clock is set forward after the subquery, in a stage of its own, has read its rows.
    text = f"select (select count(*) from {passing}), count(*), sum(a.k - b.k) from {plain} a join {plain} b using (k)"
    assert tuple(spark.sql(text).first() or ()) == (alive, alive, 0)
    assert tuple(spark.sql(text).first() or ()) == (len(KEPT), len(KEPT), 0)
    assert sorted(row.k for row in load(where="v >= 90").collect()) == [*range(90, len(KEPT))]
    assert fast.count() == len(KEPT)
    # The sweep has removed none of them.
    stored = len(KEPT) + len(EXPIRING) + len(EXPIRED)
    assert sum(each.rows or 0 for each in table.stats()) == stored


@pytest.mark.breadth
def test_a_stream_gets_the_removals_of_expired_rows_as_deletes(
    spark: SparkSession, swept: ExpiringServer, tmp_path: Path
) -> None:
    table = swept.table()
    seen: list[tuple[str, int]] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend((row["_change_type"], row["k"]) for row in batch.collect())

    changes = spark.readStream.format("scankv").options(url=swept.url, row_kinds="true").load(table.name)
    writing = changes.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))

    def run() -> list[tuple[str, int]]:
        seen.clear()
        assert writing.trigger(availableNow=True).start().awaitTermination(300)
        return sorted(seen)

    wait_until_stored(table, len(KEPT) + len(EXPIRING))
    assert run() == [("+I", key) for key in (*KEPT, *EXPIRING)]
    swept.set_forward()
    wait_until_stored(table, len(KEPT))
    assert run() == [("-D", key) for key in EXPIRING]
    assert run() == []


def wait_until_stored(table: sync.Table, rows: int) -> None:
    """Waits until the sweep has removed all other rows."""
    wait_until(lambda: sum(each.rows or 0 for each in table.stats()) == rows, "removed", timeout=60)


@pytest.mark.parametrize("changes", ["delete", "none"])
def test_a_stream_starts_with_expired_rows_if_their_removal_is_still_to_come(
    unswept: ExpiringServer, changes: str
) -> None:
    table = unswept.table(ttl_changes=changes)
    query = Query(unswept.url, table.name, splits=3, max_rows_per_trigger=60)
    query.start()
    assert query.run_batch()
    # Rows expire in the middle of the initial rows, whose snapshot has a time of its own.
    unswept.set_forward()
    query.stop()
    query.start()
    query.run()
    alive = {*KEPT, *EXPIRING}
    assert set(query.state()) == ({*alive, *EXPIRED} if changes == "delete" else alive)
    table.upsert([{"k": key, "v": 0, "at": None} for key in (EXPIRING[0], EXPIRED[0])])
    query.run()
    query.stop()
    kinds = [change["_change_type"] for change in query.batches[-1]]
    assert sorted(kinds) == (["+I", "+I", "-D", "-D"] if changes == "delete" else ["+I", "+I"])
    if changes == "delete":
        assert set(query.state()) == {*alive, *EXPIRED}


@pytest.mark.parametrize("is_planned", [False, True], ids=["between_batches", "within_a_batch"])
@pytest.mark.parametrize("is_swept", [False, True], ids=["unswept", "swept"])
@pytest.mark.parametrize("changes", ["delete", "none"])
@pytest.mark.represented_by("delete-unswept-between_batches", "none-swept-within_a_batch")
def test_a_stream_that_stopped_in_its_initial_rows_is_exact_although_the_ttl_was_removed(
    tmp_path: Path, changes: str, is_swept: bool, is_planned: bool
) -> None:
    settings = {"sweep_seconds": 0.05, "sweep_cpu_share": 1} if is_swept else {"sweep_seconds": 3600}
    with contextlib.contextmanager(start)(tmp_path, **settings) as server:
        table = server.table(ttl_changes=changes)
        if is_swept:
            wait_until_stored(table, len(KEPT) + len(EXPIRING))
        query = Query(server.url, table.name, splits=3, max_rows_per_trigger=40)
        query.start()
        assert query.run_batch()
        if is_planned:
            assert query.plan()
        query.stop()
        server.set_forward()
        if is_swept:
            wait_until_stored(table, len(KEPT))
        server.client.alter_table(table.name, ttl_seconds=None, ttl_column=None, ttl_changes=None)
        query.start()
        query.run()
        there = {row["k"]: row for row in table.scan().to_pylist()}
        assert there.keys() == ({*KEPT} if is_swept else {*KEPT, *EXPIRING, *EXPIRED})
        # What has been removed silently, or was not visible when the stream began, has no change.
        expected = there.keys() if changes == "delete" else {*KEPT, *EXPIRING}
        assert query.state().keys() == expected
        table.upsert([{"k": key, "v": -1, "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)} for key in (0, 200)])
        query.run()
        query.stop()
        rows = query.state()
        assert rows.keys() == {*expected, 200}
        assert rows[0]["v"] == rows[200]["v"] == -1


@pytest.mark.breadth
def test_a_streaming_query_restarts_from_its_initial_rows_after_the_ttl_was_removed(
    spark: SparkSession, swept: ExpiringServer, tmp_path: Path
) -> None:
    table = swept.table()
    wait_until_stored(table, len(KEPT) + len(EXPIRING))
    seen: list[tuple[str, int]] = []

    def take(batch: DataFrame, number: int) -> None:
        if number == 1 and not seen_again:
            seen_again.append(number)
            raise RuntimeError("stopped in the middle of the initial rows")
        seen.extend((row["_change_type"], row["k"]) for row in batch.collect())

    seen_again: list[int] = []
    changes = (
        spark.readStream.format("scankv")
        .options(url=swept.url, row_kinds="true", max_rows_per_trigger=40)
        .load(table.name)
    )
    writing = (
        changes.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(StreamingQueryException, match="in the middle of the initial rows"):
        writing.start().awaitTermination(300)
    assert 0 < len(seen) < len(KEPT) + len(EXPIRING)
    swept.set_forward()
    wait_until_stored(table, len(KEPT))
    swept.client.alter_table(table.name, ttl_seconds=None, ttl_column=None)
    table.upsert([{"k": 200, "v": 0, "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}])
    # `availableNow` ends where the changes ended when it began, so the second run reads what came after that.
    for _ in range(2):
        assert writing.start().awaitTermination(300)
    assert sorted(seen) == sorted([("+I", key) for key in (*KEPT, *EXPIRING, 200)] + [("-D", key) for key in EXPIRING])
