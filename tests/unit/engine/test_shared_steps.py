"""Requests of several clients for one bucket: applied together, each with its own outcome."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import Unavailable, WriterFenced
from streaming_server.engine.writes.writing import WritePreconditions
from streaming_server.storage.bucket.writer_states import WriteIdentity
from tests.support.examples import FACTOR
from tests.support.snapshots import tables_in
from tests.unit.engine.test_few_rows_in_buckets import SUMS, sums

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.engine.writes.table_writes import FewWritten

pytestmark = pytest.mark.asyncio

CLIENTS = 16


async def add(table: LiveTable, writer: int, sequence: int, key: int, total: int, epoch: int = 0) -> FewWritten:
    identity = WriteIdentity(writer=f"w{writer}", epoch=epoch, sequence=sequence, acked_below=sequence)
    single = table.state.codec.single
    assert single is not None
    conditions = WritePreconditions(identity=identity)
    row = single.encode((key, total))
    return await table.writes.write_few([row], conditions, deletes=False, independent=True)


async def events(tables: Tables) -> LiveTable:
    await tables.create("test.events", SUMS, primary_key=[], bucket_key=(), buckets=1, options={})
    return tables.table("test.events")


async def appended(table: LiveTable) -> Counter[int]:
    """Returns how often each key is in a table without a primary key."""
    bucket = await table.buckets[0].open()
    records = bucket.log.read(0, bucket.state.log_offset, table.definition, max_changes=1 << 20, max_bytes=1 << 30)
    return Counter(key for record in records for key in record.changes.rows["k"].to_pylist())


async def totals_of(table: LiveTable) -> dict[int, int]:
    bucket = await table.buckets[0].open()
    single = table.state.codec.single
    assert single is not None
    keys = [single.encode_key((key, None), 0) for key in range(200)]
    rows = [single.decode(row) for row in bucket.get(keys) if row is not None]
    return {row[0]: row[1] for row in rows}


async def open_writers(table: LiveTable) -> None:
    """Makes all writers known."""
    for writer in range(CLIENTS):
        await add(table, writer, 0, 0, 0)


async def test_concurrent_requests_share_syncs_and_have_their_own_offsets(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables, buckets=1)
        await open_writers(table)
        syncs = table.buckets[0].syncs
        written = await asyncio.gather(*(add(table, writer, 1, 1 + writer, 1) for writer in range(CLIENTS)))
        assert table.buckets[0].syncs - syncs <= 3
        assert len({each.offsets[0] for each in written}) == CLIENTS
        assert await totals_of(table) == {0: 0} | {1 + writer: 1 for writer in range(CLIENTS)}


async def test_more_writers_than_are_kept_in_memory_share_syncs(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table, writers = await sums(tables, buckets=1), 600
        for sequence in range(3):
            syncs = table.buckets[0].syncs
            await asyncio.gather(*(add(table, writer, sequence, writer % 200, 1) for writer in range(writers)))
            assert table.buckets[0].syncs - syncs <= 20
        assert await totals_of(table) == dict.fromkeys(range(200), 9)


async def test_a_refused_or_fenced_request_does_not_affect_its_neighbours(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables, buckets=1)
        await open_writers(table)
        await add(table, 0, 1, 7, 127)
        await table.writes.open_writer("w1")
        outcomes = await asyncio.gather(
            *(add(table, writer, 2, 7 if writer == 3 else 10 + writer, 1) for writer in range(CLIENTS)),
            return_exceptions=True,
        )
        for writer, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                raise outcome
            if writer == 1:
                assert isinstance(outcome.errors[0], WriterFenced)
            elif writer == 3:
                assert "the sum does not fit int8; the row was not written" in outcome.errors[0].message
            else:
                assert outcome.errors == {}
        good = {10 + writer: 1 for writer in range(CLIENTS) if writer not in (1, 3)}
        assert await totals_of(table) == {0: 0, 7: 127} | good


async def test_all_waiting_requests_learn_why_a_bucket_cannot_be_used(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables, buckets=1)
        await open_writers(table)
        live = table.buckets[0]
        await live.mutex.acquire()
        calls = [asyncio.create_task(add(table, writer, 1, writer, 1)) for writer in range(CLIENTS)]
        for _ in range(5):
            await asyncio.sleep(0)
        live.refuse(Unavailable("the table is being moved"))
        live.mutex.release()
        for outcome in await asyncio.gather(*calls):
            assert outcome.errors[0].message == "the table is being moved"


@pytest.mark.seeds
async def test_random_cancellations_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables, buckets=1)
        await open_writers(table)
        chance, rounds, cancelled = random.Random(18), min(20 * FACTOR, 120), 0
        for sequence in range(1, rounds + 1):
            calls = [asyncio.create_task(add(table, writer, sequence, 1 + writer, 1)) for writer in range(CLIENTS)]
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            for call in chance.sample(calls, CLIENTS // 2):
                call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            cancelled += sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            # Repeated, as by a client that does not know the outcome.
            await asyncio.gather(*(add(table, writer, sequence, 1 + writer, 1) for writer in range(CLIENTS)))
        assert cancelled > rounds
        assert await totals_of(table) == {0: 0} | {1 + writer: rounds for writer in range(CLIENTS)}
        assert not table.buckets[0].mutex.locked()


@pytest.mark.seeds
async def test_concurrent_appends_share_syncs_and_are_applied_once(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await events(tables)
        await open_writers(table)
        syncs = table.buckets[0].syncs
        written = await asyncio.gather(*(add(table, writer, 1, 1 + writer, 1) for writer in range(CLIENTS)))
        assert table.buckets[0].syncs - syncs <= 3
        assert len({each.offsets[0] for each in written}) == CLIENTS
        chance, rounds = random.Random(19), min(20 * FACTOR, 120)
        for sequence in range(2, rounds + 2):
            calls = [asyncio.create_task(add(table, writer, sequence, 1 + writer, 1)) for writer in range(CLIENTS)]
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            for call in chance.sample(calls, CLIENTS // 2):
                call.cancel()
            # Repeated while the first attempts may not have ended.
            again = await asyncio.gather(*(add(table, writer, sequence, 1 + writer, 1) for writer in range(CLIENTS)))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for first, repeated in zip(outcomes, again, strict=True):
                assert isinstance(first, asyncio.CancelledError) or first == repeated
        assert await appended(table) == {0: CLIENTS} | {1 + writer: rounds + 1 for writer in range(CLIENTS)}
        assert not table.buckets[0].mutex.locked()
