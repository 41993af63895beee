"""Offsets of a table that was restored, or dropped and created again are refused by every call that takes offsets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import LogOffsets, StartFrom, StopAt, TableRecreated, UsageError
from aio_client.mirror import mirror

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


async def created(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


async def filled(table: Table, value: int) -> None:
    async with table.writer(id="job") as writer:
        await writer.upsert([{"k": k, "v": value} for k in range(90)])


async def stored(offsets: LogOffsets) -> LogOffsets:
    """Returns the offsets as a job stores them, as JSON text."""
    return LogOffsets.from_json(offsets.to_json())


async def of_a_stream(table: Table) -> LogOffsets:
    async with table.changes(StartFrom.EARLIEST, StopAt.LATEST).stream() as stream:
        return stream.log_offsets


async def of_the_end_of_a_stream(table: Table) -> LogOffsets:
    async with table.changes(StartFrom.EARLIEST, StopAt.LATEST).stream() as stream:
        async for _ in stream:
            pass
        return stream.next_offsets


async def of_a_scan(table: Table) -> LogOffsets:
    async with table.scan().stream() as stream:
        return stream.log_offsets


async def of_a_lookup(table: Table) -> LogOffsets:
    return (await table.lookup(list(range(90)), with_version=True)).log_offsets


async def of_a_write(table: Table) -> LogOffsets:
    return (await table.upsert([{"k": k, "v": 5} for k in range(90)])).log_offsets


async def of_a_writer(table: Table) -> LogOffsets:
    async with table.writer() as writer:
        await writer.upsert([{"k": k, "v": 6} for k in range(90)])
        return (await writer.flush()).log_offsets


async def of_a_snapshot(table: Table) -> LogOffsets:
    async with table.snapshot() as snapshot:
        return snapshot.log_offsets


async def of_an_undo(table: Table) -> LogOffsets:
    return (await table.undo("nobody", await table.log_offsets())).log_offsets


async def of_a_commit_of_a_consumer(table: Table) -> LogOffsets:
    async with table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="reader").stream() as stream:
        async for _ in stream:
            pass
        return await stream.commit()


async def of_a_reset(table: Table) -> LogOffsets:
    await of_a_commit_of_a_consumer(table)
    return await table.reset_consumer("reader", StartFrom.EARLIEST)


async def of_a_consumer(table: Table) -> LogOffsets:
    await of_a_commit_of_a_consumer(table)
    [consumer] = await table.consumers()
    return consumer.log_offsets


async def of_a_mirror(table: Table) -> LogOffsets:
    async with mirror(table) as local:
        return local.log_offsets


async def of_the_table(table: Table) -> LogOffsets:
    return await table.log_offsets()


@pytest.mark.parametrize(
    "given",
    [
        of_a_stream,
        of_the_end_of_a_stream,
        of_a_scan,
        of_a_lookup,
        of_a_write,
        of_a_writer,
        of_a_snapshot,
        of_an_undo,
        of_a_commit_of_a_consumer,
        of_a_reset,
        of_a_consumer,
        of_a_mirror,
        of_the_table,
    ],
)
async def test_every_answer_with_offsets_says_which_table_they_are_of(
    client: Client, name: str, given: Callable[[Table], Awaitable[LogOffsets]]
) -> None:
    table = await created(client, name)
    await filled(table, 1)
    before = await given(table)
    assert type(before) is LogOffsets
    assert set(before) == {0, 1}
    incarnation = (await table.log_offsets()).table_incarnation
    assert before.table_incarnation == incarnation != ""
    assert (await stored(before)).table_incarnation == incarnation


async def test_a_transaction_says_of_each_table_which_it_is(client: Client, name: str) -> None:
    one, other = await created(client, name), await created(client, f"{name}_other")
    async with client.transaction() as tx:
        for table in (one, other):
            await tx.upsert(table, [{"k": k, "v": 1} for k in range(90)])
    assert tx.result is not None
    for table in (one, other):
        offsets = tx.result.log_offsets[table.name]
        assert offsets == await table.log_offsets()
        assert offsets.table_incarnation == (await table.log_offsets()).table_incarnation


async def start(table: Table, offsets: LogOffsets) -> object:
    return await table.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_arrow()


async def clamped_start(table: Table, offsets: LogOffsets) -> object:
    return await table.changes(StartFrom.offsets(offsets), StopAt.LATEST, clamp=True).to_arrow()


async def stop(table: Table, offsets: LogOffsets) -> object:
    return await table.changes(StartFrom.EARLIEST, StopAt.offsets(offsets)).to_arrow()


async def start_of_a_new_consumer(table: Table, offsets: LogOffsets) -> object:
    async with table.changes(StartFrom.offsets(offsets), consumer_id="late").stream() as stream:
        return stream.log_offsets


async def start_of_a_known_consumer(table: Table, offsets: LogOffsets) -> object:
    async with table.changes(StartFrom.offsets(offsets), consumer_id="reader").stream() as stream:
        return stream.log_offsets


async def reset(table: Table, offsets: LogOffsets) -> object:
    return await table.reset_consumer("reader", StartFrom.offsets(offsets), clamp=True)


async def undo(table: Table, offsets: LogOffsets) -> object:
    return await table.undo("job", offsets)


async def undo_that_has_opted_out_of_nothing(table: Table, offsets: LogOffsets) -> object:
    return await table.undo("job", offsets, any_incarnation=True)


async def upsert(table: Table, offsets: LogOffsets) -> object:
    return await table.upsert([{"k": 1, "v": 9}], if_version=offsets)


async def delete(table: Table, offsets: LogOffsets) -> object:
    return await table.delete([1], if_version=offsets)


async def wait_of_a_mirror(table: Table, offsets: LogOffsets) -> object:
    async with mirror(table) as local:
        await local.wait_for(offsets)
        return local


@pytest.mark.parametrize(
    "use",
    [
        start,
        clamped_start,
        stop,
        start_of_a_new_consumer,
        start_of_a_known_consumer,
        reset,
        undo,
        undo_that_has_opted_out_of_nothing,
        upsert,
        delete,
        wait_of_a_mirror,
    ],
)
@pytest.mark.represented_by("start", "wait_of_a_mirror")
async def test_what_takes_offsets_refuses_those_of_the_table_before(
    client: Client, name: str, use: Callable[[Table, LogOffsets], Awaitable[object]]
) -> None:
    old = await created(client, name)
    await filled(old, 1)
    offsets = await stored(await old.log_offsets())
    await client.drop_table(name)
    table = await created(client, name)
    # The same offsets exist again: only the incarnation distinguishes them.
    await filled(table, 2)
    await of_a_commit_of_a_consumer(table)
    consumers = [consumer.log_offsets for consumer in await table.consumers()]
    with pytest.raises(TableRecreated, match="dropped and created again") as caught:
        await use(table, offsets)
    assert caught.value.details["table"] == name
    assert await table.count(where="v = 2") == 90
    assert [consumer.log_offsets for consumer in await table.consumers()] == consumers
    # Offsets of the current table are accepted.
    await filled(table, 3)
    await use(table, await stored(await table.log_offsets()))


async def test_undo_refuses_offsets_that_do_not_say_of_which_table_they_are(client: Client, name: str) -> None:
    table = await created(client, name)
    bare = dict(await table.log_offsets())
    await filled(table, 1)
    for unknown in (bare, LogOffsets(bare)):
        with pytest.raises(UsageError, match="any_incarnation=True"):
            await table.undo("job", unknown)
    assert await table.count() == 90
    assert (await table.undo("job", bare, any_incarnation=True)).deleted == 90
    assert await table.count() == 0


async def test_json_keeps_offsets_and_table_through_what_makes_text_of_keys(client: Client, name: str) -> None:
    table = await created(client, name)
    await filled(table, 1)
    offsets = await table.log_offsets()
    for again in (
        LogOffsets.from_json(offsets.to_json()),
        LogOffsets.from_json(json.loads(offsets.to_json())),
        LogOffsets.from_json(json.dumps(json.loads(offsets.to_json())).encode()),
    ):
        assert again == offsets
        assert again.table_incarnation == offsets.table_incarnation
        assert all(type(bucket) is int for bucket in again)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": range(first, first + count), "v": [0] * count}, schema=SCHEMA)


@pytest.mark.parametrize("tablets", [1, 2])
async def test_a_write_of_several_requests_fails_if_its_table_is_created_again_between_them(
    client: Client, name: str, tablets: int
) -> None:
    async def create() -> Table:
        return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, tablets=tablets)

    async def create_again() -> None:
        assert await (await client.table(name)).count() == 60_000
        await client.drop_table(name)
        await create()

    loop = asyncio.get_running_loop()

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 60_000)
        yield numbers(60_000, 60_000)
        # Now the first batch is written, and the second one waits.
        asyncio.run_coroutine_threadsafe(create_again(), loop).result()
        yield numbers(120_000, 10)

    with pytest.raises(TableRecreated, match="write all rows again"):
        await (await create()).upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert await (await client.table(name)).count() == 0


async def test_a_flush_fails_if_the_table_was_created_again_since_the_last_one(client: Client, name: str) -> None:
    table = await created(client, name)

    async def write() -> None:
        async with table.writer(batch_bytes=1) as writer:
            await writer.upsert(numbers(0, 10))
            async with asyncio.timeout(60):
                while await table.count() < 10:
                    pass
            await client.drop_table(name)
            await created(client, name)
            await writer.upsert(numbers(10, 10))

    with pytest.raises(TableRecreated, match="write all rows again"):
        await write()


async def test_a_writer_continues_in_a_table_that_was_created_again_after_a_flush(client: Client, name: str) -> None:
    table = await created(client, name)
    async with table.writer() as writer:
        await writer.upsert(numbers(0, 10))
        await writer.flush()
        await client.drop_table(name)
        table = await created(client, name)
        await writer.upsert(numbers(10, 10))
    assert await table.count() == 10
