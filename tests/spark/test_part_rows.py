"""Reads of one part without Spark: bounded in memory, exact over server restarts, and without leaks."""

from __future__ import annotations

import gc
import pickle
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ScanCancelled, SchemaMismatch, SnapshotLost, sync
from aio_client._scan.read_ahead import BATCH_ROWS
from spark_bridge.casting import arrow_schema
from spark_bridge.options import ReadOptions
from spark_bridge.part_rows import read_part
from spark_bridge.planning import plan_read
from tests.spark.large_table import LARGE_ROWS, make_large
from tests.spark.task import task_context
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from spark_bridge.parts import Part
    from spark_bridge.planning import PartitionPlan
    from tests.support.server_process import ServerProcess

QUERY = "01a20299-61d2-7a06-961e-8fdef4f404c6"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])


def plan(server: ServerProcess, table: str, **options: Any) -> PartitionPlan:
    return plan_read(replace(ReadOptions(table=table, url=server.url), **options))


def read(
    plan: PartitionPlan, part: Part, execution: str | None = "0", stage: int = 0
) -> Generator[pa.RecordBatch, None, None]:
    """Starts reading a part as in another process, by a task of an execution or outside of one."""
    query = {"spark.sql.execution.query.id": QUERY, "spark.sql.execution.id": execution} if execution else {}
    with task_context(0, query, stage=stage):
        rows = read_part(pickle.loads(pickle.dumps(part)), arrow_schema(plan.schema))
        return with_first(next(rows, None), rows)


def with_first(
    first: pa.RecordBatch | None, others: Generator[pa.RecordBatch, None, None]
) -> Generator[pa.RecordBatch, None, None]:
    try:
        if first is not None:
            yield first
        yield from others
    finally:
        others.close()


def keys(batches: list[pa.RecordBatch]) -> list[int]:
    return [key for batch in batches for key in batch.column("k").to_pylist()]


def threads() -> int:
    """Returns the threads of clients."""
    return sum(thread.name == "scankv-client" for thread in threading.enumerate())


@pytest.fixture
def small(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    table.upsert(pa.table({"k": range(1000), "text": ["x"] * 1000}, schema=SCHEMA))
    return table


def test_a_slow_reader_slows_the_scan_and_a_reader_that_stops_frees_everything(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    whole, before = plan(shared_server, large.name), threads()
    batches = read(whole, whole.parts[0])
    first = next(batches)
    assert 0 < first.num_rows < BATCH_ROWS

    def came_to_rest() -> bool:
        (scan,) = (each for each in client.live_scans() if each.table == large.name)
        return scan.idle > 0.5

    wait_until(came_to_rest, "held up by a reader that reads nothing", timeout=60)
    assert threads() == before + 1
    batches.close()
    assert threads() == before
    wait_until(lambda: all(each.table != large.name for each in client.live_scans()), "no live scan")


def test_a_dropped_reader_frees_everything(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole, before = plan(shared_server, small.name), threads()
    batches = read(whole, whole.parts[0])
    next(batches)
    del batches
    gc.collect()
    assert threads() == before
    wait_until(lambda: all(each.table != small.name for each in client.live_scans()), "no live scan")


@pytest.mark.breadth
def test_a_part_continues_exactly_when_the_server_is_killed_and_restarted(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        make_large(client, "test.large")
        whole = plan(server, "test.large", splits=2)
        begun = [read(whole, part) for part in whole.parts]
        batches = [next(part) for part in begun]
        server.kill()
        server.restart()
        for part in begun:
            batches.extend(part)
    assert sorted(keys(batches)) == list(range(LARGE_ROWS))


def test_an_error_in_the_middle_reaches_the_reader_after_all_earlier_rows(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    whole, before = plan(shared_server, large.name), threads()
    batches = read(whole, whole.parts[0])
    found = [next(batches)]
    (scan,) = (each for each in client.live_scans() if each.table == large.name)
    client.cancel_scan(scan.scan_id)
    with pytest.raises(ScanCancelled):
        found.extend(batches)
    assert 0 < len(keys(found)) < LARGE_ROWS
    assert threads() == before


@pytest.mark.breadth
@pytest.mark.parametrize("splits", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_many_parts_leave_nothing_behind(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table, splits: int
) -> None:
    whole = plan(shared_server, small.name, splits=splits)
    before = threading.active_count()
    assert sorted(keys([batch for part in whole.parts for batch in read(whole, part)])) == list(range(1000))
    assert threading.active_count() <= before
    assert [each for each in client.live_scans() if each.table == small.name] == []
    assert sorted(each.ttl for each in client.snapshots(small.name)) == [60, 600]


def lease(client: sync.Client, table: sync.Table) -> sync.Snapshot:
    """Returns the lease of the tasks. The lease of the plan lasts a minute."""
    (snapshot,) = (each for each in client.snapshots(table.name) if each.ttl != 60)
    return snapshot


def test_all_parts_of_an_execution_read_one_instant_and_the_next_execution_reads_another(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole, other = plan(shared_server, small.name, splits=3), plan(shared_server, small.name, splits=2)
    small.upsert([{"k": 1000, "text": "before the first task"}])
    found = keys(list(read(whole, whole.parts[0], "1")))
    small.delete(list(range(1000)))
    for part in whole.parts[1:]:
        found += keys(list(read(whole, part, "1")))
    assert sorted(found) == list(range(1001))
    # Two loads of a table read the same instant, too, and reading a part again returns the same rows.
    assert sorted(keys([rows for part in other.parts for rows in read(other, part, "1")])) == list(range(1001))
    assert keys([rows for part in whole.parts for rows in read(whole, part, "2")]) == [1000]
    assert len(client.snapshots(small.name)) == 4


def test_outside_an_execution_each_stage_of_each_load_reads_one_instant(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole, other = plan(shared_server, small.name, splits=2), plan(shared_server, small.name)
    first = keys(list(read(whole, whole.parts[0], None, stage=7)))
    small.delete(list(range(1000)))
    assert sorted(first + keys(list(read(whole, whole.parts[1], None, stage=7)))) == list(range(1000))
    assert [keys(list(read(whole, part, None, stage=8))) for part in whole.parts] == [[], []]
    assert list(read(other, other.parts[0], None, stage=7)) == []


def test_no_task_reads_another_instant_when_the_snapshot_of_its_execution_has_ended(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name, splits=2, snapshot_ttl=300.0)
    list(read(whole, whole.parts[0], "1"))
    assert lease(client, small).ttl == 300
    lease(client, small).release()
    for part in whole.parts:
        with pytest.raises(
            SnapshotLost, match=r"ended before the query.*Run the query again; a greater option snapshot_ttl"
        ):
            list(read(whole, part, "1"))
    assert sorted(keys([rows for part in whole.parts for rows in read(whole, part, "2")])) == list(range(1000))


def test_parts_of_a_dropped_table_do_not_read_a_new_table_of_the_same_name(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name)
    client.drop_table(small.name)
    again = client.create_table(small.name, SCHEMA, primary_key=["k"], buckets=7)
    again.upsert([{"k": 1, "text": "x"}])
    with pytest.raises(SchemaMismatch, match=r"dropped and created again, after.*create the view again"):
        list(read(whole, whole.parts[0]))
    assert client.snapshots(small.name) == []


def test_a_column_that_is_added_later_is_not_read(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name)
    client.alter_table(small.name, add_columns=pa.schema([("more", pa.string())]))
    assert sorted(keys(list(read(whole, whole.parts[0])))) == list(range(1000))


@pytest.mark.breadth
def test_a_task_that_reads_for_longer_than_the_lease_renews_it(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    whole = plan(shared_server, large.name, snapshot_ttl=9.0)
    reading = read(whole, whole.parts[0], "longer")
    next(reading)

    def remaining() -> float:
        (found,) = (each for each in client.snapshots(large.name) if each.ttl == 9)
        return found.remaining

    def renewed() -> bool:
        now = remaining()
        lowest[0] = min(lowest[0], now)
        return now > lowest[0] + 0.1

    lowest = [remaining()]
    wait_until(renewed, "renewed", timeout=60)
    reading.close()


def test_a_snapshot_of_the_user_is_neither_renewed_nor_shortened(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    snapshot = small.snapshot(ttl=500)
    small.upsert([{"k": 5000, "text": "later"}])
    whole = plan(shared_server, small.name, snapshot=snapshot.id, splits=2)
    assert sorted(keys([batch for part in whole.parts for batch in read(whole, part)])) == list(range(1000))
    assert [each.ttl for each in client.snapshots(small.name)] == [500]
    snapshot.release()
    with pytest.raises(SnapshotLost, match=r"option snapshot names.*pin another snapshot"):
        list(read(whole, whole.parts[0]))
    with pytest.raises(SnapshotLost, match=r"option snapshot must be the id of a snapshot of table"):
        plan(shared_server, small.name, snapshot=snapshot.id)


def test_the_repr_of_a_part_shows_no_key(shared_server: ServerProcess, small: sync.Table) -> None:
    whole = plan(shared_server, small.name, key_start="77123456", key_end="77123457")
    assert "7712345" not in repr(whole)
    assert str(whole.parts[0].spec.key_range) not in repr(whole)
