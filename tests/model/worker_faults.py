"""Faults of the processes of a server with several workers: kills, pauses and restarts, at random moments."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

from tests.support.divided_tables import TABLETS
from tests.support.waiting import wait_until
from tests.support.workers import freeze, is_running, kill_worker, processes_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.model.operations import OperationRecorder
    from tests.support.server_process import ServerProcess


class WorkerFaults:
    """Causes one fault after another, each of which has passed before the next one begins.

    Args:
        server: The server.
        tables: The tables of each worker, by whose operations it measures time.
        recorder: Where all clients record.
        random: What decides which faults come, and when.

    Attributes:
        made: How many faults of each kind there were.
    """

    def __init__(
        self, server: ServerProcess, tables: Sequence[Sequence[str]], recorder: OperationRecorder, random: Random
    ) -> None:
        self.made: Counter[str] = Counter()
        self._server = server
        self._tables = tables
        self._workers = range(len(tables))
        self._recorder = recorder
        self._random = random
        self._kinds = (
            self._kill_worker,
            self._pause_worker,
            self._pause_and_kill_worker,
            self._pause_supervisor,
            self._kill_supervisor,
            self._kill_all,
            self._drain,
        )

    async def run(self, faults: int) -> None:
        """Causes so many faults: each kind once in random order, then any kind. All workers progress between them."""
        kinds = self._random.sample(self._kinds, len(self._kinds))
        for number in range(faults):
            await self._progress(self._workers)
            kind = kinds[number] if number < len(kinds) else self._random.choice(self._kinds)
            await kind()
            self.made[kind.__name__.removeprefix("_")] += 1
        await self._progress(self._workers)

    async def _progress(self, workers: Sequence[int]) -> None:
        """Waits until each of these workers has carried out some further operations.

        Without one of the workers, only few calls about tables with tablets are answered.
        """
        most = 40 if TABLETS == 1 or len(workers) == len(self._workers) else 3
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                more = self._recorder.wait_for_more(self._random.randint(1, most), self._tables[worker])
                group.create_task(more)

    async def _kill_worker(self) -> None:
        victim = self._random.choice(self._workers)
        await asyncio.to_thread(kill_worker, self._server, victim)
        await self._progress(self._others(victim))
        await asyncio.to_thread(wait_for_worker, self._server, victim)

    async def _pause_worker(self) -> None:
        victim = self._random.choice(self._workers)
        with freeze(processes_of(self._server)[victim]):
            await self._progress(self._others(victim))

    async def _pause_and_kill_worker(self) -> None:
        """Kills a worker that is paused, as the supervisor does with one that hangs."""
        victim = self._random.choice(self._workers)
        with freeze(processes_of(self._server)[victim]):
            await self._progress(self._others(victim))
            await asyncio.to_thread(kill_worker, self._server, victim)
        await asyncio.to_thread(wait_for_worker, self._server, victim)

    async def _pause_supervisor(self) -> None:
        """All tables are served while the supervisor is paused."""
        with freeze(self._server.process.pid):
            await self._progress(self._workers)

    async def _kill_supervisor(self) -> None:
        """Kills the supervisor alone, whose workers end with it."""
        workers = processes_of(self._server).values()
        os.kill(self._server.process.pid, signal.SIGKILL)
        await asyncio.to_thread(
            wait_until, lambda: not any(is_running(pid) for pid in workers), "the workers have ended"
        )
        await asyncio.to_thread(self._server.restart)

    async def _kill_all(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.restart)

    async def _drain(self) -> None:
        assert await asyncio.to_thread(self._server.stop) == 0
        await asyncio.to_thread(self._server.restart)

    def _others(self, worker: int) -> list[int]:
        return [each for each in self._workers if each != worker]
