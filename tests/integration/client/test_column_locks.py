"""Column locks: only the holder can write its columns; others get an error that names the holder, and write nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ColumnLocked, InvalidRequest, LockLost, SchemaMismatch, TooManyLocks, UsageError, connect
from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aio_client import Client, ColumnLock, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
ROW = {"k": 1, "a": 1, "b": 1, "c": 1}


async def made(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    await table.upsert([ROW])
    return table


WRITES: dict[str, Callable[[Table], Coroutine[Any, Any, object]]] = {
    "whole row": lambda table: table.upsert([ROW | {"a": 2}]),
    "locked column": lambda table: table.upsert([{"k": 1, "a": 2}], columns=["k", "a"]),
    "locked column beside another": lambda table: table.upsert([{"k": 1, "c": 2, "b": 3}], columns=["k", "c", "b"]),
    "overwrite": lambda table: table.upsert([ROW | {"a": 2}], mode="overwrite"),
    "delete": lambda table: table.delete([1]),
    "delete of a key that is not there": lambda table: table.delete([2]),
    "partial delete": lambda table: table.delete([1], columns=["b"]),
}


@pytest.mark.parametrize("what", WRITES)
async def test_a_write_that_would_change_a_locked_column_is_refused_with_its_owner(
    client: Client, name: str, what: str
) -> None:
    table = await made(client, name)
    async with table.lock_columns(["a", "b"], owner="job-1", ttl=600):
        with pytest.raises(ColumnLocked, match='"job-1" has locked') as caught:
            await WRITES[what](table)
        assert set(caught.value.details["columns"].split(", ")) <= {"a", "b"}
        assert caught.value.details["owner"] == "job-1"
        assert 0 < float(caught.value.details["remaining"]) <= 600
        assert await table.scan().to_pylist() == [ROW]
        before = [bucket.log_offset for bucket in await table.stats()]
        assert sum(before) == 1
    await WRITES[what](table)


async def test_two_jobs_fill_different_columns_of_the_same_rows(client: Client, name: str) -> None:
    table = await made(client, name)
    async with (
        table.lock_columns(["a"], owner="job-1") as first,
        table.lock_columns(["b", "c"], owner="job-2") as second,
    ):
        for value in range(5):
            await asyncio.gather(
                table.upsert([{"k": 1, "a": value}], columns=["k", "a"], locks=[first]),
                table.upsert([{"k": 1, "b": value, "c": -value}], columns=["k", "b", "c"], locks=[second.id]),
            )
        assert await table.get(1) == {"k": 1, "a": 4, "b": 4, "c": -4}
        with pytest.raises(ColumnLocked, match="job-2"):
            await table.upsert([{"k": 1, "b": 9}], columns=["k", "b"], locks=[first])
        # A complete row has both columns.
        await table.upsert([ROW], locks=[first, second])
        await table.delete([1], locks=[first, second])


async def test_a_column_is_locked_once_and_free_again_when_the_lock_ends(client: Client, name: str) -> None:
    table = await made(client, name)
    async with table.lock_columns(["a", "b"], owner="job-1") as lock:
        with pytest.raises(ColumnLocked, match='"job-1" has locked b of'):
            await table.lock_columns(["b", "c"], owner="job-2")
        other = await table.lock_columns("c", owner="job-1")
        assert [each.id for each in await client.column_locks(name)] == sorted([lock.id, other.id])
        await other.release()
        await other.release()
        with pytest.raises(LockLost):
            await other.renew()
        await lock.renew(120)
        assert 60 < lock.remaining <= 120
    assert await client.column_locks(name) == []
    await (await table.lock_columns(["b", "c"], owner="job-2")).release()


async def test_a_lock_that_nobody_renews_expires_and_one_that_is_kept_does_not(client: Client, name: str) -> None:
    table = await made(client, name)
    left = await table.lock_columns(["a"], owner="gone", ttl=1)
    async with table.lock_columns(["b"], owner="kept", ttl=1):

        async def owners() -> list[str]:
            return [lock.owner for lock in await client.column_locks(name)]

        async def has_expired() -> bool:
            return "gone" not in await owners()

        await await_until(has_expired, "expired", timeout=60)
        assert left.remaining == 0
        await table.upsert([{"k": 1, "a": 7}], columns=["k", "a"])
        # Its holder assumes exclusive access, which it no longer has.
        with pytest.raises(LockLost):
            await table.upsert([{"k": 1, "a": 8}], columns=["k", "a"], locks=[left])


async def test_a_restarted_owner_takes_its_old_lock_over_and_fences_its_holder(client: Client, name: str) -> None:
    table = await made(client, name)
    old = await table.lock_columns(["a", "b"], owner="job-1", ttl=600)
    beside = await table.lock_columns(["c"], owner="job-1", ttl=600)
    with pytest.raises(ColumnLocked, match="job-1"):
        await table.lock_columns(["a"], owner="job-1")
    with pytest.raises(ColumnLocked, match="job-1"):
        await table.lock_columns(["a"], owner="job-2", take_over=True)
    with pytest.raises(SchemaMismatch):
        await table.lock_columns(["a", "x"], owner="job-1", take_over=True)
    await table.upsert([{"k": 1, "a": 2}], columns=["k", "a"], locks=[old])
    async with table.lock_columns(["a"], owner="job-1", take_over=True) as new:
        assert {lock.id for lock in await client.column_locks(name)} == {new.id, beside.id}
        # The earlier holder is refused, whatever it writes.
        for column in ("a", "b", "c"):
            with pytest.raises(LockLost):
                await table.upsert([{"k": 1, column: 9}], columns=["k", column], locks=[old, beside])
        with pytest.raises(LockLost):
            await old.renew()
        await table.upsert([{"k": 1, "a": 3}], columns=["k", "a"], locks=[new])
        await old.release()  # of a lock that has already ended
        assert new.id in {lock.id for lock in await client.column_locks(name)}
    # It is still refused when the new lock has ended.
    with pytest.raises(LockLost):
        await table.upsert([{"k": 1, "a": 9}], columns=["k", "a"], locks=[old])
    with pytest.raises(LockLost):
        async with client.transaction() as tx:
            await tx.upsert(table, [{"k": 1, "a": 9}], ["k", "a"], locks=[old])
    assert await table.get(1) == ROW | {"a": 3}


async def test_a_transaction_is_not_committed_when_its_lock_was_taken_over(client: Client, name: str) -> None:
    table = await made(client, name)
    old = await table.lock_columns(["a"], owner="job-1", ttl=600)
    tx = await client.transaction()
    await tx.upsert(table, [{"k": 1, "a": 2}], ["k", "a"], locks=[old])
    async with table.lock_columns(["a"], owner="job-1", take_over=True):
        pass
    with pytest.raises(LockLost):
        await tx.commit()
    assert await table.get(1) == ROW


async def test_taking_over_waits_for_the_writes_of_the_holder_before(client: Client, name: str) -> None:
    table = await made(client, name)
    old = await table.lock_columns(["a"], owner="job-1", ttl=600)
    rows = pa.table({name: range(60_000) for name in SCHEMA.names}, schema=SCHEMA)
    writing = asyncio.create_task(table.upsert(rows, locks=[old]))
    await await_until(table.count, "some rows")
    try:
        await table.lock_columns(["a"], owner="job-1", ttl=600, take_over=True)
    finally:
        after_lock = await table.log_offsets()
        await asyncio.wait([writing])
    assert await table.log_offsets() == after_lock


async def test_a_lock_that_was_taken_over_stays_so_after_a_kill(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await made(client, "test.a")
        old = await table.lock_columns(["a"], owner="job-1", ttl=600)
        new = await table.lock_columns(["a"], owner="job-1", ttl=600, take_over=True)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await client.wait_ready()
        assert [lock.id for lock in await client.column_locks()] == [new.id]
        with pytest.raises(LockLost):
            await table.upsert([ROW], locks=[old])
        await table.upsert([ROW | {"a": 5}], locks=[new])


async def test_a_lock_waits_for_the_writes_that_have_begun(client: Client, name: str) -> None:
    table = await made(client, name)
    # Long enough that some of it is in progress when the lock is requested; otherwise the test proves nothing, but does
    # not fail.
    rows = pa.table({name: range(60_000) for name in SCHEMA.names}, schema=SCHEMA)
    writing = asyncio.create_task(table.upsert(rows))
    await await_until(table.count, "some rows")
    try:
        lock = await table.lock_columns(["a"], owner="job-1", ttl=600)
    finally:
        after_lock = [bucket.log_offset for bucket in await table.stats()]
        await asyncio.wait([writing])
    assert [bucket.log_offset for bucket in await table.stats()] == after_lock
    await lock.release()


@pytest.mark.breadth
async def test_locks_survive_a_kill_of_the_server_and_go_with_their_table(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table, other = await made(client, "test.a"), await made(client, "test.b")
        lock = await table.lock_columns(["a"], owner="job-1", ttl=600)
        await other.lock_columns(["a"], owner="job-2", ttl=600)
        released = await table.lock_columns(["b"], owner="job-3", ttl=600)
        await released.release()
        await client.drop_table("test.b")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await client.wait_ready()
        assert [(each.id, each.owner, each.ttl) for each in await client.column_locks()] == [(lock.id, "job-1", 600)]
        with pytest.raises(ColumnLocked):
            await table.upsert([ROW])
        await table.upsert([ROW], locks=[lock])
        # A new table with the same name is another incarnation.
        await made(client, "test.b")
        await lock.renew(1)
        assert lock.ttl == 1

        [file] = server.data_dir.rglob("column-locks.json")
        await asyncio.to_thread(wait_until, lambda: lock.id not in file.read_text(), "expired", timeout=60)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await client.wait_ready()
        assert await client.column_locks() == []


async def test_what_cannot_be_locked_is_refused(client: Client, name: str) -> None:
    table = await made(client, name)
    for columns, owner, error in (
        (["k"], "job", InvalidRequest),
        ([], "job", InvalidRequest),
        (["a", "a"], "job", InvalidRequest),
        (["x"], "job", SchemaMismatch),
        (["a"], "", InvalidRequest),
        (["a"], "a b", InvalidRequest),
    ):
        with pytest.raises(error):
            await table.lock_columns(columns, owner=owner)
    for ttl in (0, 604_801, True, "1"):
        with pytest.raises(UsageError, match="ttl"):
            table.lock_columns(["a"], owner="job", ttl=ttl)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="locks"):
        await table.upsert([ROW], locks=[7])  # type: ignore[list-item]
    with pytest.raises(LockLost):
        await client.release_column_lock("nobody")
    assert await client.column_locks(name) == []


async def test_a_table_has_at_most_a_hundred_locks(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), *((f"c{n}", pa.int64()) for n in range(101))])
    table = await client.create_table(name, schema, primary_key=["k"])
    locks: list[ColumnLock] = [await table.lock_columns([f"c{n}"], owner="job") for n in range(100)]
    with pytest.raises(TooManyLocks):
        await table.lock_columns(["c100"], owner="job")
    await locks[7].release()
    await table.lock_columns(["c100"], owner="job")
