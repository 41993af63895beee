"""A worker that is dead or frozen delays calls about tables of others for a bounded time, and never changes them."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aio_client import StartFrom, StopAt, TransactionLost, sync
from scankv.v1 import admin_pb2, lock_pb2, snapshot_pb2, table_pb2, transaction_pb2
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.wire import Wire, refusal_of
from tests.support.workers import freeze, kill_worker, names_of_workers, processes_of, rows_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from aio_client.sync import Client, Table

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

WORKERS = 2
BOUND_SECONDS = 60.0
"""Far more than a worker may take, and far less than a test."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers, for all tests here; each uses names of its own."""
    # The supervisor must not kill a frozen worker, however slow the host is.
    settings = ("--workers", str(WORKERS), "--set", "worker_timeout_seconds=3600")
    with ServerProcess(tmp_path_factory.mktemp("absent") / "data", *settings) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with sync.connect(server.url) as client:
        yield client


def tables_of_workers(client: Client, database: str) -> list[Table]:
    """Creates a table of each worker, with ten rows."""
    tables = []
    for (name,) in names_of_workers(WORKERS, database):
        table = client.create_table(name, SCORES, primary_key=["player"])
        table.upsert(rows_of(10))
        tables.append(table)
    return tables


@contextmanager
def wire_to(table: Table) -> Iterator[Wire]:
    """Gives a connection to the owner of a table."""
    wire = Wire(f"127.0.0.1:{table.owner_port}")
    try:
        yield wire
    finally:
        wire.channel.close()


def begin(wire: Wire, id_: str = "") -> str:
    request = transaction_pb2.BeginTransactionRequest(id=id_, attempt=uuid.uuid4().hex)
    return str(wire.transactions.BeginTransaction(request, timeout=BOUND_SECONDS).token)


@pytest.mark.breadth
def test_calls_about_all_tables_end_with_a_typed_error_while_a_worker_is_frozen(
    server: ServerProcess, client: Client
) -> None:
    """A list without the tables of a frozen worker would look complete."""
    tables = tables_of_workers(client, "lists")
    with wire_to(tables[1]) as wire, freeze(processes_of(server)[0]):
        calls: list[tuple[Any, Message]] = [
            (wire.tables.ListTables, table_pb2.ListTablesRequest()),
            (wire.admin.Stats, admin_pb2.StatsRequest()),
            (wire.admin.Metrics, admin_pb2.MetricsRequest()),
            (wire.transactions.BeginTransaction, transaction_pb2.BeginTransactionRequest(id="lists", attempt="1")),
        ]
        answers = [call.future(request, timeout=BOUND_SECONDS) for call, request in calls]
        for answer in answers:
            error = answer.exception()
            assert isinstance(error, grpc.RpcError)
            refusal = refusal_of(error)
            assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "UNAVAILABLE"), refusal
            assert "worker 0" in refusal.message
            assert refusal.retry_after


@pytest.mark.breadth
def test_leases_and_transactions_of_a_worker_go_on_while_another_one_is_frozen(
    server: ServerProcess, client: Client
) -> None:
    tables = tables_of_workers(client, "leases")
    snapshot = tables[1].snapshot(ttl=300)
    with wire_to(tables[1]) as wire, freeze(processes_of(server)[0]):
        renewal = snapshot_pb2.RenewSnapshotRequest(snapshot_id=snapshot.id)
        assert wire.snapshots.RenewSnapshot(renewal, timeout=BOUND_SECONDS).snapshot.table == tables[1].name
        token = begin(wire)
        # At the port of the server, the frozen worker may get the connection.
        with sync.connect(f"127.0.0.1:{tables[1].owner_port}") as direct, direct.transaction() as tx:
            tx.upsert(tables[1], rows_of(30, "new"))
            tx.commit()
        assert tables[1].count() == 40
        abort = transaction_pb2.AbortTransactionRequest(token=token)
        # The frozen worker may have staged rows, which are then still there.
        with pytest.raises(grpc.RpcError) as refused:
            wire.transactions.AbortTransaction(abort, timeout=BOUND_SECONDS)
        assert refusal_of(refused.value).reason == "UNAVAILABLE"
    with pytest.raises(TransactionLost):
        # The worker has no part in it, and what is staged must not become a plain write.
        client.transaction_part(token, "late").upsert(tables[0], rows_of(1, "late"))
    assert tables[0].count() == 10
    snapshot.release()


@pytest.mark.breadth
def test_leases_end_while_a_worker_that_does_not_own_them_is_frozen(server: ServerProcess, client: Client) -> None:
    tables = tables_of_workers(client, "ended")
    snapshots = [table.snapshot(ttl=300) for table in tables]
    locks = [table.lock_columns(["score"], owner="someone", ttl=300) for table in tables]
    with wire_to(tables[1]) as wire, freeze(processes_of(server)[0]):

        def refusals_of_releases(number: int) -> list[str]:
            """Returns the reasons for which the leases of a worker are not released."""
            calls: list[tuple[Any, Message]] = [
                (wire.snapshots.ReleaseSnapshot, snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=snapshots[number].id)),
                (wire.locks.ReleaseColumnLock, lock_pb2.ReleaseColumnLockRequest(lock_id=locks[number].id)),
            ]
            answers = [call.future(request, timeout=BOUND_SECONDS) for call, request in calls]
            errors = [answer.exception() for answer in answers]
            return [refusal_of(error).reason for error in errors if isinstance(error, grpc.RpcError)]

        assert refusals_of_releases(1) == []
        # Nothing is known of these, nor of those that have ended.
        assert refusals_of_releases(0) == refusals_of_releases(1) == ["UNAVAILABLE", "UNAVAILABLE"]
    for snapshot in snapshots:
        snapshot.release()
    for lock in locks:
        lock.release()
    assert not client.snapshots()
    assert not client.column_locks()


@pytest.mark.breadth
def test_a_transaction_of_a_client_with_a_short_timeout_commits_while_another_worker_is_frozen(
    server: ServerProcess, client: Client
) -> None:
    """The worker that the client has called does not wait longer for the frozen one than the client waits for it."""
    tables = tables_of_workers(client, "hasty")
    with (
        freeze(processes_of(server)[0]),
        sync.connect(f"127.0.0.1:{tables[1].owner_port}", operation_timeout=8) as direct,
    ):
        with direct.transaction() as tx:
            tx.upsert(tables[1], rows_of(30, "new"))
        assert tables[1].count() == 40


@pytest.mark.breadth
@pytest.mark.parametrize("tablets", [1, 2])
def test_a_scan_that_begins_while_a_worker_is_dead_waits_for_it(
    server: ServerProcess, client: Client, tablets: int
) -> None:
    name = names_of_workers(WORKERS, f"waiting{tablets}")[0][0]
    table = client.create_table(name, SCORES, primary_key=["player"], buckets=4, tablets=tablets)
    table.upsert(rows_of(10))
    for number in range(WORKERS):
        kill_worker(server, number)
        assert table.scan().to_arrow().num_rows == 10
        with table.changes(StartFrom.EARLIEST, StopAt.LATEST).stream() as stream:
            assert sum(rows.num_rows for rows in stream) == 10
        wait_for_worker(server, number)


def test_a_transaction_commits_at_its_worker_while_another_one_is_dead(server: ServerProcess, client: Client) -> None:
    tables = tables_of_workers(client, "dead")
    transaction = client.transaction(id="dead:1")
    transaction.upsert(tables[1], rows_of(5, "new"))
    kill_worker(server, 0)
    assert transaction.commit().rows == 5
    wait_for_worker(server, 0)
    with client.transaction(id="dead:1") as again:
        assert again.result is not None
    assert tables[1].count() == 15


@pytest.mark.parametrize("number", range(WORKERS))
def test_a_commit_of_what_a_worker_has_lost_is_refused(client: Client, number: int) -> None:
    """Another worker, which knows nothing of the writes, must not commit an empty transaction in their place."""
    tables = tables_of_workers(client, f"lost{number}")
    with wire_to(tables[0]) as wire:
        token = begin(wire)
        client.transaction_part(token, "part").upsert(tables[number], rows_of(5, "new"))
        (listed,) = [each.token for each in client.transactions() if each.tables]
        client.abort_transaction(listed)
        with pytest.raises(grpc.RpcError) as lost:
            # Without `parts`: all that were begun.
            wire.transactions.CommitTransaction(
                transaction_pb2.CommitTransactionRequest(token=token), timeout=BOUND_SECONDS
            )
        assert refusal_of(lost.value).reason == "TRANSACTION_LOST"
        wire.transactions.AbortTransaction(transaction_pb2.AbortTransactionRequest(token=token), timeout=BOUND_SECONDS)
    assert tables[number].count() == 10


@pytest.mark.parametrize("number", range(WORKERS))
def test_a_repeated_commit_has_the_first_answer_even_if_parts_are_still_open_elsewhere(
    client: Client, number: int
) -> None:
    """As if the worker that passed the first call on had died before it aborted the transaction at the others."""
    tables = tables_of_workers(client, f"again{number}")
    with wire_to(tables[0]) as wire:
        token = begin(wire)
        client.transaction_part(token, "part").upsert(tables[number], rows_of(5, "new"))
        (listed,) = [each.token for each in client.transactions() if each.tables]
        commit = wire.transactions.CommitTransaction
        first = commit(transaction_pb2.CommitTransactionRequest(token=listed), timeout=BOUND_SECONDS)
        again = commit(transaction_pb2.CommitTransactionRequest(token=token), timeout=BOUND_SECONDS)
        assert first.rows == 5
        assert again == first
    assert tables[number].count() == 15


@pytest.mark.parametrize("number", range(WORKERS))
def test_a_transaction_that_has_only_read_is_committed_where_it_has_read(client: Client, number: int) -> None:
    tables = tables_of_workers(client, f"reads{number}")
    with client.transaction() as tx:
        assert tx.get_for_update(tables[number], ["v 3"]).num_rows == 1
        tx.commit()
