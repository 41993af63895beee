"""Writes without tracking of changes: rows are as after other writes, and no reader of changes misses them silently."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from aio_client import (
    Client,
    InvalidRequest,
    RangeNotTracked,
    StartFrom,
    StopAt,
    Table,
    agg,
    sync,
)
from scankv.v1 import write_pb2
from streaming_server.storage.changelog.offsets import count_of

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())])
STEP_ROWS = 8192


def rows(keys: range | list[int], value: int) -> list[dict[str, Any]]:
    return [{"k": key, "v": value, "text": f"row {key}"} for key in keys]


async def made(client: Client, name: str, **options: Any) -> Table:
    """Returns a table with the keys 0 to 99 in one bucket, unless options say otherwise, tracked at offsets 0 to 99."""
    options = {"buckets": 1, **options}
    table = await client.create_table(name, SCHEMA, primary_key=["k"], **options)
    await table.upsert(rows(range(100), 0))
    return table


async def content(table: Table, **scan: Any) -> dict[int, int]:
    return {row["k"]: row["v"] for row in await table.scan(**scan).to_pylist()}


async def changes(table: Table, start: StartFrom, untracked: str = "rescan", **more: Any) -> list[tuple[str, int, int]]:
    """Returns the changes up to now, each as its kind, its key and its offset."""
    stream = table.changes(start, StopAt.LATEST, **more).with_unmatched("delete")
    found = (await stream.with_untracked("rescan" if untracked == "rescan" else "fail").to_arrow()).to_pylist()
    return [(each["_change_type"], each["k"], count_of(each["_log_offset"])) for each in found]


async def test_each_step_of_a_bucket_takes_one_offset_whatever_it_writes(client: Client, name: str) -> None:
    table = await made(client, name)
    result = await table.upsert(rows(range(50, 150), 1), track_changes=False)
    assert (result.rows, {k: count_of(v) for k, v in result.log_offsets.items()}) == (100, {0: 101})
    assert await content(table) == {**dict.fromkeys(range(50), 0), **dict.fromkeys(range(50, 150), 1)}
    many = pa.table({"k": pa.array(range(1000, 1000 + 3 * STEP_ROWS)), "v": pa.nulls(3 * STEP_ROWS, pa.int64())})
    result = await table.upsert(many.append_column("text", pa.nulls(len(many), pa.string())), track_changes=False)
    assert count_of(result.log_offsets[0]) == 104
    assert await table.count() == 150 + len(many)


async def test_new_keys_after_all_others_keep_the_number_of_rows_known(client: Client, name: str) -> None:
    table = await made(client, name)
    await table.upsert(rows(range(1000, 1010), 1), track_changes=False)
    (bucket,) = await client.check_table(name)
    assert (bucket.rows, bucket.is_consistent) == (110, True)
    await table.upsert(rows(range(5, 10), 2), track_changes=False)
    (bucket,) = await client.check_table(name)
    assert (bucket.rows, bucket.is_consistent) == (110, True)
    assert await table.count() == 110


@pytest.mark.parametrize("start", [StartFrom.EARLIEST, StartFrom.last(3), StartFrom.offsets({0: 100})])
async def test_a_stream_fails_at_the_range_unless_it_asks_for_its_rows(
    client: Client, name: str, start: StartFrom
) -> None:
    table = await made(client, name)
    await table.upsert(rows([7, 3, 5, 200], 1), track_changes=False)
    await table.upsert(rows([4], 2))
    with pytest.raises(RangeNotTracked, match=r"the changes at offset 100 .*track_changes=False") as caught:
        await changes(table, start, "fail")
    assert (caught.value.details["bucket"], caught.value.details["offset"]) == ("0", "100")
    found = await changes(table, start)
    last = [("+U", key, 100) for key in [*range(3, 100), 200]] + [("-U", 4, 101), ("+U", 4, 102)]
    assert found[-len(last) :] == last
    assert {offset for _, _, offset in found[: -len(last)]} <= {*range(100)}


async def test_a_full_start_needs_no_changes_from_before(client: Client, name: str) -> None:
    table = await made(client, name)
    await table.upsert(rows([1, 2], 1), track_changes=False)
    found = await table.changes(StartFrom.FULL, StopAt.LATEST).to_pylist()
    assert {row["k"]: row["v"] for row in found} == await content(table)


async def test_adjacent_ranges_are_read_once(client: Client, name: str) -> None:
    table = await made(client, name)
    for start in range(0, 60, 10):
        await table.upsert(rows([start, start + 14], 1), track_changes=False)
    found = await changes(table, StartFrom.offsets({0: 100}))
    assert found == [("+U", key, 100) for key in range(65)]
    # After a stop between the ranges, the others are read.
    stopped = table.changes(StartFrom.offsets({0: 102}), StopAt.offsets({0: 103})).with_untracked("rescan")
    assert [row["k"] for row in await stopped.to_pylist()] == [*range(20, 35)]


async def test_large_ranges_come_in_chunks_and_a_stream_resumes_within_them(client: Client, name: str) -> None:
    table = await made(client, name)
    keys = range(10_000)
    await table.upsert(rows(list(keys), 1), track_changes=False)
    scan = table.changes(StartFrom.offsets({0: 100}), StopAt.LATEST).with_untracked("rescan").with_chunk(rows=1000)
    async with scan.stream() as stream:
        first = await anext(aiter(stream))
        assert 0 < first.num_rows <= 1000
        assert {key: count_of(offset) for key, offset in stream.next_offsets.items()} == {0: 100}
        token = stream.resume_token
    assert token is not None
    rest = await scan.resume_from(token).to_arrow()
    assert rest.column("k").to_pylist() == [*keys][first.num_rows :]
    assert set(rest.column("_change_type").to_pylist()) == {"+U"}
    async with scan.limit(1500).stream() as stream:
        limited = [batch async for batch in stream]
        assert sum(batch.num_rows for batch in limited) == 1500
        assert count_of(stream.next_offsets[0]) == 100
    async with scan.limit(9_500).stream() as stream:
        assert sum([batch.num_rows async for batch in stream]) == 9_500
        assert count_of(stream.next_offsets[0]) == 100


@pytest.mark.parametrize("changelog", ["full", "upsert"])
async def test_rows_that_do_not_match_come_as_deletes(client: Client, name: str, changelog: str) -> None:
    table = await made(client, name, changelog=changelog)
    offsets = await table.log_offsets()
    await table.upsert(rows([3, 4], 5) + rows([6], 0), track_changes=False)
    start = StartFrom.offsets(offsets)
    found = await changes(table, start, where="v > 1")
    at = count_of(offsets[0])
    assert found == [("+U", 3, at), ("+U", 4, at), ("-D", 5, at), ("-D", 6, at)]
    assert await changes(table, start, where="k > 4") == [("+U", 5, at), ("+U", 6, at)]
    stream = table.changes(start, StopAt.LATEST, where="v > 1").with_untracked("rescan")
    with pytest.raises(InvalidRequest, match='unmatched="delete"'):
        await stream.to_arrow()


async def test_a_consumer_that_fails_at_the_range_continues_when_it_asks_for_its_rows(
    client: Client, name: str
) -> None:
    table = await made(client, name)
    read = table.changes(StartFrom.offsets({0: 98}), consumer_id="c1")
    async with read.stream() as stream:
        assert (await anext(aiter(stream))).num_rows == 2
        await stream.commit()
        await table.upsert(rows([1, 3], 1), track_changes=False)
        with pytest.raises(RangeNotTracked):
            await anext(aiter(stream))
    async with read.with_untracked("rescan").stream() as stream:
        batch = await anext(aiter(stream))
        assert batch.column("k").to_pylist() == [1, 2, 3]
        await stream.commit()
    (consumer,) = await table.consumers()
    assert count_of(consumer.log_offsets[0]) == 101


async def test_a_row_that_ceases_to_match_and_is_then_deleted_is_gone(client: Client, name: str) -> None:
    table = await made(client, name)
    offsets = await table.log_offsets()
    await table.upsert(rows([5], 9), track_changes=False)
    await table.delete([5])
    await table.upsert(rows([6], 1))
    found = await changes(table, StartFrom.offsets(offsets), where="v = 0")
    assert found == [("-D", 5, 101), ("-U", 6, 102), ("-D", 6, 103)]


async def test_a_merge_still_merges(client: Client, name: str) -> None:
    table = await client.create_table(
        name,
        SCHEMA,
        primary_key=["k"],
        buckets=2,
        merge_engine="aggregate",
        aggregators={"v": agg.sum(), "text": agg.last_value()},
    )
    await table.upsert(rows(range(10), 1))
    await table.upsert(rows(range(5, 15), 2) + rows([14], 2), track_changes=False)
    expected = {**dict.fromkeys(range(5), 1), **dict.fromkeys(range(5, 10), 3), **dict.fromkeys(range(10, 14), 2)}
    assert await content(table) == {**expected, 14: 4}
    assert all(bucket.is_consistent for bucket in await client.check_table(name))
    data = [{"k": 1, "v": 1, "text": "x", "_change_type": "-D"}]
    with pytest.raises(InvalidRequest, match="_change_type"):
        await table.upsert(data, track_changes=False)


async def test_partial_writes_keep_other_columns(client: Client, name: str) -> None:
    table = await made(client, name)
    await table.upsert([{"k": 5, "v": 9}, {"k": 500, "v": 9}], ["k", "v"], track_changes=False)
    assert await table.get(5) == {"k": 5, "v": 9, "text": "row 5"}
    assert await table.get(500) == {"k": 500, "v": 9, "text": None}


async def test_without_a_changelog_nothing_differs(client: Client, name: str) -> None:
    table = await made(client, name, changelog="none")
    await table.upsert(rows([1, 101], 1), track_changes=False)
    assert (await content(table))[101] == 1


async def test_encoded_rows_and_parts_of_transactions_are_refused(client: Client, name: str) -> None:
    table, transport = await made(client, name), client._transport
    for request in (
        write_pb2.UpsertRequest(table=name, encoded_rows=[b"x"], untracked=True),
        write_pb2.UpsertRequest(table=name, transaction=write_pb2.StagedAs(token="t"), untracked=True),
    ):
        with pytest.raises(InvalidRequest, match="untracked cannot be combined"):
            await transport.call(lambda: transport.services.writes.Upsert, request)
    assert len(await content(table)) == 100


async def test_the_blocking_client_and_a_writer_write_the_same(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)
    with table.writer() as writer:
        writer.upsert(rows([1, 2], 1), track_changes=False)
    result = table.upsert(rows([3], 1), track_changes=False)
    assert count_of(result.log_offsets[0]) == 2
    found = table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_untracked("rescan").to_arrow()
    assert found.column("k").to_pylist() == [1, 2, 3]
