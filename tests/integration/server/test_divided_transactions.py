"""A transaction over tables of several workers is atomic for all clients."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import InvalidRequest, LockTimeout, TransactionConflict, TransactionLost, connect, sync
from scankv.v1 import transaction_pb2, worker_pb2, worker_pb2_grpc
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until
from tests.support.wire import Wire, refusal_of
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.timeout(240)

WORKERS = 3
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with three workers, for all tests here; each uses names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", str(WORKERS)) as server:
        yield server


def tables_of(client: sync.Client, database: str) -> list[sync.Table]:
    """Creates a table of each worker, in their order."""
    names = [name for (name,) in names_of_workers(WORKERS, database)]
    return [client.create_table(name, SCHEMA, primary_key=["k"], buckets=2) for name in names]


async def create_tables(client: Client, database: str) -> None:
    for (name,) in names_of_workers(WORKERS, database):
        await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


def rows_in(table: sync.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.scan().to_pylist()}


@pytest.mark.parametrize("used", [(0, 1, 2), (2, 1), (1,), ()])
def test_everything_in_a_transaction_is_committed_at_all_workers(divided: ServerProcess, used: tuple[int, ...]) -> None:
    database = f"all{''.join(map(str, used))}"
    with sync.connect(divided.url) as client:
        tables = tables_of(client, database)
        for table in tables:
            table.upsert([{"k": k, "v": 0} for k in range(5)])
        with client.transaction(id=database, conflict="abort") as tx:
            for round_ in range(3):
                for number in used:
                    tx.upsert(tables[number], [{"k": k, "v": round_} for k in range(3)])
            for number in used:
                tx.delete(tables[number], [4])
                # A transaction reads what it has staged, whichever workers have the rest of its part.
                assert tx.get(tables[number], 1) == {"k": 1, "v": 2}
                assert tx.get(tables[number], 4) is None
                assert tx.get_for_update(tables[number], [3]).to_pylist() == [{"k": 3, "v": 0}]
            assert all(rows_in(table) == dict.fromkeys(range(5), 0) for table in tables)
            result = tx.commit()
        assert result.rows == 10 * len(used)
        assert set(result.log_offsets) == {tables[number].name for number in used}
        for number, table in enumerate(tables):
            assert rows_in(table) == ({0: 2, 1: 2, 2: 2, 3: 0} if number in used else dict.fromkeys(range(5), 0))
        again = client.transaction(id=database)
        assert again.result == result
        assert again.commit() == result
        assert client.transactions() == []


@pytest.mark.parametrize("attempt", ["", "first"])
def test_the_begin_of_a_committed_id_returns_the_commit_at_any_worker(divided: ServerProcess, attempt: str) -> None:
    with sync.connect(divided.url) as client:
        tables = tables_of(client, f"again{attempt}")
        with client.transaction(id=f"again{attempt}", attempt=attempt) as transaction:
            for table in tables[1:]:
                transaction.upsert(table, [{"k": 1, "v": 1}])
        for table in tables:
            with sync.connect(f"127.0.0.1:{table.owner_port}") as direct:
                again = direct.transaction(id=f"again{attempt}", attempt=attempt)
                assert again.result is not None
                assert set(again.result.log_offsets) == {table.name for table in tables[1:]}
        assert client.transactions() == []


@pytest.mark.parametrize("worker", range(WORKERS))
def test_a_conflict_at_one_worker_leaves_all_of_them_unchanged(divided: ServerProcess, worker: int) -> None:
    with sync.connect(divided.url) as client:
        tables = tables_of(client, f"conflict{worker}")
        transaction = client.transaction(conflict="abort")
        for table in tables:
            transaction.upsert(table, [{"k": 1, "v": 1}])
        tables[worker].upsert([{"k": 1, "v": 2}])
        with pytest.raises(TransactionConflict, match=tables[worker].name):
            transaction.commit()
        assert [rows_in(table) for table in tables] == [{1: 2} if each == worker else {} for each in range(WORKERS)]
        # What was prepared is undone: nothing waits for it, and the transaction is open as before.
        for table in tables:
            table.upsert([{"k": 2, "v": 2}])
        assert [each.tables for each in client.transactions()] == [tuple(sorted(table.name for table in tables))]
        transaction.abort()
        assert client.transactions() == []


def test_a_commit_that_lacks_requests_commits_nothing(divided: ServerProcess) -> None:
    with sync.connect(divided.url) as client:
        first, second, _ = tables_of(client, "lacks")
        transaction = client.transaction()
        transaction.upsert(first, [{"k": 1, "v": 1}])
        part = client.transaction_part(transaction.token, "another")
        part.upsert(second, [{"k": 1, "v": 1}])
        part.upsert(first, [{"k": 2, "v": 2}])
        assert part.requests == 2
        for requests in (1, 3):
            with pytest.raises(InvalidRequest, match=f"has 2 requests, not {requests}"):
                transaction.commit([("another", requests)])
        assert (rows_in(first), rows_in(second)) == ({}, {})
        transaction.commit([part])
        assert (rows_in(first), rows_in(second)) == ({1: 1, 2: 2}, {1: 1})


def test_requests_of_a_part_keep_their_order_at_every_worker(divided: ServerProcess) -> None:
    with sync.connect(divided.url) as client:
        first, second, _ = tables_of(client, "order")
        transaction = client.transaction()
        for value in range(4):
            transaction.upsert(first if value % 2 else second, [{"k": 1, "v": value}])
        wire = Wire(divided.url)
        try:
            request = transaction_pb2.LookupStagedRequest(
                token=transaction.token, part=transaction.part, requests=9, table=first.name
            )
            with pytest.raises(grpc.RpcError) as refused:
                wire.transactions.LookupStaged(request, timeout=60)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            wire.channel.close()
        transaction.commit()
        assert (rows_in(first), rows_in(second)) == ({1: 3}, {1: 2})


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_no_lookup_goes_back_from_a_transaction_to_before_it(divided: ServerProcess) -> None:
    """Every commit raises all values. A client that has seen one new value must not see an old one afterwards."""
    async with connect(divided.url) as client:
        await create_tables(client, "causal")
        tables = [await client.table(name) for (name,) in names_of_workers(WORKERS, "causal")]
        done = asyncio.Event()

        async def write() -> None:
            for value in range(1, 150):
                async with client.transaction() as tx:
                    for table in tables:
                        await tx.upsert(table, [{"k": 1, "v": value}])
            done.set()

        async def read(order: list[int]) -> int:
            reads = 0
            while not done.is_set():
                seen = 0
                for number in order:
                    row = await tables[number].get(1)
                    value = 0 if row is None else row["v"]
                    assert value >= seen, (order, seen, value)
                    seen = value
                    reads += 1
            return reads

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            readers = [group.create_task(read(order)) for order in ([0, 1, 2], [2, 1, 0], [1, 0])]
        assert all(reader.result() > 50 for reader in readers)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_of_two_clients_with_one_id_one_commits(divided: ServerProcess) -> None:
    names = [name for (name,) in names_of_workers(WORKERS, "same")]
    async with connect(divided.url) as client:
        await create_tables(client, "same")
        ports = [(await client.table(name)).owner_port for name in names]
    # Each begins at its own worker first, so that another one hears of them in the other order.
    async with connect(f"127.0.0.1:{ports[0]}") as one, connect(f"127.0.0.1:{ports[1]}") as other:

        async def attempt(client: Client, name: str, key: int, id_: str) -> bool:
            try:
                transaction = await client.transaction(id=id_)
                if transaction.result is not None:
                    return False
                await transaction.upsert(await client.table(name), [{"k": key, "v": key}])
                result = await transaction.commit()
            except TransactionLost:
                return False
            return set(result.log_offsets) == {name}

        for round_ in range(30):
            id_ = f"same:{round_}"
            won = await asyncio.gather(attempt(one, names[0], round_, id_), attempt(other, names[1], round_, id_))
            assert sum(won) <= 1
            # One of them would have committed if it had gone on alone.
            if not any(won):
                assert await attempt(one, names[2], round_, id_)
        counts = [await (await one.table(name)).count() for name in names]
        assert sum(counts) == 30


@pytest.mark.breadth
def test_a_transaction_lives_everywhere_as_long_as_one_worker_hears_of_it(divided: ServerProcess) -> None:
    with sync.connect(divided.url) as client:
        first, second, _ = tables_of(client, "alive")
        transaction = client.transaction(id="alive", ttl=2)

        def is_older_than_its_time_to_live() -> bool:
            transaction.upsert(first, [{"k": 1, "v": 1}])
            (listed,) = [each for each in client.transactions() if each.token == transaction.token]
            return listed.age > 5

        wait_until(is_older_than_its_time_to_live, "the transaction is old")
        transaction.upsert(second, [{"k": 1, "v": 1}])
        transaction.commit()
        assert (rows_in(first), rows_in(second)) == ({1: 1}, {1: 1})
        forgotten = client.transaction(ttl=1)
        forgotten.upsert(first, [{"k": 1, "v": 2}])
        wait_until(lambda: client.transactions() == [], "the transaction has expired at all workers")
        with pytest.raises(TransactionLost):
            forgotten.commit()


def test_only_workers_can_ask_workers_about_transactions(divided: ServerProcess) -> None:
    wire = Wire(divided.url)
    try:
        stub = worker_pb2_grpc.WorkerServiceStub(wire.channel)
        calls: list[tuple[Any, Any]] = [
            (stub.LocateTransaction, worker_pb2.LocateTransactionRequest(token="t")),
            (stub.PrepareTransaction, worker_pb2.PrepareTransactionRequest(token="t")),
            (stub.ConcludeTransaction, worker_pb2.ConcludeTransactionRequest(token="t")),
            (stub.GetTransactionOutcome, worker_pb2.GetTransactionOutcomeRequest(token="t")),
        ]
        for call, request in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call(request, timeout=60)
            assert refusal_of(refused.value).reason == "PERMISSION_DENIED"
    finally:
        wire.channel.close()


@pytest.mark.breadth
@pytest.mark.parametrize("allowed", [0, 1])
def test_a_commit_and_an_abort_need_the_rights_for_the_tables_of_all_workers(tmp_path: Path, allowed: int) -> None:
    issuer, names = TokenIssuer(tmp_path / "tokens"), [name for (name,) in names_of_workers(2, "rights")]
    with (
        ServerProcess(tmp_path / "data", "--workers", "2", "--tokens", str(issuer.path)) as server,
        sync.connect(server.url, token=issuer.root) as client,
    ):
        tables = [client.create_table(name, SCHEMA, primary_key=["k"]) for name in names]
        transaction = client.transaction()
        for table in tables:
            transaction.upsert(table, [{"k": 1, "v": 1}])
        wire = Wire(server.url, issuer.create(f"write:{names[allowed]}"))
        try:
            parts = [transaction_pb2.TransactionPartSize(part=transaction.part, requests=2)]
            calls: list[tuple[Any, Any]] = [
                (
                    wire.transactions.CommitTransaction,
                    transaction_pb2.CommitTransactionRequest(token=transaction.token, parts=parts),
                ),
                (
                    wire.transactions.AbortTransaction,
                    transaction_pb2.AbortTransactionRequest(token=transaction.token),
                ),
            ]
            for call, request in calls:
                with pytest.raises(grpc.RpcError) as refused:
                    call(request, timeout=60)
                assert refusal_of(refused.value).reason == "PERMISSION_DENIED"
        finally:
            wire.channel.close()
        assert [rows_in(table) for table in tables] == [{}, {}]
        assert transaction.commit().rows == 2


def test_a_commit_says_that_a_worker_has_lost_the_transaction_with_its_locks(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, sync.connect(server.url) as client:
        tables = [client.create_table(name, SCHEMA, primary_key=["k"]) for (name,) in names_of_workers(2, "locked")]
        transaction = client.transaction(lock="keys")
        for table in tables:
            transaction.upsert(table, [{"k": 1, "v": 1}])
        kill_worker(server, 1)
        wait_for_worker(server, 1)
        with pytest.raises(TransactionLost):
            transaction.commit()
        assert [rows_in(table) for table in tables] == [{}, {}]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_of_transactions_that_wait_for_each_other_at_two_workers_one_gives_way(divided: ServerProcess) -> None:
    """Each worker sees one of the two waits, so neither finds the deadlock."""
    async with connect(divided.url) as client:
        await create_tables(client, "circle")
        first, second = [await client.table(name) for (name,) in names_of_workers(WORKERS, "circle")][:2]
        hasty = await client.transaction(lock="keys", lock_timeout=2)
        patient = await client.transaction(lock="keys", lock_timeout=60)
        await hasty.upsert(first, [{"k": 1, "v": 1}])
        await patient.upsert(second, [{"k": 1, "v": 2}])
        waiting = asyncio.create_task(patient.upsert(first, [{"k": 1, "v": 2}]))
        await await_until(partial(waits_of, client, patient.token), "one transaction waits")
        too_long = asyncio.create_task(hasty.upsert(second, [{"k": 1, "v": 1}]))
        await await_until(partial(waits_of, client, hasty.token), "both transactions wait")
        with pytest.raises(LockTimeout, match="the request was not staged: abort this transaction and try again"):
            await too_long
        assert not waiting.done()
        await hasty.abort()
        await waiting
        await patient.commit()
        async with client.transaction(lock="keys", lock_timeout=2) as again:
            for table in (first, second):
                (row,) = (await again.get_for_update(table, [1])).to_pylist()
                await again.upsert(table, [{"k": 1, "v": row["v"] + 1}])
        assert [await table.get(1) for table in (first, second)] == [{"k": 1, "v": 3}] * 2


async def waits_of(client: Client, token: str) -> tuple[str, ...]:
    """Returns the transactions for which one waits."""
    return next(each.waits_for for each in await client.transactions() if each.token == token)
