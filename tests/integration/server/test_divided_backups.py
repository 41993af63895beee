"""Backups of a server of several workers: one instant of all of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import BackupFailed, ConnectionFailed, sync
from streaming_server.storage.backup.backup_manifest import find_backup, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from tests.support.archived import serve_with_backups
from tests.support.waiting import wait_until
from tests.support.workers import names_of_workers, processes_of, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.timeout(240)

WORKERS = 3
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = [name for (name,) in names_of_workers(WORKERS, "backed")]


@pytest.mark.breadth
def test_any_worker_creates_backups_and_unchanged_buckets_are_not_copied_again(tmp_path: Path) -> None:
    with serve_with_backups(tmp_path, WORKERS) as server, sync.connect(server.url) as client:
        tables = [client.create_table(name, SCHEMA, primary_key=["k"], buckets=2) for name in NAMES]
        rows = pa.table({"k": range(20_000), "v": range(20_000)})
        for table in tables:
            table.upsert(rows)
        for number, table in enumerate(tables):
            with sync.connect(f"127.0.0.1:{table.owner_port}") as direct:
                backup = direct.create_backup()
            assert (backup.tables, backup.left_out) == (WORKERS, {})
            if number:
                assert backup.new_bytes < 10_000
        store = BackupStore(str(tmp_path / "backups"))
        manifest = read_manifest(store, find_backup(store, "latest"))
        assert [table.name for table in manifest.tables] == sorted(NAMES)
        assert all(table.rows == 20_000 for table in manifest.tables)


@pytest.mark.breadth
def test_a_worker_that_dies_or_stops_fails_the_backup_and_pauses_nobody(tmp_path: Path) -> None:
    with serve_with_backups(tmp_path, WORKERS) as server, sync.connect(server.url, operation_timeout=60) as client:
        tables = [client.create_table(name, SCHEMA, primary_key=["k"], buckets=2) for name in NAMES]
        last = processes_of(server)[WORKERS - 1]
        os.kill(last, signal.SIGSTOP)
        try:
            with sync.connect(f"127.0.0.1:{tables[0].owner_port}") as direct:
                with pytest.raises((BackupFailed, ConnectionFailed)):
                    direct.create_backup()
                # The pause of the others has ended.
                for table in tables[:-1]:
                    direct.table(table.name).upsert([{"k": 1, "v": 1}])
        finally:
            # The supervisor kills a worker that is frozen for too long.
            with suppress(ProcessLookupError):
                os.kill(last, signal.SIGKILL)
        wait_until(lambda: processes_of(server).get(WORKERS - 1) != last, "the worker ended")
        wait_for_worker(server, WORKERS - 1)
        assert client.create_backup().tables == WORKERS
