"""Which scan may build a chunk when, while other calls are answered."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from streaming_server.scan.admission.chunk_turns import ChunkTurns

pytestmark = pytest.mark.asyncio


async def _run_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lone_scan_never_waits_for_more_than_some_turns() -> None:
    turns = ChunkTurns()
    for _ in range(3):
        waiting = asyncio.create_task(turns.wait())
        await _run_turns(12)
        assert waiting.done()


async def test_scans_wait_for_the_end_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, a few turns take longer than a scan waits.
    monkeypatch.setattr("streaming_server.scan.admission.chunk_turns._LONGEST_WAIT_SECONDS", 60.0)
    turns = ChunkTurns()
    calls = [object(), object()]
    for call in calls:
        turns.begin_call(call)
    waiting = asyncio.create_task(turns.wait())
    await _run_turns(3)
    turns.end_call(calls[0])
    await _run_turns(3)
    assert not waiting.done()
    turns.end_call(calls[1])
    await _run_turns(2)
    assert waiting.done()


async def test_a_scan_waits_for_a_long_call_once_and_briefly() -> None:
    turns, call = ChunkTurns(), object()
    turns.begin_call(call)
    await asyncio.wait_for(turns.wait(), 10)
    waiting = asyncio.create_task(turns.wait())
    await _run_turns(12)
    assert waiting.done()
    turns.end_call(call)


async def test_after_a_call_the_chunks_of_two_scans_are_turns_apart_and_the_scans_alternate() -> None:
    turns, turn, call = ChunkTurns(), 0, object()
    turns.begin_call(call)
    turns.end_call(call)
    built: list[tuple[str, int]] = []

    async def scan(name: str) -> None:
        for _ in range(3):
            await turns.wait()
            built.append((name, turn))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(scan(name)) for name in "ab"]
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    assert [name for name, _ in built] == ["a", "b", "a", "b", "a", "b"]
    at = [when for _, when in built]
    assert all(later - earlier >= 5 for earlier, later in pairwise(at))


async def test_a_scan_that_is_cancelled_gives_its_turn_to_the_next() -> None:
    turns, call = ChunkTurns(), object()
    turns.begin_call(call)
    cancelled, other = asyncio.create_task(turns.wait()), asyncio.create_task(turns.wait())
    await _run_turns(2)
    cancelled.cancel()
    turns.end_call(call)
    await asyncio.wait_for(other, 10)
    assert cancelled.cancelled()


async def test_after_an_event_a_scan_waits_longer_because_the_event_may_be_another_call() -> None:
    events, call = 0, object()
    turns = ChunkTurns(lambda: events)
    turns.begin_call(call)
    turns.end_call(call)

    async def count_turns() -> int:
        waiting, count = asyncio.create_task(turns.wait()), 0
        while not waiting.done():
            count += 1
            await asyncio.sleep(0)
        return count

    await turns.wait()
    quiet = await count_turns()
    events += 1
    assert await count_turns() >= quiet + 3
    assert await count_turns() <= quiet
