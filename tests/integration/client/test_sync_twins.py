"""What both clients share: leases and transactions that are entered later, and the same arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ConsumerNotFound, LockLost, SnapshotLost, StopAt, TransactionLost

if TYPE_CHECKING:
    from aio_client import Client, sync

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.mark.asyncio
async def test_a_lease_that_is_there_already_is_entered_and_released_at_the_end(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"])
    taken = await table.snapshot()
    async with await client.adopt_snapshot(taken.id) as snapshot:
        assert await table.scan().as_of(snapshot).to_pylist() == []
    with pytest.raises(SnapshotLost):
        await taken.renew()
    async with await table.lock_columns(["v"], owner="job-1") as lock:
        assert [each.id for each in await client.column_locks(name)] == [lock.id]
    with pytest.raises(LockLost):
        await lock.renew()


@pytest.mark.asyncio
async def test_a_transaction_that_was_begun_is_entered_and_committed_or_aborted(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"])
    async with await client.transaction() as tx:
        await tx.upsert(table, [{"k": 1, "v": 1}])
    assert tx.result is not None
    failed = await client.transaction()
    await failed.upsert(table, [{"k": 2, "v": 2}])
    with pytest.raises(ZeroDivisionError):
        async with failed:
            raise ZeroDivisionError
    with pytest.raises(TransactionLost):
        await failed.commit()
    assert await table.count() == 1


def test_a_blocking_transaction_is_entered_again_once_it_is_committed(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"])
    with sync_client.transaction() as tx:
        tx.upsert(table, [{"k": 1, "v": 1}])
    with tx:
        assert tx.result is not None
    assert tx.commit() == tx.result
    assert table.count() == 1


def test_blocking_changes_may_ask_for_a_consumer_that_must_exist(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"])
    changes = table.changes(stop=StopAt.LATEST, consumer_id="gone", must_exist=True)
    with pytest.raises(ConsumerNotFound):
        list(changes)


def test_blocking_objects_are_arguments_of_blocking_methods(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"])
    with table.lock_columns(["v"], owner="job-1") as lock:
        for locks in ([lock], (lock,), [lock.id], iter([lock])):
            assert table.upsert([{"k": 1, "v": 1}], locks=locks).rows == 1  # type: ignore[arg-type]  # also iterators
        with sync_client.transaction() as tx:
            part = sync_client.transaction_part(tx.token, "part")
            assert part.upsert(table, [{"k": 2, "v": 2}], locks=[lock]) == 1
            assert tx.commit([part, ("none", 0)]).rows == 1
    assert table.count() == 2
