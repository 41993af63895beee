"""The archive of a server whose number of workers changes: it continues, and every instant can be restored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify_archive
from tests.support.archived import ARCHIVING, rows_at, wait_archived
from tests.support.server_process import ServerProcess
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = [name for (name,) in names_of_workers(2, "kept")]


def serving(path: Path, workers: int) -> ServerProcess:
    """Serves a data directory, with backups and the archive beside it."""
    backups = ("--backup-location", str(path / "backups"), *ARCHIVING)
    return ServerProcess(path / "data", "--workers", str(workers), *backups)


def write(client: sync.Client, value: int) -> None:
    """Writes a value to all tables, each by itself and then in one transaction."""
    for name in NAMES:
        client.table(name).upsert([{"k": value, "v": -value}])
    with client.transaction(id=f"job:{value}") as transaction:
        for name in NAMES:
            transaction.upsert(client.table(name), [{"k": value, "v": value}])


def test_every_instant_can_be_restored_while_the_number_of_workers_changes(tmp_path: Path) -> None:
    """Each run drops a table that the run before has created, right before it stops."""
    store = BackupStore(str(tmp_path / "backups"))
    instants: dict[int, dict[str, dict[int, Any]]] = {}
    with serving(tmp_path, 2) as server, sync.connect(server.url) as client:
        for name in (*NAMES, "kept.run0"):
            client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
        client.create_backup()
        wait_archived(store)
        assert server.stop() == 0
    expected: dict[str, dict[int, Any]] = {**{name: {} for name in NAMES}, "kept.run0": {}}
    for run, workers in enumerate([1, 2, 3, 2], 1):
        with serving(tmp_path, workers) as server, sync.connect(server.url) as client:
            write(client, run)
            expected = {**expected, **{name: {**expected[name], run: run} for name in NAMES}}
            instants[time.time_ns() // 1000] = expected
            new = client.create_table(f"kept.run{run}", SCHEMA, primary_key=["k"], buckets=2)
            new.upsert([{"k": run, "v": run}])
            client.table(f"kept.run{run - 1}").upsert([{"k": 0, "v": 0}])
            before = expected[f"kept.run{run - 1}"]
            expected = {**expected, new.name: {run: run}, f"kept.run{run - 1}": {**before, 0: 0}}
            instants[time.time_ns() // 1000] = expected
            client.drop_table(f"kept.run{run - 1}")
            expected = {name: rows for name, rows in expected.items() if name != f"kept.run{run - 1}"}
            instants[time.time_ns() // 1000] = expected
            # What was written last is archived by the stop.
            assert server.stop() == 0
    assert len(store.manifests()) == 1
    assert verify_archive(store) == []
    assert rows_at(store, None, tmp_path / "latest") == expected
    for instant, then in instants.items():
        assert rows_at(store, instant, tmp_path / str(instant)) == then


def test_a_worker_that_is_killed_right_after_changes_of_tables_loses_none_of_them(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path, 2) as server, sync.connect(server.url, operation_timeout=60) as client:
        for name in NAMES:
            client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
        client.create_backup()
        wait_archived(store)
        for number, owned in enumerate(names_of_workers(2, "killed", each=2)):
            for name in owned:
                client.create_table(name, SCHEMA, primary_key=["k"], buckets=2).upsert([{"k": number, "v": number}])
            write(client, number)
            kill_worker(server, number)
            wait_for_worker(server, number)
            client.table(owned[0]).upsert([{"k": 9, "v": 9}])
        write(client, 2)
        instant = wait_archived(store)
        assert len(store.manifests()) == 1
    expected = {name: {0: 0, 1: 1, 2: 2} for name in NAMES}
    for number, (first, second) in enumerate(names_of_workers(2, "killed", each=2)):
        expected |= {first: {number: number, 9: 9}, second: {number: number}}
    assert rows_at(store, instant, tmp_path / "then") == expected
