"""One part of a read without Spark: bounded, exact over a restart of the server, free of everything at its end."""

from __future__ import annotations

import gc
import pickle
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ScanCancelled, SnapshotLost, sync
from spark_bridge.conform import arrow_schema
from spark_bridge.options import ReadOptions
from spark_bridge.partition_stream import BATCH_ROWS, read_part
from spark_bridge.planning import planned
from tests.spark.large_table import LARGE_ROWS, make_large
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from spark_bridge.planning import ReadPlan, ScanPart
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])


def plan(server: ServerProcess, table: str, **options: Any) -> ReadPlan:
    return planned(replace(ReadOptions(table=table, url=server.url), **options))


def read(plan: ReadPlan, part: ScanPart) -> Generator[pa.RecordBatch, None, None]:
    """As in another process."""
    return read_part(pickle.loads(pickle.dumps(part)), arrow_schema(plan.schema))


def keys(batches: list[pa.RecordBatch]) -> list[int]:
    return [key for batch in batches for key in batch.column("k").to_pylist()]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "scankv-part"]


@pytest.fixture
def small(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    table.upsert(pa.table({"k": range(1000), "text": ["x"] * 1000}, schema=SCHEMA))
    return table


def test_a_reader_that_waits_holds_up_the_scan_and_one_that_stops_frees_all(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    whole = plan(shared_server, large.name)
    batches = read(whole, whole.parts[0])
    first = next(batches)
    assert 0 < first.num_rows < BATCH_ROWS

    def came_to_rest() -> bool:
        (scan,) = (each for each in client.live_scans() if each.table == large.name)
        return scan.idle_seconds > 0.5

    wait_until(came_to_rest, "held up by a reader that reads nothing", timeout=60)
    assert len(threads()) == 1
    batches.close()
    assert threads() == []
    wait_until(lambda: all(each.table != large.name for each in client.live_scans()), "no live scan")


def test_a_dropped_reader_frees_all(shared_server: ServerProcess, client: sync.Client, small: sync.Table) -> None:
    whole = plan(shared_server, small.name)
    batches = read(whole, whole.parts[0])
    next(batches)
    del batches
    gc.collect()
    assert threads() == []
    wait_until(lambda: all(each.table != small.name for each in client.live_scans()), "no live scan")


def test_a_part_goes_on_exactly_when_the_server_is_killed_and_started_again(server: ServerProcess) -> None:
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


def test_an_error_in_the_middle_reaches_the_reader_behind_the_rows_before_it(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    whole = plan(shared_server, large.name)
    batches = read(whole, whole.parts[0])
    found = [next(batches)]
    (scan,) = (each for each in client.live_scans() if each.table == large.name)
    client.cancel_scan(scan.scan_id)
    with pytest.raises(ScanCancelled):
        found.extend(batches)
    assert 0 < len(keys(found)) < LARGE_ROWS
    assert threads() == []


def test_two_hundred_parts_leave_nothing_behind(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name, splits=200)
    before = threading.active_count()
    assert sorted(keys([batch for part in whole.parts for batch in read(whole, part)])) == list(range(1000))
    assert threading.active_count() <= before
    assert [each for each in client.live_scans() if each.table == small.name] == []
    assert [each.ttl for each in client.snapshots(small.name)] == [60]


def test_the_lease_drops_to_a_minute_with_the_last_part_and_a_later_reader_renews_it(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name, splits=3, snapshot_ttl=300.0)
    assert lease(client, small) == 300
    for part in [whole.parts[1], whole.parts[1], whole.parts[0]]:
        list(read(whole, part))
        assert lease(client, small) == 300
    list(read(whole, whole.parts[2]))
    assert lease(client, small) == 60
    again = read(whole, whole.parts[2])
    next(again)
    assert lease(client, small) == 300
    again.close()
    assert lease(client, small) == 300, "a part that was not read to its end does not count"


def test_a_part_counts_as_read_only_when_its_reader_is_done_with_the_last_batch(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name)
    reading = read(whole, whole.parts[0])
    found = [next(reading)]
    while len(keys(found)) < 1000:
        found.append(next(reading))
    wait_until(lambda: all(each.table != small.name for each in client.live_scans()), "read to its end")
    assert {lease(client, small) for _ in range(50)} == {600}
    assert list(reading) == []
    assert lease(client, small) == 60


def lease(client: sync.Client, table: sync.Table) -> float:
    (snapshot,) = client.snapshots(table.name)
    return snapshot.ttl


def test_a_hundred_reads_keep_short_leases_only(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    for _ in range(100):
        whole = plan(shared_server, small.name)
        list(read(whole, whole.parts[0]))
    assert {each.ttl for each in client.snapshots(small.name)} == {60}
    assert len({each.view_id for each in client.snapshots(small.name)}) == 1


def test_a_task_that_reads_for_longer_than_the_lease_lives_keeps_it(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table
) -> None:
    whole = plan(shared_server, large.name)
    (part,) = whole.parts
    assert part.lease is not None
    reading = read(whole, replace(part, lease=replace(part.lease, ttl=9.0)))
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


def test_an_expired_snapshot_says_to_load_again(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    whole = plan(shared_server, small.name, snapshot_ttl=60.0)
    (snapshot,) = client.snapshots(small.name)
    snapshot.release()
    with pytest.raises(SnapshotLost, match=r"has expired.*load\(\) again.*snapshot_ttl"):
        list(read(whole, whole.parts[0]))


def test_a_snapshot_of_the_user_is_neither_renewed_nor_shortened(
    shared_server: ServerProcess, client: sync.Client, small: sync.Table
) -> None:
    snapshot = small.snapshot(ttl=500)
    small.upsert([{"k": 5000, "text": "later"}])
    whole = plan(shared_server, small.name, snapshot=snapshot.id, splits=2)
    assert sorted(keys([batch for part in whole.parts for batch in read(whole, part)])) == list(range(1000))
    assert [each.ttl for each in client.snapshots(small.name)] == [500]
    snapshot.release()
    with pytest.raises(SnapshotLost, match=r"option snapshot names.*load\(\) again"):
        list(read(whole, whole.parts[0]))
    with pytest.raises(SnapshotLost, match=r"option snapshot: table .* has no snapshot"):
        plan(shared_server, small.name, snapshot=snapshot.id)


def test_the_repr_of_a_part_shows_no_key(shared_server: ServerProcess, small: sync.Table) -> None:
    whole = plan(shared_server, small.name, key_start="77123456", key_end="77123457")
    assert "7712345" not in repr(whole)
    assert str(whole.parts[0].spec.key_range) not in repr(whole)
