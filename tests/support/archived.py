"""Waits until everything that was acknowledged so far is in the archive, and restores tables from there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aio_client import UsageError, sync
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.storage.backup.backup_store import BackupStore

ARCHIVING = ("--set", "archive_every_seconds=0.05")
"""Settings of a server that archives at once what is written."""


def wait_archived(store: BackupStore) -> int:
    """Waits, and returns the instant of the call, in microseconds since 1970 UTC."""
    instant = time.time_ns() // 1000
    wait_until(lambda: _reaches(store, instant), "everything was archived")
    return instant


def _reaches(store: BackupStore, instant: int) -> bool:
    try:
        plan_instant(store, instant)
    except UsageError:
        return False
    return True


def rows_at(store: BackupStore, instant: int | None, data: Path) -> dict[str, dict[int, Any]]:
    """Restores all tables of columns `k` and `v` as of an instant, and returns the `v` of each `k`, by table."""
    result = restore_all(store, plan_instant(store, instant), data)
    assert [each.why for each in result.tables] == [""] * len(result.tables)
    assert not result.left_out
    with ServerProcess(data, "--workers", "1") as server, sync.connect(server.url) as client:
        return {table.name: {row["k"]: row["v"] for row in table.scan().to_pylist()} for table in client.tables()}
