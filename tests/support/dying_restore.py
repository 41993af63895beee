"""Restores the newest backup and the archive after it, and kills the process at each step on disk in turn.

Run as `python -m tests.support.dying_restore LOCATION DIRECTORY STRIDE`. Prints the number of deaths; the directory
then has a data directory for each of them, restored by a second attempt.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scankv.model.errors import UsageError
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.support.dying_transaction import in_child

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = ((os, "fsync"), (os, "mkdir"), (os, "rename"), (os, "replace"), (os, "unlink"), (RocksStore, "close"))


def die_after(steps: int) -> None:
    """Kills this process at a later step: before it, and every second time right after it."""
    left = itertools.count(steps, -1)

    def dying(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            is_last = next(left) == 0
            if is_last and steps % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return step(*args, **kwargs)
            finally:
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)

        return run

    for owner, name in STEPS:
        setattr(owner, name, dying(getattr(owner, name)))


async def restore(location: str, data: Path, steps: int | None) -> None:
    store = BackupStore(location)
    if steps is not None:
        die_after(steps)
    restore_all(store, plan_instant(store, None), data)


async def refuses(data: Path) -> None:
    check_refused(data)


def check_refused(data: Path) -> None:
    """Fails unless no server would serve a directory that is not completely restored."""
    has_begun = data.exists() and any(data.iterdir())
    if has_begun and ((data / "restoring.json").exists() or not (data / "scankv.json").exists()):
        try:
            DataDirectory(data).close()
        except UsageError:
            return
        assert not list(data.glob("tables/*")), "a half restored directory would be served"


def main(location: str, directory: Path, stride: int) -> None:
    deaths = 0
    for steps in range(0, 10_000, stride):
        data = directory / str(steps)
        if in_child(restore, location, data, steps):
            break
        deaths += 1
        in_child(refuses, data)
        if not (data / "scankv.json").exists() or (data / "restoring.json").exists():
            in_child(restore, location, data, None)
    sys.stdout.write(f"{deaths}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
