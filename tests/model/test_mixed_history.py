"""Runs writers, transactions, readers, followers, copies, and faults concurrently, and compares with a model."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from tests.model.history import noted
from tests.model.mixed_faults import Faults
from tests.model.mixed_observers import ChangeFollower, Copies, Readers
from tests.model.mixed_world import (
    NAMES,
    WRITERS,
    World,
    WorldWriter,
    accounts_of,
    check_final,
    create_tables,
    open_tables,
)
from tests.support.bases import ALL_THE_TIME
from tests.support.jumping_clock import jumping
from tests.support.offline import check_bucket, offline_table
from tests.support.server_process import ServerProcess
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.table_kinds import TableKind
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.model.mixed_world import WorldTables

_log = logging.getLogger(__name__)

OPERATION_TIMEOUT = 300.0
DISK_BYTES = 512 << 20


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seconds", "pause", "kind"),
    [
        (12, 1.2, TableKind.PLAIN),
        pytest.param(3600, 8, TableKind.PLAIN, marks=pytest.mark.soak),
        pytest.param(600, 4, TableKind.EVOLVED, marks=pytest.mark.soak),
        pytest.param(600, 4, TableKind.PARTITIONED, marks=pytest.mark.soak),
    ],
)
async def test_a_mixed_load_with_faults_leaves_the_state_of_the_model(
    tmp_path: Path, seconds: float, pause: float, kind: TableKind
) -> None:
    seed = int(os.environ.get("SCANKV_SEED") or random.randrange(2**32))
    _log.info("SCANKV_SEED=%d", seed)
    with (
        noted(f"SCANKV_SEED={seed}"),
        small_disk(tmp_path / "data", DISK_BYTES) as disk,
        ServerProcess(disk.path, *ALL_THE_TIME, wrapper=jumping(tmp_path / "clock")) as server,
    ):
        await Mixed(server, disk, tmp_path / "clock", seed, kind).run(seconds, pause)
        assert server.stop() == 0
        for name in NAMES:
            with offline_table(server.data_dir, name) as buckets:
                for bucket in buckets:
                    check_bucket(bucket)
        assert "incident" not in server.log


class Mixed:
    """One run: a server, its world, and all of its clients."""

    def __init__(self, server: ServerProcess, disk: SmallDisk, clock_offset: Path, seed: int, kind: TableKind) -> None:
        self._server = server
        self._disk = disk
        self._clock_offset = clock_offset
        self._seed = seed
        self._world = World(kind, healthy=asyncio.Event(), stopping=asyncio.Event())
        self._world.healthy.set()

    async def run(self, seconds: float, pause: float) -> None:
        """Runs all clients during faults for some time, then waits until they are done and compares with the model."""
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect(self._server.url, operation_timeout=OPERATION_TIMEOUT))
                for _ in range(WRITERS + 1)
            ]
            await create_tables(clients[0], self._world.kind)
            opened = [await open_tables(client) for client in clients]
            tables, world = opened[-1], self._world
            faults = Faults(world, self._server, self._disk, self._clock_offset, self._random("faults"))
            writers = [
                WorldWriter(n, world, clients[n], opened[n], self._random(f"writer {n}")) for n in range(WRITERS)
            ]
            readers = Readers(world, tables.accounts, self._random("readers"))
            followers = [
                ChangeFollower(world, tables.accounts, self._random(f"follower {n}"), f"f{n}") for n in range(2)
            ]
            copies = Copies(world, tables, self._random("copies"))
            async with asyncio.TaskGroup() as followed:
                tasks = [followed.create_task(each.run()) for each in followers]
                tasks += [followed.create_task(copies.mirror()), followed.create_task(copies.watch())]
                async with asyncio.TaskGroup() as group:
                    for work in (*(writer.run for writer in writers), readers.scan, readers.pin):
                        group.create_task(work())
                    await faults.run(seconds, pause)
                    world.stopping.set()
                for writer in writers:
                    await writer.settle()
                await check_final(world, tables)
                await self._await_copies(tables, followers, copies)
                for task in tasks:
                    task.cancel()
        _log.info("%s; failures: %s; %d views, %d pins", faults.made, world.failures, readers.views, readers.pins)
        assert readers.views > 0
        assert readers.pins > 0
        assert min(done for _, done in world.transactions.values()) > 0

    async def _await_copies(self, tables: WorldTables, followers: list[ChangeFollower], copies: Copies) -> None:
        """Waits until all followers and copies equal their tables."""
        rows = await tables.accounts.scan().to_arrow()
        sums = {row["k"]: row["amount"] for row in await tables.totals.scan().to_pylist()}
        best = (await tables.accounts.top_n(10, order_by="score")).to_pylist()

        async def have_all() -> bool:
            followed = [
                {key: (row["stamp"], row["score"], row["text"]) for key, row in f.replay.table.items()}
                for f in followers
            ]
            return all(f == accounts_of(rows) for f in followed) and copies.totals == sums and copies.best == best

        await await_until(have_all, "the followers, the mirror and the watch have what the tables have")

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed} {purpose}")
