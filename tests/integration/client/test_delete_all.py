"""Deleting all rows of a table at the server within a transaction, mostly to replace them at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    ColumnLocked,
    InvalidRequest,
    StartFrom,
    StopAt,
    TransactionConflict,
    TransactionLost,
    UsageError,
    agg,
    sync,
)

if TYPE_CHECKING:
    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("t", pa.string())])


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=5, indexes=["a"])
    await table.upsert(rows(range(1000), 1))
    return table


def rows(keys: range, a: int) -> pa.Table:
    columns = {"k": list(keys), "a": [a] * len(keys), "t": [str(key) for key in keys]}
    return pa.table(columns, schema=SCHEMA)


async def contents(table: Table) -> dict[int, int]:
    return {row["k"]: row["a"] for row in await table.scan().to_pylist()}


async def test_all_rows_are_replaced_at_once_and_the_changes_are_net(client: Client, table: Table) -> None:

    async def watch() -> None:
        while not done.is_set():
            assert {row["a"] for row in await table.scan().to_pylist()} in ({1}, {1, 2})
            assert await table.count() in (1000, 1200)

    done = asyncio.Event()
    async with table.changes(StartFrom.LATEST).stream() as stream:
        offsets = stream.log_offsets
    watching = asyncio.create_task(watch())
    async with client.transaction() as tx:
        assert await tx.delete_all(table) == 1000
        # Unchanged, replaced and new rows.
        assert await tx.upsert(table, rows(range(300, 500), 1)) == 200
        await tx.upsert(table, rows(range(500, 1500), 2))
        assert await tx.get(table, 5) is None
        assert await tx.get(table, 700) == {"k": 700, "a": 2, "t": "700"}
        assert tx.requests == 3
        (listed,) = [each for each in await client.transactions() if each.token == tx.token]
        assert (listed.tables, listed.rows) == ((table.name,), 2200)
        assert await table.count() == 1000
    done.set()
    await watching
    expected = {**dict.fromkeys(range(300, 500), 1), **dict.fromkeys(range(500, 1500), 2)}
    assert await contents(table) == expected
    found = await table.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_pylist()
    by_type: dict[str, set[int]] = {}
    for row in found:
        assert row["k"] not in by_type.setdefault(row["_change_type"], set())
        by_type[row["_change_type"]].add(row["k"])
    assert by_type == {
        "-D": set(range(300)),
        "-U": set(range(500, 1000)),
        "+U": set(range(500, 1000)),
        "+I": set(range(1000, 1500)),
    }
    assert {row["k"] for row in await table.scan().where("a = 1").to_pylist()} == set(range(300, 500))


async def test_what_was_staged_before_is_deleted_with_the_rows_and_what_comes_behind_stays(
    client: Client, table: Table
) -> None:
    async with client.transaction() as tx:
        await tx.upsert(table, rows(range(990, 1010), 2))
        await tx.delete_all(table)
        await table.upsert(rows(range(5000, 5003), 7))
        await tx.upsert(table, rows(range(3), 3))
    # It deletes the rows of its instant.
    expected = {**dict.fromkeys(range(1000, 1010), 2), **dict.fromkeys(range(5000, 5003), 7)}
    assert await contents(table) == expected | dict.fromkeys(range(3), 3)


async def test_repeated_calls_stage_it_once(client: Client, table: Table) -> None:
    tx = await client.transaction()
    assert await tx.delete_all(table) == 1000
    await tx.upsert(table, rows(range(3), 3))
    await table.upsert(rows(range(2000, 2010), 9))
    # The same call again, as after a lost answer, and a late call of an earlier attempt.
    for _ in range(2):
        again = client.transaction_part(tx.token, tx.part)
        assert await again.delete_all(table) == 1000
        assert again.requests == 1
    assert (await tx.commit()).rows == 1003
    assert await contents(table) == {**dict.fromkeys(range(3), 3), **dict.fromkeys(range(2000, 2010), 9)}


async def test_calls_at_the_same_time_stage_it_once(client: Client, table: Table) -> None:
    tx = await client.transaction()
    parts = [client.transaction_part(tx.token, "deletes") for _ in range(5)]
    assert await asyncio.gather(*[part.delete_all(table) for part in parts]) == [1000] * 5
    await tx.commit([parts[0]])
    assert await contents(table) == {}


async def test_an_empty_table_has_nothing_to_delete(client: Client, name: str) -> None:
    empty = await client.create_table(name, SCHEMA, primary_key=["k"])
    async with client.transaction() as tx:
        assert await tx.delete_all(empty) == 0
        assert await tx.delete_all(empty, mode="overwrite") == 0
    assert await empty.count() == 0
    async with client.transaction() as tx:
        await tx.delete_all(empty)
        await tx.upsert(empty, rows(range(2), 1))
    assert await contents(empty) == {0: 1, 1: 1}


async def test_a_row_that_changes_meanwhile_is_a_conflict_where_these_are_found(client: Client, table: Table) -> None:
    async def conflict() -> None:
        async with client.transaction(conflict="abort") as tx:
            await tx.delete_all(table)
            await table.upsert(rows(range(4, 5), 9))

    with pytest.raises(TransactionConflict):
        await conflict()
    assert (await table.count(), (await contents(table))[4]) == (1000, 9)
    async with client.transaction(conflict="abort") as tx:
        await tx.delete_all(table)
        await table.upsert(rows(range(1000, 1001), 9))
    assert await contents(table) == {1000: 9}


async def test_a_table_that_deletes_no_rows_refuses_unless_overwritten(client: Client, name: str) -> None:
    sums = await client.create_table(
        name,
        SCHEMA,
        primary_key=["k"],
        merge_engine="aggregate",
        aggregators={"a": agg.sum()},
        delete_behavior="disable",
    )
    tx = await client.transaction()
    for filled in (False, True):
        if filled:
            await sums.upsert(rows(range(10), 5))
        with pytest.raises(InvalidRequest, match="deletes no rows"):
            await tx.delete_all(sums)
        with pytest.raises(UsageError):
            await tx.delete_all(sums, mode="else")  # type: ignore[arg-type]
    # Nothing was staged.
    assert tx.requests == 0
    assert await tx.delete_all(sums, mode="overwrite") == 10
    await tx.upsert(sums, rows(range(2), 1))
    await tx.commit()
    assert await contents(sums) == {0: 1, 1: 1}


async def test_locks_are_respected(client: Client, table: Table) -> None:
    lock = await table.lock_columns(["a"], owner="job", ttl=60)
    tx = await client.transaction()
    with pytest.raises(ColumnLocked):
        await tx.delete_all(table)
    assert await tx.delete_all(table, locks=[lock]) == 1000
    await tx.commit()
    assert await contents(table) == {}
    await lock.release()


async def test_an_aborted_transaction_deletes_nothing(client: Client, table: Table) -> None:
    tx = await client.transaction()
    await tx.delete_all(table)
    await tx.abort()
    with pytest.raises(TransactionLost):
        await tx.delete_all(table)
    assert await table.count() == 1000


async def test_an_id_that_was_committed_deletes_nothing_again(client: Client, table: Table, name: str) -> None:
    for expected in (1000, 0):
        async with client.transaction(id=f"{name}:1") as tx:
            assert await tx.delete_all(table) == expected
        await table.upsert(rows(range(1), 1))
    assert await contents(table) == {0: 1}


def _committed_after_a_kill(server: ServerProcess, *, commits: bool) -> dict[Any, Any]:
    with sync.connect(server.url) as client:
        table = client.create_table(f"test.killed_{commits}", SCHEMA, primary_key=["k"], buckets=3)
        table.upsert(rows(range(1000), 1))
        tx = client.transaction(id=f"job-{commits}")
        assert tx.delete_all(table) == 1000
        tx.upsert(table, rows(range(5), 2))
        server.kill()
        server.restart()
        # As if the answer was lost with the server.
        table.upsert(rows(range(1000, 1001), 1))
        assert client.transaction_part(tx.token, tx.part).delete_all(table) == 1000
        if commits:
            assert tx.commit().rows == 1005
        return {row["k"]: row["a"] for row in table.scan().to_pylist()}


@pytest.mark.breadth
async def test_what_is_staged_outlives_the_death_of_the_server(server: ServerProcess) -> None:
    found = await asyncio.to_thread(_committed_after_a_kill, server, commits=True)
    assert found == {**dict.fromkeys(range(5), 2), 1000: 1}
    found = await asyncio.to_thread(_committed_after_a_kill, server, commits=False)
    assert found == dict.fromkeys(range(1001), 1)
