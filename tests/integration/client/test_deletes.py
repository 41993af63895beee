"""Deleting by predicate, truncating and replacing: exactly the selected rows, at one instant, as the table allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    ClearedRange,
    ColumnLocked,
    InvalidRequest,
    RangeNotTracked,
    SchemaMismatch,
    StartFrom,
    StopAt,
    TransactionConflict,
    UsageError,
    agg,
    connect,
)
from aio_client._write.selection import Selection
from aio_client.mirror import mirror
from streaming_server.storage.changelog.offsets import count_of
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema(
    [
        pa.field("day", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        ("v", pa.int64()),
    ]
)
ALL = {(day, f"i{n}"): n for day in range(10) for n in range(20)}


async def made(client: Client, name: str, **options: Any) -> Table:
    """Returns a table with 10 days of 20 rows each, in 3 buckets."""
    table = await client.create_table(name, SCHEMA, primary_key=["day", "id"], buckets=3, **options)
    await table.upsert(rows(ALL))
    return table


def rows(values: dict[tuple[int, str], int]) -> list[dict[str, Any]]:
    return [{"day": day, "id": id_, "v": value} for (day, id_), value in values.items()]


async def content(table: Table) -> dict[tuple[int, str], int]:
    return {(row["day"], row["id"]): row["v"] for row in await table.scan().to_pylist()}


def rest(*, without: set[int]) -> dict[tuple[int, str], int]:
    return {key: value for key, value in ALL.items() if key[0] not in without}


@pytest.mark.parametrize("indexes", [[], ["v"]])
async def test_rows_that_match_are_deleted_as_by_their_keys(client: Client, name: str, indexes: list[str]) -> None:
    table = await made(client, name, indexes=indexes)
    start = StartFrom.offsets(await table.log_offsets())
    result = await table.delete(where="v >= 15 and day < 5")
    gone = {key for key, value in ALL.items() if value >= 15 and key[0] < 5}
    assert result.rows == len(gone) == 25
    assert await content(table) == {key: value for key, value in ALL.items() if key not in gone}
    changes = await table.changes(start, StopAt.offsets(result.log_offsets)).to_pylist()
    assert {(each["day"], each["id"]) for each in changes} == gone
    assert {each["_change_type"] for each in changes} == {"-D"}
    assert (await table.delete(where="v >= 15 and day < 5")).rows == 0
    assert (await table.delete(where="day > 100")).rows == 0
    assert all(bucket.is_consistent for bucket in await client.check_table(name))


async def test_a_table_is_truncated_and_replaced_completely_or_in_a_scope(client: Client, name: str) -> None:
    table = await made(client, name)
    monday = {(1, "new"): 1, (1, "i3"): 3}
    start = StartFrom.offsets(await table.log_offsets())
    assert (await table.replace(rows(monday), where="day = 1")).rows == 2
    assert await content(table) == rest(without={1}) | monday
    changes = await table.changes(start, StopAt.LATEST).to_pylist()
    # The row that stays the same has no change.
    assert sorted(each["_change_type"] for each in changes) == ["+I", *["-D"] * 19]
    later = {(7, "a"): 1, (8, "b"): 2}
    assert (await table.replace(rows(later), key_range=(7, (8, "z")))).rows == 2
    assert await content(table) == rest(without={1, 7, 8}) | monday | later
    assert (await table.replace(rows(later))).rows == 2
    assert await content(table) == later
    assert (await table.truncate()).rows == 2
    assert await content(table) == {}
    assert await table.count() == 0


async def test_rows_outside_of_the_scope_are_refused_before_anything_is_written(client: Client, name: str) -> None:
    table = await made(client, name)
    wrong = rows({(1, "x"): 1, (2, "x"): 1})
    with pytest.raises(UsageError, match="row 1 of the data is outside"):
        await table.replace(wrong, where="day = 1")
    with pytest.raises(UsageError, match="row 0 of the data is outside"):
        await table.replace(wrong, key_range=(2, 3))
    stream = pa.RecordBatchReader.from_batches(SCHEMA, pa.Table.from_pylist(wrong, schema=SCHEMA).to_batches())
    with pytest.raises(UsageError, match="row 1 of the data is outside"):
        await table.replace(stream, where="day = 1")
    assert await content(table) == ALL
    assert [each for each in await client.transactions() if table.name in each.tables] == []


async def test_a_delete_without_tracking_leaves_one_marker_in_each_bucket(client: Client, name: str) -> None:
    table = await made(client, name)
    before = await table.log_offsets()
    result = await table.delete(where="day >= 3 and day < 5", track_changes=False)
    assert result.rows == 40
    assert {b: count_of(offset) - count_of(before[b]) for b, offset in result.log_offsets.items()} == {0: 1, 1: 1, 2: 1}
    assert await content(table) == rest(without={3, 4})
    for where in ("v = 1", "day = 3 or v = 1", "day in (1, 5)", "id = 'i3'"):
        with pytest.raises(InvalidRequest, match=r"exactly one range of keys \(day, id\)"):
            await table.delete(where=where, track_changes=False)
    assert (await table.delete(where="day = 5 and id < 'i1'", track_changes=False)).rows == 1
    assert (await table.truncate(track_changes=False)).rows == 159
    assert (await table.delete(where="day = 5 and day = 6", track_changes=False)).rows == 0
    assert await table.count() == 0


async def test_readers_of_changes_clear_the_range_or_fail_there(client: Client, name: str) -> None:
    table = await made(client, name)
    start = StartFrom.offsets(await table.log_offsets())
    await table.delete(where="day >= 3", track_changes=False)
    await table.upsert(rows({(4, "new"): 1}))
    for untracked in ("fail", "rescan"):
        with pytest.raises(RangeNotTracked, match="all rows of a key range were deleted at offset"):
            await table.changes(start, StopAt.LATEST).with_untracked(untracked).to_arrow()
    stream = table.changes(start, StopAt.LATEST).with_untracked("rescan").stream()
    copied, cleared = dict(ALL), list[ClearedRange]()

    def clear(each: ClearedRange) -> None:
        cleared.append(each)
        gone = zip([*copied], each.contains([*copied]).to_pylist(), strict=True)
        for key in [key for key, is_gone in gone if is_gone]:
            del copied[key]

    stream.on_cleared(clear)
    async for batch in stream:
        for change in batch.to_pylist():
            assert change["_change_type"] != "-D"
            copied[change["day"], change["id"]] = change["v"]
    assert copied == await content(table) == rest(without=set(range(3, 10))) | {(4, "new"): 1}
    assert sorted(each.bucket for each in cleared) == [0, 1, 2]
    assert all(each.end is None and each.start is not None for each in cleared)
    with pytest.raises(UsageError, match="before the stream is read"):
        stream.on_cleared(clear)
    with pytest.raises(UsageError, match="with_untracked"):
        table.changes(start).stream().on_cleared(clear)


@pytest.mark.breadth
@pytest.mark.timeout(40)  # less than one heartbeat
@pytest.mark.parametrize("tablets", [1, 2])
async def test_a_mirror_does_not_wait_for_a_heartbeat_to_be_past_a_deleted_range(tmp_path: Path, tablets: int) -> None:
    with ServerProcess(tmp_path / "data", "--set", "follow_heartbeat_seconds=60") as server:
        async with connect(server.url, operation_timeout=3600, next_chunk_timeout=3600) as client:
            table = await client.create_table(
                "test.t", pa.schema([("k", pa.int64())]), primary_key=["k"], buckets=4, tablets=tablets
            )
            await table.upsert(pa.table({"k": range(100)}))
            async with mirror(table) as copy:
                for _ in range(2):
                    await copy.wait_for((await table.truncate(track_changes=False)).log_offsets)
                    assert len(copy) == 0
                    await table.upsert([{"k": 1}])


async def test_a_selected_row_that_changes_meanwhile_is_not_deleted_unseen(client: Client, name: str) -> None:
    for changelog in ("full", "none"):
        table = await made(client, f"{name}_{changelog}", changelog=changelog)
        tx = await client.transaction()
        assert await tx.delete(table, where="v = 3") == 10
        await table.upsert(rows({(2, "i3"): 100}))
        with pytest.raises(TransactionConflict):
            await tx.commit()
        assert await content(table) == ALL | {(2, "i3"): 100}
        # A call of its own starts again.
        assert (await table.delete(where="v = 3")).rows == 9
        tx = await client.transaction()
        assert await tx.delete(table, where="day = 2") == 20
        await table.upsert(rows({(2, "i4"): 100}))
        await tx.commit()
        assert await table.count("day = 2") == 0


@pytest.mark.parametrize("track_changes", [True, False])
async def test_deletes_do_what_the_table_says(client: Client, name: str, track_changes: bool) -> None:
    ignoring = await made(client, f"{name}_i", delete_behavior="ignore")
    assert (await ignoring.delete(where="day = 1", track_changes=track_changes)).rows == 0
    assert await content(ignoring) == ALL
    assert (await ignoring.delete(where="day = 1", mode="overwrite", track_changes=track_changes)).rows == 20
    refusing = await made(client, f"{name}_r", delete_behavior="disable")
    with pytest.raises(InvalidRequest, match="deletes no rows"):
        await refusing.delete(where="day = 1", track_changes=track_changes)
    assert (await refusing.truncate(track_changes=track_changes)).rows == 200
    sums = await made(client, f"{name}_s", merge_engine="aggregate", aggregators={"v": agg.sum()})
    await sums.upsert(rows({(1, "i1"): 5}))
    assert (await sums.replace(rows({(1, "i1"): 2}) * 2, where="day = 1")).rows == 2
    assert (await content(sums))[1, "i1"] == 4
    assert await sums.count() == 181


async def test_column_locks_are_respected(client: Client, name: str) -> None:
    table = await made(client, name)
    lock = await table.lock_columns(["v"], owner="job", ttl=60)
    for track_changes in (True, False):
        with pytest.raises(ColumnLocked):
            await table.delete(where="day = 1", track_changes=track_changes)
        with pytest.raises(ColumnLocked):
            await table.truncate(track_changes=track_changes)
    with pytest.raises(ColumnLocked):
        await table.replace([])
    assert (await table.delete(where="day = 1", track_changes=False, locks=[lock])).rows == 20
    assert (await table.truncate(locks=[lock])).rows == 180
    await lock.release()


async def test_without_a_changelog_a_range_of_keys_is_deleted_at_once(client: Client, name: str) -> None:
    table = await made(client, name, changelog="none", indexes=["v"])
    before = await table.log_offsets()
    result = await table.delete(where="day < 3")
    assert result.rows == 60
    assert {b: count_of(offset) - count_of(before[b]) for b, offset in result.log_offsets.items()} == {0: 1, 1: 1, 2: 1}
    assert await content(table) == rest(without={0, 1, 2})
    assert (await table.delete(where="v = 3 and day = 4")).rows == 1
    async with client.transaction() as tx:
        assert await tx.delete(table, where="day = 4") == 19
        await tx.upsert(table, rows({(4, "new"): 1}))
    assert await content(table) == rest(without={0, 1, 2, 4}) | {(4, "new"): 1}
    assert (await table.truncate()).rows == 121
    assert all(bucket.is_consistent for bucket in await client.check_table(name))


async def test_what_contradicts_itself_is_refused(client: Client, name: str) -> None:
    table = await made(client, name)
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "needs keys or where"),
        ({"keys": [(1, "a")], "where": "day = 1"}, "not both"),
        ({"where": "day = 1", "columns": ["v"]}, "columns is for a delete by keys"),
        ({"where": "day = 1", "if_version": {0: 1}}, "if_version is for a delete by keys"),
        ({"keys": [(1, "a")], "track_changes": False}, "is for a delete with where"),
        ({"where": "day = 1", "track_changes": None}, "track_changes must be True or False"),
        ({"where": "day ="}, "the predicate, line 1"),
    ]
    for arguments, message in refused:
        with pytest.raises(UsageError, match=message):
            await table.delete(**arguments)
    with pytest.raises(SchemaMismatch):
        await table.delete(where="nothing = 1")
    with pytest.raises(UsageError, match="pair of the first and the last key"):
        await table.replace([], key_range=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="locks keys"):
        async with client.transaction(lock="keys") as tx:
            await tx.delete(table, where="day = 1")
    assert await content(table) == ALL


async def test_a_deleted_range_is_the_only_write_of_its_transaction_to_the_table(client: Client, name: str) -> None:
    table = await made(client, name)
    for first in (True, False):
        tx = await client.transaction()
        for deletes in (first, not first):
            if deletes:
                await tx._stage_selected(table, Selection(untracked=True), "overwrite", ())
            else:
                await tx.upsert(table, rows({(1, "a"): 1}))
        assert await tx.get(table, (1, "i1")) is not None
        with pytest.raises(InvalidRequest, match="and writes to the table in another way, too"):
            await tx.commit()
    assert await content(table) == ALL
