"""Transactions through the client: visible together, once, or not at all; conflicts, parts, merges, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    ColumnLocked,
    InvalidRequest,
    LockLost,
    SchemaMismatch,
    TableNotFound,
    TransactionCommitted,
    TransactionConflict,
    TransactionLost,
    UsageError,
    agg,
)
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from aio_client import Client, Table, Transaction

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())])


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)


def rows(keys: range | list[int], a: int, b: int = 0) -> list[dict[str, Any]]:
    return [{"k": key, "a": a, "b": b} for key in keys]


async def contents(table: Table) -> dict[int, tuple[int | None, int | None]]:
    return {row["k"]: (row["a"], row["b"]) for row in await table.scan().to_pylist()}


async def test_what_is_staged_is_seen_in_all_tables_with_the_commit_and_not_before(
    client: Client, table: Table, name: str
) -> None:
    other = await client.create_table(f"{name}_other", SCHEMA, primary_key=["k"], buckets=2)
    await table.upsert(rows(range(10), 1))
    async with client.transaction() as tx:
        assert await tx.upsert(table, rows(range(5, 20), 2)) == 15
        assert await tx.delete(table, [0, 1, 999]) == 3
        await tx.upsert(other, rows(range(3), 3))
        assert await contents(table) == dict.fromkeys(range(10), (1, 0))
        assert await other.count() == 0
        (listed,) = [each for each in await client.transactions() if each.token == tx.token]
        assert (listed.tables, listed.rows, listed.committing) == (tuple(sorted([name, other.name])), 21, False)
    assert tx.result is not None
    assert tx.result.rows == 21
    expected = {**dict.fromkeys(range(2, 10), (1, 0)), **dict.fromkeys(range(5, 20), (2, 0))}
    assert await contents(table) == expected
    assert await other.count() == 3
    for each in (table, other):
        offsets = {figures.bucket: figures.log_offset for figures in await each.stats()}
        assert tx.result.log_offsets[each.name].items() <= offsets.items()


async def test_an_error_in_the_block_aborts_and_leaves_nothing(client: Client, table: Table) -> None:
    begun: list[Transaction] = []

    async def fail() -> None:
        async with client.transaction() as tx:
            begun.append(tx)
            await tx.upsert(table, rows(range(5), 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    (tx,) = begun
    assert await table.count() == 0
    assert tx.token not in [each.token for each in await client.transactions()]
    with pytest.raises(TransactionLost):
        await tx.upsert(table, rows([1], 1))
    with pytest.raises(TransactionLost):
        await tx.commit()


async def test_an_id_is_committed_once_and_gives_the_first_answer_to_whoever_repeats_it(
    client: Client, table: Table, name: str
) -> None:
    results = []
    for value in range(3):
        async with client.transaction(id=f"{name}:1") as tx:
            assert await tx.upsert(table, rows([1], value)) == (0 if value else 1)
        results.append(tx.result)
        assert await tx.commit() == tx.result
        if value:
            await tx.abort()
    assert results == [results[0]] * 3
    assert await contents(table) == {1: (0, 0)}
    async with client.transaction(id=f"{name}:2") as tx:
        await tx.upsert(table, rows([1], 7))
    assert await contents(table) == {1: (7, 0)}


async def test_beginning_an_id_again_aborts_the_one_before(client: Client, table: Table, name: str) -> None:
    first = await client.transaction(id=name)
    await first.upsert(table, rows([1], 1))
    async with client.transaction(id=name) as second:
        with pytest.raises(TransactionLost):
            await first.upsert(table, rows([2], 1))
        with pytest.raises(TransactionLost):
            await first.commit()
        await second.upsert(table, rows([3], 3))
    assert await contents(table) == {3: (3, 0)}
    assert await first.commit() == second.result, "the id is committed"


@pytest.mark.breadth
async def test_one_of_which_nothing_is_heard_expires(client: Client, table: Table) -> None:
    tx = await client.transaction(ttl=2)
    await tx.upsert(table, rows([1], 1))

    async def is_gone() -> bool:
        return tx.token not in [each.token for each in await client.transactions()]

    await await_until(is_gone, "the transaction gone")
    with pytest.raises(TransactionLost):
        await tx.commit()
    assert await table.count() == 0


async def test_it_can_be_aborted_by_its_token_but_not_once_it_is_committed(client: Client, table: Table) -> None:
    tx = await client.transaction()
    await client.abort_transaction(tx.token)
    await client.abort_transaction(tx.token)
    with pytest.raises(TransactionLost):
        await tx.commit()
    async with client.transaction() as tx:
        await tx.upsert(table, rows([1], 1))
    with pytest.raises(TransactionCommitted):
        await client.abort_transaction(tx.token)
    with pytest.raises(UsageError):
        await tx.upsert(table, rows([2], 1))


async def test_the_last_commit_wins_unless_conflicts_are_to_abort(client: Client, table: Table) -> None:
    await table.upsert(rows(range(10), 0))
    async with client.transaction() as tx:
        await tx.upsert(table, rows([1, 2], 1))
        await table.upsert(rows([1], 9))
    assert (await contents(table))[1] == (1, 0)

    async def conflict() -> None:
        async with client.transaction(conflict="abort") as tx:
            await tx.upsert(table, rows([3, 4, 5], 2))
            await table.upsert(rows([4], 9))

    with pytest.raises(TransactionConflict) as caught:
        await conflict()
    assert (caught.value.details["table"], caught.value.details["keys"]) == (table.name, "1")
    assert {k: v for k, v in (await contents(table)).items() if k in (3, 4, 5)} == {3: (0, 0), 4: (9, 0), 5: (0, 0)}
    async with client.transaction(conflict="abort") as tx:
        await tx.upsert(table, rows([3, 4, 5], 2))
        await table.upsert(rows([6, 7, 8, 9], 9))  # with other keys of the same buckets
        await tx.delete(table, [2])
    assert (await contents(table))[4] == (2, 0)


async def test_the_parts_that_the_commit_names_count_and_no_others(client: Client, table: Table) -> None:
    tx = await client.transaction()
    await tx.upsert(table, rows([0], 0))
    good, failed = client.transaction_part(tx.token, "1/a"), client.transaction_part(tx.token, "1/b")
    await good.upsert(table, rows([0, 1], 1))
    await failed.upsert(table, rows([0, 2], 2))
    with pytest.raises(InvalidRequest, match="has 1 requests, not 2"):
        await tx.commit([(good.part, 2)])
    with pytest.raises(InvalidRequest, match="has 0 requests, not 1"):
        await tx.commit([("nobody", 1)])
    assert await table.count() == 0
    await tx.commit([good])
    assert await contents(table) == {0: (1, 0), 1: (1, 0)}


async def test_whoever_begins_an_id_with_the_same_attempt_takes_part(client: Client, table: Table, name: str) -> None:
    first = await client.transaction(name, attempt="one")
    part = client.transaction_part((await client.transaction(name, attempt="one")).token, "part")
    await part.upsert(table, rows([0], 1))
    driver = await client.transaction(name, attempt="one")
    assert driver.token == first.token
    await driver.commit([part])
    assert (await client.transaction(name, attempt="one")).result == driver.result
    assert await contents(table) == {0: (1, 0)}
    other = await client.transaction(f"{name}2", attempt="one")
    assert (await client.transaction(f"{name}2", attempt="two")).token != other.token
    with pytest.raises(TransactionLost):
        await other.upsert(table, rows([0], 2))
    with pytest.raises(UsageError, match="needs a transaction with an id"):
        client.transaction(attempt="one")


async def test_every_kind_of_write_does_in_a_transaction_what_it_does_without(client: Client, name: str) -> None:
    made = [
        await client.create_table(
            f"{name}_{number}",
            SCHEMA,
            primary_key=["k"],
            buckets=2,
            merge_engine="aggregate",
            aggregators={"a": agg.sum(), "b": agg.max()},
            delete_behavior="allow",
        )
        for number in range(2)
    ]
    plain, within = made
    for table in made:
        await table.upsert(rows(range(6), 10, 10))
    async with client.transaction() as tx:
        for keys in (range(4), range(2, 8)):
            for value in (1, 2):
                await plain.upsert(rows(keys, value, value * 20))
                await tx.upsert(within, rows(keys, value, value * 20))
        partial = pa.table({"k": [1, 7], "a": [5, 5]})
        await plain.upsert(partial, columns=["k", "a"])
        await tx.upsert(within, partial, columns=["k", "a"])
        back = pa.table({"k": [2], "a": [3]})
        await plain.retract(back, columns=["k", "a"])
        await tx.retract(within, back, columns=["k", "a"])
        await plain.delete([3, 5])
        await tx.delete(within, [3, 5])
        await plain.delete([4], columns=["b"])
        await tx.delete(within, [4], columns=["b"])
        await plain.upsert(rows([0], 0, 0), mode="overwrite")
        await tx.upsert(within, rows([0], 0, 0), mode="overwrite")
    assert await contents(within) == await contents(plain)


async def test_what_is_refused_when_it_is_staged_leaves_the_transaction_as_it_was(client: Client, table: Table) -> None:
    async with client.transaction() as tx:
        await tx.upsert(table, rows([1], 1))
        with pytest.raises(SchemaMismatch):
            await tx.upsert(table, [{"k": 2, "unknown": 1}])
        with pytest.raises(InvalidRequest):
            await tx.upsert(table, rows([2], 1), columns=["a"])
        await tx.upsert(table, rows([3], 3))
    assert sorted(await contents(table)) == [1, 3]


async def test_a_merge_that_has_no_result_keeps_all_of_the_transaction_out(
    client: Client, table: Table, name: str
) -> None:
    sums = await client.create_table(
        f"{name}_sums", SCHEMA, primary_key=["k"], merge_engine="aggregate", aggregators={"a": agg.sum()}
    )
    most = 2**63 - 1
    tx = await client.transaction()
    await tx.upsert(table, rows(range(10), 1))
    await tx.upsert(sums, rows([1], most - 1))
    await tx.upsert(sums, rows([1], 2))
    with pytest.raises(InvalidRequest, match="nothing of the transaction was written"):
        await tx.commit()
    await tx.upsert(sums, rows([1], -5))
    with pytest.raises(InvalidRequest):
        await tx.commit()
    await tx.abort()
    assert await table.count() == await sums.count() == 0


async def test_a_table_dropped_since_and_a_locked_column_keep_it_from_being_committed(
    client: Client, table: Table, name: str
) -> None:
    gone = await client.create_table(f"{name}_gone", SCHEMA, primary_key=["k"])
    tx = await client.transaction()
    await tx.upsert(gone, rows([1], 1))
    await tx.upsert(table, rows([1], 1))
    await client.drop_table(gone.name)
    with pytest.raises(TableNotFound):
        await tx.commit()
    await tx.abort()
    tx = await client.transaction()
    await tx.upsert(table, rows([1], 1))
    async with table.lock_columns(["a"], owner="somebody") as lock:
        with pytest.raises(ColumnLocked):
            await tx.commit()
        with pytest.raises(ColumnLocked):
            await tx.upsert(table, rows([2], 1))
        await tx.upsert(table, rows([3], 1), locks=[lock])
        await tx.upsert(table, rows([1], 1), locks=[lock])
    # Others may have written the columns that the lock protected.
    with pytest.raises(LockLost):
        await tx.commit()
    assert await table.count() == 0
    await tx.abort()
    async with table.lock_columns(["a"], owner="somebody") as lock, client.transaction() as tx:
        await tx.upsert(table, rows([1, 3], 1), locks=[lock])
    assert sorted(await contents(table)) == [1, 3]


async def test_a_table_may_be_altered_while_rows_are_staged(client: Client, table: Table) -> None:
    async with client.transaction() as tx:
        await tx.upsert(table, rows(range(20), 4))
        await client.alter_table(table.name, add_columns=pa.schema([("c", pa.string())]), add_indexes=["a"])
    top = await (await client.table(table.name)).top_n(3, order_by="a")
    assert top.to_pylist() == [{"k": key, "a": 4, "b": 0, "c": None} for key in range(3)]


async def test_a_transaction_reads_what_it_has_staged_itself(client: Client, table: Table) -> None:
    await table.upsert(rows(range(6), 1, 1))
    async with client.transaction() as tx:
        assert await tx.get(table, 0) == {"k": 0, "a": 1, "b": 1}
        await tx.upsert(table, rows([0, 7], 2, 2))
        await tx.delete(table, [1, 7, 8])
        await tx.upsert(table, pa.table({"k": [2, 9], "a": [3, 3]}), columns=["k", "a"])
        await tx.upsert(table, rows([4], 4) + rows([4], 5))
        await table.upsert(rows([3, 4, 9], 9, 9))  # committed writes of others
        found = await tx.lookup(table, [9, 8, 4, 3, 2, 1, 0, 0], missing="null")
        assert [(row["k"], row["a"], row["b"]) for row in found.to_pylist()] == [
            (9, 3, 9),
            (8, None, None),
            (4, 5, 0),
            (3, 9, 9),
            (2, 3, 1),
            (1, None, None),
            (0, 2, 2),
            (0, 2, 2),
        ]
        assert await tx.get(table, 7) is None
        other = client.transaction_part(tx.token, "other")
        assert await other.get(table, 0) == {"k": 0, "a": 1, "b": 1}, "each part reads its own"
        assert (await table.get(0)) == {"k": 0, "a": 1, "b": 1}, "no other reader sees it"
        staged = await tx.lookup(table, list(range(10)))
    assert (await table.lookup(list(range(10)))).equals(staged), "the commit makes what was read"
    with pytest.raises(UsageError):
        await tx.get(table, 0)


@pytest.mark.parametrize("columns", [None, ["k", "a"]])
async def test_what_is_read_is_what_the_merge_engine_will_make_of_it(
    client: Client, name: str, columns: list[str] | None
) -> None:
    table = await client.create_table(
        name, SCHEMA, primary_key=["k"], merge_engine="aggregate", aggregators={"a": agg.avg(), "b": agg.sum()}
    )
    await table.upsert(rows(range(50), 10, 1))
    async with client.transaction() as tx:
        for value in (4, 7, 9):
            staged = pa.Table.from_pylist(rows(range(30, 80), value, 2), SCHEMA)
            await tx.upsert(table, staged.select(columns or SCHEMA.names), columns)
        await tx.retract(table, [{"k": 79, "a": 9, "b": 2}])
        read = await tx.lookup(table, list(range(90)))
        assert read.num_rows == 80
    assert (await table.lookup(list(range(90)))).equals(read)
    tx = await client.transaction()
    await tx.upsert(table, [{"k": 5, "a": 0, "b": 2**63 - 1}])
    with pytest.raises(InvalidRequest, match="does not fit"):
        await tx.get(table, 5)
    assert (await tx.lookup(table, [4])).num_rows == 1
    with pytest.raises(InvalidRequest, match="does not fit"):
        await tx.commit()
    await tx.abort()


async def test_what_is_staged_is_read_after_columns_were_added_and_not_of_another_table(
    client: Client, table: Table
) -> None:
    tx = await client.transaction()
    await tx.upsert(table, rows([1], 1, 1))
    await client.alter_table(table.name, add_columns=pa.schema([("c", pa.int64())]))
    altered = await client.table(table.name)
    assert await tx.get(altered, 1) == {"k": 1, "a": 1, "b": 1, "c": None}
    await client.drop_table(table.name)
    again = await client.create_table(table.name, SCHEMA, primary_key=["k"])
    with pytest.raises(TableNotFound):
        await tx.get(again, 1)
    await tx.abort()
    with pytest.raises(TransactionLost):
        await tx.get(again, 1)


async def test_a_table_made_anew_with_fewer_buckets_is_none_that_the_transaction_knows(
    client: Client, table: Table
) -> None:
    tx = await client.transaction(conflict="abort")
    await tx.upsert(table, rows(range(20), 1))
    await client.drop_table(table.name)
    again = await client.create_table(table.name, SCHEMA, primary_key=["k"], buckets=1)
    assert (await tx.get_for_update(again, [1])).num_rows == 0
    with pytest.raises(TableNotFound, match=r"was dropped .*since the transaction wrote to it"):
        await tx.commit()
    await tx.abort()
