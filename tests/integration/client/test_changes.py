"""The changes of a table as a stream: where it starts and ends, what it contains, and what it leaves behind."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    InvalidRequest,
    PositionOutOfRange,
    Resume,
    ScanCancelled,
    ScanSource,
    ScanStalled,
    SchemaMismatch,
    ServerDraining,
    StartFrom,
    StopAt,
    TableNotFound,
    TooManyScans,
    UsageError,
    col,
    connect,
)
from aio_client.testing import Fault, FaultProxy
from streaming_server.storage.changelog.offsets import make_offset
from tests.model.replayed_table import ReplayedTable
from tests.support.bases import await_bases
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Client, Scan, ScanStream, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())])
BUCKETS = 3


@pytest_asyncio.fixture
async def table(client: Client, name: str, request: pytest.FixtureRequest) -> Table:
    base = getattr(request, "param", "off")
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, columnar_base=base)


# Whether the rows of a full start are read from bases, for the table's fixture.
OF_EITHER = pytest.mark.parametrize("table", ["off", "eager"], indirect=True)


async def await_base(table: Table) -> None:
    """Waits until the table is read from its bases, if it has the option."""
    if table.options.get("columnar_base") == "eager":
        await await_bases(table)


@pytest.fixture(scope="module")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server whose streams send heartbeats very often."""
    data = tmp_path_factory.mktemp("restless") / "data"
    settings = ("follow_heartbeat_seconds=0.05", "max_followers=4", "admission_wait_seconds=0", "max_waiting_scans=0")
    with ServerProcess(data, *(flag for setting in settings for flag in ("--set", setting))) as server:
        yield server


@pytest_asyncio.fixture
async def restless_client(restless: ServerProcess) -> AsyncIterator[Client]:
    async with connect(restless.url) as client:
        yield client


def changes(table: Table, start: StartFrom | None = None, stop: StopAt | None = None, *, clamp: bool = False) -> Scan:
    scan = table.scan().with_source(ScanSource.LOG).with_row_kind()
    return scan.start_from(start or StartFrom.LATEST, clamp=clamp).stop_at(stop)


def rows(*keys: int, v: int = 0, text: str = "x") -> list[dict[str, Any]]:
    return [{"k": key, "v": v, "text": text} for key in keys]


async def read(scan: Scan) -> list[dict[str, Any]]:
    return await scan.to_pylist()


def seen(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Returns the changes of each key, in the order of each bucket."""
    return sorted(((row["_change_type"], row["k"]) for row in found), key=lambda pair: pair[1])


async def idle(client: Client) -> None:
    """Waits until no stream of this client's server holds anything."""

    async def nothing() -> bool:
        stats = await client.stats()
        return (stats.live_scans, stats.open_cursors) == (0, 0)

    await await_until(nothing, "no stream left")


async def test_what_happened_is_told_in_the_terms_of_flink_with_offset_and_time(table: Table) -> None:
    before = datetime.now(UTC)
    await table.upsert(rows(1, 2))
    await table.upsert([*rows(1, v=1), *rows(1, v=2), *rows(2)])  # one net change, then none
    await table.delete([2, 77])
    found = await read(changes(table, StartFrom.EARLIEST, StopAt.LATEST))
    one = [row for row in found if row["k"] == 1]
    assert [(row["_change_type"], row["v"]) for row in one] == [("+I", 0), ("-U", 0), ("+U", 2)]
    two = [row for row in found if row["k"] == 2]
    assert [(row["_change_type"], row["v"], row["text"]) for row in two] == [("+I", 0, "x"), ("-D", 0, "x")]
    for row in found:
        assert before <= row["_commit_timestamp"] <= datetime.now(UTC)
    for bucket in {row["_bucket"] for row in found}:
        offsets = [row["_log_offset"] for row in found if row["_bucket"] == bucket]
        assert offsets == list(range(len(offsets)))


async def test_a_commit_that_changes_nothing_takes_no_offset(table: Table) -> None:
    await table.upsert(rows(1, 2, 3))
    async with changes(table).stream() as stream:
        before = stream.log_offsets
        await table.upsert(rows(1, 2, 3))
        await table.delete([55])
        await table.upsert(rows(3, v=9))
        batch = await anext(stream)
        assert seen(batch.to_pylist()) == [("-U", 3), ("+U", 3)]
        (bucket,) = set(batch.column("_bucket").to_pylist())
        assert stream.next_offsets == {**before, bucket: before[bucket] + 2}


async def test_changes_without_their_kind_are_refused(table: Table) -> None:
    scan = table.scan().with_source(ScanSource.LOG)
    with pytest.raises(UsageError, match="with_row_kind"):
        scan.stream()
    with pytest.raises(UsageError, match="with_row_kind"):
        await scan.to_arrow()


async def test_what_makes_no_sense_for_changes_is_refused(table: Table) -> None:
    log = changes(table)
    for refused in (log.ordered, log.reverse, lambda: log.key_range(1, 2), lambda: log.as_of("id")):
        with pytest.raises(UsageError, match="changelog"):
            refused()
    with pytest.raises(UsageError, match="changelog"):
        table.scan().start_from(StartFrom.FULL)
    for wrong in (
        changes(table, StartFrom.offsets({0: 0}), StopAt.LATEST),
        changes(table, stop=StopAt.offsets({0: 0})),
    ):
        with pytest.raises(InvalidRequest, match="must name each bucket"):
            await read(wrong)
    with pytest.raises(SchemaMismatch):
        await read(changes(table, stop=StopAt.LATEST).select("nothing"))


@OF_EITHER
async def test_full_is_all_rows_then_every_change_from_exactly_there(table: Table) -> None:
    await table.upsert(rows(*range(100)))
    await await_base(table)
    await table.delete([7])
    async with changes(table, StartFrom.FULL).with_chunk(rows=10).stream() as stream:
        offsets = stream.log_offsets
        await table.upsert(rows(7, *range(50, 150), v=1))
        replay = ReplayedTable({}, selective=True)
        while replay.rows_seen < 99 + 51 + 100:
            replay.play(await anext(stream))
        # First every row, then every change of the write, starting at the offsets of the header.
        assert replay.table == {row["k"]: row for row in await table.scan().to_pylist()}
        bounded = changes(table, StartFrom.offsets(offsets), StopAt.LATEST)
        assert len(await read(bounded)) == 51 + 100


async def test_full_of_an_empty_table_waits_for_its_first_row(table: Table) -> None:
    async with changes(table, StartFrom.FULL).stream() as stream:
        await table.upsert(rows(1))
        assert seen((await anext(stream)).to_pylist()) == [("+I", 1)]
    (change,) = await read(changes(table, StartFrom.last(1), StopAt.LATEST))
    (row,) = await read(changes(table, StartFrom.FULL, StopAt.LATEST))
    assert row == {**change, "_log_offset": None, "_commit_timestamp": None}


async def test_latest_is_what_comes_after_the_opening(table: Table) -> None:
    await table.upsert(rows(1))
    async with changes(table).stream() as stream:
        await table.upsert(rows(2))
        assert seen((await anext(stream)).to_pylist()) == [("+I", 2)]
    assert await read(changes(table, stop=StopAt.LATEST)) == []


async def test_a_time_begins_with_the_first_commit_at_or_after_it(table: Table) -> None:
    await table.upsert(rows(1))
    between = datetime.now(UTC)
    await table.upsert(rows(2))
    after = datetime.now(UTC)
    everything = await read(changes(table, StartFrom.EARLIEST, StopAt.LATEST))
    time_of = {row["k"]: row["_commit_timestamp"] for row in everything}
    for start, expected in (
        (datetime(1999, 1, 1, tzinfo=UTC), [1, 2]),
        (time_of[1], [1, 2]),
        (between, [2]),
        (time_of[2], [2]),
        (after, []),
    ):
        found = await read(changes(table, StartFrom.timestamp(start), StopAt.LATEST))
        assert sorted(row["k"] for row in found) == expected, start
    assert seen(await read(changes(table, StartFrom.EARLIEST, StopAt.timestamp(between)))) == [("+I", 1)]
    assert seen(await read(changes(table, StartFrom.EARLIEST, StopAt.timestamp(time_of[1])))) == []


async def test_a_start_in_the_future_leaves_out_what_is_committed_before_it(table: Table) -> None:
    start = datetime.now(UTC) + timedelta(seconds=1)
    async with changes(table, StartFrom.timestamp(start)).stream() as stream:
        await table.upsert(rows(1))
        assert datetime.now(UTC) < start, "the machine is too slow for this test"
        await await_until(_is_past(start), "the start")
        await table.upsert(rows(2))
        assert seen((await anext(stream)).to_pylist()) == [("+I", 2)]


async def test_a_stop_in_the_future_waits_for_it_and_leaves_out_what_comes_later(table: Table) -> None:
    stop = datetime.now(UTC) + timedelta(seconds=0.7)
    async with changes(table, StartFrom.EARLIEST, StopAt.timestamp(stop)).stream() as stream:
        await table.upsert(rows(1))
        early = datetime.now(UTC) < stop
        found = (await anext(stream)).to_pylist() if early else []
        await await_until(_is_past(stop), "the stop")
        await table.upsert(rows(2))
        assert [batch async for batch in stream] == []
        assert datetime.now(UTC) >= stop
    assert [row["k"] for row in found] == ([1] if early else [])


def _is_past(instant: datetime) -> Any:
    async def is_past() -> bool:
        return datetime.now(UTC) > instant

    return is_past


async def test_the_last_changes_are_the_newest_of_all_buckets(table: Table) -> None:
    for key in range(20):
        await table.upsert(rows(key))
    everything = sorted(
        await read(changes(table, StartFrom.EARLIEST, StopAt.LATEST)), key=lambda row: row["_commit_timestamp"]
    )
    for n in (1, 2, 7, 20, 1000):
        found = await read(changes(table, StartFrom.last(n), StopAt.LATEST))
        assert sorted(row["k"] for row in found) == sorted(row["k"] for row in everything[-n:])
    async with changes(table, StartFrom.last(3)).stream() as stream:
        first: list[int] = []
        while len(first) < 3:
            first += (await anext(stream)).column("k").to_pylist()
        assert sorted(first) == [17, 18, 19]
        await table.upsert(rows(99))
        assert (await anext(stream)).column("k").to_pylist() == [99]


async def test_offsets_bound_what_is_read_and_may_lie_ahead(table: Table) -> None:
    first = await table.upsert(rows(*range(10)))
    start = {**dict.fromkeys(range(BUCKETS), 0), **first.log_offsets}
    second = await table.upsert(rows(*range(10), v=1))
    end = {**start, **second.log_offsets}
    found = await read(changes(table, StartFrom.offsets(start), StopAt.offsets(end)))
    assert seen(found) == [(kind, key) for key in range(10) for kind in ("-U", "+U")]
    ahead = {bucket: offset + 2 for bucket, offset in end.items()}
    async with changes(table, StartFrom.offsets(end), StopAt.offsets(ahead)).stream() as stream:
        await table.upsert(rows(*range(10), v=2))
        found = [row for batch in [batch async for batch in stream] for row in batch.to_pylist()]
    assert [row["_change_type"] for row in found] == ["-U", "+U"] * BUCKETS
    assert stream.next_offsets == ahead


async def test_a_position_that_is_none_is_refused_with_those_there_are_and_clamped_when_asked(table: Table) -> None:
    written = await table.upsert(rows(*range(10)))
    ends = dict(written.log_offsets)
    assert len(ends) == BUCKETS
    beyond = {**ends, 1: ends[1] + 1}
    with pytest.raises(PositionOutOfRange) as refused:
        await read(changes(table, StartFrom.offsets(beyond), StopAt.LATEST))
    details = refused.value.details
    assert (details["wanted"], details["earliest"], details["latest"]) == (str(beyond[1]), "0", str(ends[1]))
    assert "bucket 1" in refused.value.message
    with pytest.raises(PositionOutOfRange):
        await read(changes(table, StartFrom.offsets({**ends, 0: make_offset(3, 0)}), StopAt.LATEST))
    async with changes(table, StartFrom.offsets(beyond), clamp=True).stream() as stream:
        assert stream.log_offsets == ends
        await table.upsert(rows(99))
        assert seen((await anext(stream)).to_pylist()) == [("+I", 99)]


async def test_a_projection_has_the_columns_that_tell_what_happened_and_those_asked_for(table: Table) -> None:
    await table.upsert(rows(1))
    meta = ["_change_type", "_log_offset", "_bucket", "_commit_timestamp"]
    for start in (StartFrom.FULL, StartFrom.EARLIEST):
        log = changes(table, start, StopAt.LATEST)
        for columns in (["text", "k"], ["v"], []):
            found = await log.select(columns).to_arrow()
            assert found.schema.names == [*meta, *columns]
            assert found.num_rows == 1
        # Predicates on other columns are evaluated as well.
        assert (await log.select(["text"]).where(col("v") == 0).to_arrow()).num_rows == 1
        assert (await log.select(["text"]).where(col("v") == 1).to_arrow()).num_rows == 0


async def test_a_limit_ends_the_stream_and_the_offsets_say_what_was_returned(table: Table) -> None:
    """Even if a predicate leaves out rows, so that the server has read more than it may return."""
    await table.upsert(rows(*range(60)))
    whole = changes(table, StartFrom.EARLIEST, StopAt.LATEST)
    for log in (whole, whole.where(col("k") < 50)):
        keys = sorted(row["k"] for row in await read(log))
        for limit in (0, 1, 7, 25):
            async with log.limit(limit).stream() as stream:
                first = [row["k"] for batch in [batch async for batch in stream] for row in batch.to_pylist()]
                offsets = stream.next_offsets
            assert len(first) == limit
            rest = await read(log.start_from(StartFrom.offsets(offsets)))
            assert sorted(first + [row["k"] for row in rest]) == keys, limit


async def test_an_update_is_one_batch_however_small_they_are(table: Table) -> None:
    await table.upsert(rows(*range(10)))
    for v in range(1, 4):
        await table.upsert(rows(*range(10), v=v))
    replay = ReplayedTable({})
    async for batch in changes(table, StartFrom.EARLIEST, StopAt.LATEST).with_chunk(rows=1).stream():
        replay.play(batch)
        assert batch.num_rows <= 2
    assert replay.table == {row["k"]: row for row in rows(*range(10), v=3)}


async def test_new_columns_come_across_a_cut_too(table: Table, client: Client, shared_server: ServerProcess) -> None:
    await table.upsert(rows(1))
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address) as cut:
        async with cut.scan(changes(table, StartFrom.EARLIEST).spec).stream() as stream:
            narrow = await anext(stream)
            wider = await client.alter_table(table.name, add_columns=pa.schema([("more", pa.int32())]))
            proxy.apply(Fault("reset"))
            await wider.upsert([{**rows(1, v=2)[0], "more": 7}])
            batch = await anext(stream)
            assert batch.schema.names == [*narrow.schema.names, "more"]
            assert batch.column("more").to_pylist() == [None, 7]
            assert len(stream.resumptions) == 1


async def test_a_table_dropped_under_a_stream_ends_it(table: Table, client: Client) -> None:
    async with changes(table).stream() as waiting:
        reading = asyncio.create_task(anext(waiting))
        await asyncio.sleep(0)
        await client.drop_table(table.name)
        with pytest.raises(TableNotFound):
            await reading
    with pytest.raises(TableNotFound):
        await read(changes(table, stop=StopAt.LATEST))


async def test_a_stream_goes_on_over_cuts_without_losing_or_repeating_a_change(
    table: Table, shared_server: ServerProcess
) -> None:
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address) as cut:
        await table.upsert(rows(*range(5)))
        async with cut.scan(changes(table, StartFrom.EARLIEST).spec).stream() as stream:
            replay = ReplayedTable({})
            replay.play(await anext(stream))
            for v in range(1, 12):
                await table.upsert(rows(*range(5), v=v))
                if v % 3 == 1:
                    proxy.apply(Fault("reset"))
            while replay.table != {row["k"]: row for row in rows(*range(5), v=11)}:
                replay.play(await anext(stream))
            assert replay.rows_seen == 5 + 11 * 10
            assert stream.resumptions


async def test_a_stream_that_is_not_to_go_on_says_where_it_was(table: Table, shared_server: ServerProcess) -> None:
    await table.upsert(rows(1))
    async with FaultProxy(shared_server.url) as proxy, connect(proxy.address) as cut:
        stream = cut.scan(changes(table, StartFrom.EARLIEST).resume(Resume.NEVER).spec).stream()
        assert seen((await anext(stream)).to_pylist()) == [("+I", 1)]
        proxy.apply(Fault("reset"))
        with pytest.raises(Exception, match="broke off") as broken:
            await anext(stream)
    token = getattr(broken.value, "resume_token", None)
    assert token is not None
    await table.upsert(rows(2))
    assert seen(await read(changes(table, stop=StopAt.LATEST).resume_from(token))) == [("+I", 2)]


async def test_a_change_comes_at_once_whatever_the_heartbeat_is(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "follow_heartbeat_seconds=60") as server:
        async with connect(server.url) as client:
            table = await client.create_table("test.pushed", SCHEMA, primary_key=["k"], buckets=BUCKETS)
            async with changes(table).stream() as stream:
                for key in range(10):
                    reading = asyncio.create_task(anext(stream))
                    await table.upsert(rows(key))
                    # Polling at any interval would show in the sum.
                    async with asyncio.timeout(30):
                        assert (await reading).column("k").to_pylist() == [key]


async def test_an_idle_stream_is_heard_from_and_says_up_to_when_it_has_everything(restless_client: Client) -> None:
    table = await restless_client.create_table("test.idle", SCHEMA, primary_key=["k"], buckets=BUCKETS)
    await table.upsert(rows(1))
    scanned = (await restless_client.stats()).rows_scanned
    async with changes(table).stream() as stream:
        assert stream.watermark is None
        before = datetime.now(UTC)
        reading = asyncio.create_task(anext(stream))

        async def knows_of_now() -> bool:
            return stream.watermark is not None and stream.watermark > before

        await await_until(knows_of_now, "a watermark")
        stats = await restless_client.stats()
        assert (stats.rows_scanned, stats.open_cursors, stats.live_scans) == (scanned, 0, 1)
        assert stream.stats().rows_scanned == 0
        await table.upsert(rows(2))
        assert seen((await reading).to_pylist()) == [("+I", 2)]
        watermark = stream.watermark
        assert watermark is not None
        (change,) = await read(changes(table, StartFrom.last(1), StopAt.LATEST))
        assert watermark <= change["_commit_timestamp"]
    await idle(restless_client)


async def test_there_are_at_most_so_many_followers_and_scans_do_not_count(restless_client: Client) -> None:
    table = await restless_client.create_table("test.crowd", SCHEMA, primary_key=["k"], buckets=BUCKETS)
    async with connect(restless_client.config.url, operation_timeout=2) as hasty:
        streams = [changes(table).stream() for _ in range(4)]
        for stream in streams:
            await stream.__aenter__()
        with pytest.raises(TooManyScans):
            await read(hasty.scan(changes(table, stop=StopAt.LATEST).spec))
        assert await table.scan().to_pylist() == []
        await streams.pop().aclose()
        await await_until(lambda: _is_let_in(hasty, table), "let in")
        for stream in streams:
            await stream.aclose()
    await idle(restless_client)


async def _is_let_in(client: Client, table: Table) -> bool:
    try:
        async with client.scan(changes(table).spec).stream():
            return True
    except TooManyScans:
        return False


async def test_an_operator_ends_a_stream_that_waits(restless_client: Client) -> None:
    table = await restless_client.create_table("test.ended", SCHEMA, primary_key=["k"], buckets=BUCKETS)
    async with changes(table).stream() as stream:
        reading = asyncio.create_task(anext(stream))
        (live,) = await restless_client.live_scans()
        assert live.scan_id == stream.scan_id
        await restless_client.cancel_scan(live.scan_id)
        with pytest.raises(ScanCancelled):
            await reading
    await idle(restless_client)


async def test_a_stream_that_is_left_or_dropped_or_cancelled_leaves_nothing(restless_client: Client) -> None:
    table = await restless_client.create_table("test.left", SCHEMA, primary_key=["k"], buckets=BUCKETS)
    await table.upsert(rows(*range(2000)))

    async def read_some(start: StartFrom) -> None:
        async for _ in changes(table, start).with_chunk(rows=10).stream():
            break

    for start in (StartFrom.FULL, StartFrom.EARLIEST):
        await read_some(start)
        await idle(restless_client)
        async with changes(table, start).with_chunk(rows=10).stream() as stream:
            await anext(stream)
        await idle(restless_client)
    stream = changes(table).stream()
    await stream.__aenter__()
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    del stream
    await idle(restless_client)


@pytest.mark.breadth
async def test_a_drain_ends_followers_at_once_and_they_go_on_with_the_server_that_comes_back(
    server: ServerProcess,
) -> None:
    async with connect(server.url) as client:
        table = await client.create_table("test.drained", SCHEMA, primary_key=["k"], buckets=BUCKETS)
        await table.upsert(rows(1))
        async with (
            changes(table, StartFrom.EARLIEST).stream() as stream,
            changes(table).resume(Resume.NEVER).stream() as stays,
        ):
            assert seen((await anext(stream)).to_pylist()) == [("+I", 1)]
            started = time.monotonic()
            reading, ending = asyncio.create_task(anext(stream)), asyncio.create_task(anext(stays))
            assert await asyncio.to_thread(server.stop) == 0
            assert time.monotonic() - started < 25, "it waited for those who never end"
            with pytest.raises(ServerDraining):
                await ending
            await asyncio.to_thread(server.restart)
            await client.wait_ready()
            await table.upsert(rows(2))
            assert seen((await reading).to_pylist()) == [("+I", 2)]
            assert [type(each.cause) for each in stream.resumptions]
            server.kill()
            reading = asyncio.create_task(anext(stream))
            await asyncio.to_thread(server.restart)
            await client.wait_ready()
            await table.upsert(rows(3))
            assert seen((await reading).to_pylist()) == [("+I", 3)]


async def test_a_reader_that_takes_nothing_is_ended_and_goes_on_when_it_reads(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "stall_timeout_seconds=0.3") as server:
        async with connect(server.url, read_ahead_bytes=64 << 10) as client:
            table = await client.create_table("test.stalled", SCHEMA, primary_key=["k"], buckets=BUCKETS)
            await table.upsert(rows(*range(4000), text="x" * 1000))
            log = changes(table, StartFrom.EARLIEST, StopAt.LATEST).with_chunk(rows=50)
            async with log.stream() as stream, log.resume(Resume.NEVER).stream() as stays:
                replay, other = ReplayedTable({}), ReplayedTable({})
                replay.play(await anext(stream))
                other.play(await anext(stays))
                await await_until(lambda: _has_ended(client), "both stalled")
                async for batch in stream:
                    replay.play(batch)
                assert len(replay.table) == 4000
                assert isinstance(stream.resumptions[0].cause, ScanStalled)
                with pytest.raises(ScanStalled):
                    await _read_on(stays, other)
                assert 0 < len(other.table) < 4000
            await idle(client)


async def _has_ended(client: Client) -> bool:
    return (await client.stats()).live_scans == 0


async def _read_on(stream: ScanStream, replay: ReplayedTable) -> None:
    async for batch in stream:
        replay.play(batch)
