"""Everything with a time to live is ended when that is over, whatever else fails."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from streaming_server.clock import ServerClock
from streaming_server.engine.tasks.reaper import Reaper
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio


class Things:
    """Named objects that expire. The first attempts to end some of them may fail."""

    def __init__(self, failures: int = 0) -> None:
        self.expiries: dict[str, float] = {}
        self.looks = 0
        self.failures = failures
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    def next_expiry(self) -> float | None:
        self.looks += 1
        return min(self.expiries.values(), default=None)

    async def end(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk")
        for name in [name for name, expiry in self.expiries.items() if expiry <= time.monotonic()]:
            del self.expiries[name]
            self.ended.put_nowait(name)

    @asynccontextmanager
    async def reaped(self) -> AsyncIterator[Reaper]:
        reaper = Reaper(self.next_expiry, self.end, ServerClock())
        reaper.start()
        try:
            yield reaper
        finally:
            await reaper.close()

    async def next_ended(self) -> str:
        async with asyncio.timeout(60):
            return await self.ended.get()


async def test_things_are_ended_in_the_order_in_which_they_expire_also_one_that_comes_later_and_is_first() -> None:
    things = Things()
    now = time.monotonic()
    things.expiries = {"last": now + 0.6, "never": now + 3600}
    async with things.reaped() as reaper:
        await asyncio.sleep(0)
        things.expiries["sooner"] = now + 0.2
        reaper.notify(now + 0.2)
        assert [await things.next_ended() for _ in range(2)] == ["sooner", "last"]
        assert time.monotonic() >= now + 0.6
    assert list(things.expiries) == ["never"]


async def test_a_failure_ends_nothing_and_is_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    things = Things(failures=1)
    things.expiries = {"one": time.monotonic()}
    async with things.reaped():
        assert await things.next_ended() == "one"
    assert "the disk" in caplog.text


async def test_nothing_is_looked_at_while_nothing_expires_or_what_comes_expires_later() -> None:
    things = Things()
    async with things.reaped() as reaper:
        await asyncio.sleep(0)
        looks = things.looks
        things.expiries["one"] = time.monotonic() + 3600
        reaper.notify(things.expiries["one"])

        async def is_looked_at() -> bool:
            return things.looks > looks

        await await_until(is_looked_at, "a look for what expires next")
        looks = things.looks
        for _ in range(100):
            reaper.notify(time.monotonic() + 7200)
            await asyncio.sleep(0)
        assert things.looks == looks
