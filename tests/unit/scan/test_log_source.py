"""The source of a change stream: which bucket is next, what wakes it, where it ends, what it retains."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import RangeNotTracked, ScanCancelled
from streaming_server.scan.changes.change_rows import ChangeRows
from streaming_server.scan.changes.log_source import LogSource
from streaming_server.scan.chunk_source import WAITING, Chunk, View
from streaming_server.storage.changelog.offsets import make_offset
from streaming_server.storage.cursors.cursor import SHORT_SECONDS
from tests.support.memory_log import MemoryTail, StopsAt
from tests.support.tables import define

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.records import LogRecord

pytestmark = pytest.mark.asyncio

DEFINITION = define(pa.schema([pa.field("k", pa.int64(), nullable=False)]))
MANY = 1 << 30


NOW = 1_700_000_000_000_000


def source(tails: dict[int, MemoryTail], stop: StopsAt | None = None, **starts: int) -> LogSource:
    offsets = {bucket: starts.get(f"b{bucket}", 0) for bucket in tails}
    rows = ChangeRows(DEFINITION, None, None)
    stops = stop or StopsAt()
    return LogSource("reader", rows, tails, View(offsets, 0, 0), stops, lambda: DEFINITION, now_micros=lambda: NOW)


def keys(chunk: object) -> list[int]:
    assert isinstance(chunk, Chunk)
    found: list[int] = chunk.batch.column("k").to_pylist()
    return found


async def test_buckets_that_have_something_take_turns() -> None:
    tails = {0: MemoryTail(DEFINITION), 1: MemoryTail(DEFINITION), 2: MemoryTail(DEFINITION)}
    tails[0].put(*range(6))
    tails[2].put(*range(10, 14))
    log = source(tails)
    found = [keys(log.next_chunk(2, MANY)) for _ in range(5)]
    assert found == [[0, 1], [10, 11], [2, 3], [12, 13], [4, 5]]
    assert log.next_chunk(2, MANY) is WAITING
    assert log.offsets == {0: 6, 1: 0, 2: 4}
    assert log.rows_scanned == 10


async def test_a_bucket_read_to_its_end_has_the_offset_of_its_current_epoch() -> None:
    """Otherwise a reader that waits for that offset waits until the next write, if one comes."""
    quiet, unread = MemoryTail(DEFINITION), MemoryTail(DEFINITION)
    for tail in (quiet, unread):
        tail.put(*range(3))
        tail.durable_offset = make_offset(1, 3)
    log = source({0: quiet, 1: unread}, b0=3, b1=2)
    assert log.offsets == {0: make_offset(1, 3), 1: 2}


async def test_a_commit_wakes_the_source_that_waits_and_one_between_look_and_wait_too() -> None:
    tails = {0: MemoryTail(DEFINITION), 1: MemoryTail(DEFINITION)}
    log = source(tails)
    assert log.next_chunk(8, MANY) is WAITING
    waiting = asyncio.create_task(log.wait(60))
    await asyncio.sleep(0)
    assert not waiting.done()
    tails[1].put(1)
    async with asyncio.timeout(60):
        await waiting
    assert keys(log.next_chunk(8, MANY)) == [1]
    assert log.next_chunk(8, MANY) is WAITING
    tails[0].put(2)
    async with asyncio.timeout(60):
        await log.wait(60)
    assert keys(log.next_chunk(8, MANY)) == [2]


async def test_at_the_time_of_the_stop_nothing_is_read_before_the_end_is_known() -> None:
    tail, stop = MemoryTail(DEFINITION), StopsAt(left=60.0)
    tail.put(1)
    log = source({0: tail}, stop)
    assert keys(log.next_chunk(8, MANY)) == [1]
    tail.put(2, 3)
    stop.left, stop.then = 0.0, {0: 2}
    assert log.next_chunk(8, MANY) is WAITING, "what is there may be of after the stop"
    await log.wait(60)
    assert keys(log.next_chunk(8, MANY)) == [2]
    assert log.next_chunk(8, MANY) is None


async def test_what_was_not_read_is_kept_and_nothing_when_it_is_closed() -> None:
    tails = {0: MemoryTail(DEFINITION), 1: MemoryTail(DEFINITION)}
    for tail in tails.values():
        for key in range(6):
            tail.put(key)
    log = source(tails, b0=2)
    assert [tail.trim() for tail in tails.values()] == [2, 0]
    log.next_chunk(3, MANY)
    assert [tail.trim() for tail in tails.values()] == [5, 0]
    log.close()
    log.close()
    assert [tail.trim() for tail in tails.values()] == [6, 6]
    assert not any(tail.listeners for tail in tails.values())


async def test_an_aborted_source_wakes_raises_and_lets_go() -> None:
    tail = MemoryTail(DEFINITION)
    tail.put(1)
    log = source({0: tail})
    waiting = asyncio.create_task(log.wait(60))
    await asyncio.sleep(0)
    log.abort(ScanCancelled("somebody said so"))
    async with asyncio.timeout(60):
        await waiting
    for _ in range(2):
        with pytest.raises(ScanCancelled, match="somebody"):
            log.next_chunk(8, MANY)
    assert tail.trim() == 1
    assert not tail.listeners


async def test_the_watermark_is_now_while_nothing_waits_and_unknown_else() -> None:
    tails = {0: MemoryTail(DEFINITION), 1: MemoryTail(DEFINITION)}
    log = source(tails)
    assert log.watermark() == NOW
    tails[1].write((1,))  # not yet durable, but written before the next watermark
    assert log.watermark() is None
    tails[1].sync()
    assert log.watermark() is None
    log.next_chunk(8, MANY)
    assert log.watermark() is not None


class _BusyTail(MemoryTail):
    """A tail whose reads take more processor time than one step of `prefetch` may."""

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        began = time.thread_time()
        while time.thread_time() - began < 2 * SHORT_SECONDS:
            pass
        return super().read_log(start, end, definition, max_changes=max_changes, max_bytes=max_bytes)


async def test_slow_reads_are_not_repeated() -> None:
    tail = _BusyTail(DEFINITION)
    tail.put(1)
    tail.mark(b"a", b"b")
    tail.sync()
    log = source({0: tail})
    assert not log.prefetch(8, MANY), "decoding the records is left to another turn"
    assert log.prefetch(8, MANY)
    assert keys(log.next_chunk(8, MANY)) == [1]
    assert log.prefetch(8, MANY), "nothing was read that another turn could decode"
    with pytest.raises(RangeNotTracked):
        log.next_chunk(8, MANY)
