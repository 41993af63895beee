"""Writers: batches in the background, each row once and in order, despite failures of connection and server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    ColumnLocked,
    ConnectionFailed,
    InvalidKey,
    RequestTooLarge,
    SchemaMismatch,
    StartFrom,
    StopAt,
    Table,
    TableNotFound,
    UsageError,
    WriterFenced,
    connect,
)
from aio_client.testing import Fault, FaultProxy
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from aio_client import Client

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


async def made(client: Client, name: str, buckets: int = 3) -> Table:
    """Makes a table in whose changelog each application of a write is a change."""
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=buckets, row_deduplicate=False)


def rows(keys: range | list[int], value: int) -> pa.Table:
    return pa.table({"k": list(keys), "v": [value] * len(keys)}, schema=SCHEMA)


async def applied(table: Table) -> list[tuple[int, int]]:
    """Returns key and value of every insert and update, by bucket in the order of application."""
    scan = table.changes(StartFrom.EARLIEST, StopAt.LATEST)
    changes = (await scan.to_arrow()).to_pylist()
    return [(change["k"], change["v"]) for change in changes if change["_change_type"] in ("+I", "+U")]


async def test_rows_are_written_in_batches_and_flush_tells_where(client: Client, name: str) -> None:
    table = await made(client, name)
    async with table.writer(batch_delay=3600) as writer:
        for start in range(0, 1000, 10):
            await writer.upsert(rows(range(start, start + 10), start))
        assert await table.count() == 0
        assert writer.buffered_bytes > 0
        first = await writer.flush()
        assert (first.rows, sum(first.log_offsets.values()), writer.buffered_bytes) == (1000, 1000, 0)
        # One request for each lane; there are three buckets.
        assert writer.next_sequence == 3
        await writer.delete(range(500))
        second = await writer.flush()
        assert (second.rows, sum(second.log_offsets.values())) == (500, 1500)
        assert (await writer.flush()).rows == 0
        await writer.upsert([{"k": 0, "v": -1}])
    assert await table.count() == 501
    assert await table.get(0) == {"k": 0, "v": -1}


async def test_rows_go_out_when_there_are_enough_or_when_it_is_time(client: Client, name: str) -> None:
    table = await made(client, name, buckets=1)
    async with table.writer(batch_bytes=1600, batch_delay=3600, in_flight=1) as writer:
        await writer.upsert(rows(range(99), 0))
        assert await table.count() == 0
        await writer.upsert(rows([99], 0))
        await await_until(table.count, "the rows went out")
    async with table.writer(batch_delay=0.01) as writer:
        await writer.upsert(rows([1000], 0))
        await await_until(lambda: table.get(1000), "the row went out")


@pytest.mark.parametrize(("buckets", "in_flight"), [(1, 1), (1, 4), (2, 5), (3, 16), (16, 4)])
@pytest.mark.breadth
async def test_writes_of_one_key_are_applied_in_their_order(
    client: Client, name: str, buckets: int, in_flight: int
) -> None:
    table = await made(client, name, buckets)
    async with table.writer(batch_bytes=200, in_flight=in_flight) as writer:
        for value in range(30):
            await writer.upsert(rows(range(40), value))
            if value % 10 == 9:
                await writer.delete(list(range(0, 40, 2)))
    by_key: dict[int, list[int]] = {}
    for key, value in await applied(table):
        by_key.setdefault(key, []).append(value)
    # Of several rows with one key in a request, the last one wins: some may be missing, but none is repeated or late.
    for key, values in by_key.items():
        assert values == sorted(set(values)), key
        assert values[-1] == 29, key
    assert await table.count() == 20


@pytest.mark.breadth
async def test_a_writer_that_has_taken_enough_waits(proxy: FaultProxy, name: str) -> None:
    async with connect(proxy.address) as client:
        table = await made(client, name)
        batch = rows(range(1000), 1)
        async with table.writer(batch_bytes=1000, max_buffered_bytes=4 * batch.nbytes) as writer:
            proxy.apply(Fault("stall"))

            async def write() -> None:
                for _ in range(10):
                    await writer.upsert(batch)

            writing = asyncio.create_task(write())
            await await_until(_async(lambda: writer.buffered_bytes >= 3 * batch.nbytes), "some are taken")
            for _ in range(20):
                await asyncio.sleep(0)
                assert writer.buffered_bytes <= 4 * batch.nbytes
            assert not writing.done()
            proxy.resume()
            await writing
            assert (await writer.flush()).rows == 10_000


async def test_a_writer_rides_through_cuts_and_writes_each_row_once(proxy: FaultProxy, name: str) -> None:
    async with connect(proxy.address, attempt_timeout=5) as client:
        table = await made(client, name)
        async with table.writer(batch_bytes=2000) as writer:
            for value in range(40):
                await writer.upsert(rows(range(100), value))
                if value % 4 == 3:
                    proxy.apply(Fault("reset", after_bytes=(value * 37) % 300))
            await writer.flush()
        found = await applied(table)
        assert len(found) == len(set(found))
        assert {pair for pair in found if pair[1] == 39} == {(key, 39) for key in range(100)}


async def test_a_named_writer_fences_the_one_before_and_goes_on_behind_it(client: Client, name: str) -> None:
    table = await made(client, name)

    async def open_twice() -> None:
        async with table.writer(id="job-1") as old:
            await old.upsert(rows([1, 2, 3], 1))
            await old.flush()
            assert old.epoch == 1
            async with table.writer(id="job-1") as new, table.writer(id="job-2") as other:
                assert (new.epoch, new.next_sequence, other.epoch) == (2, old.next_sequence, 1)
                await old.upsert(rows([1], 2))
                with pytest.raises(WriterFenced, match="1 row not acknowledged") as caught:
                    await old.flush()
                assert caught.value.details["rows"] == "1"
                with pytest.raises(WriterFenced):
                    await old.upsert(rows([1], 3))
                await new.upsert(rows([1], 4))
                await other.upsert(rows([2], 5))

    # Leaving the block of the old writer raises it once more.
    with pytest.raises(WriterFenced):
        await open_twice()
    assert sorted(await applied(table)) == [(1, 1), (1, 4), (2, 1), (2, 5), (3, 1)]


@pytest.mark.parametrize("tablets", [1, 2])
async def test_a_named_writer_is_fenced_when_another_table_has_the_name_and_lacks_a_column(
    client: Client, name: str, tablets: int
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, tablets=tablets)

    async def write_to_both() -> None:
        async with table.writer(id="job-1") as writer:
            await writer.upsert(rows([1], 1))
            await writer.flush()
            await client.drop_table(name)
            await client.create_table(name, pa.schema([("k", pa.int64())]), primary_key=["k"], tablets=tablets)
            await writer.upsert(rows([1], 2))
            await writer.flush()

    with pytest.raises(WriterFenced):
        await write_to_both()


async def test_the_first_failure_ends_a_writer_and_says_what_was_lost(client: Client, name: str) -> None:
    table = await made(client, name)
    writer = table.writer(batch_delay=3600)

    async def write() -> None:
        async with writer:
            await writer.upsert(rows(range(10), 1))
            await writer.flush()
            await client.drop_table(name)
            await writer.upsert(rows(range(20), 2))
            with pytest.raises(TableNotFound):
                await writer.flush()
            with pytest.raises(TableNotFound):
                await writer.upsert(rows(range(20), 3))

    with pytest.raises(TableNotFound, match=r"20 rows not acknowledged: those of requests \d to \d") as caught:
        await write()
    assert caught.value.details["rows"] == "20"
    assert int(caught.value.details["first_sequence"]) >= 3
    with pytest.raises(TableNotFound):
        await writer.upsert(rows([1], 1))


@pytest.mark.breadth
@pytest.mark.one_process
async def test_nothing_is_written_behind_a_request_that_was_not_answered(
    client: Client, proxy: FaultProxy, name: str
) -> None:
    table = await made(client, name)

    async def write(through: Table) -> None:
        async with through.writer(batch_bytes=1, in_flight=1) as writer:
            await writer.upsert(rows([1], 1))
            await writer.flush()
            proxy.refuse()
            proxy.apply(Fault("reset"))
            for value in range(2, 6):
                await writer.upsert(rows([1], value))
            await writer.flush()

    async with connect(proxy.address, operation_timeout=3) as through:
        with pytest.raises(ConnectionFailed) as caught:
            await write(await through.table(name))
    assert int(caught.value.details["rows"]) in range(1, 5)
    assert await applied(table) in ([(1, 1)], [(1, 1), (1, 2)])


async def test_bad_rows_are_refused_and_the_writer_goes_on(client: Client, name: str) -> None:
    table = await made(client, name)
    async with table.writer() as writer:
        for bad, error in (
            ([{"k": 1, "v": 1}, {"k": 2, "w": 1}], SchemaMismatch),
            ([{"k": 1, "v": 1}, {"k": None, "v": 1}], SchemaMismatch),
            ([{"k": 1, "v": 1}, {"k": 2, "v": "x"}], SchemaMismatch),
            ({"k": 1}, UsageError),
        ):
            with pytest.raises(error):
                await writer.upsert(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidKey):
            await writer.delete(["x"])
        await writer.upsert([{"k": 9, "v": 9}])
    assert await table.scan().to_pylist() == [{"k": 9, "v": 9}]


async def test_rows_that_are_too_long_are_refused_before_any_is_taken(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    table = await client.create_table(name, schema, primary_key=["k"])
    async with table.writer() as writer:
        with pytest.raises(RequestTooLarge):
            await writer.upsert([{"k": 1, "v": b""}, {"k": 2, "v": bytes(17 << 20)}])
        # More than the target size of a request, but less than its limit.
        await writer.upsert([{"k": key, "v": bytes(3 << 20)} for key in range(6)])
    assert await table.count() == 6


async def test_a_block_that_fails_sends_nothing_more(client: Client, name: str) -> None:
    table = await made(client, name)

    async def write() -> None:
        async with table.writer(batch_delay=3600) as writer:
            await writer.upsert(rows([1], 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write()
    assert await table.count() == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("lane of")]


async def test_a_writer_locks_its_columns_while_it_is_entered(client: Client, name: str) -> None:
    table = await made(client, name)
    async with table.writer(id="job-1", columns=["v"], lock=True) as writer:
        with pytest.raises(ColumnLocked, match='"job-1" has locked v'):
            await table.upsert(rows([1], 1))
        with pytest.raises(ColumnLocked):
            async with table.writer(id="job-2", columns=["v"], lock=True):
                raise AssertionError("both have the lock")
        await writer.upsert(rows([1], 2))
        await writer.flush()
        # The same job starts again while its earlier instance still runs: that one is fenced, and its lock is taken
        # over.
        async with table.writer(id="job-1", columns=["v"], lock=True) as successor:
            await successor.upsert(rows([1], 3))
    assert await client.column_locks(name) == []
    await table.upsert(rows([2], 1))
    assert sorted(await applied(table)) == [(1, 2), (1, 3), (2, 1)]


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_bytes": 0},
        {"batch_bytes": (8 << 20) + 1},
        {"batch_delay": -1},
        {"batch_delay": True},
        {"max_buffered_bytes": 0},
        {"in_flight": 0},
        {"in_flight": 17},
        {"in_flight": 1.5},
        {"lock": True},
        {"id": "a/b"},
        {"id": ""},
        {"columns": ["v"], "lock": True, "lock_ttl": 0},
    ],
)
async def test_settings_out_of_their_range_are_refused(client: Client, name: str, settings: dict[str, Any]) -> None:
    table = await made(client, name)
    with pytest.raises(UsageError):
        table.writer(**settings)


async def test_a_writer_is_entered_once(client: Client, name: str) -> None:
    table = await made(client, name)
    writer = table.writer()
    with pytest.raises(UsageError, match="is not open"):
        await writer.upsert(rows([1], 1))
    async with writer:
        with pytest.raises(UsageError, match="was entered before"):
            await writer.__aenter__()
    with pytest.raises(UsageError, match="was entered before"):
        await writer.__aenter__()


def _async(condition: Any) -> Any:
    async def call() -> Any:
        return condition()

    return call
