"""Transactions that lock keys: they wait for each other instead of failing, and never for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    DeadlockDetected,
    InvalidRequest,
    LockTimeout,
    TooManyLocks,
    TransactionConflict,
    TransactionLost,
    UsageError,
    agg,
    connect,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64())])


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    made = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await made.upsert([{"k": key, "a": 0} for key in range(10)])
    return made


async def add(client: Client, table: Table, key: int, **options: Any) -> None:
    """Adds 1 to a row."""
    async with client.transaction(lock="keys", **options) as tx:
        (row,) = (await tx.get_for_update(table, key)).to_pylist()
        await tx.upsert(table, [{"k": key, "a": row["a"] + 1}])


async def waits(client: Client, waiting: str, for_: str) -> bool:
    return any(each.token == waiting and each.waits_for == (for_,) for each in await client.transactions())


@pytest.mark.timeout(120)
async def test_concurrent_changes_of_one_row_wait_for_each_other_and_none_is_lost_or_repeated(
    client: Client, table: Table
) -> None:
    await asyncio.gather(*(add(client, table, 1, lock_timeout=60) for _ in range(60)))
    assert await table.get(1) == {"k": 1, "a": 60}


async def test_a_write_waits_for_the_end_of_the_transaction_that_has_locked_its_keys(
    client: Client, table: Table
) -> None:
    first = await client.transaction(lock="keys")
    await first.upsert(table, [{"k": key, "a": 1} for key in range(5)])
    await first.delete(table, [7])
    second = await client.transaction(lock="keys")
    other_keys = await second.get_for_update(table, [5, 6])
    assert other_keys.num_rows == 2
    waiting = asyncio.create_task(second.get_for_update(table, [4, 5, 7], missing="omit"))

    await await_until(lambda: waits(client, second.token, first.token), "the second transaction waits")
    listed = {each.token: each for each in await client.transactions()}
    assert (listed[first.token].locked_keys, listed[second.token].locked_keys) == (6, 2)
    await first.commit()
    assert sorted((await waiting).to_pylist(), key=lambda row: row["k"]) == [{"k": 4, "a": 1}, {"k": 5, "a": 0}]
    await second.abort()
    await add(client, table, 4)


async def test_a_request_that_waits_too_long_is_refused_and_stages_nothing(client: Client, table: Table) -> None:
    async with client.transaction(lock="keys") as first:
        await first.get_for_update(table, 1)
        second = await client.transaction(lock="keys", lock_timeout=0.05)
        with pytest.raises(LockTimeout, match="held locks on some of the keys") as error:
            await second.upsert(table, [{"k": 1, "a": 9}, {"k": 2, "a": 9}])
        assert isinstance(error.value, TransactionConflict)
        await second.upsert(table, [{"k": 3, "a": 9}])
        await second.commit()
    assert await table.get(2) == {"k": 2, "a": 0}
    assert await table.get(3) == {"k": 3, "a": 9}


async def test_one_transaction_of_a_deadlock_is_refused_and_the_other_one_continues(
    client: Client, table: Table
) -> None:
    first, second = await client.transaction(lock="keys"), await client.transaction(lock="keys")
    await first.get_for_update(table, 1)
    await second.get_for_update(table, 2)
    waiting = asyncio.create_task(first.get_for_update(table, 2))
    await await_until(lambda: waits(client, first.token, second.token), "the first transaction waits")
    with pytest.raises(DeadlockDetected, match="abort this transaction and try again"):
        await second.get_for_update(table, 1)
    await second.abort()
    assert (await waiting).num_rows == 1
    await first.upsert(table, [{"k": 2, "a": 5}])
    await first.commit()
    assert await table.get(2) == {"k": 2, "a": 5}


async def test_writers_without_locks_do_not_wait_and_what_they_change_is_still_a_conflict(
    client: Client, table: Table
) -> None:
    locking = await client.transaction(lock="keys")
    await locking.get_for_update(table, 1)
    await table.upsert([{"k": 1, "a": 100}])
    async with client.transaction() as tx:
        await tx.get_for_update(table, 1)
    await locking.upsert(table, [{"k": 1, "a": 1}])
    with pytest.raises(TransactionConflict, match="depends on changed in the meantime"):
        await locking.commit()
    await locking.abort()
    assert await table.get(1) == {"k": 1, "a": 100}


@pytest.mark.parametrize("end", ["expires", "is aborted", "is begun again"])
@pytest.mark.represented_by("expires")
async def test_locks_end_with_their_transaction(client: Client, table: Table, name: str, end: str) -> None:
    first = await client.transaction(lock="keys", id=name, ttl=1 if end == "expires" else 600, lock_timeout=1)
    await first.get_for_update(table, 1)
    if end == "is aborted":
        await client.abort_transaction(first.token)
    elif end == "is begun again":
        await (await client.transaction(id=name)).abort()
    await add(client, table, 1, lock_timeout=30)
    with pytest.raises(TransactionLost):
        await first.upsert(table, [{"k": 1, "a": 5}])
    assert await table.get(1) == {"k": 1, "a": 1}


async def test_locks_hold_for_rows_that_are_merged_or_missing(client: Client, name: str) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("n", pa.int64())])
    sums = await client.create_table(
        f"{name}_sums", schema, primary_key=["k"], merge_engine="aggregate", aggregators={"n": agg.sum()}
    )

    async def create_once() -> None:
        async with client.transaction(lock="keys") as tx:
            if (await tx.get_for_update(sums, "new")).num_rows == 0:
                await tx.upsert(sums, [{"k": "new", "n": 1}])

    await asyncio.gather(*(create_once() for _ in range(20)))
    assert await sums.get("new") == {"k": "new", "n": 1}


async def test_wrong_options_are_refused(client: Client, table: Table) -> None:
    with pytest.raises(UsageError, match='lock must be "keys" or None'):
        client.transaction(lock="rows")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="lock_timeout needs a transaction that locks keys"):
        client.transaction(lock_timeout=1)
    for wrong in (-1, 61, True, "1", float("nan")):
        with pytest.raises(UsageError, match="seconds from 0 to 60"):
            client.transaction(lock="keys", lock_timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="not longer than its time to live of 5 s"):
        await client.transaction(lock="keys", ttl=5)
    async with client.transaction(lock="keys") as tx:
        with pytest.raises(InvalidRequest, match="cannot delete all rows"):
            await tx.delete_all(table)


@pytest.mark.whole_tables  # Each worker counts the keys that it locks.
async def test_a_restart_ends_transactions_that_have_locked_keys_and_no_others(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "max_locked_keys=2") as server:
        async with connect(server.url) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["k"])
            locking, plain = await client.transaction(lock="keys"), await client.transaction()
            for each in (locking, plain):
                await each.upsert(table, [{"k": 1, "a": 1}])
            with pytest.raises(TooManyLocks, match="max_locked_keys"):
                await locking.upsert(table, [{"k": 2, "a": 1}, {"k": 3, "a": 1}])
            server.kill()
            server.restart()
            assert [each.token for each in await client.transactions()] == [plain.token]
            with pytest.raises(TransactionLost):
                await locking.commit()
            await plain.commit()
            assert await table.get(1) == {"k": 1, "a": 1}


async def test_a_server_that_is_stopped_does_not_wait_for_locks(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "drain_seconds=600") as server:
        async with connect(server.url, operation_timeout=0.5) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["k"])
            first = await client.transaction(lock="keys")
            await first.get_for_update(table, 1)
            second = await client.transaction(lock="keys", lock_timeout=60)
            waiting = asyncio.create_task(second.get_for_update(table, 1))
            await await_until(lambda: waits(client, second.token, first.token), "the second transaction waits")
            assert await asyncio.to_thread(server.stop) == 0
            waiting.cancel()
            await asyncio.wait([waiting])
