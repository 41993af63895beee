"""Restarts of a server at random moments of a test."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from tests.support.server_process import ServerProcess


class Restarts:
    """Restarts a server at random steps of several concurrent histories.

    Attributes:
        done: The number of restarts so far.
        ready_at: When the server last became ready, on the monotonic clock.
        underway: Whether the server is restarting.
    """

    def __init__(self, server: ServerProcess, random: Random, *, steps: int, restarts: int) -> None:
        self.done = 0
        self.ready_at = time.monotonic()
        self.underway = False
        self._server = server
        self._random = random
        self._at_steps = sorted(random.sample(range(steps // 10, steps - steps // 10), restarts))
        self._steps = 0
        self._next = asyncio.Event()

    def count_step(self) -> None:
        """Counts a step. Histories call this at every step."""
        self._steps += 1
        self._next.set()

    async def run(self) -> None:
        """Kills or drains the server and starts it again, repeatedly."""
        for at_step in self._at_steps:
            while self._steps < at_step:
                self._next.clear()
                await self._next.wait()
            await self._restart(drain=self._random.random() < 0.4)

    async def _restart(self, *, drain: bool) -> None:
        self.underway = True
        if drain:
            assert await asyncio.to_thread(self._server.stop) == 0
        else:
            self._server.kill()
        await asyncio.to_thread(self._server.restart)
        self.ready_at = time.monotonic()
        self.done += 1
        self.underway = False
