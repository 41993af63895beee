"""A table that is restored with another number of buckets has the same rows, and works like any other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, LogOffsets, PositionExpired, StartFrom, StopAt, UsageError, agg, sync
from streaming_server.engine.backups.restore import restore_tables
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import find_backup, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("day", pa.int32()), ("name", pa.string()), ("v", pa.int64())])
ROWS = 3000
KINDS: dict[str, dict[str, Any]] = {
    "indexed": {"indexes": ["v"], "changelog": "full"},
    "bucket_key": {"bucket_key": ["name"], "changelog": "none"},
    "partitioned": {"partition_by": ["day"], "indexes": ["v"]},
    "expiring": {"ttl_seconds": 10**6},
    "aggregate": {"merge_engine": "aggregate", "aggregators": {"v": agg.sum()}},
    "newest": {"merge_engine": "versioned", "version_column": "v"},
}


def rows(count: int = ROWS) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {"day": [n % 7 for n in numbers], "name": [f"n{n % 500}" for n in numbers], "v": list(numbers)}, schema=SCHEMA
    )


def sorted_rows(table: sync.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_pylist(), key=lambda row: (row["day"], row["name"]))


@pytest.mark.represented_by("bucket_key-1-3")
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [*((kind, 3, 8) for kind in KINDS), ("indexed", 4, 1), ("bucket_key", 1, 3), ("partitioned", 4, 2)],
)
def test_rows_are_the_same_in_another_number_of_buckets(tmp_path: Path, kind: str, before: int, after: int) -> None:
    location = tmp_path / "backups"
    with ServerProcess(tmp_path / "data", "--backup-location", str(location)) as server:
        with sync.connect(server.url) as client:
            table = client.create_table("game.t", SCHEMA, primary_key=["day", "name"], buckets=before, **KINDS[kind])
            table.upsert(rows())
            if kind == "partitioned":
                table.drop_partition({"day": 3})
            expected, client_partitions = sorted_rows(table), _partitions(table, kind)
            client.create_backup()
            backed_up = datetime.now(UTC)
    store = BackupStore(str(location))
    manifest = read_manifest(store, find_backup(store, "latest"))
    restored = restore_tables(
        store, plan_backup(manifest), tmp_path / "restored", {"game.t": "game.new"}, buckets=after
    )
    assert restored.tables[0].rows == (None if KINDS[kind].get("changelog") == "none" else len(expected))
    with ServerProcess(tmp_path / "restored") as server, sync.connect(server.url) as client:
        table = client.table("game.new")
        assert table.buckets == after
        assert sorted_rows(table) == expected
        assert table.count() == len(expected)
        assert _partitions(table, kind) == client_partitions
        for row in expected[::97]:
            assert table.get((row["day"], row["name"])) == row
        wait_until(lambda: all(index.ready for index in table.index_status()), "the indexes are built")
        assert all(bucket.is_consistent for bucket in client.check_table("game.new"))
        start = LogOffsets.of(dict.fromkeys(range(after), 0), table.incarnation)
        with pytest.raises(InvalidRequest if KINDS[kind].get("changelog") == "none" else PositionExpired):
            table.changes(StartFrom.offsets(start), StopAt.LATEST).to_arrow()
        if KINDS[kind].get("changelog") != "none":
            with pytest.raises(PositionExpired):
                table.changes(StartFrom.timestamp(backed_up - timedelta(hours=1)), StopAt.LATEST).to_arrow()
            assert table.changes(StartFrom.timestamp(backed_up), StopAt.LATEST).to_arrow().num_rows == 0
        table.upsert(rows())
        again = sorted_rows(table)
        assert [(row["day"], row["name"]) for row in again if row["day"] != 3] == [
            (row["day"], row["name"]) for row in expected if row["day"] != 3
        ]
        if kind == "aggregate":
            assert [row["v"] for row in again] == [2 * row["v"] for row in expected]
        assert all(bucket.is_consistent for bucket in client.check_table("game.new"))


def _partitions(table: sync.Table, kind: str) -> list[tuple[Any, ...]]:
    if kind != "partitioned":
        return []
    return [(each.values["day"], each.rows, each.created_at, each.last_write_at) for each in table.partitions()]


def test_numbers_of_buckets_that_are_not_possible_are_refused(tmp_path: Path) -> None:
    location = tmp_path / "backups"
    with ServerProcess(tmp_path / "data", "--backup-location", str(location)) as server:
        with sync.connect(server.url) as client:
            client.create_table("game.log", SCHEMA, primary_key=[])
            client.create_table("game.t", SCHEMA, primary_key=["name"])
            client.create_backup()
    store = BackupStore(str(location))
    manifest = read_manifest(store, find_backup(store, "latest"))
    with pytest.raises(UsageError, match="no primary key"):
        restore_tables(store, plan_backup(manifest), tmp_path / "r", {"game.log": "game.log"}, buckets=2)
    for buckets in (0, 1025):
        with pytest.raises(UsageError, match="between 1 and"):
            restore_tables(store, plan_backup(manifest), tmp_path / "r", {"game.t": "game.t"}, buckets=buckets)
    assert not (tmp_path / "r").exists()
