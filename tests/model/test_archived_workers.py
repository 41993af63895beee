"""Restores as of random instants are exact, whatever happens to the workers of a server, and however many there are."""

from __future__ import annotations

import asyncio
import os
from random import Random, randrange
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import connect
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.archive_segment import read_segment
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify, verify_archive
from streaming_server.storage.tables.placement import Placement
from tests.model.moving_writers import MovingWriter, now_micros
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.noted import noted
from tests.support.server_process import ServerProcess
from tests.support.workers import freeze, kill_worker, names_of_workers, processes_of, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TABLES = [name for owned in names_of_workers(2, "moved", each=2) for name in owned]
SETTINGS = ("--set", "worker_timeout_seconds=3600", *ARCHIVING)
UNDECIDED = "whether the transaction is committed is not known yet: the server stops"
PATIENT, ATTEMPT = 300.0, 2.0


class ArchivedHistory:
    """Runs writers while workers are killed and paused, and records instants.

    Attributes:
        instants: Random instants, in microseconds since 1970 UTC.
        backups: How many backups it has created.
    """

    def __init__(self, path: Path, random: Random) -> None:
        self._path = path
        self._random = random
        self._done = asyncio.Condition()
        both, first, second = TABLES, TABLES[:2], TABLES[2:]
        self.writers = [
            MovingWriter(key, tables, Random(random.random())) for key, tables in enumerate([both, both, first, second])
        ]
        self.instants: list[int] = []
        self.backups = 0

    async def run(self, workers: int, faults: int, *, ends_with: str) -> None:
        """Runs a server of so many workers, during so many faults."""
        # Writers are slow while a worker is paused: their calls reach it first, now and then.
        kinds = [self._kill, self._back_up, *([self._pause] if faults > 1 else [])]
        settings = ("--workers", str(workers), "--backup-location", str(self._path / "backups"), *SETTINGS)
        with ServerProcess(self._path / "data", *settings) as server:
            async with connect(server.url, operation_timeout=PATIENT, attempt_timeout=ATTEMPT) as client:
                if not self.backups:
                    await self._begin(client)
                running = [asyncio.create_task(writer.run(client, self._done)) for writer in self.writers]
                try:
                    for _ in range(faults):
                        await self._progress(self.writers)
                        await self._random.choice(kinds)(server, client, workers)
                    await self._progress(self.writers)
                    # The writers are cut off in the middle of something.
                    await asyncio.to_thread(server.kill if ends_with == "kill" else server.stop)
                finally:
                    for each in running:
                        each.cancel()
                    ended = await asyncio.gather(*running, return_exceptions=True)
                assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    async def _begin(self, client: Client) -> None:
        for name in TABLES:
            await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
        await self._back_up(None, client, 0)
        # A server that dies before its first segment creates another backup.
        await asyncio.to_thread(wait_archived, self.store)

    @property
    def store(self) -> BackupStore:
        return BackupStore(str(self._path / "backups"))

    async def _progress(self, writers: list[MovingWriter]) -> None:
        """Waits until each of these writers has ended some further operations, and records an instant."""
        goals = {writer.key: len(writer.operations) + self._random.randint(2, 8) for writer in writers}
        async with self._done:
            await self._done.wait_for(lambda: all(len(each.operations) >= goals[each.key] for each in writers))
        self.instants.append(now_micros())

    async def _kill(self, server: ServerProcess, client: Client, workers: int) -> None:
        if workers == 1:
            server.kill()
            server.restart()
            return
        victim = self._random.randrange(workers)
        await asyncio.to_thread(kill_worker, server, victim)
        self.instants.append(now_micros())
        await asyncio.to_thread(wait_for_worker, server, victim)

    async def _pause(self, server: ServerProcess, client: Client, workers: int) -> None:
        if workers == 1:
            return
        victim, placement = self._random.randrange(workers), Placement(0, workers)
        with freeze(processes_of(server)[victim]):
            others = [each for each in self.writers if victim not in map(placement.owner_of, each.tables)]
            await self._progress(others)

    async def _back_up(self, server: ServerProcess | None, client: Client, workers: int) -> None:
        await client.create_backup()
        self.backups += 1

    async def check(self, instant: int | None, target: Path) -> None:
        """Restores all tables as of an instant, and checks that each writer could have written what they have."""
        plan = plan_instant(self.store, instant)
        result = await asyncio.to_thread(restore_all, self.store, plan, target)
        assert [each.name for each in result.tables] == sorted(TABLES)
        # The archive of a server that stops in the middle of a commit lacks the rest until the server runs again.
        undecided = [each.why for each in result.tables if each.why]
        assert not undecided or (instant is None and all(UNDECIDED in why for why in undecided)), undecided
        with ServerProcess(target, "--workers", "1") as server:
            async with connect(server.url) as client:
                rows = {name: (await (await client.table(name)).scan().to_arrow()).to_pylist() for name in TABLES}
        values = {name: {row["k"]: row["v"] for row in each} for name, each in rows.items()}
        for writer in self.writers:
            found = {name: values[name].get(writer.key) for name in writer.tables}
            assert (problem := writer.problem_at(plan.micros, found)) is None, problem


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("runs", "servers", "faults", "restores"),
    [(1, 2, 1, 4), pytest.param(10, 8, 6, 40, marks=pytest.mark.soak)],
    ids=["short", "long"],
)
async def test_restores_as_of_random_instants_are_exact_during_faults_of_workers(
    tmp_path: Path, runs: int, servers: int, faults: int, restores: int
) -> None:
    for run in range(runs):
        seed = int(os.environ.get("SCANKV_SEED") or randrange(2**32))
        random, path = Random(seed), tmp_path / str(run)
        path.mkdir()
        history = ArchivedHistory(path, random)
        with noted(f"SCANKV_SEED={seed}"):
            for number in range(servers):
                workers = 2 if number % 2 == 0 else random.choice([1, 3])
                await history.run(workers, faults, ends_with=random.choice(["kill", "stop"]))
            await history.run(2, 0, ends_with="stop")
            assert verify_archive(history.store) == []
            assert len(history.store.manifests()) == history.backups
            assert not any(verify(history.store, history.store.manifests()).values())
            segments = [read_segment(history.store, each) for each in history.store.segments()]
            commits = [each["micros"] for segment in segments for each in segment.committed]
            chosen = [*history.instants, *commits, *(micros - 1 for micros in commits)]
            for number, instant in enumerate(random.sample(chosen, min(restores, len(chosen)))):
                await history.check(instant, path / f"restored-{number}")
            await history.check(None, path / "latest")
