"""Calls that wait for another version: which ones are woken, in which turns of the event loop, and what remains."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import ServerDraining
from streaming_server.scan.admission.waiting_calls import WaitingCalls
from streaming_server.scan.admission.wakeup_throttle import WakeupThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio

LONG = 100.0


class Thing:
    """An object with a version."""

    def __init__(self) -> None:
        self.version: bytes | None = b"v1"
        self.listeners: list[Callable[[], None]] = []
        self.looks = 0

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def look(self) -> bytes | None:
        self.looks += 1
        return self.version

    def commit(self, version: bytes | None) -> None:
        self.version = version
        for listener in list(self.listeners):
            listener()


@dataclass
class Question:
    source: Thing
    version: bytes = b"v1"
    ticks: bool = False

    @property
    def again(self) -> Callable[[], bytes | None]:
        return self.source.look


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_crowd_goes_on_in_its_order_and_a_few_in_each_turn() -> None:
    crowd, gone = WakeupThrottle(), []

    async def one(number: int) -> None:
        await crowd.wait()
        gone.append(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(100)]
    await turns()
    tasks[40].cancel()
    await turns()
    assert len(crowd) == 99
    crowd.wake()
    seen = []
    while len(gone) < 99:
        before = len(gone)
        await asyncio.sleep(0)
        seen.append(len(gone) - before)
    assert max(seen) <= 20
    assert gone == [*range(40), *range(41, 100)]
    assert len(crowd) == 0


async def test_all_who_wait_for_the_same_share_a_listener_and_one_look_at_a_commit() -> None:
    calls, thing = WaitingCalls(100), Thing()
    waiting = [asyncio.ensure_future(calls.wait_for_change(Question(thing), LONG)) for _ in range(30)]
    await turns()
    assert (calls.waiting, len(thing.listeners), thing.looks) == (30, 1, 0)
    thing.commit(b"v1")
    await turns()
    assert (calls.waiting, thing.looks) == (30, 1)
    thing.commit(b"v2")
    assert thing.listeners == []
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert (calls.waiting, thing.looks) == (0, 2)


@pytest.mark.parametrize("version", [b"v2", None])
async def test_those_who_wait_for_another_version_or_thing_are_left_alone(version: bytes | None) -> None:
    calls, thing, other = WaitingCalls(100), Thing(), Thing()
    woken = asyncio.ensure_future(calls.wait_for_change(Question(thing), LONG))
    left = asyncio.ensure_future(calls.wait_for_change(Question(other), LONG))
    await turns()
    thing.commit(version)
    await asyncio.wait_for(woken, 60)
    await turns()
    assert not left.done()
    assert (calls.waiting, len(other.listeners)) == (1, 1)
    left.cancel()
    await asyncio.wait([left])
    assert (calls.waiting, other.listeners) == (0, [])


async def test_the_time_ends_a_wait_and_the_others_go_on() -> None:
    calls, thing = WaitingCalls(100), Thing()
    long = asyncio.ensure_future(calls.wait_for_change(Question(thing), LONG))
    await turns()
    await calls.wait_for_change(Question(thing), 0.01)
    assert (calls.waiting, len(thing.listeners)) == (1, 1)
    thing.commit(b"v2")
    await asyncio.wait_for(long, 60)


async def test_who_comes_while_others_are_being_woken_waits_for_the_next_change() -> None:
    calls, thing = WaitingCalls(1000), Thing()
    waiting = [asyncio.ensure_future(calls.wait_for_change(Question(thing), LONG)) for _ in range(100)]
    await turns()
    thing.commit(b"v2")
    late = asyncio.ensure_future(calls.wait_for_change(Question(thing, b"v2"), LONG))
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert not late.done()
    assert len(thing.listeners) == 1
    thing.commit(b"v3")
    await asyncio.wait_for(late, 60)
    assert (calls.waiting, thing.listeners) == (0, [])


async def test_it_is_full_with_as_many_as_may_wait() -> None:
    calls, thing = WaitingCalls(2), Thing()
    waiting = []
    for full in (False, False, True):
        assert calls.is_full is full
        waiting.append(asyncio.ensure_future(calls.wait_for_change(Question(thing), LONG)))
        await turns()
    calls.close()
    await asyncio.wait(waiting)
    assert [type(task.exception()) for task in waiting] == [ServerDraining] * 3
    assert WaitingCalls(0).is_full
