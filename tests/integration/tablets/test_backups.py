"""Backups and the archive of tables with tablets: tables are restored as of one instant of all their tablets."""

from __future__ import annotations

import asyncio
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
from tests.support.archived import (
    check_every_instant,
    rows_at,
    serve_with_backups,
    wait_archived,
    write_alone_and_together,
)
from tests.support.counting_transactions import counting_transactions
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


def create(client: sync.Client, name: str, buckets: int = BUCKETS) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=buckets, tablets=TABLETS)


def rows_of(table: sync.Table) -> dict[int, Any]:
    return {row["k"]: row["v"] for row in table.scan().to_pylist()}


def newest(store: BackupStore) -> BackupManifest:
    manifest = newest_manifest(store)
    assert manifest is not None
    return manifest


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_backup_is_of_one_instant_of_all_tablets(tmp_path: Path, workers: int) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    async with asyncio.timeout(120):
        with serve_with_backups(tmp_path, workers) as server:
            async with connect(server.url) as client:
                tables = [
                    await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)
                    for name in NAMES
                ]
                async with counting_transactions(client, tables, KEYS):
                    for _ in range(2):
                        backup = await client.create_backup()
                        assert (backup.tables, backup.left_out) == (len(NAMES), {})
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


@pytest.mark.breadth
def test_unchanged_tablets_are_not_copied_again_and_consumers_continue(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serve_with_backups(tmp_path, 2) as server, sync.connect(server.url) as client:
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
    with serve_with_backups(tmp_path, 2) as server, sync.connect(server.url) as client:
        client.table("divided.copy").accept_consumer("c")
        for name in (NAMES[0], "divided.copy"):
            with client.table(name).changes(stop=StopAt.LATEST, consumer_id="c").stream() as stream:
                assert [row["k"] for batch in stream for row in batch.to_pylist()] == [-1]


@pytest.mark.breadth
def test_a_table_is_restored_with_another_number_of_buckets(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serve_with_backups(tmp_path, 2) as server, sync.connect(server.url) as client:
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


@pytest.mark.breadth
def test_a_table_with_a_damaged_tablet_is_left_out(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with serve_with_backups(tmp_path, 2) as server, sync.connect(server.url) as client:
        for name in NAMES:
            create(client, name).upsert(pa.table({"k": range(KEYS), "v": range(KEYS)}))
        assert server.stop() == 0
    database, _, name = NAMES[0].partition(".")
    for bucket in (tmp_path / "data" / "tables" / database / name / "tablets" / "1" / "buckets").glob("[0-9]*[0-9]"):
        (bucket / "CURRENT").write_bytes(b"damaged\n")
    with serve_with_backups(tmp_path, 2) as server, sync.connect(server.url) as client:
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


@pytest.mark.breadth
def test_every_instant_can_be_restored_while_the_number_of_workers_changes(tmp_path: Path) -> None:
    check_every_instant(tmp_path, NAMES, [1, 2], create, lambda _: range(KEYS))


@pytest.mark.breadth
def test_nothing_is_lost_if_an_owner_of_tablets_is_killed(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with (
        serve_with_backups(tmp_path, 2, archives=True) as server,
        sync.connect(server.url, operation_timeout=60) as client,
    ):
        for name in NAMES:
            create(client, name)
        client.create_backup()
        wait_archived(store)
        for number in range(2):
            new = create(client, f"divided.killed{number}")
            new.upsert([{"k": k, "v": number} for k in range(KEYS)])
            write_alone_and_together(client, NAMES, range(KEYS), number)
            kill_worker(server, number)
            wait_for_worker(server, number)
            new.upsert([{"k": k, "v": 9} for k in range(0, KEYS, 2)])
        instant = wait_archived(store)
        assert len(store.manifests()) == 1
    expected: dict[str, dict[int, int]] = {name: dict.fromkeys(range(KEYS), 1) for name in NAMES}
    for number in range(2):
        expected[f"divided.killed{number}"] = {k: number if k % 2 else 9 for k in range(KEYS)}
    assert rows_at(store, instant, tmp_path / "then") == expected
