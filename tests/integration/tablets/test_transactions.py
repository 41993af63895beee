"""Transactions write to tables with tablets as to any other table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, LockTimeout, ScanKvError, TableNotFound, TransactionConflict, sync
from scankv.v1 import transaction_pb2
from tests.integration.tablets.test_writes import outcome_of
from tests.support.wire import Wire
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.timeout(240)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
KEYS = range(40)


def create(client: sync.Client, name: str, tablets: int, **options: Any) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=6, tablets=tablets, **options)


def pair_of(client: sync.Client, name: str, **options: Any) -> list[sync.Table]:
    """Creates a table without tablets, and one with tablets."""
    return [create(client, f"{name}.t{tablets}", tablets, **options) for tablets in (1, 3)]


def rows_in(table: sync.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.scan().to_pylist()}


def row(k: int, v: int) -> dict[str, Any]:
    return {"k": k, "v": v, "w": f"w{k}"}


@pytest.mark.breadth
def test_all_requests_of_a_transaction_are_answered_as_for_a_table_without_tablets(client: sync.Client) -> None:
    found = []
    for table in pair_of(client, "alike"):
        table.upsert([row(k, 0) for k in KEYS])
        answers: list[Any] = []
        with client.transaction(conflict="abort") as tx:
            answers.append(tx.upsert(table, [row(k, 1) for k in KEYS if k % 3]))
            answers.append(tx.delete(table, [k for k in KEYS if k % 5 == 0]))
            answers.append(tx.get_for_update(table, list(reversed(KEYS))).to_pylist())
            answers.append(tx.lookup(table, [3, 1, 99, 5, 2], missing="null").to_pylist())
            answers.append(tx.upsert(table, []))
            answers.append(tx.delete(table, where="v = 0 and k > 30"))
            answers.append([tx.get(table, k) for k in (33, 36, 0, 7)])
            answers.append(outcome_of(lambda tx=tx, table=table: tx.upsert(table, [{"k": None, "v": 1, "w": ""}])))
            answers.append(outcome_of(lambda tx=tx, table=table: tx.upsert(table, [{"k": 1}])))
            answers.append(tx.upsert(table, [row(1000, 7)]))
            answers.append(rows_in(table) == dict.fromkeys(KEYS, 0))
            listed = client.transactions()
            answers.append([(each.tables == (table.name,), each.rows) for each in listed])
            result = tx.commit()
        answers.append((result.rows, set(result.log_offsets) == {table.name}))
        offsets = result.log_offsets[table.name]
        answers.append((sorted(offsets), offsets.table_incarnation == table.incarnation))
        answers.append(dict(sorted(rows_in(table).items())))
        answers.append(client.transactions())
        found.append(answers)
    assert found[0] == found[1]


@pytest.mark.breadth
def test_a_change_at_any_tablet_after_the_first_write_to_the_table_is_a_conflict(client: sync.Client) -> None:
    for table in pair_of(client, "since"):
        table.upsert([row(k, 0) for k in KEYS])
        for key in KEYS:
            tx = client.transaction(conflict="abort")
            tx.upsert(table, [row(0, 1)])
            # The tablet of this key may not have had a request of the transaction.
            table.upsert([row(key, 2)])
            tx.upsert(table, [row(key, 3)])
            with pytest.raises(TransactionConflict, match=f"of {table.name}: ") as conflict:
                tx.commit()
            assert conflict.value.details["table"] == table.name
            tx.abort()
        assert rows_in(table) == dict.fromkeys(KEYS, 2)


def test_a_key_that_was_read_and_changed_is_a_conflict(client: sync.Client) -> None:
    for table in pair_of(client, "read"):
        table.upsert([row(k, 0) for k in KEYS])
        tx = client.transaction()
        tx.get_for_update(table, list(KEYS))
        tx.upsert(table, [row(0, 1)])
        table.upsert([row(17, 5)])
        with pytest.raises(TransactionConflict):
            tx.commit()
        tx.abort()
        assert rows_in(table)[0] == 0


def test_a_transaction_over_tables_with_and_without_tablets_is_atomic(client: sync.Client) -> None:
    plain, divided = pair_of(client, "both")
    other = create(client, "both.other", 2)
    with client.transaction(id="both") as tx:
        for round_ in range(3):
            for table in (divided, plain, other):
                tx.upsert(table, [row(k, round_) for k in KEYS])
        assert (rows_in(plain), rows_in(divided), rows_in(other)) == ({}, {}, {})
        result = tx.commit()
    assert set(result.log_offsets) == {plain.name, divided.name, other.name}
    assert result.rows == 9 * len(KEYS)
    assert all(rows_in(table) == dict.fromkeys(KEYS, 2) for table in (plain, divided, other))
    assert client.transaction(id="both").commit() == result


def test_a_commit_that_lacks_requests_commits_nothing(client: sync.Client) -> None:
    table = create(client, "lacks.t", 3)
    tx = client.transaction()
    part = client.transaction_part(tx.token, "another")
    part.upsert(table, [row(k, 1) for k in KEYS])
    part.upsert(table, [row(1, 2)])
    for requests in (1, 3):
        with pytest.raises(InvalidRequest, match=f"has 2 requests, not {requests}"):
            tx.commit([("another", requests)])
    assert rows_in(table) == {}
    tx.commit([part])
    assert rows_in(table) == dict.fromkeys(KEYS, 1) | {1: 2}


def test_all_rows_are_replaced_at_once(client: sync.Client) -> None:
    for table in pair_of(client, "replaced", changelog="none"):
        table.upsert([row(k, 0) for k in KEYS])
        table.replace([row(k, 1) for k in range(100, 120)])
        assert rows_in(table) == dict.fromkeys(range(100, 120), 1)
        with client.transaction() as tx:
            assert tx.delete_all(table) == 20
            tx.commit()
        assert rows_in(table) == {}


def test_transactions_that_lock_keys_wait_for_each_other(client: sync.Client) -> None:
    for table in pair_of(client, "locked"):
        table.upsert([row(k, 0) for k in KEYS])
        with client.transaction(lock="keys", lock_timeout=0.05) as first:
            first.get_for_update(table, list(KEYS))
            (listed,) = client.transactions()
            assert listed.locked_keys == len(KEYS)
            with client.transaction(lock="keys", lock_timeout=0.05) as second:
                with pytest.raises(ScanKvError, match=f"table {table.name} "):
                    second.get_for_update(table, [5, 6, 7])
                second.upsert(table, [row(1000, 1)])
                second.commit()
            first.upsert(table, [row(k, 1) for k in KEYS])
            first.commit()
        assert rows_in(table) == dict.fromkeys(KEYS, 1) | {1000: 1}


@pytest.mark.breadth
def test_rows_are_selected_at_one_instant(client: sync.Client) -> None:
    table = create(client, "instant.t", 3)
    table.upsert([row(k, 0) for k in KEYS])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_rounds, client, table, 30)
        found = set()
        while not writing.done():
            tx = client.transaction()
            found.add(tx.delete(table, where="v >= 100"))
            tx.abort()
        writing.result()
    assert found <= {0, len(KEYS)}


def test_a_deletion_that_takes_several_calls_is_staged_once(server: ServerProcess, client: sync.Client) -> None:
    for table in pair_of(client, "several"):
        table.upsert([row(k, 0) for k in range(3000)])
        tx = client.transaction()
        request = transaction_pb2.StageDeleteAllRequest(token=tx.token, part="calls", table=table.name, wait_millis=50)
        with Wire(server.url) as wire:
            while not wire.transactions.StageDeleteAll(request).done:
                pass
            table.upsert([row(5000, 0)])
            request.wait_millis = 60_000
            again = wire.transactions.StageDeleteAll(request)
        assert (again.done, again.rows) == (True, 3000)
        tx.commit([("calls", 1)])
        assert rows_in(table) == {5000: 0}


def write_rounds(client: sync.Client, table: sync.Table, rounds: int) -> None:
    """Gives all rows the same value in one transaction, some times."""
    for value in range(1, rounds + 1):
        with client.transaction() as tx:
            tx.upsert(table, [row(k, value if value % 2 else 100 + value) for k in KEYS])
            tx.commit()


def test_a_table_may_be_altered_and_dropped_while_rows_are_staged(client: sync.Client) -> None:
    found: list[tuple[Any, ...]] = []
    for table in pair_of(client, "altered"):
        tx = client.transaction()
        tx.upsert(table, [row(k, 1) for k in KEYS])
        client.alter_table(table.name, rename_columns={"w": "text"}, add_indexes=[["v"]], wait=False)
        tx.commit()
        tx = client.transaction()
        opened = client.table(table.name)
        tx.upsert(opened, [{"k": k, "v": 2, "text": "t"} for k in KEYS[:5]])
        rows = rows_in(opened)
        client.drop_table(table.name)
        found.append((rows, outcome_of(tx.commit)))
        tx.abort()
        again = create(client, table.name, 3)
        with client.transaction() as tx:
            tx.upsert(again, [row(1, 1)])
            tx.commit()
        found[-1] = (*found[-1], rows_in(again))
    assert found[0] == found[1]


def test_what_is_staged_is_not_read_of_a_table_that_was_created_again(client: sync.Client) -> None:
    """Also if the key that is read now belongs to a tablet to which nothing was written."""
    found: list[Any] = []
    for table in pair_of(client, "recreated"):
        tx = client.transaction()
        tx.upsert(table, [row(1, 1)])
        client.drop_table(table.name)
        again = create(client, table.name, table.tablets)
        answers = [outcome_of(lambda tx=tx, again=again, key=key: tx.get(again, key)) for key in KEYS]
        found.append((answers, outcome_of(tx.commit)))
        tx.abort()
        found[-1] = (*found[-1], outcome_of(lambda tx=tx, again=again: tx.get(again, 1)))
    assert found[0] == found[1] == (["TableNotFound"] * len(KEYS), "TableNotFound", "TransactionLost")


@pytest.mark.parametrize("tablets", [1, 2])
def test_a_commit_says_that_its_table_was_dropped_if_it_has_fewer_tablets_now(
    client: sync.Client, tablets: int
) -> None:
    for (name,) in names_of_workers(2, f"fewer{tablets}"):
        table = create(client, name, 3)
        tx = client.transaction(conflict="abort")
        tx.upsert(table, [row(k, 1) for k in KEYS])
        client.drop_table(name)
        again = create(client, name, tablets)
        assert tx.get_for_update(again, [1]).num_rows == 0
        with pytest.raises(TableNotFound, match=rf"table {name} was dropped .*since the transaction wrote to it"):
            tx.commit()
        tx.abort()
        assert rows_in(again) == {}


def test_a_wait_for_locked_keys_of_several_tablets_ends_as_that_for_keys_of_one(client: sync.Client) -> None:
    found = []
    for table in pair_of(client, "waits"):
        first, second = client.transaction(lock="keys"), client.transaction(lock="keys", lock_timeout=0.05)
        first.upsert(table, [row(k, 1) for k in KEYS])
        with pytest.raises(LockTimeout) as error:
            second.upsert(table, [row(k, 2) for k in KEYS])
        found.append(error.value.message.replace(table.name, "TABLE"))
        second.abort()
        first.abort()
    assert found[0] == found[1]
