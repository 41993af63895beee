"""Backups of a server of several workers: one instant of all of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import BackupFailed, ConnectionFailed, connect, sync
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import find_backup, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from tests.support.archived import serve_with_backups
from tests.support.counting_transactions import counting_transactions
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import names_of_workers, processes_of, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.timeout(240)

WORKERS = 3
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = [name for (name,) in names_of_workers(WORKERS, "backed")]


def restored(path: Path, backup: str = "latest") -> Path:
    """Restores a backup to a new data directory."""
    store = BackupStore(str(path / "backups"))
    backup_id = find_backup(store, backup)
    target = path / f"restored-{backup_id}"
    restore_all(store, plan_backup(read_manifest(store, backup_id)), target)
    return target


async def create_tables(client: Client) -> None:
    for name in NAMES:
        await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_backup_is_of_one_instant_of_all_workers(tmp_path: Path) -> None:
    ids = []
    with serve_with_backups(tmp_path, WORKERS) as server:
        async with connect(server.url) as client:
            await create_tables(client)
            tables = [await client.table(name) for name in NAMES]
            async with counting_transactions(client, tables, 4):
                for _ in range(3):
                    backup = await client.create_backup()
                    ids.append(backup.backup_id)
                    assert backup.tables == WORKERS
                    assert not backup.left_out
        assert server.stop() == 0
    for backup_id in ids:
        with (
            ServerProcess(restored(tmp_path, backup_id), "--workers", "1") as server,
            sync.connect(server.url) as found,
        ):
            values = {row["v"] for name in NAMES for row in found.table(name).scan().to_pylist()}
            assert len(values) == 1, "a transaction is in the backup of one worker, and not of another"
            for value in values:
                # Its commit is remembered with everything that it has done, and goes on from there.
                again = found.transaction(id=f"job:{value}")
                assert again.result is not None
                assert set(again.result.log_offsets) == set(NAMES)
            with found.transaction(id="job:last") as tx:
                for name in NAMES:
                    tx.upsert(found.table(name), [{"k": 1, "v": -1}])
            assert [found.table(name).get(1) for name in NAMES] == [{"k": 1, "v": -1}] * WORKERS


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
