"""Undo reverts what a named writer has done since some offsets, and leaves what others did."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ColumnLocked, InvalidRequest, LockLost, LogOffsets, PositionOutOfRange, UsageError, agg
from tests.support.noted import noted

if TYPE_CHECKING:
    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())])


async def contents(table: Table) -> dict[int, tuple[int | None, int | None]]:
    return {row["k"]: (row["a"], row["b"]) for row in await table.scan().to_pylist()}


async def offsets_of(table: Table) -> LogOffsets:
    return await table.log_offsets()


async def beginning_of(table: Table) -> LogOffsets:
    return LogOffsets.of(dict.fromkeys(range(table.buckets), 0), (await table.log_offsets()).table_incarnation)


def row(k: int, a: int, b: int = 0) -> dict[str, Any]:
    return {"k": k, "a": a, "b": b}


async def test_inserts_go_and_changed_and_deleted_rows_come_back(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await table.upsert([row(k, 1) for k in range(6)])
    async with table.writer(id="job") as writer:
        await writer.upsert([row(0, 2)])
        await writer.flush()
        offsets = await offsets_of(table)
        before = await contents(table)
        for value in (3, 4):
            await writer.upsert([row(k, value) for k in (0, 1, 7, 8)])
            await writer.delete([2, 8])
            await writer.flush()
    await table.upsert([row(5, 9)])
    report = await table.undo("job", offsets)
    assert (report.restored, report.deleted, report.conflicts) == (3, 1, 0)
    assert await contents(table) == before | {5: (9, 0)}
    assert report.log_offsets == await offsets_of(table)
    again = await table.undo("job", offsets)
    assert (again.restored, again.deleted, again.log_offsets) == (0, 0, report.log_offsets)
    # What the writer does after an undo can be undone as well.
    async with table.writer(id="job") as writer:
        await writer.upsert([row(1, 50), row(8, 50)])
    assert (await table.undo("job", offsets)).restored == 1
    assert await contents(table) == before | {5: (9, 0)}


async def test_what_others_have_written_since_stays_and_is_counted(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    await table.upsert([row(k, 1) for k in range(4)])
    offsets = await offsets_of(table)
    async with table.writer(id="job") as writer:
        await writer.upsert([row(k, 2) for k in range(3)])
    async with table.writer(id="other") as writer:
        await writer.upsert([row(0, 3), row(3, 3)])
    await table.delete([1])
    report = await table.undo("job", offsets)
    assert (report.restored, report.deleted, report.conflicts) == (1, 0, 2)
    assert await contents(table) == {0: (3, 0), 2: (1, 0), 3: (3, 0)}


async def test_only_the_columns_that_the_writer_has_named_go_back(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    await table.upsert([row(1, 1, 1)])
    offsets = await offsets_of(table)
    async with table.writer(id="job") as writer:
        await writer.upsert(pa.table({"k": [1, 2, 3], "a": [5, 5, 5]}), columns=["k", "a"])
    await table.upsert(pa.table({"k": [1, 2], "b": [7, 7]}), columns=["k", "b"])
    report = await table.undo("job", offsets)
    assert (report.restored, report.deleted, report.conflicts) == (2, 1, 0)
    assert await contents(table) == {1: (1, 7), 2: (None, 7)}


async def test_it_goes_past_the_merge_engine_and_survives_the_rewriting_of_the_changelog(
    client: Client, name: str
) -> None:
    table = await client.create_table(
        name, SCHEMA, primary_key=["k"], merge_engine="aggregate", aggregators={"a": agg.sum(), "b": agg.max()}
    )
    await table.upsert([row(k, 10, 10) for k in range(5)])
    offsets, before = await offsets_of(table), await contents(table)
    async with table.writer(id="job") as writer:
        for value in range(20):
            await writer.upsert([row(k, 1, value) for k in range(8)])
            await writer.flush()
    assert (await contents(table))[0] == (30, 19)
    report = await table.undo("job", offsets)
    assert (report.restored, report.deleted) == (5, 3)
    assert await contents(table) == before


async def test_what_cannot_be_undone_is_refused(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    short = await client.create_table(f"{name}_short", SCHEMA, primary_key=["k"], changelog="upsert")
    with pytest.raises(InvalidRequest, match="no changelog with before-images"):
        await short.undo("job", {0: 0}, any_incarnation=True)
    with pytest.raises(InvalidRequest, match="no bucket 2"):
        await table.undo("job", {2: 0}, any_incarnation=True)
    with pytest.raises(InvalidRequest, match="not the id of a writer"):
        await table.undo("job/1", {0: 0}, any_incarnation=True)
    with pytest.raises(PositionOutOfRange):
        await table.undo("job", {0: 5}, any_incarnation=True)
    with pytest.raises(UsageError):
        await table.undo("job", {})
    async with table.writer(id="job") as writer:
        await writer.upsert([row(k, 1) for k in range(9)])
    async with table.lock_columns(["a"], owner="somebody"):
        with pytest.raises(ColumnLocked):
            await table.undo("job", await beginning_of(table))
    assert (await table.undo("job", await beginning_of(table))).deleted == 9


async def test_the_job_undoes_what_its_own_lock_protects(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    await table.upsert([row(k, 1, 1) for k in range(4)])
    before = await contents(table)
    async with table.writer(id="job", columns=["a"], lock=True, lock_ttl=600) as writer:
        checkpoint = await table.log_offsets()
        await writer.upsert([{"k": k, "a": 9} for k in range(8)])
        await writer.flush()
    # The job is killed, and its lock remains. The restarted job takes the lock over, and uses it for the undo.
    left = await table.lock_columns(["a"], owner="job", ttl=600)
    with pytest.raises(ColumnLocked):
        await table.undo("job", checkpoint)
    async with table.writer(id="job", columns=["a"], lock=True) as writer:
        with pytest.raises(ColumnLocked, match='"job" has locked a'):
            await table.undo("job", checkpoint)
        with pytest.raises(LockLost):
            await table.undo("job", checkpoint, locks=[left])
        report = await table.undo("job", checkpoint, locks=writer.locks)
        assert (report.restored, report.deleted, report.conflicts) == (4, 4, 0)
        assert await contents(table) == before
        await writer.upsert([{"k": 0, "a": 5}])
    assert writer.locks == ()
    assert (await contents(table))[0] == (5, 1)


async def test_only_rows_that_go_are_counted_as_deleted(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    checkpoint = await table.log_offsets()
    async with table.writer(id="job", columns=["a"]) as writer:
        await writer.upsert([{"k": k, "a": k} for k in range(30)])
        await writer.flush()
        # Other writers fill the other column: for every third key with a value, for the others with null, which changes
        # nothing.
        await table.upsert([{"k": k, "b": k if k % 3 == 0 else None} for k in range(30)], columns=["k", "b"])
        await writer.delete(list(range(10)))
    report = await table.undo("job", checkpoint)
    # For keys without changes of the job itself, nothing is reverted.
    assert await contents(table) == {k: (None, k) for k in range(0, 30, 3)}
    assert (report.restored, report.deleted, report.conflicts) == (6, 14, 0)
    again = await table.undo("job", checkpoint)
    assert (again.restored, again.deleted, again.conflicts) == (0, 0, 0)


@pytest.mark.parametrize("function", [agg.avg(), agg.first_value()])
async def test_columns_that_cannot_be_undone_exactly_are_refused_before_anything_is_written(
    client: Client, name: str, function: Any
) -> None:
    schema = pa.schema([("k", pa.int64()), ("a", pa.float64()), ("b", pa.int64())])
    table = await client.create_table(
        name,
        schema,
        primary_key=["k"],
        buckets=3,
        merge_engine="aggregate",
        aggregators={"a": function, "b": agg.sum()},
    )
    await table.upsert([{"k": k, "a": 1.0, "b": 1} for k in range(40)])
    checkpoint = await table.log_offsets()
    # Only the last bucket contains a write of the column.
    async with table.writer(id="job", columns=["b"]) as writer:
        await writer.upsert([{"k": k, "b": 1} for k in range(60)])
        await writer.flush()
        undone = await table.undo("job", checkpoint)
        assert (undone.restored, undone.deleted) == (40, 20)
        await writer.upsert([{"k": k, "b": 1} for k in range(60)])
        await writer.flush()
        last = max(await table.log_offsets())
        places = [(await table.lookup([k], with_version=True)).log_offsets for k in range(60)]
        key = next(k for k, place in enumerate(places) if set(place) == {last})
        await writer.upsert([{"k": key, "a": 3.0, "b": 1}], columns=["k", "a", "b"])
    rows, offsets = await table.scan().ordered().to_pylist(), await table.log_offsets()
    with pytest.raises(InvalidRequest, match=r'column "a".*changelog.*nothing was changed') as caught:
        await table.undo("job", checkpoint)
    assert caught.value.details["column"] == "a"
    assert (await table.scan().ordered().to_pylist(), await table.log_offsets()) == (rows, offsets)


async def test_offsets_that_are_wrong_in_one_bucket_change_nothing_in_the_others(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    beginning = await beginning_of(table)
    async with table.writer(id="job") as writer:
        await writer.upsert([row(k, 1) for k in range(20)])
    beginning[1] = 10**6
    with pytest.raises(PositionOutOfRange):
        await table.undo("job", beginning)
    assert await table.count() == 20


async def test_random_histories_go_back_as_a_model_says(client: Client, name: str) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    with noted(f"seed {seed}"):
        table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
        await table.upsert([row(k, 0) for k in range(0, 40, 2)])
        offsets, rows = await offsets_of(table), await contents(table)
        # For each key that the writer has changed: its earlier value, and whether others have written it since.
        first: dict[int, tuple[int | None, int | None] | None] = {}
        others: set[int] = set()
        async with table.writer(id="job") as writer:
            for value in range(1, 30):
                keys = [rng.randrange(40) for _ in range(rng.randrange(1, 8))]
                own, deletes = rng.random() < 0.6, rng.random() < 0.3
                target: Any = writer if own else table
                for key in keys:
                    # Writing a row again unchanged is not a change, and neither is deleting a missing row.
                    if deletes and key not in rows:
                        continue
                    if own:
                        first.setdefault(key, rows.get(key))
                    elif key in first:
                        others.add(key)
                    if deletes:
                        rows.pop(key, None)
                    else:
                        rows[key] = (value, 0)
                await (target.delete(keys) if deletes else target.upsert([row(key, value) for key in keys]))
                await writer.flush()
        assert await contents(table) == rows
        for _ in range(2):
            report = await table.undo("job", offsets)
            for key in first.keys() - others:
                before = first[key]
                if before is None:
                    rows.pop(key, None)
                else:
                    rows[key] = before
            assert await contents(table) == rows
            assert report.conflicts == len(others)


async def test_what_a_writer_does_within_transactions_is_undone_too(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await table.upsert([row(k, 1, 1) for k in range(4)])
    offsets, before = await offsets_of(table), await contents(table)
    async with client.transaction(writer="job") as tx:
        await tx.upsert(table, [row(k, 2, 2) for k in (0, 7)])
        await tx.upsert(table, pa.table({"k": [1, 8], "a": [2, 2]}), columns=["k", "a"])
        await tx.delete(table, [2])
    async with table.writer(id="job") as writer:
        await writer.upsert([row(0, 3), row(9, 3)])
    async with client.transaction() as tx:
        await tx.upsert(table, [row(3, 5)])
    report = await table.undo("job", offsets)
    assert (report.restored, report.deleted, report.conflicts) == (3, 3, 0)
    assert await contents(table) == before | {3: (5, 0)}
    with pytest.raises(InvalidRequest, match="not the id of a writer"):
        await client.transaction(writer="job/1")
