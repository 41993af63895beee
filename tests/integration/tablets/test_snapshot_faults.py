"""Snapshots of tables with tablets while a worker that owns some of the tablets is killed or frozen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import SnapshotLost, Unavailable, sync
from scankv.v1 import scan_pb2, snapshot_pb2
from tests.support.pinned_table import WIDE, wide_rows
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal_of
from tests.support.workers import freeze, kill_worker, names_of_workers, processes_of, rows_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.support.server_process import ServerProcess

WORKERS, ROWS, BUCKETS, TABLETS, SECONDS = 2, 2000, 6, 3, 60.0
OWNER, OTHER = 0, 1
"""The worker that owns the table and two of its tablets, and the one that owns a tablet."""

pytestmark = [
    pytest.mark.timeout(240),  # several processes start again and again
    pytest.mark.parametrize("server", [WORKERS], indirect=True),
]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(server.url, operation_timeout=SECONDS) as client:
        yield client
    for number in range(WORKERS):
        wait_for_worker(server, number)


@pytest.fixture
def table(client: sync.Client, request: pytest.FixtureRequest) -> sync.Table:
    database = "".join(each if each.isalnum() else "_" for each in request.node.name)[:100]
    (name,) = names_of_workers(WORKERS, database)[OWNER]
    table = client.create_table(name, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
    table.upsert(rows_of(ROWS))
    return table


@contextmanager
def running(work: Any) -> Iterator[Future[Any]]:
    """Runs a function in a thread. Waits for its end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def directory_of(server: ServerProcess, table: sync.Table) -> Path:
    """Returns the directory of the tablets of a table."""
    database, name = table.name.split(".")
    return server.data_dir / "tables" / database / name / "tablets"


def is_being_pinned(server: ServerProcess, table: sync.Table) -> bool:
    """Whether a pin has flushed rows that were only in memory before."""
    return any(directory_of(server, table).glob("0/buckets/**/*.sst"))


def lease_files(server: ServerProcess, table: sync.Table, lease_id: str) -> list[str]:
    """Returns the names of the files of the leases of a snapshot."""
    try:
        return sorted(each.name for each in directory_of(server, table).glob(f"*/snapshots/*/leases/{lease_id}.*.json"))
    except FileNotFoundError:
        # A directory was removed while it was read.
        return lease_files(server, table, lease_id)


@pytest.mark.breadth
@pytest.mark.parametrize("killed", [OWNER, OTHER])
def test_a_snapshot_outlives_the_workers(
    server: ServerProcess, client: sync.Client, table: sync.Table, killed: int
) -> None:
    snapshot = table.snapshot(ttl=600, name="kept")
    table.upsert(rows_of(100, "later"))
    kill_worker(server, killed)
    assert table.scan().as_of(snapshot).to_arrow().num_rows == ROWS
    snapshot.renew()
    assert [(each.id, each.rows) for each in client.snapshots(table.name)] == [(snapshot.id, ROWS)]
    assert sum(each.to_arrow().num_rows for each in table.scan().as_of(snapshot).splits(3)) == ROWS
    snapshot.release()
    assert lease_files(server, table, snapshot.id) == []


@pytest.mark.represented_by("1-2")
@pytest.mark.parametrize("killed", [OWNER, OTHER])
def test_a_pin_during_which_a_worker_is_killed_takes_one_snapshot_of_one_instant(
    server: ServerProcess, client: sync.Client, table: sync.Table, killed: int
) -> None:
    """The other worker is frozen, so the pin is in the middle of its work when the first one is killed."""
    with running(lambda: table.snapshot(ttl=600, name="nightly")) as pinning:
        with freeze(processes_of(server)[OTHER]):
            wait_until(lambda: is_being_pinned(server, table), "the owner pins its tablets")
            assert not pinning.done()
            kill_worker(server, killed)
        snapshot = pinning.result(SECONDS)
    wait_for_worker(server, killed)
    table.upsert(rows_of(100, "later"))
    assert table.scan().as_of(snapshot).to_arrow().num_rows == ROWS
    assert [(each.id, each.name) for each in client.snapshots(table.name)] == [(snapshot.id, "nightly")]
    snapshot.release()
    assert client.snapshots(table.name) == []


@pytest.mark.represented_by("1-2")
@pytest.mark.parametrize("killed", [OWNER, OTHER])
def test_a_pin_of_several_tables_during_which_a_worker_is_killed_is_of_one_instant(
    server: ServerProcess, client: sync.Client, table: sync.Table, killed: int
) -> None:
    day = pa.schema([("k", pa.int64()), ("day", pa.int64())])
    (name,) = names_of_workers(WORKERS, f"days{killed}")[OTHER]
    days = client.create_table(name, day, primary_key=["day", "k"], bucket_key=["k"], partition_by=["day"], buckets=2)
    days.upsert([{"k": k, "day": k % 3} for k in range(ROWS)])
    with running(lambda: client.snapshot([table.name, days.name], ttl=600)) as pinning:
        with freeze(processes_of(server)[OTHER]):
            wait_until(lambda: is_being_pinned(server, table), "the owner pins its tablets")
            assert not pinning.done()
            kill_worker(server, killed)
        snapshots = pinning.result(SECONDS)
    wait_for_worker(server, killed)
    with client.transaction() as transaction:
        transaction.upsert(table, rows_of(100, "later"))
        transaction.upsert(days, [{"k": k, "day": 3} for k in range(100)])
    days.drop_partition({"day": 0})
    for each in (table, days):
        assert each.scan().as_of(snapshots.table(each.name)).to_arrow().num_rows == ROWS
        assert snapshots.table(each.name).id in [one.id for one in client.snapshots(each.name)]
    snapshots.release()
    # The answer of an attempt that was lost has leases that end by themselves.
    assert all(one.ttl <= SECONDS for each in (table, days) for one in client.snapshots(each.name))


@pytest.mark.parametrize("killed", [OWNER, OTHER])
def test_a_release_during_which_a_worker_is_killed_ends_the_snapshot(
    server: ServerProcess, client: sync.Client, table: sync.Table, killed: int
) -> None:
    snapshot = table.snapshot(ttl=600)
    before = lease_files(server, table, snapshot.id)
    assert len(before) == TABLETS
    with ThreadPoolExecutor(1) as pool:
        with freeze(processes_of(server)[OTHER]):
            releasing = pool.submit(snapshot.release)
            wait_until(lambda: lease_files(server, table, snapshot.id) != before, "the owner releases its tablets")
            assert not releasing.done()
            kill_worker(server, killed)
        try:
            releasing.result(SECONDS)
        except Unavailable:
            # The call was lost, so that the client does not know whether the snapshot has ended.
            wait_for_worker(server, killed)
            with suppress(SnapshotLost):
                client.adopt_snapshot(snapshot.id).release()
    wait_for_worker(server, killed)
    assert client.snapshots(table.name) == []
    with pytest.raises(SnapshotLost):
        table.scan().as_of(snapshot).to_arrow()
    assert table.snapshot(ttl=600).rows == ROWS


@pytest.mark.breadth
def test_calls_about_a_snapshot_end_with_an_error_while_a_worker_is_frozen(
    server: ServerProcess, client: sync.Client, table: sync.Table
) -> None:
    snapshot = table.snapshot(ttl=600)
    pinned = scan_pb2.PinnedSnapshot(snapshot_id=snapshot.id)
    with Wire(f"127.0.0.1:{table.owner_port}") as wire:
        with freeze(processes_of(server)[OTHER]):
            refused = [
                _refusal(wire.snapshots.PinSnapshot, snapshot_pb2.PinSnapshotRequest(table=table.name, lease_id="new")),
                _refusal(wire.snapshots.RenewSnapshot, snapshot_pb2.RenewSnapshotRequest(snapshot_id=snapshot.id)),
                _refusal(wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table.name, snapshot=pinned)),
            ]
        assert all(each in ("UNAVAILABLE", "DEADLINE_EXCEEDED") for each in refused)
    wait_for_worker(server, OTHER)
    assert table.scan().as_of(snapshot).to_arrow().num_rows == ROWS
    # Nothing of the pin that has failed remains.
    assert [each.id for each in client.snapshots(table.name)] == [snapshot.id]
    wait_until(lambda: lease_files(server, table, "new") == [], "the leases of the pin end")


def _refusal(method: Any, request: Any) -> str:
    """Returns the status with which a call ends within some seconds."""
    try:
        answer = method(request, timeout=3)
        if hasattr(answer, "__iter__"):
            list(answer)
    except grpc.RpcError as error:
        return refusal_of(error).code
    raise AssertionError("the call has ended without an error")


def test_a_worker_that_does_not_know_the_table_yet_asks_to_try_again(
    server: ServerProcess, client: sync.Client, table: sync.Table
) -> None:
    """It takes a table for one without tablets as long as the definition is not there: it is being created again."""
    snapshot = table.snapshot(ttl=600)
    request = scan_pb2.ScanKvRequest(table=table.name, snapshot=scan_pb2.PinnedSnapshot(snapshot_id=snapshot.id))
    definition = directory_of(server, table).with_name("table.json")
    away = definition.with_name("away")
    with Wire(f"127.0.0.1:{table.owner_port - OWNER + OTHER}") as wire:
        definition.rename(away)
        try:
            refused = _refusal(wire.scans.ScanKv, request)
        finally:
            away.rename(definition)
        assert refused == "UNAVAILABLE"
        rows = [each.chunk.row_count for each in wire.scans.ScanKv(request, timeout=SECONDS)]
    assert sum(rows) == ROWS


@pytest.mark.breadth
@pytest.mark.parametrize("killed", [OWNER, OTHER])
def test_a_scan_of_a_snapshot_survives_a_kill_in_the_middle(
    server: ServerProcess, client: sync.Client, killed: int
) -> None:
    (name,) = names_of_workers(WORKERS, f"scanned{killed}")[OWNER]
    table = client.create_table(name, WIDE, primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)
    table.upsert(wide_rows())
    snapshot = table.snapshot(ttl=600)
    table.delete(list(range(100)))
    found = []
    with table.scan().as_of(snapshot).stream() as stream:
        for number, batch in enumerate(stream):
            found += batch["k"].to_pylist()
            if number == 0:
                kill_worker(server, killed)
    assert len(found) == wide_rows().num_rows
    assert sorted(found) == wide_rows()["k"].to_pylist()
