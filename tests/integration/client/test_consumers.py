"""Consumers: committed changes are not read again, uncommitted ones are, and a consumer has one stream at a time."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    ConsumerFenced,
    ConsumerNotFound,
    InvalidRequest,
    LogOffsets,
    PositionOutOfRange,
    ScanSource,
    StartFrom,
    StopAt,
    TableNotFound,
    UsageError,
    col,
    connect,
)
from aio_client.testing import Fault, FaultProxy
from tests.model.replayed_table import ReplayedTable
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Scan, ScanStream, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
BUCKETS = 3


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS)


def rows(*keys: int, v: int = 0) -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


async def take(scan: Scan, commit: bool = True) -> list[tuple[str, int, int]]:
    """Returns the changes of a bounded stream, ordered by key and offset: row kind, key and value."""
    async with scan.stream() as stream:
        batches = [batch async for batch in stream]
        if commit:
            await stream.commit()
    found = pa.Table.from_batches(batches, schema=stream.schema).sort_by(
        [("k", "ascending"), ("_log_offset", "ascending")]
    )
    return list(zip(*(found[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))


async def read_on(stream: ScanStream) -> None:
    async for _ in stream:
        pass


def upto_now(table: Table, consumer_id: str = "c", start: StartFrom = StartFrom.EARLIEST, **how: Any) -> Scan:
    return table.changes(start, StopAt.LATEST, consumer_id=consumer_id, **how)


async def test_what_was_committed_is_not_read_again_and_what_was_not_is(table: Table) -> None:
    await table.upsert(rows(1, 2))
    first = [("+I", 1, 0), ("+I", 2, 0)]
    assert await take(upto_now(table), commit=False) == first
    assert await take(upto_now(table)) == first
    assert await take(upto_now(table), commit=False) == []
    await table.delete([2])
    assert await take(upto_now(table)) == [("-D", 2, 0)]
    assert await take(upto_now(table, "other")) == [*first, ("-D", 2, 0)]


async def test_a_commit_is_of_the_batches_returned_and_asking_for_more_commits_nothing(table: Table) -> None:
    await table.upsert(rows(*range(60)))
    async with upto_now(table).with_chunk(rows=5).stream() as stream:
        assert await stream.commit() == dict.fromkeys(range(BUCKETS), 0)
        two = [await anext(stream) for _ in range(2)]
        offsets = await stream.commit()
        assert offsets == stream.next_offsets
        assert sum(offsets.values()) == sum(batch.num_rows for batch in two) == 10
        assert await stream.commit() == offsets
        await anext(stream)
    left = await take(upto_now(table))
    assert {k for _, k, _ in left} == set(range(60)) - {k for batch in two for k in batch.column("k").to_pylist()}


async def test_a_consumer_that_never_committed_begins_where_its_first_stream_did(table: Table) -> None:
    await table.upsert(rows(1))
    async with table.changes(StartFrom.LATEST, consumer_id="c").stream():
        pass
    await table.upsert(rows(2))
    assert await take(upto_now(table, start=StartFrom.LATEST)) == [("+I", 2, 0)]


async def test_a_consumer_taken_over_among_rows_and_again_among_changes_is_told_each_change_once(table: Table) -> None:
    """The rows are then from two instants, and some of the changes between them are already contained in the rows."""
    await table.upsert(rows(*range(200)))
    replay = ReplayedTable({}, selective=True)
    scan = table.changes(consumer_id="c").with_chunk(rows=20)
    for turn in range(4):
        async with scan.stream() as stream:
            assert stream.phase == ("rows" if turn < 2 else "changes")
            async for batch in stream:
                replay.play(batch)
                if turn != 1 or stream.phase == "changes":
                    await stream.commit()
                    break
        for value in range(1, 4):
            await table.upsert(rows(*range(value, 230, 3), v=10 * turn + value))
            await table.delete([*range(turn, 200, 17)])
    async for batch in upto_now(table).stream():
        replay.play(batch)
    assert replay.table == {row["k"]: row for row in await table.scan().to_pylist()}


async def test_a_bounded_start_from_the_whole_table_is_over_once_it_is_committed(table: Table) -> None:
    await table.upsert(rows(*range(50)))
    assert len(await take(upto_now(table, start=StartFrom.FULL).with_chunk(rows=7))) == 50
    assert await take(upto_now(table, start=StartFrom.FULL)) == []
    await table.upsert(rows(3, v=1))
    assert await take(upto_now(table, start=StartFrom.FULL, columns=["v", "k"])) == [("-U", 3, 0), ("+U", 3, 1)]


async def test_a_new_stream_takes_over_where_it_was_committed_and_the_older_one_is_fenced(table: Table) -> None:
    await table.upsert(rows(*range(20)))
    older = await table.changes(StartFrom.EARLIEST, consumer_id="c").with_chunk(rows=4).stream().__aenter__()
    first = await anext(older)
    offsets = await older.commit()
    await anext(older)
    async with upto_now(table).stream() as newer:
        assert newer.log_offsets == offsets
        with pytest.raises(ConsumerFenced, match="another stream has taken it over"):
            await older.commit()
        with pytest.raises(ConsumerFenced):
            await asyncio.wait_for(read_on(older), 60)
        with pytest.raises(ConsumerFenced):
            await older.commit()
        keys = [k async for batch in newer for k in batch.column("k").to_pylist()]
        assert sorted(keys + first.column("k").to_pylist()) == list(range(20))
        await newer.commit()
    await older.aclose()


@pytest.mark.parametrize("how", ["taken over", "reset", "deleted"])
async def test_an_idle_stream_is_fenced_at_once(table: Table, how: str) -> None:
    async with table.changes(StartFrom.LATEST, consumer_id="c").stream() as stream:
        waiting = asyncio.create_task(anext(stream))
        (consumer,) = await table.consumers()
        assert (consumer.live, consumer.id) == (True, "c")
        if how == "taken over":
            async with table.changes(consumer_id="c").stream():
                await asyncio.wait([waiting], timeout=60)
        elif how == "reset":
            await table.reset_consumer("c", StartFrom.EARLIEST)
        else:
            await table.delete_consumer("c")
        with pytest.raises(ConsumerFenced, match=how.split()[0]):
            await asyncio.wait_for(waiting, 60)


@pytest.mark.one_process
async def test_a_stream_that_was_cut_goes_on_and_does_not_fence_itself(
    table: Table, shared_server: ServerProcess
) -> None:
    await table.upsert(rows(*range(3000)))
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address, read_ahead_bytes=64 << 10) as cut:
        through = await cut.table(table.name)
        scan = through.changes(consumer_id="c").with_chunk(rows=100)
        replay = ReplayedTable({}, selective=True)
        async with scan.stream() as stream:
            for batches in range(25):
                replay.play(await anext(stream))
                if batches % 8 == 7:
                    proxy.apply(Fault("reset"))
                    await table.upsert(rows(*range(0, 3000, 50), v=batches))
            assert len(stream.resumptions) >= 2
            await stream.commit()
    async for batch in upto_now(table).stream():
        replay.play(batch)
    assert replay.table == {row["k"]: row for row in await table.scan().to_pylist()}


async def test_a_stream_that_was_cut_is_refused_when_it_was_fenced_meanwhile(
    table: Table, shared_server: ServerProcess
) -> None:
    await table.upsert(rows(*range(10)))
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address) as cut:
        through = await cut.table(table.name)
        async with through.changes(StartFrom.EARLIEST, consumer_id="c").stream() as stream:
            for _ in range(BUCKETS):
                await anext(stream)
            proxy.refuse()
            proxy.apply(Fault("reset"))
            assert len(await take(upto_now(table))) == 10
            proxy.accept()
            with pytest.raises(ConsumerFenced, match="another stream has taken it over"):
                await anext(stream)


@pytest.mark.breadth
async def test_a_commit_that_races_a_takeover_is_before_it_or_refused(table: Table) -> None:
    await table.upsert(rows(*range(40)))
    outcomes: set[type] = set()
    turns = itertools.takewhile(lambda turn: turn < 25 or (len(outcomes) < 2 and turn < 500), itertools.count())
    for turn in turns:
        await table.reset_consumer("c", StartFrom.EARLIEST) if turn else None
        async with table.changes(StartFrom.EARLIEST, consumer_id="c").with_chunk(rows=5).stream() as older:
            read = (await anext(older)).num_rows
            newer = upto_now(table).stream()
            results = await asyncio.gather(
                *((newer.__aenter__(), older.commit()) if turn % 2 else (older.commit(), newer.__aenter__())),
                return_exceptions=True,
            )
            committed = results[turn % 2]
            left = sum([batch.num_rows async for batch in newer])
            assert left == (40 if isinstance(committed, ConsumerFenced) else 40 - read), committed
            outcomes.add(type(committed))
            await newer.aclose()
    assert outcomes == {LogOffsets, ConsumerFenced}


async def test_columns_predicate_and_buckets_may_change_between_streams(table: Table) -> None:
    await table.upsert(rows(*range(30)))
    assert len(await take(upto_now(table).with_buckets(0, 1))) < 30
    # Bucket 2 has no position yet, so it starts where this stream says.
    (consumer,) = await table.consumers()
    assert sorted(consumer.log_offsets) == [0, 1]
    with pytest.raises(InvalidRequest, match=r"has not read buckets \[2\]"):
        await take(upto_now(table, start=StartFrom.FULL))
    await table.upsert(rows(*range(30), v=1))
    found = await take(upto_now(table, columns=["k", "v"], where=col("k") < 10))
    there = await table.scan(where=col("k") < 10).with_buckets(2).to_pylist()
    assert sorted(k for kind, k, _ in found if kind == "+I") == sorted(row["k"] for row in there)
    assert sorted(k for kind, k, _ in found if kind == "+U") == list(range(10))
    assert await take(upto_now(table)) == []
    (consumer,) = await table.consumers()
    assert (sorted(consumer.log_offsets), consumer.lag) == ([0, 1, 2], 0)


async def test_a_bounded_read_commits_what_it_has_looked_at_and_left_out_too(table: Table) -> None:
    await table.upsert(rows(*range(30)))
    assert len(await take(upto_now(table, where=col("k") < 10))) == 10
    await table.upsert(rows(*range(20, 30), v=1))
    assert await take(upto_now(table, where=col("k") < 10)) == []
    (consumer,) = await table.consumers()
    assert consumer.lag == 0


async def test_while_rows_are_read_the_query_cannot_change_until_it_is_reset_or_deleted(table: Table) -> None:
    await table.upsert(rows(*range(100)))
    async with table.changes(consumer_id="c").with_chunk(rows=10).stream() as stream:
        await anext(stream)
        # Nothing is committed, so any columns and predicate are allowed.
    async with table.changes(consumer_id="c", columns=["k"], shard=(0, 2)).with_chunk(rows=10).stream() as stream:
        await anext(stream)
        await stream.commit()
    (consumer,) = await table.consumers()
    assert (consumer.phase, sorted(consumer.log_offsets)) == ("rows", [0, 2])
    for other in (
        table.changes(consumer_id="c"),
        table.changes(consumer_id="c", columns=["k"], shard=(1, 2)),
        table.changes(consumer_id="c", columns=["k"], shard=(0, 2), where=col("k") > 3),
    ):
        with pytest.raises(InvalidRequest, match="reset or delete"):
            await anext(other.stream())
    await table.reset_consumer("c", StartFrom.FULL)
    assert len(await take(upto_now(table, start=StartFrom.FULL))) == 100


async def test_a_consumer_is_reset_to_any_place_and_nothing_else_moves_it_back(table: Table) -> None:
    await table.upsert(rows(1))
    await table.upsert(rows(1, v=1))
    every = [("+I", 1, 0), ("-U", 1, 0), ("+U", 1, 1)]
    assert await take(upto_now(table)) == every
    (consumer,) = await table.consumers()
    (bucket,) = (bucket for bucket, offset in consumer.log_offsets.items() if offset)
    for start, expected in (
        (StartFrom.EARLIEST, every),
        (StartFrom.LATEST, []),
        (StartFrom.last(2), every[1:]),
        (StartFrom.offsets({**dict.fromkeys(range(BUCKETS), 0), bucket: 1}), every[1:]),
        (StartFrom.FULL, [("+I", 1, 1)]),
    ):
        offsets = await table.reset_consumer("c", start)
        (consumer,) = await table.consumers()
        assert consumer.log_offsets == offsets
        assert consumer.phase == ("rows" if start is StartFrom.FULL else "changes")
        assert await take(upto_now(table)) == expected
    with pytest.raises(InvalidRequest, match="must name each bucket"):
        await table.reset_consumer("c", StartFrom.offsets({0: 0}))
    beyond = StartFrom.offsets(dict.fromkeys(range(BUCKETS), 99))
    with pytest.raises(PositionOutOfRange):
        await table.reset_consumer("c", beyond)
    assert sum((await table.reset_consumer("c", beyond, clamp=True)).values()) == 3


async def test_consumers_are_listed_with_how_far_each_is_behind_and_deleted(table: Table) -> None:
    assert await table.consumers() == []
    await table.upsert(rows(*range(10)))
    await take(upto_now(table, "b"))
    await take(upto_now(table, "a", StartFrom.FULL), commit=False)
    await table.upsert(rows(*range(5), v=1))
    first, second = await table.consumers()
    assert (first.id, first.phase, first.committed_at, first.lag, first.live) == ("a", "rows", None, 10, False)
    assert (second.id, second.phase, second.lag, second.damage) == ("b", "changes", 10, None)
    assert second.committed_at is not None
    assert 0 < second.remaining <= 7 * 86_400
    await table.delete_consumer("a")
    assert [consumer.id for consumer in await table.consumers()] == ["b"]
    for call in (table.delete_consumer("a"), table.reset_consumer("a", StartFrom.FULL)):
        with pytest.raises(ConsumerNotFound, match='no consumer "a"'):
            await call
    assert len(await take(upto_now(table, "a"))) == 20


async def test_what_makes_no_sense_for_a_consumer_is_refused_when_it_is_given(table: Table) -> None:
    changes = table.changes()
    attempts: list[Callable[[], object]] = [
        *(lambda given=given: changes.with_consumer_id(given) for given in ("", ".", "..", "a/b", "x" * 129, None, 5)),
        lambda: table.changes(consumer_id="a b"),
        lambda: table.scan().with_consumer_id("c"),
        lambda: changes.with_consumer_id("c").limit(5),
        lambda: changes.limit(5).with_consumer_id("c"),
        lambda: changes.with_consumer_id("c").resume_from(b"token"),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError):
            attempt()
    for call in (table.reset_consumer("a/b", StartFrom.FULL), table.delete_consumer("..")):
        with pytest.raises(UsageError, match="1 to 128 of"):
            await call
    async with table.changes(StartFrom.LATEST).stream() as stream:
        with pytest.raises(UsageError, match="with_consumer_id"):
            await stream.commit()
    with pytest.raises(UsageError, match="known once the scan has started"):
        await changes.with_consumer_id("c").stream().commit()


async def test_changes_is_the_short_form(table: Table, client: Client) -> None:
    long = table.scan(["v"], where="v > 1").with_source(ScanSource.LOG).start_from(StartFrom.EARLIEST, clamp=True)
    long = long.stop_at(StopAt.LATEST).with_row_kind().with_consumer_id("c").with_shard(1, 2)
    short = table.changes(
        StartFrom.EARLIEST, StopAt.LATEST, columns=["v"], where="v > 1", consumer_id="c", shard=(1, 2), clamp=True
    )
    assert short.spec == long.spec
    full = table.changes().spec.log
    assert full is not None
    assert full.start is StartFrom.FULL
    # A spec contains all of it, even in another process.
    await table.upsert(rows(*range(20), v=2))
    found = await take(client.scan(table.changes(stop=StopAt.LATEST, consumer_id="c").spec))
    assert len(found) == 20
    assert await take(upto_now(table)) == []


async def test_a_dropped_table_takes_its_consumers_along(table: Table, client: Client) -> None:
    async with table.changes(consumer_id="c").stream() as stream:
        waiting = asyncio.create_task(anext(stream))
        await client.drop_table(table.name)
        with pytest.raises(TableNotFound):
            await waiting
        with pytest.raises(TableNotFound):
            await table.consumers()
    anew = await client.create_table(table.name, SCHEMA, primary_key=["k"])
    assert await anew.consumers() == []


async def test_a_cancelled_stream_lets_its_consumer_go(table: Table) -> None:
    async with table.changes(consumer_id="c").stream() as stream:
        task = asyncio.create_task(read_on(stream))
        await asyncio.sleep(0)
        task.cancel()

    async def idle() -> bool:
        return not any(consumer.live for consumer in await table.consumers())

    await await_until(idle, "the consumer without a stream")
