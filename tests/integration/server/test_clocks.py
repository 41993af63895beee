"""A server whose machine's clock is set: nothing is applied twice, expires early, is kept forever, or is misread."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import (
    ColumnLocked,
    ConsumerFenced,
    ConsumerNotFound,
    InvalidRequest,
    LockLost,
    ScanSource,
    SnapshotLost,
    StartFrom,
    StopAt,
    TransactionLost,
    agg,
)
from scankv.v1 import write_pb2, write_pb2_grpc
from tests.support.clocks import DAY, HOUR, FakeClocks, look_after, serving
from tests.support.tables import ipc_stream
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aio_client import Client, Table
    from streaming_server.server import Server

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


async def make(client: Client, name: str = "a.b", **options: Any) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=1, **options)


async def put(table: Table, *keys: int) -> None:
    await table.upsert([{"k": key, "v": key} for key in keys])


def at(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


async def changed_keys(table: Table, start: StartFrom, stop: StopAt = StopAt.LATEST) -> list[int]:
    scan = table.scan(columns=["k"]).with_source(ScanSource.LOG).start_from(start).stop_at(stop).with_row_kind()
    return list((await scan.to_arrow())["k"].to_pylist())


async def add_five(server: Server, sequence: int, age: float) -> None:
    """Sends a request of a client that has never opened a writer."""
    rows = ipc_stream(SCHEMA, pa.RecordBatch.from_pylist([{"k": 1, "v": 5}], schema=SCHEMA))
    identity = write_pb2.WriterIdentity(id="anybody", sequence=sequence, sent_millis_ago=int(age * 1000))
    request = write_pb2.UpsertRequest(table="a.b", rows=rows, writer=identity)
    async with grpc.aio.insecure_channel(server.address) as channel:
        await write_pb2_grpc.WriteServiceStub(channel).Upsert(request)


def jump(seconds: float) -> Callable[[FakeClocks], None]:
    return lambda machine: machine.set_wall(seconds)


def sleep_for_two_hours(machine: FakeClocks) -> None:
    machine.suspend(2 * HOUR)


def be_off_for_two_hours(machine: FakeClocks) -> None:
    machine.reboot(2 * HOUR)


def lose_the_time(machine: FakeClocks) -> None:
    machine.reboot()
    machine.set_wall(-300 * DAY)


EVENTS = {
    "2 hours forward": jump(2 * HOUR),
    "300 days forward": jump(300 * DAY),
    "300 days back": jump(-300 * DAY),
    "asleep for 2 hours": sleep_for_two_hours,
}
WHILE_STOPPED = {
    **EVENTS,
    "off for 2 hours": be_off_for_two_hours,
    "off, and 300 days back": lose_the_time,
}


@pytest.mark.parametrize("event", EVENTS)
async def test_a_repeated_request_is_applied_once_whatever_the_clock_did_meanwhile(tmp_path: Path, event: str) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, merge_engine="aggregate", aggregators={"v": agg.sum()})
        await add_five(server, 7, 0)
        EVENTS[event](machine)
        machine.pass_time(20)
        await look_after(server, "a.b")
        await add_five(server, 7, 20)
        assert await table.get(1) == {"k": 1, "v": 5}


@pytest.mark.parametrize("event", WHILE_STOPPED)
async def test_a_repeated_request_is_applied_once_whatever_the_clock_did_before_a_restart(
    tmp_path: Path, event: str
) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        await make(client, merge_engine="aggregate", aggregators={"v": agg.sum()})
        await add_five(server, 7, 0)
    WHILE_STOPPED[event](machine)
    machine.pass_time(20)
    async with serving(tmp_path / "data", machine) as (server, client):
        await look_after(server, "a.b")
        await add_five(server, 7, 20)
        assert await (await client.table("a.b")).get(1) == {"k": 1, "v": 5}


async def test_what_a_writer_repeats_after_the_time_for_which_it_is_known_is_refused(tmp_path: Path) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, merge_engine="aggregate", aggregators={"v": agg.sum()})
        await add_five(server, 7, 0)
        for _ in range(8):
            machine.pass_time(600)
            await look_after(server, "a.b")
            with suppress(grpc.RpcError):
                await add_five(server, 7, (machine.monotonic() - 5) // 1)
        assert await table.get(1) == {"k": 1, "v": 5}
        with pytest.raises(grpc.RpcError, match="was applied before is unknown"):
            await add_five(server, 7, 4800)


@pytest.mark.parametrize("event", WHILE_STOPPED)
async def test_a_repeated_commit_is_known_whatever_the_clock_did(tmp_path: Path, event: str) -> None:
    machine = FakeClocks()
    settings = {"committed_transaction_seconds": 7200}
    async with serving(tmp_path / "data", machine, **settings) as (server, client):
        table = await make(client)
        for number in (1, 2):
            async with client.transaction(id=f"once-{number}") as tx:
                await tx.upsert(table, [{"k": number, "v": 1}])
        async with client.transaction(id="job:1") as tx:
            await tx.upsert(table, [{"k": 9, "v": 1}])
    WHILE_STOPPED[event](machine)
    machine.pass_time(20)
    async with serving(tmp_path / "data", machine, **settings) as (server, client):
        async with client.transaction(id="job:2") as tx:
            assert tx.result is None
            await tx.upsert(await client.table("a.b"), [{"k": 9, "v": 2}])
    for seconds, known in ((0, True), (7300, False)):
        machine.pass_time(30)
        async with serving(tmp_path / "data", machine, **settings) as (server, client):
            machine.pass_time(seconds)
            server._tables.transactions._committed.forget(server._tables.clock.service_micros())
            for name in ("once-1", "once-2"):
                transaction = await client.transaction(id=name)
                assert (transaction.result is not None) == known
            last = await client.transaction(id="job:2")
            assert last.result is not None, "the last one of a job is always known, and it is the one committed last"


async def test_a_clock_that_was_wrong_for_one_write_changes_neither_retention_nor_starts(tmp_path: Path) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, log_retention_seconds=1000)
        await put(table, 1)
        machine.pass_time(10)
        before = machine.wall_micros
        machine.set_wall(300 * DAY)
        await put(table, 2)
        stats = await client.stats()
        assert stats.clock_offset == 300 * DAY
        assert stats.clock_jumps == 1
        # By the wrong clock from now on: refused, because the clock could also be right.
        for wrong in (machine.wall_micros, machine.wall_micros - 60_000_000, before + 60_000_000):
            with pytest.raises(InvalidRequest, match="clock of the server's machine has jumped"):
                await changed_keys(table, StartFrom.timestamp(at(wrong)))
            with pytest.raises(InvalidRequest, match="clock of the server's machine has jumped"):
                await changed_keys(table, StartFrom.EARLIEST, StopAt.timestamp(at(wrong)))
        assert await changed_keys(table, StartFrom.timestamp(at(before))) == [2]
        machine.set_wall(-300 * DAY)
        machine.pass_time(10)
        after = machine.wall_micros
        await put(table, 3)
        stats = await client.stats()
        assert (stats.clock_offset, stats.clock_jumps) == (0, 2)
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await client.table("a.b")
        assert await changed_keys(table, StartFrom.timestamp(at(before - 10_000_000))) == [1, 2, 3]
        assert await changed_keys(table, StartFrom.timestamp(at(before))) == [2, 3]
        assert await changed_keys(table, StartFrom.timestamp(at(after))) == [3]
        assert await changed_keys(table, StartFrom.EARLIEST, StopAt.timestamp(at(after))) == [1, 2]
        for kept in ([2, 3], [3]):
            machine.pass_time({2: 985, 3: 10}[kept[0]])
            await look_after(server, "a.b")
            assert await changed_keys(table, StartFrom.EARLIEST) == kept
        machine.pass_time(20)
        await look_after(server, "a.b")
        assert await changed_keys(table, StartFrom.EARLIEST) == []


async def test_a_clock_that_was_wrong_at_a_reboot_is_not_read_as_the_times_of_later_changes(tmp_path: Path) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await make(client, log_retention_seconds=1000)
        await put(table, 1)
        right = machine.wall_micros
    machine.reboot(away=10)
    machine.set_wall(300 * DAY)
    async with serving(tmp_path / "data", machine) as (server, client):
        table = await client.table("a.b")
        # The server cannot know that it is wrong.
        await put(table, 2)
        machine.set_wall(-300 * DAY)
        await put(table, 3)
        machine.pass_time(5)
        with pytest.raises(InvalidRequest, match="clock of the server's machine has jumped"):
            await changed_keys(table, StartFrom.timestamp(at(machine.wall_micros + int(301 * DAY * 1e6))))
        assert await changed_keys(table, StartFrom.timestamp(at(right + 1))) == [2, 3]
        scan = table.scan().with_source(ScanSource.LOG).start_from(StartFrom.EARLIEST).stop_at(StopAt.LATEST)
        times = (await scan.with_row_kind().to_arrow())["_commit_timestamp"].to_pylist()
        assert times == sorted(times)
        # Retention does not use these times.
        machine.pass_time(900)
        await look_after(server, "a.b")
        assert await changed_keys(table, StartFrom.EARLIEST) == [1, 2, 3]
        machine.pass_time(200)
        await look_after(server, "a.b")
        assert await changed_keys(table, StartFrom.EARLIEST) == []


async def test_what_is_kept_in_memory_lives_on_over_any_jump_and_ends_with_its_time(tmp_path: Path) -> None:
    machine = FakeClocks()
    settings = {"consumer_ttl_seconds": 100.0, "snapshot_ttl_seconds": 100.0}
    async with serving(tmp_path / "data", machine, **settings) as (server, client):
        table = await make(client)
        await put(table, 1)
        lock = await table.lock_columns(["v"], owner="job", ttl=100)
        snapshot = await table.snapshot(ttl=100)
        transaction = await client.transaction(ttl=100)
        follower = table.changes(StartFrom.EARLIEST, stop=StopAt.LATEST, consumer_id="reader")
        async with follower.stream() as stream:
            async for _ in stream:
                await stream.commit()
        for seconds in (2 * HOUR, -4 * HOUR, 300 * DAY):
            machine.set_wall(seconds)
            machine.pass_time(30)
            with pytest.raises(ColumnLocked):
                await put(table, 2)
            assert await table.scan().as_of(snapshot).to_pylist() == [{"k": 1, "v": 1}]
            assert [each.id for each in await table.consumers()] == ["reader"]
            assert [each.token for each in await client.transactions()] == [transaction.token]
        machine.pass_time(11)
        await put(table, 2)
        with pytest.raises(LockLost):
            await lock.renew()
        with pytest.raises(SnapshotLost):
            await table.scan().as_of(snapshot).to_pylist()
        await server._tables.transactions._expire()
        with pytest.raises(TransactionLost):
            await transaction.upsert(table, [{"k": 3, "v": 3}])
        await server._tables.consumers._expire()
        assert await table.consumers() == []
        with pytest.raises(ConsumerNotFound):
            await table.reset_consumer("reader", StartFrom.EARLIEST)


async def test_a_consumer_that_was_deleted_and_made_again_gets_another_fence_although_the_clock_went_back(
    tmp_path: Path,
) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (_, client):
        table = await make(client)
        await put(table, 1)
        follower = table.changes(StartFrom.EARLIEST, consumer_id="reader")
        async with follower.stream() as old:
            await anext(aiter(old))
            await table.delete_consumer("reader")
            machine.set_wall(-DAY)
            async with follower.stream() as new:
                await anext(aiter(new))
                with pytest.raises(ConsumerFenced):
                    await old.commit()
                await new.commit()


@pytest.mark.parametrize("harm", ["damaged", "removed"])
async def test_a_server_whose_clock_file_is_lost_serves_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    machine = FakeClocks()
    async with serving(tmp_path / "data", machine) as (_, client):
        await make(client, merge_engine="aggregate", aggregators={"v": agg.sum()})
        machine.pass_time(HOUR)
    async with serving(tmp_path / "data", machine) as (server, client):
        await add_five(server, 7, 0)
    file = tmp_path / "data" / "clock.json"
    assert "clock.json" not in caplog.text
    if harm == "damaged":
        stored = json.loads(file.read_text())
        file.write_text(json.dumps({**stored, "crc32c": stored["crc32c"] ^ 1}))
    else:
        file.unlink()
    async with serving(tmp_path / "data", machine) as (server, client):
        assert "clock.json" in caplog.text
        await look_after(server, "a.b")
        await add_five(server, 7, 20)
        assert await (await client.table("a.b")).get(1) == {"k": 1, "v": 5}


async def test_a_jump_is_stored_soon_so_that_a_crash_knows_of_it(tmp_path: Path) -> None:
    machine = FakeClocks()
    file = tmp_path / "data" / "clock.json"

    async def is_stored() -> bool:
        return file.exists() and bool(json.loads(file.read_text())["content"]["doubtful"])

    async with serving(tmp_path / "data", machine, clock_trust_seconds=50) as (_, client):
        machine.set_wall(DAY)
        assert (await client.stats()).clock_jumps == 1
        machine.pass_time(60)
        await await_until(is_stored, "the jump stored")
