"""A server that dies while it creates a backup, and a process that dies while it restores one, leave nothing half."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import BackupFailed, ConnectionFailed, connect
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.prune import prune
from streaming_server.storage.backup.verify import verify
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BUCKETS = 2
ROWS = 200
# The claim, two files of each bucket, the pack of its small files, the manifest.
STORES = 1 + 3 * BUCKETS + 1
POINTS = [
    *(f"checkpoint {n} {when}" for n in range(1, BUCKETS + 1) for when in ("before", "after")),
    *(f"store {n} {when}" for n in range(1, STORES + 1) for when in ("before", "after")),
]
FEW = ["checkpoint 2 before", "store 1 after", "store 3 after", f"store {STORES - 1} after", f"store {STORES} before"]


@pytest.mark.parametrize("points", [FEW, pytest.param(POINTS, marks=pytest.mark.soak)])
async def test_a_kill_during_a_backup_leaves_complete_backups_only(tmp_path: Path, points: list[str]) -> None:
    armed, store = tmp_path / "point", BackupStore(str(tmp_path / "backups"))
    settings = ("--backup-location", store.location, "--set", "archive_every_seconds=0")
    with ServerProcess(tmp_path / "data", *settings, wrapper=crashing(armed)) as server:
        async with connect(server.url) as client:
            await client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=BUCKETS)
        for number, point in enumerate(points):
            async with connect(server.url, operation_timeout=2) as client:
                table = await client.table("test.t")
                # All files are new in each round.
                await table.upsert(pa.table({"k": range(ROWS), "v": [number] * ROWS}, schema=SCHEMA))
                armed.write_text(point)
                with pytest.raises(ConnectionFailed):
                    await client.create_backup()
            await asyncio.to_thread(server.process.wait)
            assert not armed.exists(), f"the server did not reach {point}"
            server.restart()
            assert not list((server.data_dir / "trash").iterdir())
            assert not any(verify(store, store.manifests()).values())
            if point == "store 1 before":
                assert not store.claims()
            else:
                with pytest.raises(BackupFailed, match="being created"):
                    prune(store, keep=1)
            async with connect(server.url) as client:
                table = await client.table("test.t")
                assert set((await table.scan().to_arrow())["v"].to_pylist()) == {number}
                backup_id = (await client.create_backup()).backup_id
            for claim in store.claims():
                store.remove_claim(claim)  # instead of waiting until it counts as ended
            prune(store, keep=1)
            manifest = read_manifest(store, backup_id)
            assert store.objects() == manifest.objects
            assert not store.partial_objects()
            assert manifest.tables[0].rows == ROWS


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.soak
async def test_a_restore_that_is_killed_is_not_served_and_can_be_repeated(tmp_path: Path, stride: int) -> None:
    location, restored = tmp_path / "backups", tmp_path / "restored"
    restored.mkdir()
    with ServerProcess(tmp_path / "data", "--backup-location", str(location), *ARCHIVING) as server:
        async with connect(server.url) as client:
            for name in ("test.a", "test.b"):
                table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS)
                await table.upsert(pa.table({"k": range(ROWS), "v": range(ROWS)}, schema=SCHEMA))
            await client.create_backup()
            async with client.transaction(id="job:1") as transaction:
                await transaction.upsert(table, [{"k": -1, "v": -1}])
            await asyncio.to_thread(wait_archived, BackupStore(str(location)))
    command = [sys.executable, "-m", "tests.support.dying_restore", str(location), str(restored), str(stride)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    deaths = int(output)
    assert deaths > 50 / stride
    for data in sorted(restored.iterdir())[:: max(1, deaths // 6)]:
        with ServerProcess(data) as server:
            async with connect(server.url) as client:
                assert [await (await client.table(name)).count() for name in ("test.a", "test.b")] == [ROWS, ROWS + 1]
                async with client.transaction(id="job:1") as transaction:
                    assert transaction.result is not None
