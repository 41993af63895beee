"""Streaming queries without Spark are exact wherever they stop, have bounded batches, and hold what they need."""

from __future__ import annotations

import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    InvalidRequest,
    LakeVersionNotFound,
    PositionExpired,
    RangeNotTracked,
    SchemaMismatch,
    SnapshotLost,
    StartFrom,
    StopAt,
    TableRecreated,
    UsageError,
    connect,
    sync,
)
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.spark.streaming_query import Query
from tests.support.examples import seeds
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = 1000


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    """A table of a thousand rows in three buckets."""
    return filled(client, name)


def filled(client: sync.Client, name: str, **options: Any) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=3, **options)
    write(table, range(ROWS), 0)
    return table


@pytest.fixture
def query(shared_server: ServerProcess, table: sync.Table) -> Iterator[Callable[..., Query]]:
    """Returns a function that creates queries on the table, which end with the test."""
    made: list[Query] = []

    def make(**options: Any) -> Query:
        made.append(Query(shared_server.url, table.name, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def write(table: sync.Table, keys: range, value: int) -> None:
    table.upsert(pa.table({"k": keys, "v": [value] * len(keys)}, schema=SCHEMA))


def rows_of(table: sync.Table) -> dict[Any, dict[str, Any]]:
    return {row["k"]: row for row in table.scan().to_arrow().to_pylist()}


def upserted(query: Query) -> dict[Any, dict[str, Any]]:
    """Returns what a sink has that keeps the last row of each key, and removes it at `-D`."""
    rows: dict[Any, dict[str, Any]] = {}
    for change in (change for batch in query.batches for change in batch):
        row = {name: change[name] for name in SCHEMA.names}
        if change["_change_type"] == "-D":
            rows.pop(row["k"], None)
        elif change["_change_type"] != "-U":
            rows[row["k"]] = row
    return rows


def test_a_query_returns_the_rows_of_the_table_in_several_batches_and_then_every_change(
    client: sync.Client, table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(max_rows_per_trigger=300)
    follower.start()
    assert follower.run_batch()
    write(table, range(500, 1100), 1)
    table.delete(list(range(10)))
    follower.run()
    assert follower.state() == rows_of(table)
    among_rows = [batch for batch in follower.batches if batch[0]["_log_offset"] is None]
    assert [row["v"] for batch in among_rows for row in batch] == [0] * ROWS
    assert 4 <= len(among_rows) <= 8
    assert all({row["_change_type"] for row in batch} == {"+I"} for batch in among_rows)
    changes = [row for batch in follower.batches[len(among_rows) :] for row in batch]
    assert len(changes) == 500 * 2 + 100 + 10
    assert {row["_bucket"] for row in among_rows[0]} <= {0, 1, 2}
    # The snapshot is released after the rows were read.
    assert client.snapshots(table.name) == []
    # Each batch is committed with the next one.
    assert [each.lag for each in table.consumers()] == [len(follower.batches[-1])]


@pytest.mark.breadth
def test_no_batch_of_changes_exceeds_the_limit_or_splits_an_update(
    table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(start="latest", max_rows_per_trigger=101)
    follower.start()
    follower.run()
    assert follower.batches == [[]]
    write(table, range(300), 1)
    follower.run()
    assert sum(map(len, follower.batches)) == 600
    assert all(0 < len(batch) <= 101 for batch in follower.batches[1:])
    assert all(batch[-1]["_change_type"] == "+U" for batch in follower.batches[1:])
    # Batches alternate between the buckets.
    assert len({row["_bucket"] for row in follower.batches[1]}) == 3


@pytest.mark.breadth
def test_a_query_stops_at_an_untracked_range_and_continues_when_it_asks_for_its_rows(
    table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(max_rows_per_trigger=100)
    follower.start()
    follower.run()
    table.upsert(pa.table({"k": [5, 500, 2000], "v": [7, 7, 7]}, schema=SCHEMA), track_changes=False)
    write(table, range(3), 8)
    with pytest.raises(RangeNotTracked):
        follower.run()
    follower.stop()
    again = query(max_rows_per_trigger=100, untracked="rescan")
    again.offsets, again.batches = follower.offsets, follower.batches
    again.start()
    again.run()
    assert upserted(again) == rows_of(table)


@pytest.mark.breadth
def test_an_untracked_range_shows_rows_that_no_longer_match_as_deletes(
    table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(untracked="rescan", where="v = 0")
    follower.start()
    follower.run()
    table.upsert(pa.table({"k": [5, 500], "v": [7, 0]}, schema=SCHEMA), track_changes=False)
    follower.run()
    assert upserted(follower) == {key: row for key, row in rows_of(table).items() if row["v"] == 0}


@pytest.mark.breadth
def test_batches_of_changes_are_bounded_in_bytes(table: sync.Table, query: Callable[..., Query]) -> None:
    follower = query(start="latest", max_bytes_per_trigger=1)
    follower.start()
    follower.run()
    for value in range(1, 4):
        write(table, range(100), value)
        follower.run()
    # A batch has at least one chunk, which belongs to one bucket.
    assert [len({row["_bucket"] for row in batch}) for batch in follower.batches[1:]] == [1] * 9
    assert sum(map(len, follower.batches)) == 600
    unlimited = query(start="earliest")
    unlimited.start()
    unlimited.run()
    assert [len(batch) for batch in unlimited.batches] == [ROWS + 600]


def test_rows_of_the_table_are_bounded_in_bytes(query: Callable[..., Query]) -> None:
    follower = query(max_bytes_per_trigger=4000)
    follower.start()
    follower.run()
    assert len(follower.batches) > 2
    assert len(follower.state()) == ROWS


def test_a_limit_that_spark_lifts_is_lifted(table: sync.Table, query: Callable[..., Query]) -> None:
    follower = query(max_rows_per_trigger=150)
    follower.start()
    assert follower.run_batch(once=True)
    write(table, range(100), 1)
    assert follower.run_batch(once=True)
    assert [len(batch) for batch in follower.batches] == [ROWS, 200]


@seeds(2)
@pytest.mark.breadth
def test_a_query_that_stops_anywhere_continues_exactly(
    table: sync.Table, query: Callable[..., Query], seed: int
) -> None:
    chance = random.Random(seed)
    follower = query(max_rows_per_trigger=400, start=["full", "earliest"][seed % 2])
    for number in range(8):
        follower.start(available_now=chance.random() < 0.5)
        for _ in range(chance.randrange(3)):
            follower.run_batch()
        write(table, range(chance.randrange(ROWS), ROWS + number), number + 1)
        table.delete([chance.randrange(ROWS)])
        # The query stops before the offset is recorded, after that, or after the batch was read but not recorded.
        what = chance.randrange(3)
        if not follower.is_pending and follower.plan() and what == 0:
            follower.offsets.pop()
        elif follower.is_pending and what == 1:
            follower.read(len(follower.offsets) - 1)
        follower.stop()
    follower.start()
    follower.run()
    assert follower.state() == rows_of(table)


def test_a_batch_that_is_read_again_in_another_process_is_the_same(
    table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(max_rows_per_trigger=400)
    follower.start()
    while len(follower.batches) < 4:
        assert follower.run_batch()
        write(table, range(100), len(follower.batches))
    assert follower.plan()
    last = len(follower.offsets) - 1
    once = follower.read(last)
    write(table, range(200), 99)
    follower.stop()
    follower.start()
    assert once
    assert follower.read(last) == once


def test_a_query_with_nothing_to_read_keeps_its_offset(query: Callable[..., Query]) -> None:
    follower = query()
    follower.start()
    follower.run()
    before = list(follower.offsets)
    for _ in range(3):
        assert not follower.plan()
    seen = follower.reader.reportLatestOffset()
    assert seen is not None
    assert seen["offsets"] == json.loads(before[-1])["offsets"]
    follower.stop()
    follower.start(available_now=True)
    assert not follower.plan()
    assert follower.offsets == before
    assert follower.reader.partitions(json.loads(before[-1]), json.loads(before[-1])) == []


def test_rows_written_while_a_query_begins_are_delivered_once(
    table: sync.Table, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = sync.Table.snapshot

    def write_and_pin(pinned: sync.Table, ttl: float) -> sync.Snapshot:
        write(table, range(500, 1100), 1)
        snapshot = pin(pinned, ttl)
        write(table, range(600, 1200), 2)
        return snapshot

    monkeypatch.setattr(sync.Table, "snapshot", write_and_pin)
    follower = query()
    # Changes that exist when the query starts are older than its initial rows.
    follower.start(available_now=True)
    follower.run()
    assert sum(map(len, follower.batches)) == 1100
    follower.stop()
    follower.start()
    follower.run()
    assert follower.state() == rows_of(table)


@pytest.mark.parametrize("start", ["full", "latest"])
def test_available_now_ends_with_the_changes_that_existed_at_its_start(
    table: sync.Table, query: Callable[..., Query], start: str
) -> None:
    follower = query(start=start)
    follower.start(available_now=True)
    follower.run()
    follower.stop()
    write(table, range(10), 1)
    follower.start(available_now=True)
    write(table, range(20), 2)
    follower.run()
    assert sum(row["v"] == 1 for batch in follower.batches for row in batch) == 10
    assert not any(row["v"] == 2 for batch in follower.batches for row in batch)
    follower.stop()
    follower.start(available_now=True)
    follower.run()
    assert sum(row["v"] == 2 for batch in follower.batches for row in batch) == 20


@pytest.mark.breadth
def test_a_query_begins_at_option_start(table: sync.Table, query: Callable[..., Query]) -> None:
    (before,) = (each.log_offset for each in table.stats() if each.bucket == 0)
    time = datetime.now(UTC)
    write(table, range(ROWS, ROWS + 60), 1)
    offsets = {each.bucket: before if each.bucket == 0 else each.log_offset for each in table.stats()}

    def found(start: str) -> list[dict[str, Any]]:
        follower = query(start=start)
        follower.start()
        follower.run()
        return [row for batch in follower.batches for row in batch]

    assert len(found("earliest")) == ROWS + 60
    assert found("latest") == []
    assert len(found("last:5")) == 5
    assert len(found(time.isoformat())) == 60
    assert {row["_bucket"] for row in found(json.dumps(offsets))} == {0}
    assert all(row["k"] >= ROWS for row in found(json.dumps(offsets)))


def test_a_query_ends_at_option_stop(table: sync.Table, query: Callable[..., Query]) -> None:
    def found(stop: str, start: str = "earliest") -> int:
        follower = query(start=start, stop=stop)
        follower.start()
        follower.run()
        return sum(map(len, follower.batches))

    offsets = json.dumps({each.bucket: each.log_offset for each in table.stats()})
    later = datetime.now(UTC) + timedelta(days=1)
    time = datetime.now(UTC)
    write(table, range(ROWS, ROWS + 60), 1)
    assert found(time.isoformat()) == found(offsets) == ROWS
    assert found(later.isoformat()) == ROWS + 60
    # Initial rows belong to the instant of the start, wherever the changes end.
    assert found(offsets, start="full") == ROWS + 60
    with pytest.raises(UsageError, match=r"option stop must name exactly the buckets of the table, \[0, 1, 2\]"):
        found('{"0": 1}')


def test_a_query_neither_begins_before_the_changes_that_are_kept_nor_fails_if_it_ends_there(
    client: sync.Client, table: sync.Table, query: Callable[..., Query]
) -> None:
    time = datetime.now(UTC) - timedelta(days=1)
    for changelog in ("none", "full"):  # This removes all changes.
        client.alter_table(table.name, changelog=changelog)
    write(table, range(60), 1)
    follower = query(start=time.isoformat())
    follower.start()
    with pytest.raises(PositionExpired, match="are no longer in its changelog"):
        follower.run()
    follower = query(start="earliest", stop=time.isoformat())
    follower.start()
    follower.run()
    assert not any(follower.batches)


def test_columns_and_predicate_apply_to_rows_and_changes(table: sync.Table, query: Callable[..., Query]) -> None:
    follower = query(columns="v", where="k < 5 AND v < 2", max_rows_per_trigger=100)
    follower.start()
    follower.run()
    write(table, range(4), 1)
    write(table, range(2), 2)
    follower.run()
    found = [(row["_change_type"], row["v"]) for batch in follower.batches for row in batch]
    assert found.count(("+I", 0)) == 5
    assert found.count(("+U", 1)) == 4
    assert found.count(("-D", 1)) == 2
    assert {len(row) for batch in follower.batches for row in batch} == {5}


def test_a_stream_of_rows_requires_a_table_without_deletes(
    client: sync.Client, shared_server: ServerProcess, table: sync.Table, query: Callable[..., Query], name: str
) -> None:
    follower = query(row_kinds="false")
    follower.start()
    with pytest.raises(SchemaMismatch, match=r'allows deletes.*option\("row_kinds", "true"\)'):
        follower.plan()
    kept = filled(client, f"{name}_kept", merge_engine="versioned", version_column="v")
    rows = Query(shared_server.url, kept.name, row_kinds="false")
    rows.start()
    rows.run()
    write(kept, range(3), 7)
    rows.run()
    rows.stop()
    assert [sorted(row) for row in rows.batches[-1]] == [["k", "v"]] * 3
    assert sorted(row["k"] for row in rows.batches[-1]) == [0, 1, 2]
    assert sum(map(len, rows.batches)) == ROWS + 3


def test_a_table_that_keeps_no_changes_is_refused(client: sync.Client, shared_server: ServerProcess, name: str) -> None:
    filled(client, name, changelog="none")
    with pytest.raises(InvalidRequest, match="changelog"):
        Query(shared_server.url, name).start()


def test_changes_without_old_rows_have_their_keys(client: sync.Client, shared_server: ServerProcess, name: str) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    table = client.create_table(name, schema, primary_key=["k"], changelog="upsert")
    follower = Query(shared_server.url, name)
    table.upsert([{"k": 1, "v": 1}])
    follower.start()
    follower.run()
    table.delete([1])
    follower.run()
    follower.stop()
    assert [(row["_change_type"], row["k"], row["v"]) for batch in follower.batches for row in batch] == [
        ("+I", 1, 1),
        ("-D", 1, None),
    ]


def test_the_named_consumer_is_at_the_last_commit(table: sync.Table, query: Callable[..., Query]) -> None:
    follower = query(consumer_id="job", start="earliest")
    follower.start()
    assert follower.run_batch()
    (consumer,) = table.consumers()
    assert (consumer.id, consumer.lag) == ("job", ROWS)
    write(table, range(ROWS, ROWS + 10), 1)
    follower.run()
    (consumer,) = table.consumers()
    assert consumer.lag == 10
    # A new checkpoint begins at option start, whatever the consumer has read.
    again = query(consumer_id="job", start="earliest")
    again.start()
    again.run_batch()
    assert len(again.batches[0]) == ROWS + 10
    assert [each.lag for each in table.consumers()] == [ROWS + 10]


def test_a_query_that_runs_one_batch_at_a_time_releases_what_it_has_read(
    client: sync.Client, table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query()
    for number in range(1, 4):
        follower.start(available_now=True)
        follower.run()
        follower.stop()
        write(table, range(10), number)
        assert [each.lag for each in table.consumers()] == [20 if number < 2 else 40]
    assert client.snapshots(table.name) == []


def test_a_query_creates_its_deleted_consumer_again(table: sync.Table, query: Callable[..., Query]) -> None:
    follower = query(consumer_id="job")
    follower.start()
    follower.run()
    follower.stop()
    table.delete_consumer("job")
    write(table, range(10), 1)
    follower.start()
    follower.run()
    assert follower.state() == rows_of(table)
    # Each batch is committed with the next one.
    assert [each.lag for each in table.consumers()] == [len(follower.batches[-1])]


def test_a_query_whose_snapshot_has_expired_asks_for_a_new_checkpoint(
    client: sync.Client, table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(max_rows_per_trigger=200)
    follower.start()
    follower.run_batch()
    follower.plan()
    (snapshot,) = client.snapshots(table.name)
    assert snapshot.ttl == 86_400
    snapshot.release()
    with pytest.raises(SnapshotLost, match=r"initial rows of table .* has expired.*snapshot_ttl.*new checkpoint"):
        follower.read(1)
    follower.stop()
    follower.start()
    with pytest.raises(SnapshotLost, match="new checkpoint"):
        follower.read(1)


def test_a_query_whose_changes_are_gone_asks_for_a_new_checkpoint(query: Callable[..., Query]) -> None:
    follower = query()
    follower.start()
    follower.run()
    follower.stop()
    last = json.loads(follower.offsets[-1])
    last["consumer"], last["offsets"] = "another", dict.fromkeys(last["offsets"], 10**6)
    follower.offsets.append(json.dumps(last))
    follower.batches.append([])
    follower.start()
    with pytest.raises(PositionExpired, match=r"at which this query continues.*new checkpoint"):
        follower.plan()


def test_a_checkpoint_of_another_table_is_refused_by_name(
    shared_server: ServerProcess, client: sync.Client, table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query()
    follower.start()
    follower.run()
    follower.stop()
    other = Query(shared_server.url, filled(client, f"{table.name}_other").name)
    other.offsets, other.batches = follower.offsets, follower.batches
    other.start()
    with pytest.raises(UsageError, match=f"on table {table.name}, but this query reads {table.name}_other"):
        other.plan()
    other.stop()


def test_a_query_continues_from_an_older_checkpoint_whose_changes_still_exist(
    table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query(start="latest")
    follower.start()
    follower.run()
    for value in range(1, 4):
        write(table, range(100), value)
        follower.run()
    (before,) = table.consumers()
    follower.stop()
    follower.offsets, follower.batches = follower.offsets[:2], follower.batches[:1]
    follower.start()
    follower.run()
    assert [row["v"] for batch in follower.batches for row in batch if row["_change_type"] == "+U"].count(1) == 100
    (after,) = table.consumers()
    assert after.id == before.id


def test_an_error_says_that_the_checkpoint_is_too_old(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--set", "log_maintenance_seconds=0.05") as server,
        sync.connect(server.url) as client,
    ):
        table = filled(client, "test.trimmed", log_retention_bytes=1000)
        follower = Query(server.url, table.name, start="latest")
        follower.start()
        follower.run()
        begun, values = table.log_offsets(), itertools.count(1)

        def is_trimmed() -> bool:
            write(table, range(ROWS), next(values))
            follower.run()
            try:
                table.changes(StartFrom.offsets(begun), StopAt.LATEST).to_arrow()
            except PositionExpired:
                return True
            return False

        wait_until(is_trimmed, "the changes that were committed are gone", timeout=120)
        follower.stop()
        follower.offsets, follower.batches = follower.offsets[:1], follower.batches[:1]
        follower.start()
        with pytest.raises(
            PositionExpired, match=r"checkpoint of this query is older than the last one.*Restore the last checkpoint"
        ):
            follower.plan()
        follower.stop()


@pytest.mark.breadth
def test_a_query_begins_in_published_files_and_continues_with_every_change(
    table: sync.Table, query: Callable[..., Query], tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    publish_to(table, uri)
    write(table, range(500, 1100), 1)
    follower = query(start="lake", lake=uri, max_rows_per_trigger=300, rows_per_split=100)
    again: list[list[dict[str, Any]]] = []
    while True:
        # Each micro-batch runs in a new process, which knows only the checkpoint.
        follower.start()
        if not follower.run_batch():
            break
        follower.stop()
        follower.start()
        again.append(follower.read(len(follower.batches) - 1))
        follower.stop()
        if len(follower.batches) == 2:
            table.delete(list(range(10)))
            publish_to(table, uri)
    assert again == follower.batches
    assert follower.state() == rows_of(table)
    of_files = [batch for batch in follower.batches if batch[0]["_log_offset"] is None]
    assert sum(map(len, of_files)) == ROWS
    assert all(250 <= len(batch) <= 300 for batch in of_files[:-1])
    assert sum(map(len, follower.batches[len(of_files) :])) == 500 * 2 + 100 + 10


def test_a_query_without_limits_reads_all_files_at_once_and_applies_its_predicate(
    table: sync.Table, query: Callable[..., Query], tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    publish_to(table, uri)
    write(table, range(10), 3)
    follower = query(start="lake", lake=uri, where="k < 20", columns="k,v")
    follower.start(available_now=True)
    follower.run()
    assert list(map(len, follower.batches)) == [20, 20]
    assert follower.state() == {key: row for key, row in rows_of(table).items() if key < 20}
    follower.stop()
    follower.start(available_now=True)
    assert not follower.run_batch()


def test_a_query_holds_the_changes_since_its_version_from_its_first_batch_on(
    table: sync.Table, query: Callable[..., Query], tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    publish_to(table, uri)
    begun = table.log_offsets()
    write(table, range(10), 3)
    follower = query(start="lake", lake=uri, max_rows_per_trigger=100)
    follower.start()
    assert follower.run_batch()
    (consumer,) = table.consumers()
    assert consumer.log_offsets == begun
    assert consumer.phase == "changes"


def test_a_query_whose_version_or_whose_changes_are_gone_says_so(
    shared_server: ServerProcess, table: sync.Table, query: Callable[..., Query], tmp_path: Path
) -> None:
    uri = str(tmp_path / "published")
    publish_to(table, uri)
    follower = query(start="lake", lake=uri, max_rows_per_trigger=100)
    follower.start()
    assert follower.run_batch()
    follower.stop()
    write(table, range(ROWS), 2)
    publish_to(table, uri, keep_seconds=0)
    open_lake_table(uri, keep_seconds=0).expire(0)
    follower.start()
    with pytest.raises(LakeVersionNotFound, match=r"cannot be read any more \(version 0 has expired.*new checkpoint"):
        follower.run()
    nowhere = query(start="lake", lake=str(tmp_path / "nothing"))
    nowhere.start()
    with pytest.raises(LakeVersionNotFound, match="nothing was published"):
        nowhere.run()
    for options in ({"start": "lake"}, {"lake": uri}, {"start": "latest", "lake": uri}):
        with pytest.raises(UsageError, match='is for option\\("start", "lake"\\) only'):
            query(**options).start()


def publish_to(table: sync.Table, uri: str, keep_seconds: float = 3600) -> None:
    async def publish_once() -> None:
        async with connect(table._runner.client.config.address) as client:
            await publish(client, table.name, open_lake_table(uri, "delta", keep_seconds), PublishOptions(file_rows=50))

    table._runner.call(publish_once)


def test_a_query_refuses_a_table_that_was_created_again(
    client: sync.Client, table: sync.Table, query: Callable[..., Query]
) -> None:
    follower = query()
    follower.start()
    follower.run()
    write(table, range(10), 1)
    assert follower.plan()
    parts = follower.reader.partitions(*map(json.loads, follower.offsets[-2:]))
    client.drop_table(table.name)
    filled(client, table.name)
    write(table, range(10), 1)
    with pytest.raises(TableRecreated, match="created again"):
        [list(follower.reader.read(part)) for part in parts]
    follower.offsets.pop()
    with pytest.raises(TableRecreated, match="created again"):
        follower.plan()
    follower.stop()
    follower.start()
    with pytest.raises(TableRecreated, match="created again"):
        follower.plan()
    assert client.table(table.name).consumers() == []


@pytest.mark.parametrize("option", ["start", "stop"])
def test_offsets_in_an_option_must_belong_to_the_table_incarnation(
    client: sync.Client, table: sync.Table, query: Callable[..., Query], option: str
) -> None:
    offsets = table.log_offsets().to_json()
    client.drop_table(table.name)
    filled(client, table.name)
    follower = query(**{"start": "earliest", option: offsets})
    follower.start()
    with pytest.raises(TableRecreated, match="created again"):
        follower.plan()


@pytest.mark.breadth
def test_a_query_continues_when_the_server_is_killed_and_restarted(server: ServerProcess) -> None:
    with sync.connect(server.url) as client, ThreadPoolExecutor(1) as pool:
        table = filled(client, "test.killed")
        follower = Query(server.url, table.name, max_rows_per_trigger=600)
        follower.start()
        # First initial rows, then changes, requested while the server is down.
        for step in (follower.plan, follower.run_batch, follower.run_batch, follower.plan, follower.run_batch):
            server.kill()
            asked = pool.submit(step)
            server.restart()
            assert asked.result()
            client.wait_ready()
            write(table, range(100), len(follower.offsets))
        follower.run()
        follower.stop()
        assert follower.state() == rows_of(table)
