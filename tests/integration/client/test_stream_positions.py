"""Positions of streams: committed by token, required of a consumer, sharded, polled, and without an end."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    ConsumerNotFound,
    InvalidRequest,
    InvalidResumeToken,
    StartFrom,
    StopAt,
    UsageError,
    connect,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Table, sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
BUCKETS = 3


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS)


async def write(table: Table, keys: range, v: int = 0) -> None:
    """Writes in several commits."""
    for key in keys:
        await table.upsert([{"k": key, "v": v}])


def changes_of(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Returns keys and values of changes."""
    return [(row["k"], row["v"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.asyncio
@pytest.mark.parametrize("start", [StartFrom.EARLIEST, StartFrom.FULL], ids=repr)
@pytest.mark.parametrize("seed", range(3))
async def test_what_is_committed_by_token_is_what_was_read_before_it(table: Table, start: StartFrom, seed: int) -> None:
    rng = random.Random(seed)
    await table.upsert([{"k": key, "v": 0} for key in range(40)])
    scan = table.changes(start, StopAt.LATEST, consumer_id="etl").with_chunk(rows=3)
    async with scan.stream() as stream:
        # Reads ahead of all commits.
        handed = [(rows, stream.resume_token) async for rows in stream]
        furthest = -1
        for finished in rng.sample(range(len(handed)), 6):
            token = handed[finished][1]
            assert token is not None
            offsets = await stream.commit(token)
            if finished > furthest:
                furthest, last = finished, offsets
            else:  # a commit never moves a position back
                assert offsets == last
    async with table.changes(start, StopAt.LATEST, consumer_id="etl").stream() as stream:
        rest = [rows async for rows in stream]
    assert sorted(changes_of(rest)) == sorted(changes_of([rows for rows, _ in handed[furthest + 1 :]]))


@pytest.mark.asyncio
async def test_a_batch_is_committed_while_another_task_waits_for_the_next(table: Table) -> None:
    await write(table, range(4))
    async with table.changes(StartFrom.EARLIEST, consumer_id="etl").stream() as stream:
        first = await anext(stream)
        token = stream.resume_token
        seen = first.num_rows
        while seen < 4:
            seen += (await anext(stream)).num_rows
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await stream.commit(token)
        [consumer] = await table.consumers()
        assert consumer.lag == 4 - first.num_rows
        await stream.commit()
        assert (await table.consumers())[0].lag == 0
        await write(table, range(1), v=1)
        assert (await waiting).num_rows == 2


@pytest.mark.asyncio
async def test_a_token_that_is_none_is_refused(client: Client, table: Table, name: str) -> None:
    other = await client.create_table(name + "o", SCHEMA, primary_key=["k"])
    await write(other, range(1))
    async with other.changes(StartFrom.EARLIEST).stream() as stream:
        await anext(stream)
        of_other = stream.resume_token
    async with table.changes(consumer_id="etl").stream() as stream:
        for token in (of_other, b"nonsense"):
            with pytest.raises(InvalidResumeToken):
                await stream.commit(token)
        for wrong in ("text", b"", 5):
            with pytest.raises(UsageError, match="a token must be bytes"):
                await stream.commit(wrong)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_consumer_that_must_exist_is_not_begun(table: Table) -> None:
    scan = table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="etl", must_exist=True)
    with pytest.raises(ConsumerNotFound, match='has no consumer "etl"'):
        async with scan.stream():
            pass
    assert await table.consumers() == []
    await write(table, range(2))
    async with table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="etl").stream() as stream:
        assert sum([rows.num_rows async for rows in stream]) == 2
        await stream.commit()
    await write(table, range(2, 5))
    assert len(await scan.to_pylist()) == 3
    await table.delete_consumer("etl")
    with pytest.raises(ConsumerNotFound):
        await scan.to_pylist()


@pytest.mark.asyncio
async def test_must_exist_is_of_a_consumer(table: Table) -> None:
    with pytest.raises(UsageError, match="must_exist"):
        table.changes(must_exist=True)
    with pytest.raises(UsageError, match="must_exist"):
        table.changes().with_consumer_id("x", must_exist="yes")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_net_changes_begin_as_far_behind_as_a_stream_says(table: Table) -> None:
    for v in range(5):
        await table.upsert([{"k": key, "v": v} for key in range(30)])
    every = table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net")
    assert len(await every.to_pylist()) == 30 + 4 * 60  # the server's own setting is 100,000
    net = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net", lag_threshold=10).to_pylist()
    assert [(row["_change_type"], row["v"]) for row in net] == [("+I", 4)] * 30
    far = table.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net", lag_threshold=1000)
    assert len(await far.to_pylist()) == 30 + 4 * 60


@pytest.mark.asyncio
@pytest.mark.parametrize("lag_threshold", [0, -1, True, 1.5, 2**49])
async def test_the_lag_threshold_is_a_number_of_changes(table: Table, lag_threshold: Any) -> None:
    with pytest.raises(UsageError, match="lag_threshold"):
        table.changes().with_catch_up("net", lag_threshold=lag_threshold)
    with pytest.raises(UsageError, match="lag_threshold"):
        table.changes().with_catch_up("all", lag_threshold=10)


@pytest.mark.represented_by("StartFrom.FULL", "StartFrom.LATEST")
@pytest.mark.asyncio
@pytest.mark.parametrize("start", [StartFrom.FULL, StartFrom.EARLIEST, StartFrom.LATEST, StartFrom.last(5)], ids=repr)
async def test_a_shard_without_buckets_stays_open_and_has_its_consumer(
    table: Table, shared_server: ServerProcess, start: StartFrom
) -> None:
    await write(table, range(6))
    async with connect(shared_server.url, next_chunk_timeout=0.9) as hasty:  # so that heartbeats come soon
        await check_idle_shard(await hasty.table(table.name), start)


async def check_idle_shard(table: Table, start: StartFrom) -> None:
    scan = table.changes(start, consumer_id="idle", shard=(BUCKETS, BUCKETS + 1))
    for _ in range(2):
        async with scan.stream() as stream:
            assert stream.log_offsets == {}
            heard = asyncio.Event()
            stream.on_heartbeat(heard.set)
            waiting = asyncio.ensure_future(anext(stream))
            await write(table, range(6), v=1)
            await asyncio.wait_for(heard.wait(), 60)
            assert not waiting.done()
            [consumer] = await table.consumers()
            assert (consumer.id, consumer.live, consumer.log_offsets, consumer.lag) == ("idle", True, {}, 0)
            assert await stream.commit() == {}
            waiting.cancel()
    async with table.changes(start, StopAt.LATEST, consumer_id="idle", shard=(BUCKETS, BUCKETS + 1)).stream() as ends:
        assert [rows async for rows in ends] == []


@pytest.mark.asyncio
async def test_one_position_of_the_whole_table_fits_every_shard(table: Table) -> None:
    await write(table, range(9))
    async with table.changes(StartFrom.EARLIEST, StopAt.LATEST).stream() as stream:
        assert sum([rows.num_rows async for rows in stream]) == 9
        start = stream.next_offsets
    await write(table, range(9, 21))
    async with table.scan().limit(0).stream() as stream:
        stop = stream.log_offsets
    await write(table, range(21, 30))
    found: list[int] = []
    for shard in range(2):
        scan = table.changes(StartFrom.offsets(start), StopAt.offsets(stop), consumer_id=f"c{shard}", shard=(shard, 2))
        found += [row["k"] for row in await scan.to_pylist()]
        await table.reset_consumer(f"c{shard}", StartFrom.offsets(start))
    assert sorted(found) == list(range(9, 21))
    with pytest.raises(InvalidRequest, match=r"unknown \[7\]"):
        await table.changes(StartFrom.offsets({**start, 7: 0}), StopAt.LATEST, shard=(0, 2)).to_pylist()
    with pytest.raises(InvalidRequest, match=r"missing \[0, 2\]"):
        await table.changes(StartFrom.offsets({1: start[1]}), StopAt.LATEST, shard=(0, 2)).to_pylist()


@pytest.mark.asyncio
async def test_changes_without_an_end_are_not_gathered(table: Table) -> None:
    endless = table.changes(StartFrom.EARLIEST)
    for gather in (endless.to_arrow, endless.to_pandas, endless.to_polars, endless.to_pylist):
        with pytest.raises(UsageError, match=f"{gather.__name__} would never return"):
            await gather()
    with pytest.raises(UsageError, match="would never return"):
        await endless.to_polars(lazy=True)
    with pytest.raises(UsageError, match="would never return"):
        await endless.to_duckdb(None, "t")  # type: ignore[arg-type]
    await write(table, range(3))
    assert len(await endless.limit(3).to_pylist()) == 3


def test_changes_without_an_end_are_not_gathered_by_readers_of_arrow(blocking: sync.Table) -> None:
    endless = blocking.changes(StartFrom.EARLIEST)
    for gather in (pa.table, pa.RecordBatchReader.from_stream):
        with pytest.raises(UsageError, match="would never return"):
            gather(endless)
    assert pa.table(endless.stop_at(StopAt.LATEST)).num_rows == 0


@pytest.mark.asyncio
async def test_consumers_are_listed_and_deleted_by_pattern(table: Table) -> None:
    for consumer_id in ("etl-1", "etl-2", "report", "etl.x"):
        async with table.changes(consumer_id=consumer_id).stream():
            pass
    assert [each.id for each in await table.consumers("etl-?")] == ["etl-1", "etl-2"]
    assert [each.id for each in await table.consumers("report")] == ["report"]
    assert await table.delete_consumers("etl-*") == ["etl-1", "etl-2"]
    assert await table.delete_consumers("etl-*") == []
    assert [each.id for each in await table.consumers()] == ["etl.x", "report"]
    for wrong in ("", None):
        with pytest.raises(UsageError, match="pattern"):
            await table.delete_consumers(wrong)  # type: ignore[arg-type]
    assert await table.delete_consumers("*") == ["etl.x", "report"]


@pytest.fixture
def blocking(sync_client: sync.Client, name: str) -> sync.Table:
    return sync_client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)


def poll_until(stream: sync.ScanStream, condition: Callable[[], bool]) -> list[int]:
    """Polls briefly until a condition is true; returns the keys received."""
    keys: list[int] = []

    def polled() -> bool:
        rows = stream.poll(0.01)
        keys.extend([] if rows is None else rows["k"].to_pylist())
        return condition()

    wait_until(polled, "what was polled for")
    return keys


def test_a_poll_gives_what_comes_and_never_waits_for_longer(blocking: sync.Table) -> None:
    with blocking.changes(StartFrom.LATEST, consumer_id="etl").stream() as stream:
        for timeout in (0, 0.05, 0.3):
            began = time.monotonic()
            assert stream.poll(timeout) is None
            assert timeout <= time.monotonic() - began < timeout + 5
        blocking.upsert([{"k": 1, "v": 1}])
        rows = stream.poll(60)
        assert rows is not None
        assert rows["k"].to_pylist() == [1]
        assert not stream.ended
        blocking.upsert([{"k": 2, "v": 1}])
        assert next(stream)["k"].to_pylist() == [2]
        for wrong in (-1, "1", None, float("nan"), True):
            with pytest.raises(UsageError, match="timeout must be a number of seconds"):
                stream.poll(wrong)  # type: ignore[arg-type]


def test_what_came_between_two_polls_counts_as_returned_when_it_is(blocking: sync.Table) -> None:
    blocking.upsert([{"k": 1, "v": 0}])
    with blocking.changes(StartFrom.EARLIEST, consumer_id="etl").stream() as stream:
        rows = stream.poll(60)
        assert rows is not None
        token, offsets = stream.resume_token, stream.next_offsets
        assert stream.poll(0.01) is None
        blocking.upsert([{"k": 2, "v": 0}])
        received = lambda: stream.stats().rows_returned == 2  # noqa: E731
        wait_until(received, "the second row to have come")
        assert (stream.resume_token, stream.next_offsets) == (token, offsets)
        stream.commit()
        assert blocking.consumers("etl")[0].lag == 1
        rows = stream.poll(0)
        assert rows is not None
        assert rows["k"].to_pylist() == [2]
        assert stream.resume_token != token
        stream.commit()
        assert blocking.consumers("etl")[0].lag == 0


def test_a_first_poll_opens_the_stream_and_returns_nothing_that_is_not_there(blocking: sync.Table) -> None:
    blocking.upsert([{"k": 1, "v": 0}])
    stream = blocking.changes(StartFrom.EARLIEST, consumer_id="etl").stream()
    assert stream.poll(0) is None or stream.stats().rows_returned == 1
    wait_until(lambda: stream.stats().rows_returned == 1, "the row to have come")
    if stream.resume_token is None:
        stream.commit()
        assert blocking.consumers("etl")[0].lag == 1
    stream.close()


def test_a_bounded_stream_is_polled_to_its_end(blocking: sync.Table) -> None:
    blocking.upsert([{"k": key, "v": 0} for key in range(50)])
    stream = blocking.changes(StartFrom.FULL, StopAt.LATEST).with_chunk(rows=7).stream()
    assert poll_until(stream, lambda: stream.ended) == list(range(50))
    assert stream.poll(1) is None
    assert list(stream) == []


def test_a_stream_that_is_dropped_while_it_is_polled_ends(blocking: sync.Table, sync_client: sync.Client) -> None:
    stream = blocking.changes(StartFrom.LATEST).stream()
    assert stream.poll(0.2) is None
    table = blocking.name
    wait_until(lambda: any(scan.table == table for scan in sync_client.live_scans()), "it to be live")
    del stream
    wait_until(lambda: not any(scan.table == table for scan in sync_client.live_scans()), "it to be gone")


def test_a_stream_that_is_closed_while_it_is_polled_ends(blocking: sync.Table) -> None:
    stream = blocking.changes(StartFrom.LATEST).stream()
    assert stream.poll(0.05) is None
    stream.close()
    with pytest.raises(UsageError, match="closed"):
        stream.poll(1)
