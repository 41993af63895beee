"""A costly value is computed again only when that has become a small part of the time."""

from __future__ import annotations

import asyncio

import pytest

from streaming_server.engine.tasks.throttled_value import ThrottledValue

pytestmark = pytest.mark.asyncio


class Costly:
    """A value that takes 3 s to compute, on its own clock: the number of times it was computed."""

    def __init__(self) -> None:
        self.looks = 0
        self.now = 100.0
        self.broken = False

    def clock(self) -> float:
        return self.now

    async def look(self) -> int:
        await asyncio.sleep(0)
        self.now += 3
        self.looks += 1
        if self.broken:
            raise OSError("not now")
        return self.looks


async def test_a_look_is_repeated_after_twenty_times_what_it_took() -> None:
    costly = Costly()
    figure = ThrottledValue(costly.look, costly.clock)
    assert await figure.get() == 1
    costly.now += 59
    assert await figure.get() == 1
    costly.now += 1
    assert await figure.get() == 2


async def test_callers_at_the_same_time_share_one_look() -> None:
    costly = Costly()
    figure = ThrottledValue(costly.look, costly.clock)
    assert await asyncio.gather(*(figure.get() for _ in range(5))) == [1] * 5


async def test_a_look_that_failed_is_repeated_at_once() -> None:
    costly = Costly()
    figure = ThrottledValue(costly.look, costly.clock)
    costly.broken = True
    with pytest.raises(OSError, match="not now"):
        await figure.get()
    costly.broken = False
    assert await figure.get() == 2
