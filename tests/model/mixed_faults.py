"""Faults of the server of a `World` at random moments: kills, drains, full disks, and clock jumps."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from tests.model.mixed_world import World
    from tests.support.server_process import ServerProcess
    from tests.support.small_disk import SmallDisk


class Faults:
    """Causes faults for a given time. Each fault has passed before the next one begins.

    Attributes:
        made: The number of faults of each kind.
    """

    def __init__(
        self, world: World, server: ServerProcess, disk: SmallDisk, clock_offset: Path, random: Random
    ) -> None:
        self.made: Counter[str] = Counter()
        self._world = world
        self._server = server
        self._disk = disk
        self._clock_offset = clock_offset
        self._random = random
        self._kinds = (self._kill, self._drain, self._fill_disk, self._set_clock)

    async def run(self, seconds: float, pause: float) -> None:
        """Causes each kind of fault once in random order, then any kind, up to twice `pause` seconds apart."""
        end = asyncio.get_running_loop().time() + seconds
        kinds = self._random.sample(self._kinds, len(self._kinds))
        while kinds or asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self._random.uniform(0.2 * pause, 1.8 * pause))
            kind = kinds.pop() if kinds else self._random.choice(self._kinds)
            with self._fault():
                await kind()
            self.made[kind.__name__.removeprefix("_")] += 1

    @contextmanager
    def _fault(self) -> Iterator[None]:
        self._world.faults += 1
        self._world.healthy.clear()
        yield
        self._world.healthy.set()

    async def _kill(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.restart)

    async def _drain(self) -> None:
        assert await asyncio.to_thread(self._server.stop) == 0
        await asyncio.to_thread(self._server.restart)

    async def _fill_disk(self) -> None:
        """Fills the disk until a request fails, or for two seconds, and kills the server during or after that."""
        failures = sum(self._world.failures.values())
        with self._disk.full(spare_bytes=self._random.choice([0, 4096, 1 << 16, 1 << 20])):
            for _ in range(200):
                await asyncio.sleep(0.01)
                if sum(self._world.failures.values()) > failures:
                    break
            if self._random.random() < 0.5:
                await asyncio.to_thread(self._server.kill)
                await asyncio.to_thread(self._server.restart)
        await self._kill()

    async def _set_clock(self) -> None:
        """Sets the server's wall clock to a time up to 300 days off, and may kill the server."""
        days = self._random.choice([0, 0, 1 / 24, 2 / 24, 1, 300])
        self._clock_offset.write_text(str(round(days * 86400 * self._random.choice([-1, 1]))))
        if self._random.random() < 0.5:
            await self._kill()
