"""Servers with an archive: waits until everything that was acknowledged is in it, and restores tables from there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aio_client import UsageError, sync
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify_archive
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

ARCHIVING = ("--set", "archive_every_seconds=0.05")
"""Settings of a server that archives at once what is written."""


def serve_with_backups(path: Path, workers: int, *, archives: bool = False) -> ServerProcess:
    """Serves a data directory, with its backups, and maybe its archive, beside it."""
    settings = ARCHIVING if archives else ("--set", "archive_every_seconds=0")
    backups = ("--backup-location", str(path / "backups"))
    return ServerProcess(path / "data", "--workers", str(workers), *backups, *settings)


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


def write_alone_and_together(client: sync.Client, names: Sequence[str], keys: Collection[int], value: int) -> None:
    """Writes the negative of a value to each table by itself, and then the value to all tables in one transaction."""
    for name in names:
        client.table(name).upsert([{"k": k, "v": -value} for k in keys])
    with client.transaction(id=f"job:{value}") as transaction:
        for name in names:
            transaction.upsert(client.table(name), [{"k": k, "v": value} for k in keys])


def check_every_instant(
    path: Path,
    names: Sequence[str],
    workers: Sequence[int],
    create: Callable[[sync.Client, str], sync.Table],
    keys_of: Callable[[int], Collection[int]],
) -> None:
    """Changes tables in some runs of a server, and restores them from its archive as of every instant between changes.

    Each run drops a table that the run before has created, right before it stops.

    Args:
        path: Gets the data of the server and of all restores.
        names: The tables that all runs write to.
        workers: The number of worker processes of each run.
        create: Creates a table with the columns `k` and `v`.
        keys_of: Returns the keys that a run writes. Those of run 0 are written to the table of the run before.
    """
    store = BackupStore(str(path / "backups"))
    database = names[0].partition(".")[0]
    before = f"{database}.run0"
    with serve_with_backups(path, 2, archives=True) as server, sync.connect(server.url) as client:
        for name in (*names, before):
            create(client, name)
        client.create_backup()
        wait_archived(store)
        assert server.stop() == 0
    expected: dict[str, dict[int, Any]] = {name: {} for name in (*names, before)}
    instants: dict[int, dict[str, dict[int, Any]]] = {}
    for run, number in enumerate(workers, 1):
        with serve_with_backups(path, number, archives=True) as server, sync.connect(server.url) as client:
            written = dict.fromkeys(keys_of(run), run)
            write_alone_and_together(client, names, written, run)
            expected = {**expected, **{name: {**expected[name], **written} for name in names}}
            instants[time.time_ns() // 1000] = expected
            new = create(client, f"{database}.run{run}")
            new.upsert([{"k": k, "v": run} for k in written])
            cleared = dict.fromkeys(keys_of(0), 0)
            client.table(before).upsert([{"k": k, "v": 0} for k in cleared])
            expected = {**expected, new.name: written, before: {**expected[before], **cleared}}
            instants[time.time_ns() // 1000] = expected
            client.drop_table(before)
            expected = {name: rows for name, rows in expected.items() if name != before}
            instants[time.time_ns() // 1000] = expected
            before = new.name
            # What was written last is archived by the stop.
            assert server.stop() == 0
    assert len(store.manifests()) == 1
    assert verify_archive(store) == []
    assert rows_at(store, None, path / "latest") == expected
    for instant, then in instants.items():
        assert rows_at(store, instant, path / str(instant)) == then
