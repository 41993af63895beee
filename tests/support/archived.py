"""Waits until everything that was acknowledged so far is in the archive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aio_client import UsageError
from streaming_server.engine.backups.restore_plan import plan_instant
from tests.support.waiting import wait_until

if TYPE_CHECKING:
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
