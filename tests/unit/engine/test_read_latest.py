"""What `read_latest` shows, and for what it does not wait: neither for a sync nor for a transaction being applied."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING

import pytest

import streaming_server.engine.transactions.roll_forward as roll_forward_module
from scankv.model.changes.log_positions import StopAt
from scankv.model.errors import Unavailable
from streaming_server.engine.bucket.commit_barrier import BarrierMutex
from streaming_server.engine.transactions.staged_rows import read_staged_rows
from streaming_server.scan.chunk_source import Chunk
from tests.support.plans import log_plan_of, plan_of
from tests.support.snapshots import new_table, tables_in
from tests.support.waiting import await_until
from tests.unit.engine.test_commit_barrier import KEYS, PLAYERS, committing, fail_to_apply, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable

pytestmark = pytest.mark.asyncio


async def look_up(table: LiveTable, *, latest: bool) -> list[int]:
    batch, _, _ = await table.reads.lookup(KEYS, None, latest=latest)
    return list(batch["score"].to_pylist())


async def scan(table: LiveTable, *, latest: bool) -> list[int]:
    found: list[int] = []
    with closing((await table.reads.open_view(plan_of(latest=latest))).source) as source:
        while (chunk := source.next_chunk(1000, 1 << 20)) is not None:
            found += chunk.batch["score"].to_pylist()
    return found


async def changes(table: LiveTable, *, latest: bool) -> int:
    """Returns how many rows the changes so far have. An update has two."""
    plan = log_plan_of(stop=StopAt.LATEST, latest=latest)
    found = 0
    with closing((await table.changes.open(plan, "test")).source) as source:
        while isinstance(chunk := source.next_chunk(1000, 1 << 20), Chunk):
            found += chunk.batch.num_rows
    assert chunk is None
    return found


@contextmanager
def waiting_syncs(live: LiveBucket) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Makes syncs of a bucket wait. Yields an event for the first one, and the event that lets all continue."""
    begun, go_on = threading.Event(), threading.Event()
    assert live._commit is not None
    sync = live._commit._sync

    def wait_and_sync(offset: int) -> None:
        begun.set()
        assert go_on.wait(60)
        sync(offset)

    live._commit._sync = wait_and_sync
    try:
        yield begun, go_on
    finally:
        go_on.set()
        live._commit._sync = sync


@asynccontextmanager
async def paused_after_the_first_request(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[asyncio.Event, ...]]:
    """Lets a transaction apply its first request only. Yields an event for that, and one that lets it continue."""
    paused, go_on = asyncio.Event(), asyncio.Event()
    read = read_staged_rows

    @asynccontextmanager
    async def read_and_pause(*args: object) -> AsyncIterator[object]:
        async with read(*args) as requests:  # type: ignore[arg-type]

            async def each() -> AsyncIterator[object]:
                number = 0
                async for request in requests:
                    if number == 1:
                        paused.set()
                        await go_on.wait()
                    number += 1
                    yield request

            yield each()

    monkeypatch.setattr(roll_forward_module, "read_staged_rows", read_and_pause)
    yield paused, go_on
    monkeypatch.undo()


@pytest.mark.parametrize("buckets", [1, 2])
async def test_rows_are_read_before_their_sync_and_committed_reads_wait_for_it(tmp_path: Path, buckets: int) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=buckets)
        await table.writes.upsert(rows(1), 0)
        with ExitStack() as stack:
            syncs = [stack.enter_context(waiting_syncs(live)) for live in table.buckets]
            write = asyncio.create_task(table.writes.upsert(rows(2), 0))
            for begun, _ in syncs:
                await asyncio.to_thread(begun.wait, 60)
            # A write to one bucket syncs with the mutex held if no other caller waits for it.
            assert all(live.mutex.locked() == live.mutex.is_shared == (buckets == 1) for live in table.buckets)
            committed = [asyncio.create_task(each(table, latest=False)) for each in (look_up, scan)]
            for _ in range(2):
                assert await look_up(table, latest=True) == await scan(table, latest=True) == [2] * 40
                assert (await table.reads.count(None, latest=True))[0] == 40
            async with asyncio.timeout(60):
                await asyncio.gather(*(scan(table, latest=True) for _ in range(10)))
            assert not write.done()
            assert not any(task.done() for task in committed)
        await write
        assert await asyncio.gather(*committed) == [[2] * 40] * 2
        assert not any(live.mutex.locked() for live in table.buckets)


async def test_a_writer_that_comes_while_a_sync_is_shared_waits_for_the_readers(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=1)
        await table.writes.upsert(rows(1), 0)
        (live,) = table.buckets
        with waiting_syncs(live) as (begun, go_on):
            first = asyncio.create_task(table.writes.upsert(rows(2), 0))
            await asyncio.to_thread(begun.wait, 60)
            async with live.mutex.read_latest(), live.mutex.read_latest():
                second = asyncio.create_task(table.writes.upsert(rows(3), 0))
                go_on.set()
                await first
                # The first writer is done, but the readers still have what it has left.
                assert live.mutex.locked()
                assert not second.done()
                bucket = await live.open()
                assert bucket.state.log_offset == live.durable_offset
        await second
        assert await scan(table, latest=True) == [3] * 40
        assert not live.mutex.locked()


async def test_a_holder_with_a_waiting_reader_does_not_begin_a_sync() -> None:
    mutex = BarrierMutex()
    async with mutex:
        reading = asyncio.create_task(_read(mutex))
        await asyncio.sleep(0)
        assert not mutex.begin_sync()
        assert not mutex.is_shared
    await reading
    async with mutex:
        assert mutex.begin_sync()
        await _read(mutex)
        mutex.end_sync()
        reading = asyncio.create_task(_read(mutex))
        await asyncio.sleep(0)
        assert not reading.done()
    await reading
    assert not mutex.locked()


async def _read(mutex: BarrierMutex) -> None:
    async with mutex.read_latest():
        pass


async def test_a_part_of_a_transaction_is_read_while_it_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=2)
        await table.writes.upsert(rows(1), 0)
        async with paused_after_the_first_request(monkeypatch) as (paused, go_on):
            async with committing(tables, (table, rows(2, PLAYERS[:20])), (table, rows(2, PLAYERS[20:]))) as commit:
                await paused.wait()
                waiting = asyncio.create_task(scan(table, latest=False))
                assert await look_up(table, latest=False) == [1] * 40
                assert await look_up(table, latest=True) == [2] * 20 + [1] * 20
                assert sorted(await scan(table, latest=True)) == [1] * 20 + [2] * 20
                _, offsets = await table.reads.count(None, latest=True)
                assert sum(offsets.values()) > sum(live.durable_offset for live in table.buckets)
                assert not waiting.done()
                assert await changes(table, latest=True) == 40 + 2 * 20
                go_on.set()
                await commit
            assert await changes(table, latest=True) == await changes(table, latest=False) == 40 + 2 * 40
            assert await waiting == await scan(table, latest=True) == [2] * 40


async def test_staged_rows_are_not_read_before_the_commit(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=2)
        await table.writes.upsert(rows(1), 0)
        async with committing(tables, (table, rows(2))) as commit:
            # The commit has not run yet: the task begins with the next turn of the event loop.
            assert await look_up(table, latest=True) == [1] * 40
            await commit
        assert await look_up(table, latest=True) == [2] * 40


async def test_a_bucket_that_lacks_rows_of_a_transaction_refuses_to_read_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=2)
        await table.writes.upsert(rows(1), 0)
        await fail_to_apply(monkeypatch, tables, table, rows(2))
        for call in (table.reads.count(None, latest=True), scan(table, latest=True), look_up(table, latest=True)):
            with pytest.raises(Unavailable, match="lacks rows of a committed transaction"):
                await call
        blocked = [live for live in table.buckets if live.mutex.failure is not None]
        for live in blocked:
            with pytest.raises(Unavailable, match="lacks rows"):
                _ = live.applied_state

            async def is_free(live: LiveBucket = live) -> bool:
                return not live.mutex.locked()

            await await_until(is_free, "the mutex free")
