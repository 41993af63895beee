"""The archive of what was written since the last backup: what it covers, and what is refused."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import DataLoss, StartFrom, StopAt, UsageError, sync
from streaming_server.engine.backups.restore import restore_all, restore_tables
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.archive_segment import read_segment
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.prune import prune
from streaming_server.storage.backup.verify import verify_archive
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.command_line import CommandLine
from tests.support.monitoring import Scrape, free_port
from tests.support.prepared import flip
from tests.support.s3_server import s3_bucket
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

several = pytest.mark.parametrize("workers", [("--workers", "1"), ("--workers", "2")], ids=["alone", "workers"])
"""With one process and with two; `SCANKV_TEST_WORKERS=2` runs the other tests with two."""

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@contextmanager
def serving(data: Path, store: BackupStore, *settings: str) -> Iterator[sync.Client]:
    """Serves a data directory for the length of the block, and archives what is written."""
    with ServerProcess(data, "--backup-location", store.location, *ARCHIVING, *settings) as server:
        with sync.connect(server.url) as client:
            yield client


def wait_followed(store: BackupStore, data: Path) -> None:
    """Waits until the archive has its first segment, and another server continues it, even if this one is killed."""
    wait_archived(store)
    wait_until((data / "archived.json").exists, "the segment was recorded")


def rows_at(store: BackupStore, instant: int | None, data: Path) -> dict[str, dict[int, Any]]:
    """Restores all tables as of an instant, and returns their rows."""
    result = restore_all(store, plan_instant(store, instant), data)
    assert [each.why for each in result.tables] == [""] * len(result.tables)
    found = {}
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        for table in client.tables():
            rows = table.scan().to_arrow().to_pylist()
            found[table.name] = {row["k"]: row["v"] for row in rows}
            assert all(bucket.is_consistent for bucket in client.check_table(table.name))
    return found


@pytest.mark.breadth
def test_large_writes_closed_buckets_and_restarts_are_archived(tmp_path: Path) -> None:
    # Few rows with long values, since most of the time would go into comparing millions of them.
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    store, expected = BackupStore(str(tmp_path / "backups")), dict[int, str]()
    settings = ("--set", "bucket_idle_seconds=0.05", "--set", "write_buffer_bytes=1048576")
    for run in range(3):
        with serving(tmp_path / "data", store, *settings) as client:
            if not run:
                client.create_table("t.t", schema, primary_key=["k"], buckets=2)
                client.create_backup()
            table = client.table("t.t")
            for part in range(3):
                keys, value = range(part * 30_000, part * 30_000 + 25_000), f"{run} {part} {'x' * 100}"
                table.upsert(pa.table({"k": keys, "v": [value] * len(keys)}, schema=schema))
                expected |= dict.fromkeys(keys, value)
            stats = client.stats
            wait_until(lambda stats=stats: stats().open_buckets == 0, "the buckets were closed")  # type: ignore[misc]
            table.upsert([{"k": -1, "v": str(run)}])
            expected[-1] = str(run)
            wait_archived(store)
    assert verify_archive(store) == []
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": expected}


@several
def test_consumers_and_commits_are_those_of_the_instant(tmp_path: Path, workers: tuple[str, ...]) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store, *workers) as client:
        table = client.create_table("t.t", SCHEMA, primary_key=["k"])
        client.create_backup()
        read = []
        for number in range(3):
            with client.transaction(id=f"job:{number}") as transaction:
                transaction.upsert(table, [{"k": number, "v": number}])
            if number < 2:
                read += _consume(table)
            if number == 1:
                instant = wait_archived(store)
        wait_archived(store)
    assert read == [0, 1]
    restore_all(store, plan_instant(store, instant), tmp_path / "then")
    with ServerProcess(tmp_path / "then") as server, sync.connect(server.url) as client:
        table = client.table("t.t")
        table.accept_consumer("job")
        assert _consume(table) == []
        table.upsert([{"k": 9, "v": 9}])
        assert _consume(table) == [9]
        for number, known in enumerate([True, True, False]):
            with client.transaction(id=f"job:{number}") as transaction:
                assert (transaction.result is not None) == known


def _consume(table: sync.Table, consumer: str = "job") -> list[int]:
    changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_consumer_id(consumer)
    with changes.stream() as stream:
        keys = [key for rows in stream for key in rows["k"].to_pylist()]
        stream.commit()
    return keys


def test_an_archive_that_has_lost_or_changed_a_file_is_detected_and_not_restored(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store) as client:
        table = client.create_table("t.t", SCHEMA, primary_key=["k"], buckets=1)
        client.create_backup()
        for number in range(3):
            table.upsert([{"k": number, "v": number}])
            wait_archived(store)
    assert verify_archive(store) == []
    files = sorted(path for path in (tmp_path / "backups" / "archive").iterdir() if path.name != "reached.json")
    assert len(files) >= 6
    for number, path in enumerate(files):
        content = path.read_bytes()
        for damage in ("lost", "changed"):
            if damage == "lost":
                path.unlink()
            else:
                flip(path, len(content) // 2)
            is_newest = path.name == files[-1].name and damage == "lost"
            assert verify_archive(store) or is_newest
            if not is_newest:
                with pytest.raises(DataLoss, match=path.name[:22]):
                    restore_all(store, plan_instant(store, None), tmp_path / f"{number}-{damage}")
            path.write_bytes(content)
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {0: 0, 1: 1, 2: 2}}


@pytest.mark.breadth
def test_after_a_run_without_the_archive_it_continues_from_a_new_backup(tmp_path: Path) -> None:
    store, data = BackupStore(str(tmp_path / "backups")), tmp_path / "data"
    with serving(data, store) as client:
        client.create_table("t.t", SCHEMA, primary_key=["k"], buckets=1).upsert([{"k": 1, "v": 1}])
        client.create_backup()
        client.table("t.t").upsert([{"k": 1, "v": 2}])
        before = wait_archived(store)
    for number in range(2):  # Opening a bucket begins a new log, and removes the one before.
        with ServerProcess(data) as server, sync.connect(server.url) as client:
            client.table("t.t").upsert([{"k": 1, "v": 3 + number}])
    between = time.time_ns() // 1000
    assert len(store.manifests()) == 1
    with serving(data, store) as client:
        client.table("t.t").upsert([{"k": 1, "v": 5}])
        wait_until(lambda: len(store.manifests()) == 2, "the server created a backup")
        client.table("t.t").upsert([{"k": 1, "v": 6}])
        wait_archived(store)
    assert rows_at(store, before, tmp_path / "before") == {"t.t": {1: 2}}
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {1: 6}}
    result = restore_all(store, plan_instant(store, between), tmp_path / "between")
    assert [("the archive lacks writes" in each.why, each.rows) for each in result.tables] == [(True, 1)]


@pytest.mark.represented_by("recover")
@pytest.mark.parametrize("change", ["recover", "add"])
def test_after_a_change_of_the_directory_without_a_server_the_archive_continues_from_a_new_backup(
    tmp_path: Path, change: str
) -> None:
    store, data = BackupStore(str(tmp_path / "backups")), tmp_path / "data"
    with serving(data, store) as client:
        client.create_table("t.t", SCHEMA, primary_key=["k"], buckets=1).upsert([{"k": 1, "v": 1}])
        client.create_backup()
        client.table("t.t").upsert([{"k": 2, "v": 2}])
        before = wait_archived(store)
    if change == "recover":
        shutil.rmtree(data / "tables" / "t" / "t" / "buckets" / "0000")
        CommandLine("")("check", "--offline", str(data), "--recover")
    else:
        restore_tables(store, plan_instant(store, None), data, {"t.t": "t.added"})
    between = time.time_ns() // 1000
    with serving(data, store) as client:
        client.table("t.t").upsert([{"k": 3, "v": 3}])
        wait_until(lambda: len(store.manifests()) == 2, "the server created a backup")
        client.table("t.t").upsert([{"k": 4, "v": 4}])
        wait_archived(store)
    expected = {"t.t": {3: 3, 4: 4}} if change == "recover" else {"t.t": {n: n for n in range(1, 5)}}
    added = {} if change == "recover" else {"t.added": {1: 1, 2: 2}}
    assert rows_at(store, None, tmp_path / "latest") == {**expected, **added}
    assert rows_at(store, before, tmp_path / "before") == {"t.t": {1: 1, 2: 2}}
    result = restore_all(store, plan_instant(store, between), tmp_path / "between")
    assert [(each.name, "it has a gap up to the backup" in each.why) for each in result.tables] == [("t.t", True)]


@pytest.mark.breadth
def test_a_bucket_that_begins_again_is_archived_from_a_new_backup(tmp_path: Path) -> None:
    """As after a recovery by an earlier version, which leaves the archive as it is."""
    store, data = BackupStore(str(tmp_path / "backups")), tmp_path / "data"
    for run in range(3):  # Opening a bucket begins a new log.
        with serving(data, store) as client:
            if not run:
                client.create_table("t.t", SCHEMA, primary_key=["k"], buckets=1).upsert([{"k": 1, "v": 1}])
                client.create_backup()
            client.table("t.t").upsert([{"k": 2, "v": run}])
            wait_followed(store, data)
    buckets = data / "tables" / "t" / "t" / "buckets"
    shutil.rmtree(buckets / "0000")
    (buckets / "0000.durable").unlink()
    with serving(data, store) as client:
        client.table("t.t").upsert([{"k": 3, "v": 3}])
        wait_until(lambda: len(store.manifests()) == 2, "the server created a backup")
        client.table("t.t").upsert([{"k": 4, "v": 4}])
        wait_archived(store)
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {3: 3, 4: 4}}


def test_a_restart_with_a_damaged_archive_continues_from_a_new_backup(tmp_path: Path) -> None:
    store, data = BackupStore(str(tmp_path / "backups")), tmp_path / "data"
    with serving(data, store) as client:
        client.create_table("t.t", SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": 1}])
        client.create_backup()
        client.table("t.t").upsert([{"k": 2, "v": 2}])
        wait_archived(store)
    flip(tmp_path / "backups" / "archive" / f"{store.segments()[-1]}.json", 60)
    with serving(data, store) as client:
        wait_until(lambda: len(store.manifests()) == 2, "the server created a backup")
        client.table("t.t").upsert([{"k": 3, "v": 3}])
        wait_archived(store)
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {1: 1, 2: 2, 3: 3}}


@pytest.mark.breadth
@several
def test_what_a_killed_server_had_not_archived_of_a_dropped_table_is_reported(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    store, data = BackupStore(str(tmp_path / "backups")), tmp_path / "data"
    with serving(data, store, *workers) as client:
        for name in ("t.old", "t.kept"):
            client.create_table(name, SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": 1}])
        client.create_backup()
        client.create_table("t.new", SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": 1}])
        wait_archived(store)
    slow = (*workers, "--backup-location", store.location, "--set", "archive_every_seconds=3600")
    with ServerProcess(data, *slow) as server, sync.connect(server.url) as client:
        for name in ("t.old", "t.new", "t.kept"):
            client.table(name).upsert([{"k": 2, "v": 2}])
        instant = time.time_ns() // 1000
        client.drop_table("t.old")
        client.drop_table("t.new")
        server.kill()
    with serving(data, store, *workers) as client:
        client.table("t.kept").upsert([{"k": 2, "v": 2}])
        wait_archived(store)
    result = restore_all(store, plan_instant(store, instant), tmp_path / "then")
    assert {each.name: (each.rows, bool(each.why)) for each in result.tables} == {
        "t.kept": (2, False),
        "t.old": (1, True),
    }
    assert "dropped before" in plan_instant(store, instant).left_out["t.new"]
    assert rows_at(store, None, tmp_path / "latest") == {"t.kept": {1: 1, 2: 2}}


def test_a_restore_leaves_out_what_followed_the_instant_without_a_commit(tmp_path: Path) -> None:
    rows = [{"k": k, "v": k % 10, "w": k % 7} for k in range(100)]
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store) as client:
        schema = pa.schema([(name, pa.int64()) for name in ("k", "v", "w")])
        indexed = client.create_table("t.indexed", schema, primary_key=["k"], buckets=1)
        indexed.upsert(rows)
        divided = client.create_table(
            "t.divided", schema, primary_key=["k", "v", "w"], partition_by=["k", "v"], buckets=1
        )
        divided.upsert([{"k": 1, "v": 1, "w": 1}])
        divided.create_partition({"k": 1, "v": 2})
        client.create_backup()
        wait_followed(store, tmp_path / "data")
    slow = ("--backup-location", store.location, "--set", "archive_every_seconds=3600")
    with ServerProcess(tmp_path / "data", *slow) as server, sync.connect(server.url) as client:
        divided = client.table("t.divided")
        instant = time.time_ns() // 1000
        client.alter_table("t.indexed", add_indexes=["v"])
        wait_for_indexes(client, "t.indexed")
        divided.create_partition({"k": 3, "v": 3})
        divided.drop_partition({"k": 1})
    with serving(tmp_path / "data", store) as client:
        client.create_table("t.other", SCHEMA, primary_key=["k"])
        wait_archived(store)
    restore_all(store, plan_instant(store, instant), tmp_path / "then")
    with ServerProcess(tmp_path / "then") as server, sync.connect(server.url) as client:
        # First of all, before the bucket is opened.
        client.alter_table("t.indexed", add_indexes=["w"])
        wait_for_indexes(client, "t.indexed")
        found = client.table("t.indexed").scan(where="w = 3").to_pylist()
        assert sorted(row["k"] for row in found) == [row["k"] for row in rows if row["w"] == 3]
        assert all(bucket.is_consistent for bucket in client.check_table("t.indexed"))
        assert [each.values for each in client.table("t.divided").partitions()] == [{"k": 1, "v": 1}, {"k": 1, "v": 2}]


@pytest.mark.breadth
def test_consumers_that_were_created_or_moved_after_the_instant_are_not_beyond_the_log(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store) as client:
        table = client.create_table("t.t", SCHEMA, primary_key=["k"], buckets=1)
        client.create_backup()
        table.upsert([{"k": k, "v": k} for k in range(10)])
        for consumer in ("commits", "reset"):
            _consume(table, consumer)
        table.upsert([{"k": 10, "v": 10}])
        wait_followed(store, tmp_path / "data")
    slow = ("--backup-location", store.location, "--set", "archive_every_seconds=3600")
    with ServerProcess(tmp_path / "data", *slow) as server, sync.connect(server.url) as client:
        table = client.table("t.t")
        instant = time.time_ns() // 1000
        table.upsert([{"k": k, "v": k} for k in range(50)])
        _consume(table, "commits")
        table.reset_consumer("reset", StartFrom.LATEST)
        with table.changes(StartFrom.LATEST).with_consumer_id("later").stream():
            pass
        with table.changes(StartFrom.FULL).with_consumer_id("reads-rows").stream():
            pass
    with serving(tmp_path / "data", store) as client:
        client.table("t.t").upsert([{"k": 1, "v": 1}])
        wait_archived(store)
    plan = plan_instant(store, instant)
    (restored,) = restore_all(store, plan, tmp_path / "then").tables
    with ServerProcess(tmp_path / "then") as server, sync.connect(server.url) as client:
        table = client.table("t.t")
        assert {each.id: each.lag for each in table.consumers()} == {"commits": 1, "reset": 1}
        table.accept_consumer("commits")
        assert _consume(table, "commits") == [10]
    assert {consumer: "no position" in what for consumer, what in restored.consumers.items()} == {
        "later": True,
        "reads-rows": True,
    }

    at = dt.datetime.fromtimestamp(instant / 1e6, dt.UTC).isoformat()
    said = CommandLine("")("backups", "restore", store.location, "--data", str(tmp_path / "again"), "--as-of", at).text
    assert 't.t: the consumer "later" has no position as of that instant in the archive, and is left out\n' in said

    # An archive of an earlier version does not say when the positions were set.
    source = plan.sources["t.t"]
    latest = plan_instant(store, None).sources["t.t"].table.consumers
    moved = replace(source.table, consumers=tuple(replace(each, moved_micros=0) for each in latest))
    earlier = replace(plan, sources={"t.t": replace(source, table=moved, later_consumers=frozenset())})
    (restored,) = restore_all(store, earlier, tmp_path / "earlier").tables
    assert {consumer: what.rpartition(" ")[2] for consumer, what in restored.consumers.items()} == {
        "commits": "end",
        "later": "end",
        "reset": "end",
        "reads-rows": "out",
    }
    with ServerProcess(tmp_path / "earlier") as server, sync.connect(server.url) as client:
        table = client.table("t.t")
        table.upsert([{"k": 99, "v": 99}])
        assert {each.id: each.lag for each in table.consumers()} == dict.fromkeys(("commits", "later", "reset"), 1)
        for consumer in ("commits", "later", "reset"):
            table.accept_consumer(consumer)
            assert _consume(table, consumer) == [99]


def test_a_write_of_which_a_power_cut_has_left_the_beginning_is_not_restored(tmp_path: Path) -> None:
    store, schema = BackupStore(str(tmp_path / "backups")), pa.schema([("k", pa.int64()), ("text", pa.string())])
    bucket = tmp_path / "data" / "tables" / "t" / "t" / "buckets" / "0000"
    with serving(tmp_path / "data", store) as client:
        client.create_table("t.t", schema, primary_key=["k"], buckets=1)
        client.create_backup()
        wait_followed(store, tmp_path / "data")
    slow = ("--backup-location", store.location, "--set", "archive_every_seconds=3600")
    with ServerProcess(tmp_path / "data", *slow) as server, sync.connect(server.url) as client:
        client.table("t.t").upsert([{"k": 1, "text": "a"}])
        (log,) = [each for each in bucket.glob("*.log") if each.stat().st_size]
        size, watermark = log.stat().st_size, bucket.with_suffix(".durable").read_bytes()
        client.table("t.t").upsert([{"k": 2, "text": "b" * 30_000}])
        server.kill()
    # As if the sync of the last write had not finished.
    kept = log.read_bytes()[: (size // 4096 + 2) * 4096]
    log.write_bytes(kept.ljust(log.stat().st_size, b"\0"))
    bucket.with_suffix(".durable").write_bytes(watermark)
    with serving(tmp_path / "data", store) as client:
        client.table("t.t").upsert([{"k": 3, "text": "c"}])
        wait_archived(store)
    restore_all(store, plan_instant(store, None), tmp_path / "latest")
    with ServerProcess(tmp_path / "latest") as server, sync.connect(server.url) as client:
        assert client.table("t.t").scan().ordered().to_pylist() == [{"k": 1, "text": "a"}, {"k": 3, "text": "c"}]


def wait_for_indexes(client: sync.Client, table: str) -> None:
    def are_ready() -> bool:
        return all(each.ready for bucket in client.check_table(table) for each in bucket.indexes)

    wait_until(are_ready, "the indexes are built")


@pytest.mark.breadth
def test_a_gap_counts_until_the_next_backup(tmp_path: Path) -> None:
    store, data = BackupStore(str(tmp_path / "backups")), tmp_path / "data"
    with serving(data, store) as client:
        tables = [client.create_table(name, SCHEMA, primary_key=["k"], buckets=1) for name in ("t.a", "t.b")]
        for table in tables:
            table.upsert([{"k": 1, "v": 1}])
        client.create_backup()
        for table in tables:
            table.upsert([{"k": 1, "v": 2}])
        wait_archived(store)
    # As if RocksDB had removed a file that was kept for too long.
    for _ in range(2):
        with serving(data, store) as client:
            client.table("t.a").upsert([{"k": 1, "v": 3}])
            wait_archived(store)
    with ServerProcess(data, "--backup-location", store.location, "--set", "archive_every_seconds=3600") as server:
        with sync.connect(server.url) as client:
            client.table("t.a").upsert([{"k": 1, "v": 4}])
    with ServerProcess(data, "--backup-location", store.location, "--set", "archive_every_seconds=3600") as server:
        with sync.connect(server.url) as client:
            client.table("t.a").upsert([{"k": 1, "v": 5}])
    for path in (data / "tables" / "t" / "a" / "buckets" / "0000" / "archive").glob("*.log"):
        path.unlink()
    between = time.time_ns() // 1000
    with serving(data, store) as client:
        client.table("t.b").upsert([{"k": 1, "v": 9}])
        wait_until(lambda: len(store.manifests()) == 2, "the server created a backup")
        client.table("t.b").upsert([{"k": 1, "v": 10}])
        wait_archived(store)
    result = restore_all(store, plan_instant(store, between), tmp_path / "between")
    assert {each.name: bool(each.why) for each in result.tables} == {"t.a": True, "t.b": False}
    assert rows_at(store, None, tmp_path / "latest") == {"t.a": {1: 5}, "t.b": {1: 10}}


@pytest.mark.breadth
def test_a_restored_server_continues_the_archive_of_its_location_with_a_backup(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store) as client:
        table = client.create_table("t.t", SCHEMA, primary_key=["k"])
        client.create_backup()
        table.upsert([{"k": 1, "v": 1}])
        instant = wait_archived(store)
        table.upsert([{"k": 2, "v": 2}])
        wait_archived(store)
    restore_all(store, plan_instant(store, instant), tmp_path / "restored")
    with serving(tmp_path / "restored", store) as client:
        client.table("t.t").upsert([{"k": 3, "v": 3}])
        wait_until(lambda: len(store.manifests()) == 2, "the server created a backup")
        client.table("t.t").upsert([{"k": 4, "v": 4}])
        wait_archived(store)
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {1: 1, 3: 3, 4: 4}}


@several
def test_a_location_that_fails_for_a_while_loses_nothing(tmp_path: Path, workers: tuple[str, ...]) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    archive, away = tmp_path / "backups" / "archive", tmp_path / "away"
    with ServerProcess(tmp_path / "data", "--backup-location", store.location, *ARCHIVING, *workers) as server:
        with sync.connect(server.url) as client:
            table = client.create_table("t.t", SCHEMA, primary_key=["k"])
            client.create_backup()
            table.upsert([{"k": 1, "v": 1}])
            wait_archived(store)
            shutil.move(archive, away)
            archive.write_text("in the way")
            table.upsert([{"k": 2, "v": 2}])
            wait_until(lambda: "nothing can be archived" in server.log, "the failure was logged")
            table.upsert([{"k": 3, "v": 3}])
            archive.unlink()
            shutil.move(away, archive)
            wait_archived(store)
    assert server.log.count("nothing can be archived") == 1
    assert verify_archive(store) == []
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {1: 1, 2: 2, 3: 3}}


def test_pruning_removes_the_archive_before_the_oldest_backup(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store) as client:
        table = client.create_table("t.t", SCHEMA, primary_key=["k"])
        early = time.time_ns() // 1000
        for number in range(3):
            client.create_backup()
            table.upsert([{"k": number, "v": number}])
            wait_archived(store)
        prune(store, keep=1)
        table.upsert([{"k": 9, "v": 9}])
        wait_archived(store)
    (oldest,) = store.manifests()
    assert store.segments()
    assert all(segment_id > oldest for segment_id in store.segments())
    assert {*store.archived_data()} == {name for each in store.segments() for name in read_segment(store, each).data}
    assert verify_archive(store) == []
    assert rows_at(store, None, tmp_path / "latest") == {"t.t": {0: 0, 1: 1, 2: 2, 9: 9}}
    with pytest.raises(UsageError, match="oldest backup"):
        plan_instant(store, early)


def test_an_idle_server_archives_nothing_but_how_far_it_is(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path / "data", store) as client:
        client.create_table("t.t", SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": 1}])
        client.create_backup()
        wait_archived(store)
        before = store.segments()
        later = wait_archived_without_writes(store)
        assert store.segments() == before
    assert rows_at(store, later, tmp_path / "later") == {"t.t": {1: 1}}


def wait_archived_without_writes(store: BackupStore) -> int:
    """Waits until the record of how far the archive is says more than the last segment, and returns that."""
    wait_until(store.read_reached, "the server recorded how far the archive is")
    return int(store.read_reached()["micros"]) - 1


@pytest.mark.breadth
def test_the_archive_in_an_object_store(tmp_path: Path) -> None:
    with s3_bucket("backups") as uri:
        store = BackupStore(uri % "prod/scankv")
        with serving(tmp_path / "data", store) as client:
            table = client.create_table("t.t", SCHEMA, primary_key=["k"])
            client.create_backup()
            table.upsert([{"k": 1, "v": 1}])
            instant = wait_archived(store)
            table.upsert([{"k": 1, "v": 2}])
            wait_archived(store)
        assert verify_archive(store) == []
        assert rows_at(store, instant, tmp_path / "then") == {"t.t": {1: 1}}
        assert rows_at(store, None, tmp_path / "latest") == {"t.t": {1: 2}}


@pytest.mark.one_process
def test_metrics_say_how_far_the_archive_is(tmp_path: Path) -> None:
    store, port = BackupStore(str(tmp_path / "backups")), free_port()
    with serving(tmp_path / "data", store, "--metrics-port", str(port)) as client:
        assert Scrape(port).value("scankv_archive_reached_timestamp_seconds") == 0
        client.create_table("t.t", SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": 1}])
        client.create_backup()
        instant = wait_archived(store) / 1e6
        reached = "scankv_archive_reached_timestamp_seconds"
        wait_until(lambda: (Scrape(port).value(reached) or 0) > instant, "the metric follows the archive")
        assert Scrape(port).value("scankv_archive_failures_total") == 0


@pytest.mark.represented_by("False")
@pytest.mark.parametrize("kills", [False, True])
def test_a_bootstrapped_table_is_left_out_until_a_backup_has_its_rows(tmp_path: Path, kills: bool) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with ServerProcess(tmp_path / "data", "--backup-location", store.location, *ARCHIVING) as server:
        with sync.connect(server.url) as client:
            client.create_table("t.old", SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": 1}])
            client.create_backup()
            wait_followed(store, tmp_path / "data")
            rows = [{"k": n, "v": n} for n in range(100)]
            client.bootstrap("t.new", rows, primary_key=["k"])
            between = time.time_ns() // 1000
        if kills:
            server.kill()
            server.restart()
        # By itself, as what the archive lacks makes another one necessary.
        wait_until(lambda: len(store.manifests()) > 1, "another backup was created")
        with sync.connect(server.url) as client:
            client.table("t.new").upsert([{"k": 100, "v": 100}])
            after = wait_archived(store)
        # It is intended, and heals by itself. A server that is killed before it has noticed begins with a new backup.
        told = ["the archive lacks writes to t.new", *(["the archive continues from a new backup"] if kills else [])]
        assert any(f"INFO streaming_server.engine.backups.archive: {each}" in server.log for each in told)
        assert "it has lost writes" not in server.log
    assert rows_at(store, after, tmp_path / "after") == {"t.old": {1: 1}, "t.new": {n: n for n in range(101)}}
    # The other backup may have come before `between`, if this process was slow to look at the clock.
    plan = plan_instant(store, min(between, read_manifest(store, store.manifests()[1]).micros - 1))
    assert {*plan.sources} == {"t.old"}
    if not kills:
        assert "it was bootstrapped" in plan.left_out["t.new"]
