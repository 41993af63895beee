"""The archive of a server of several workers: a transaction over tables of all is restored everywhere, or nowhere."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import agg, sync
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.archive_segment import read_segment
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify_archive
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.crashing_worker import crashing_workers
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import names_of_workers, processes_of, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)  # each kill is followed by a start

WORKERS = 2
PLAIN = pa.schema([("k", pa.int64()), ("v", pa.int64())])
POINTS = ("0 append 1 after", "1 append 1 after", "1 append 2 before")
"""The steps of a worker at which it dies. Around them, a share is in doubt."""
ADDED = 6
"""The number that each transaction adds to the sum in each table."""
TABLE = (names_of_workers(WORKERS)[0][0], PLAIN)
"""A table of the first worker."""


def create_sums(client: sync.Client) -> list[str]:
    """Creates a table of sums at each worker, and returns their names."""
    names = [name for (name,) in names_of_workers(WORKERS, "sums")]
    for name in names:
        client.create_table(
            name, PLAIN, primary_key=["k"], buckets=2, merge_engine="aggregate", aggregators={"v": agg.sum()}
        )
    return names


def total(client: sync.Client, name: str) -> int:
    return sum(row["v"] for row in client.table(name).scan().to_pylist())


def commit_times(store: BackupStore) -> dict[str, int]:
    """Returns the commit times of the archived transactions by id, in microseconds since 1970 UTC."""
    found = [each for name in store.segments() for each in read_segment(store, name).committed]
    return {each["id"]: each["micros"] for each in found}


def check_restored(store: BackupStore, instant: int, data: Path, names: list[str], known: int, id_: str) -> set[str]:
    """Checks that tables restored as of an instant have so many transactions, and returns what one has written to."""
    result = restore_all(store, plan_instant(store, instant), data)
    assert {each.name: each.why for each in result.tables if each.name in names} == dict.fromkeys(names, "")
    with ServerProcess(data, "--workers", "1") as server, sync.connect(server.url) as client:
        for name in names:
            assert total(client, name) == known * ADDED, (name, id_)
            assert all(bucket.is_consistent for bucket in client.check_table(name))
        again = client.transaction(id=id_)
        offsets = set() if again.result is None else set(again.result.log_offsets)
        if again.result is None:
            again.abort()
    return offsets


@pytest.mark.breadth
@pytest.mark.parametrize("how", ["", pytest.param("-frozen", marks=pytest.mark.soak)])
def test_a_transaction_during_which_a_worker_dies_is_restored_everywhere_from_its_commit_on(
    tmp_path: Path, how: str
) -> None:
    armed, store = tmp_path / "points", BackupStore(str(tmp_path / "backups"))
    settings = ("--workers", str(WORKERS), "--set", "worker_timeout_seconds=5", "--backup-location", store.location)
    with (
        ServerProcess(tmp_path / "data", *settings, *ARCHIVING, wrapper=crashing_workers(armed)) as server,
        sync.connect(server.url, operation_timeout=60) as client,
    ):
        names = create_sums(client)
        client.create_backup()
        wait_archived(store)
        for number, point in enumerate(POINTS, 1):
            transaction = client.transaction(id=point)
            for name in names:
                transaction.upsert(client.table(name), [{"k": key, "v": 1} for key in range(ADDED)])
            armed.write_text(f"{point}{how}")
            # It is repeated while the worker starts again.
            transaction.commit()
            assert not armed.exists()
            assert [total(client, name) for name in names] == [number * ADDED] * WORKERS
        # A write, because the archive of a server without writes says only every 30 s how far it is.
        client.create_table(*TABLE, primary_key=["k"])
        wait_archived(store)
    times = commit_times(store)
    assert list(times) == [*POINTS]
    assert verify_archive(store) == []
    assert len(store.manifests()) == 1
    for number, (point, micros) in enumerate(times.items()):
        before, after = tmp_path / f"before-{number}", tmp_path / f"after-{number}"
        assert check_restored(store, micros - 1, before, names, number, point) == set()
        assert check_restored(store, micros, after, names, number + 1, point) == set(names)


@pytest.mark.breadth
def test_a_frozen_worker_delays_the_archive_and_keeps_nothing_else_from_being_served(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    settings = ("--workers", str(WORKERS), "--set", "worker_timeout_seconds=3", "--backup-location", store.location)
    writes: list[int] = []
    with (
        ServerProcess(tmp_path / "data", *settings, *ARCHIVING) as server,
        sync.connect(server.url) as client,
        sync.connect(f"127.0.0.1:{client.create_table(*TABLE, primary_key=['k']).owner_port}") as direct,
    ):
        client.create_backup()
        wait_archived(store)
        os.kill(processes_of(server)[1], signal.SIGSTOP)

        def write() -> bool:
            """Writes to a table of the worker that runs. Returns whether the other one is not frozen any more."""
            writes.append(time.time_ns() // 1000)
            direct.table(TABLE[0]).upsert([{"k": len(writes), "v": writes[-1]}])
            direct.alter_table(TABLE[0], log_retention_seconds=3600 + len(writes))
            return "is killed" in server.log

        wait_until(write, "the frozen worker is killed")
        wait_for_worker(server, 1)
        ended = writes[-2]
        write()
        after = wait_archived(store)
    reached = [read_segment(store, each).micros for each in store.segments()]
    # The first and the last write may have been at other times.
    assert not [micros for micros in reached if writes[1] < micros < ended]
    assert len(writes) > 4
    assert len(store.manifests()) == 1
    for at, count in ((writes[2], 2), (after, len(writes))):
        restore_all(store, plan_instant(store, at), tmp_path / str(at))
        with ServerProcess(tmp_path / str(at), "--workers", "1") as server, sync.connect(server.url) as client:
            assert client.table(TABLE[0]).scan().to_arrow().num_rows == count
