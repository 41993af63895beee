"""A backup location that does not answer keeps no server from ending, and the next start archives the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify_archive
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.failing_disk import WAITING_SYNCS, FailingDisk, compile_library
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LOST = "the last writes were not archived"


@pytest.mark.soak
def test_a_server_ends_although_its_backup_location_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "nas").mkdir()
    disk = FailingDisk(tmp_path / "nas", compile_library(tmp_path))
    store = BackupStore(str(disk.root))
    settings = ("--backup-location", store.location, *ARCHIVING, "--set", "drain_seconds=1")
    with ServerProcess(tmp_path / "data", *settings, wrapper=disk.wrapper) as server:
        with sync.connect(server.url) as client:
            table = client.create_table("test.t", SCHEMA, primary_key=["k"])
            client.create_backup()
            table.upsert([{"k": 1, "v": 1}])
            wait_archived(store)
            disk.fail(WAITING_SYNCS)
            table.upsert([{"k": 2, "v": 2}])
            wait_until(lambda: disk.has_failed, "the location does not answer")
        # Without a bound, it would end only once the location answers.
        assert server.stop() == 0
        (line,) = [line for line in server.log.splitlines() if LOST in line]
        assert "the archive reaches up to" in line
        assert disk.has_failed
        disk.heal()
        server.restart()
        with sync.connect(server.url) as client:
            table = client.table("test.t")
            table.upsert([{"k": 3, "v": 3}])
            wait_archived(store)
        assert server.stop() == 0
        assert server.log.count(LOST) == 1
    assert verify_archive(store) == []
    # The archive has no gap, which another backup would have to fill.
    assert len(store.manifests()) == 1
    restore_all(store, plan_instant(store, None), tmp_path / "restored")
    with ServerProcess(tmp_path / "restored") as server, sync.connect(server.url) as client:
        assert client.table("test.t").count() == 3
