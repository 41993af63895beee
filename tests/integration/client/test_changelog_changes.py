"""The option `changelog` changes: later changes are recorded in the new way, and no reader misreads what it reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from aio_client import (
    Client,
    InvalidOption,
    InvalidRequest,
    PositionExpired,
    RangeNotTracked,
    StartFrom,
    StopAt,
    Table,
    TransactionConflict,
    WriteConflict,
    agg,
)
from streaming_server.storage.changelog.offsets import count_of

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
ORDERED = [(one, other) for one in ("full", "upsert", "none") for other in ("full", "upsert", "none") if one != other]


def rows(keys: range | list[int], value: int) -> list[dict[str, Any]]:
    return [{"k": key, "v": value} for key in keys]


async def made(client: Client, name: str, changelog: str = "full", **options: Any) -> Table:
    """Returns a table with the keys 0 to 9 in one bucket, unless options say otherwise."""
    table = await client.create_table(name, SCHEMA, primary_key=["k"], changelog=changelog, **{"buckets": 1, **options})
    await table.upsert(rows(range(10), 0))
    return table


async def content(table: Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in await table.scan().to_pylist()}


async def changes(table: Table, start: StartFrom, untracked: str = "fail", **more: Any) -> list[tuple[str, int, Any]]:
    """Returns the changes up to now, each as its kind, its key and its value."""
    stream = table.changes(start, StopAt.LATEST, **more).with_untracked("rescan" if untracked == "rescan" else "fail")
    return [(each["_change_type"], each["k"], each["v"]) for each in await stream.to_pylist()]


async def write_each_kind(table: Table) -> None:
    """Updates the row 1, inserts the row 10 and deletes the row 2."""
    await table.upsert(rows([1], 1))
    await table.upsert(rows([10], 1))
    await table.delete([2])


OF_EACH_KIND: dict[str, list[tuple[str, int, Any]]] = {
    "full": [("-U", 1, 0), ("+U", 1, 1), ("+I", 10, 1), ("-D", 2, 0)],
    "upsert": [("+U", 1, 1), ("+U", 10, 1), ("-D", 2, None)],
}


@pytest.mark.parametrize(("before", "after"), ORDERED)
@pytest.mark.parametrize("indexes", [(), ("v",)])
async def test_later_changes_are_recorded_in_the_new_way(
    client: Client, name: str, before: str, after: str, indexes: tuple[str, ...]
) -> None:
    table = await made(client, name, before, indexes=indexes)
    altered = await client.alter_table(name, changelog=after)
    assert altered.options.get("changelog", "full") == after
    offsets = await table.log_offsets()
    async with client.transaction() as tx:
        await tx.upsert(table, rows([1], 1))
    await table.upsert(rows([10], 1))
    await table.delete([2])
    expected = dict.fromkeys(range(10), 0) | {1: 1, 10: 1}
    del expected[2]
    assert await content(table) == expected
    assert await table.count() == 10
    if after == "none":
        with pytest.raises(InvalidRequest, match='has changelog="none"'):
            await changes(table, StartFrom.offsets(offsets))
    else:
        assert await changes(table, StartFrom.offsets(offsets)) == OF_EACH_KIND[after]
    assert all(bucket.is_consistent for bucket in await client.check_table(name))


async def test_a_change_to_the_same_value_changes_nothing(client: Client, name: str) -> None:
    table = await made(client, name)
    before = await table.log_offsets()
    await client.alter_table(name, changelog="full")
    await client.alter_table(name, changelog=None)
    assert await table.log_offsets() == before


async def test_full_to_upsert_fails_a_reader_that_did_not_ask_to_rescan(client: Client, name: str) -> None:
    table = await made(client, name)
    await table.upsert(rows([3], 7))
    await client.alter_table(name, changelog="upsert")
    await write_each_kind(table)
    for start in (StartFrom.EARLIEST, StartFrom.last(5), StartFrom.offsets({0: 12})):
        with pytest.raises(RangeNotTracked, match=r'"changelog" was changed from "full" to "upsert" at offset 12'):
            await changes(table, start)
    before = [("+I", key, 0) for key in range(10)] + [("-U", 3, 0), ("+U", 3, 7)]
    assert await changes(table, StartFrom.EARLIEST, "rescan") == before + OF_EACH_KIND["upsert"]
    assert await changes(table, StartFrom.offsets({0: 13})) == OF_EACH_KIND["upsert"]
    found = await changes(table, StartFrom.FULL)
    assert {key: value for _, key, value in found} == await content(table)


async def test_upsert_to_full_is_read_by_any_reader(client: Client, name: str) -> None:
    table = await made(client, name, "upsert")
    async with table.changes(StartFrom.EARLIEST).stream() as stream:
        assert (await anext(aiter(stream))).num_rows == 10
        await client.alter_table(name, changelog="full")
        await write_each_kind(table)
        found: list[tuple[str, int, Any]] = []
        while len(found) < 4:
            batch = (await anext(aiter(stream))).to_pylist()
            found += [(each["_change_type"], each["k"], each["v"]) for each in batch]
        assert found == OF_EACH_KIND["full"]
    before = [("+U", key, 0) for key in range(10)]
    assert await changes(table, StartFrom.EARLIEST) == before + OF_EACH_KIND["full"]


async def test_a_running_stream_fails_or_continues_with_columns_that_can_be_null(client: Client, name: str) -> None:
    table = await made(client, name)
    streams = [
        table.changes(StartFrom.EARLIEST).stream(),
        table.changes(StartFrom.EARLIEST).with_untracked("rescan").stream(),
    ]
    async with streams[0] as failing, streams[1] as continuing:
        for each in streams:
            assert (await anext(aiter(each))).num_rows == 10
            assert not each.schema.field("v").nullable
        await client.alter_table(name, changelog="upsert")
        await table.delete([2])
        batch = await anext(aiter(continuing))
        assert continuing.schema.field("v").nullable
        assert not continuing.schema.field("k").nullable
        assert [(each["_change_type"], each["k"], each["v"]) for each in batch.to_pylist()] == [("-D", 2, None)]
        with pytest.raises(RangeNotTracked):
            await anext(aiter(failing))


async def test_a_stream_ends_when_the_changelog_does(client: Client, name: str) -> None:
    table = await made(client, name)
    async with table.changes(StartFrom.EARLIEST).stream() as stream:
        assert (await anext(aiter(stream))).num_rows == 10
        waiting = asyncio.ensure_future(anext(aiter(stream)))
        await client.alter_table(name, changelog="none")
        with pytest.raises(InvalidRequest, match='changelog="none"'):
            await waiting


async def test_positions_before_a_time_without_changelog_have_expired(client: Client, name: str) -> None:
    table = await made(client, name)
    old = await table.log_offsets()
    await client.alter_table(name, changelog="none")
    await table.upsert(rows([5], 5))
    await client.alter_table(name, changelog="full")
    new = await table.log_offsets()
    await table.upsert(rows([6], 6))
    for position in (old, {0: 0}):
        with pytest.raises(PositionExpired):
            await changes(table, StartFrom.offsets(position), "rescan")
        with pytest.raises(PositionExpired):
            await table.undo("job", old)
    assert await changes(table, StartFrom.offsets(new)) == [("-U", 6, 0), ("+U", 6, 6)]
    assert await changes(table, StartFrom.EARLIEST) == [("-U", 6, 0), ("+U", 6, 6)]
    with pytest.raises(PositionExpired):
        await table.upsert(rows([5], 9), if_version=old)


async def test_old_changes_are_filtered_as_they_were_recorded(client: Client, name: str) -> None:
    table = await made(client, name, "upsert")
    upsert = await table.log_offsets()
    await table.upsert(rows([1], 5))
    await client.alter_table(name, changelog="full")
    full = await table.log_offsets()
    await table.upsert(rows([1], 0))
    await table.upsert(rows([3], 9))
    with pytest.raises(InvalidRequest, match=r'or had it where the stream starts.*unmatched="delete"'):
        await changes(table, StartFrom.offsets(upsert), where="v > 1")
    stream = table.changes(StartFrom.offsets(upsert), StopAt.LATEST, where="v > 1").with_unmatched("delete")
    found = [(each["_change_type"], each["k"]) for each in await stream.to_pylist()]
    assert found == [("+U", 1), ("-U", 1), ("-D", 1), ("-D", 3), ("+U", 3)]
    assert await changes(table, StartFrom.offsets(full), where="v > 1") == [("-D", 1, 5), ("+I", 3, 9)]
    # The other way round: complete changes first.
    await client.alter_table(name, changelog="upsert")
    with pytest.raises(InvalidRequest, match='unmatched="delete"'):
        await changes(table, StartFrom.offsets(full), where="v > 1")


@pytest.mark.parametrize(("before", "after"), [("full", "upsert"), ("upsert", "full")])
async def test_net_changes_resume_as_they_began(client: Client, name: str, before: str, after: str) -> None:
    table = await made(client, name, before)
    start = await table.log_offsets()
    for value in (1, 2):
        await table.upsert(rows(range(10), value))
    net = table.changes(StartFrom.offsets(start)).with_catch_up("net", lag_threshold=1).with_untracked("rescan")
    expected = (await net.stop_at(StopAt.LATEST).to_arrow()).to_pylist()
    async with net.with_chunk(rows=4).stream() as stream:
        found = (await anext(aiter(stream))).to_pylist()
        token = stream.resume_token
    assert token is not None
    await client.alter_table(name, changelog=after)
    found += (await net.resume_from(token).stop_at(StopAt.LATEST).to_arrow()).to_pylist()
    assert found == expected


async def test_a_full_start_continues_over_a_change(client: Client, name: str) -> None:
    table = await made(client, name)
    scan = table.changes(StartFrom.FULL).with_chunk(rows=4).with_untracked("rescan")
    async with scan.stream() as stream:
        copied = {row["k"]: row["v"] for row in (await anext(aiter(stream))).to_pylist()}
        token = stream.resume_token
    assert token is not None
    await client.alter_table(name, changelog="upsert")
    await write_each_kind(table)
    async for batch in scan.resume_from(token).stop_at(StopAt.LATEST).stream():
        for each in batch.to_pylist():
            if each["_change_type"] == "-D":
                copied.pop(each["k"], None)
            else:
                copied[each["k"]] = each["v"]
    assert copied == await content(table)


async def test_a_consumer_learns_of_the_change_and_continues_when_it_asks(client: Client, name: str) -> None:
    table = await made(client, name)
    read = table.changes(StartFrom.EARLIEST, consumer_id="c1")
    async with read.stream() as stream:
        assert (await anext(aiter(stream))).num_rows == 10
        await stream.commit()
        await client.alter_table(name, changelog="upsert")
        await table.upsert(rows([1], 1))
        with pytest.raises(RangeNotTracked):
            await anext(aiter(stream))
    async with read.with_untracked("rescan").stream() as stream:
        assert (await anext(aiter(stream))).column("k").to_pylist() == [1]
        await stream.commit()
    (consumer,) = await table.consumers()
    assert count_of(consumer.log_offsets[0]) == 12


async def test_an_undo_goes_back_to_the_change_at_most(client: Client, name: str) -> None:
    table = await made(client, name, "upsert")
    before = await table.log_offsets()
    async with table.writer(id="job") as writer:
        await writer.upsert(rows([1], 1))
        await writer.flush()
        with pytest.raises(InvalidRequest, match='set changelog="full"'):
            await table.undo("job", before)
        await client.alter_table(name, changelog="full")
        after = await table.log_offsets()
        await writer.upsert(rows([1, 2], 2))
        await writer.flush()
        with pytest.raises(RangeNotTracked, match=r'"changelog" was changed.*nothing was undone'):
            await table.undo("job", before)
        assert (await content(table))[2] == 2
        assert (await table.undo("job", after)).restored == 2
    assert await content(table) == {**dict.fromkeys(range(10), 0), 1: 1}


@pytest.mark.parametrize(("before", "after"), [("full", "upsert"), ("upsert", "full")])
async def test_conditions_count_only_keys_that_were_written(client: Client, name: str, before: str, after: str) -> None:
    table = await made(client, name, before)
    version = await table.log_offsets()
    await table.upsert(rows([1], 1))
    tx = await client.transaction(conflict="abort")
    await tx.upsert(table, rows([2, 3], 2))
    other = await client.transaction(conflict="abort")
    await other.upsert(table, rows([4], 2))
    await client.alter_table(name, changelog=after)
    await table.delete([3])
    with pytest.raises(TransactionConflict):
        await tx.commit()
    await other.commit()
    for key in (1, 3):
        with pytest.raises(WriteConflict, match="1 key changed after offset"):
            await table.upsert(rows([key], 9), if_version=version)
    await table.upsert(rows([5], 9), if_version=version)
    assert (await content(table))[5] == 9


async def test_a_transaction_that_looks_for_conflicts_needs_the_changelog_until_it_commits(
    client: Client, name: str
) -> None:
    table = await made(client, name)
    tx = await client.transaction(conflict="abort")
    await tx.upsert(table, rows([2], 2))
    await client.alter_table(name, changelog="none")
    await table.upsert(rows([3], 3))
    with pytest.raises(TransactionConflict, match="without changelog it is unknown which rows they have changed"):
        await tx.commit()
    assert (await content(table))[2] == 0


async def test_a_table_that_aggregates_keeps_all_images(client: Client, name: str) -> None:
    await client.create_table(name, SCHEMA, primary_key=["k"], merge_engine="aggregate", aggregators={"v": agg.sum()})
    with pytest.raises(InvalidOption, match='must be "full" or "input" with merge_engine "aggregate"'):
        await client.alter_table(name, changelog="upsert")


@pytest.mark.breadth
async def test_the_number_of_changes_is_limited(client: Client, name: str) -> None:
    table = await made(client, name)
    for _ in range(32):
        await client.alter_table(name, changelog="upsert")
        await client.alter_table(name, changelog="full")
    with pytest.raises(InvalidOption, match="has changed 64 times"):
        await client.alter_table(name, changelog="upsert")
    offsets = await table.log_offsets()
    await write_each_kind(table)
    assert await changes(table, StartFrom.offsets(offsets)) == OF_EACH_KIND["full"]
