"""Backups and the archive of tables with tablets: tables are restored as of one instant of all their tablets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import StartFrom, StopAt, connect, sync
from scankv.model.errors import UsageError
from streaming_server.engine.backups.offline_check import CheckedPart, OfflineCheck
from streaming_server.engine.backups.restore import restore_all, restore_tables
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import newest_manifest, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify_archive
from tests.support.archived import ARCHIVING, rows_at, wait_archived
from tests.support.server_process import ServerProcess
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.storage.backup.backup_manifest import BackupManifest

pytestmark = pytest.mark.timeout(240)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
# One table for each worker of two. Its first tablet is there, and its second one at the other worker.
NAMES = [name for (name,) in names_of_workers(2, "divided")]
BUCKETS, TABLETS, KEYS = 5, 3, 40


def serving(path: Path, workers: int = 2, *settings: str) -> ServerProcess:
    """Serves a data directory, with backups beside it."""
    backups = ("--backup-location", str(path / "backups"), *(settings or ("--set", "archive_every_seconds=0")))
    return ServerProcess(path / "data", "--workers", str(workers), *backups)


def create(client: sync.Client, name: str, buckets: int = BUCKETS) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=buckets, tablets=TABLETS)


def rows_of(table: sync.Table) -> dict[int, Any]:
    return {row["k"]: row["v"] for row in table.scan().to_pylist()}


def newest(store: BackupStore) -> BackupManifest:
    manifest = newest_manifest(store)
    assert manifest is not None
    return manifest


@pytest.mark.asyncio
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_backup_is_of_one_instant_of_all_tablets(tmp_path: Path, workers: int) -> None:
    """Every transaction sets all rows of all tables to one value, which is greater than the one before."""
    store = BackupStore(str(tmp_path / "backups"))
    async with asyncio.timeout(120):
        with serving(tmp_path, workers) as server:
            async with connect(server.url) as client:
                tables = [
                    await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)
                    for name in NAMES
                ]
                begun, done = asyncio.Event(), asyncio.Event()

                async def write() -> None:
                    value = 0
                    while not done.is_set():
                        value += 1
                        async with client.transaction(id=f"job:{value}") as tx:
                            for table in tables:
                                await tx.upsert(table, [{"k": k, "v": value} for k in range(KEYS)])
                        begun.set()

                async with asyncio.TaskGroup() as group:
                    group.create_task(write())
                    await begun.wait()
                    for _ in range(2):
                        backup = await client.create_backup()
                        assert (backup.tables, backup.left_out) == (len(NAMES), {})
                    done.set()
    for number, backup_id in enumerate(store.manifests()):
        target = tmp_path / backup_id
        result = restore_all(store, plan_backup(read_manifest(store, backup_id)), target)
        assert [each.rows for each in result.tables] == [KEYS, KEYS]
        with ServerProcess(target, "--workers", str(1 + number % 2)) as server, sync.connect(server.url) as found:
            restored = [found.table(name) for name in NAMES]
            assert [table.tablets for table in restored] == [TABLETS] * len(NAMES)
            found_rows = [rows_of(table) for table in restored]
            assert [sorted(rows) for rows in found_rows] == [[*range(KEYS)]] * len(NAMES)
            values = {value for rows in found_rows for value in rows.values()}
            assert len(values) == 1, "a transaction is in the backup of one tablet, and not of another"
            for value in values:
                again = found.transaction(id=f"job:{value}")
                assert again.result is not None, "the transaction is not known to be committed"
            restored[0].upsert([{"k": k, "v": -1} for k in range(KEYS)])
            assert set(rows_of(restored[0]).values()) == {-1}


def test_unchanged_tablets_are_not_copied_again_and_consumers_continue(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path) as server, sync.connect(server.url) as client:
        table = create(client, NAMES[0])
        table.upsert(pa.table({"k": range(20_000), "v": range(20_000)}))
        with table.changes(StartFrom.EARLIEST, stop=StopAt.LATEST, consumer_id="c").stream() as stream:
            for _ in stream:
                pass
            stream.commit()
        assert client.create_backup().left_out == {}
        table.upsert([{"k": -1, "v": 1}])
        backup = client.create_backup()
        # One bucket of five was written to.
        assert 0 < backup.new_bytes < 100_000
        assert client.create_backup().new_bytes < 10_000
    manifest = newest(store)
    assert [(each.name, each.rows) for each in manifest.tables] == [(NAMES[0], 20_001)]
    names = {NAMES[0]: "divided.copy"}
    restored = restore_tables(store, plan_backup(manifest), tmp_path / "data", names)
    assert [each.rows for each in restored.tables] == [20_001]
    with serving(tmp_path) as server, sync.connect(server.url) as client:
        for name in (NAMES[0], "divided.copy"):
            with client.table(name).changes(stop=StopAt.LATEST, consumer_id="c").stream() as stream:
                assert [row["k"] for batch in stream for row in batch.to_pylist()] == [-1]


def test_a_table_is_restored_with_another_number_of_buckets(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path) as server, sync.connect(server.url) as client:
        create(client, NAMES[0]).upsert(pa.table({"k": range(3000), "v": range(3000)}))
        client.create_backup()
    plan, names = plan_backup(newest(store)), {NAMES[0]: NAMES[0]}
    with pytest.raises(UsageError, match="has 3 tablets, so it must have at least as many buckets, not 2"):
        restore_tables(store, plan, tmp_path / "other", names, buckets=2)
    restore_tables(store, plan, tmp_path / "more", names, buckets=8)
    with ServerProcess(tmp_path / "more", "--workers", "2") as server, sync.connect(server.url) as client:
        table = client.table(NAMES[0])
        assert (table.buckets, table.tablets) == (8, TABLETS)
        assert rows_of(table) == {k: k for k in range(3000)}


def test_a_table_with_a_damaged_tablet_is_left_out(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path) as server, sync.connect(server.url) as client:
        for name in NAMES:
            create(client, name).upsert(pa.table({"k": range(KEYS), "v": range(KEYS)}))
        assert server.stop() == 0
    database, _, name = NAMES[0].partition(".")
    for bucket in (tmp_path / "data" / "tables" / database / name / "tablets" / "1" / "buckets").glob("[0-9]*[0-9]"):
        (bucket / "CURRENT").write_bytes(b"damaged\n")
    with serving(tmp_path) as server, sync.connect(server.url) as client:
        backup = client.create_backup()
        assert backup.tables == 1
        assert [*backup.left_out] == [NAMES[0]]
        assert "tablet 1 cannot be backed up" in backup.left_out[NAMES[0]]
        # The next backup cannot reuse what the first one lacks.
        assert [*client.create_backup().left_out] == [NAMES[0]]
    assert [table.name for table in newest(store).tables] == [NAMES[1]]
    # The check without a server names the table, too, and never a tablet.
    found = asyncio.run(checked(tmp_path / "data"))
    assert {part.table for part in found} == {"", *NAMES}
    assert {part.table for part in found if part.problem} == {NAMES[0]}
    assert not [part for part in found if "#" in f"{part.part}{part.problem}"]


async def checked(data: Path) -> list[CheckedPart]:
    """Returns what a check without a server finds."""
    check = OfflineCheck(data)
    try:
        return [part async for part in check.run()]
    finally:
        check.close()


def write(client: sync.Client, value: int) -> None:
    """Writes a value to all tablets of all tables, each by itself and then in one transaction."""
    for name in NAMES:
        client.table(name).upsert([{"k": k, "v": -value} for k in range(KEYS)])
    with client.transaction(id=f"job:{value}") as transaction:
        for name in NAMES:
            transaction.upsert(client.table(name), [{"k": k, "v": value} for k in range(KEYS)])


def test_every_instant_can_be_restored_while_the_number_of_workers_changes(tmp_path: Path) -> None:
    """Each run drops a table that the run before has created, right before it stops."""
    store = BackupStore(str(tmp_path / "backups"))
    instants: dict[int, dict[str, dict[int, Any]]] = {}
    with serving(tmp_path, 2, *ARCHIVING) as server, sync.connect(server.url) as client:
        for name in (*NAMES, "divided.run0"):
            create(client, name)
        client.create_backup()
        wait_archived(store)
        assert server.stop() == 0
    expected: dict[str, dict[int, Any]] = {**{name: {} for name in NAMES}, "divided.run0": {}}
    for run, workers in enumerate([1, 2], 1):
        with serving(tmp_path, workers, *ARCHIVING) as server, sync.connect(server.url) as client:
            write(client, run)
            expected = {**expected, **{name: dict.fromkeys(range(KEYS), run) for name in NAMES}}
            instants[time.time_ns() // 1000] = expected
            create(client, f"divided.run{run}").upsert([{"k": k, "v": run} for k in range(KEYS)])
            before = f"divided.run{run - 1}"
            client.table(before).upsert([{"k": k, "v": 0} for k in range(KEYS)])
            expected = {
                **expected,
                f"divided.run{run}": dict.fromkeys(range(KEYS), run),
                before: dict.fromkeys(range(KEYS), 0),
            }
            instants[time.time_ns() // 1000] = expected
            client.drop_table(before)
            expected = {name: rows for name, rows in expected.items() if name != before}
            instants[time.time_ns() // 1000] = expected
            # What was written last is archived by the stop.
            assert server.stop() == 0
    assert len(store.manifests()) == 1
    assert verify_archive(store) == []
    assert rows_at(store, None, tmp_path / "latest") == expected
    for instant, then in instants.items():
        assert rows_at(store, instant, tmp_path / str(instant)) == then


def test_nothing_is_lost_if_an_owner_of_tablets_is_killed(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serving(tmp_path, 2, *ARCHIVING) as server, sync.connect(server.url, operation_timeout=60) as client:
        for name in NAMES:
            create(client, name)
        client.create_backup()
        wait_archived(store)
        for number in range(2):
            new = create(client, f"divided.killed{number}")
            new.upsert([{"k": k, "v": number} for k in range(KEYS)])
            write(client, number)
            kill_worker(server, number)
            wait_for_worker(server, number)
            new.upsert([{"k": k, "v": 9} for k in range(0, KEYS, 2)])
        instant = wait_archived(store)
        assert len(store.manifests()) == 1
    expected: dict[str, dict[int, int]] = {name: dict.fromkeys(range(KEYS), 1) for name in NAMES}
    for number in range(2):
        expected[f"divided.killed{number}"] = {k: number if k % 2 else 9 for k in range(KEYS)}
    assert rows_at(store, instant, tmp_path / "then") == expected
