"""Tracked and untracked writes in any order: a reader that starts anywhere, and a mirror, end with the table."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import PositionExpired, StartFrom, StopAt, connect
from aio_client.mirror import Mirror, mirror
from tests.model.history import noted
from tests.model.restarts import Restarts
from tests.model.untracked_history import BUCKETS, CHANGING, ENGINES, SCHEMA, Rows, UntrackedHistory
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


SOME_ENGINES = ("last_row", "indexed", "versioned", "aggregate")
"""Those of `make test`. `make soak` has all of them, and longer histories."""
SOME_CHANGING = ("changing_indexed", "changing_versioned", "interrupted")
"""As `SOME_ENGINES`."""


def rows_of(copy: Mirror) -> Rows:
    return {row["k"]: row for row in copy.to_arrow().to_pylist()}


@pytest.mark.parametrize(
    ("engine", "seed", "steps", "restarts"),
    [
        *((engine, seed, 25, 1) for seed, engine in enumerate(ENGINES) if engine in SOME_ENGINES),
        *(pytest.param(engine, 100 + seed, 300, 6, marks=pytest.mark.soak) for seed, engine in enumerate(ENGINES)),
    ],
)
async def test_every_reader_ends_with_the_table(
    tmp_path: Path, engine: str, seed: int, steps: int, restarts: int
) -> None:
    random = Random(seed)
    settings = ("--set", "follow_heartbeat_seconds=0.2")
    with noted(f"{engine}, seed {seed}"), ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url) as client:
            name = f"test.{engine}"
            table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, **ENGINES[engine])
            history = UntrackedHistory(client, table, random)
            await history.record()
            restarting = Restarts(server, random, steps=steps, restarts=restarts)
            async with mirror(table) as whole, mirror(table, where="v > 3") as part:
                running = asyncio.create_task(restarting.run())
                for number in range(steps):
                    await history.step()
                    if number in (steps // 3, steps // 2):
                        await history.pin()
                    restarting.count_step()
                await running
                await history.record()
                await history.check_pinned()
                offsets, expected = history.moments[-1]
                matching = await history.rows("v > 3")
                for copy, rows in ((whole, expected), (part, matching)):
                    await copy.wait_for(offsets)
                    assert rows_of(copy) == rows
            for start in random.sample(range(len(history.moments)), min(len(history.moments), 6)):
                assert await history.replay(start) == expected, f"from moment {start}"
                assert await history.replay(start, "v > 3") == matching, f"from moment {start}, filtered"
            assert history.untracked > 3
            assert all(bucket.is_consistent for bucket in await client.check_table(name))


@pytest.mark.whole_tables  # The option cannot be changed in a table with tablets.
@pytest.mark.parametrize(
    ("kind", "seed", "steps", "restarts"),
    [
        *((kind, seed, 40, 1) for seed, kind in enumerate(CHANGING, 50) if kind in SOME_CHANGING),
        *(pytest.param(kind, 200 + seed, 200, 5, marks=pytest.mark.soak) for seed, kind in enumerate(CHANGING)),
    ],
)
async def test_every_reader_ends_with_a_table_whose_changelog_changes(
    tmp_path: Path, kind: str, seed: int, steps: int, restarts: int
) -> None:
    random, (engine, changelogs) = Random(seed), CHANGING[kind]
    settings = ("--set", "follow_heartbeat_seconds=0.2", "--set", "log_maintenance_seconds=0.1")
    with noted(f"{kind}, seed {seed}"), ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url) as client:
            name = f"test.{kind}"
            table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, **ENGINES[engine])
            history = UntrackedHistory(client, table, random, changelogs=changelogs)
            await history.record()
            restarting = Restarts(server, random, steps=steps, restarts=restarts)
            async with AsyncExitStack() as mirrors:
                # A mirror ends where the changelog does.
                copies = [] if "none" in changelogs else [await mirrors.enter_async_context(mirror(table))]
                running = asyncio.create_task(restarting.run())
                for _ in range(steps):
                    await history.step()
                    restarting.count_step()
                await running
                tracked_from = await history.end()
                offsets, expected = history.moments[-1]
                for copy in copies:
                    await copy.wait_for(offsets)
                    assert rows_of(copy) == expected
            matching = await history.rows("v > 3")
            assert await history.replay_strictly(tracked_from) == expected
            for start in random.sample(range(len(history.moments)), min(len(history.moments), 8)):
                assert await history.replay(start) == expected, f"from moment {start}"
                assert await history.replay(start, "v > 3") == matching, f"from moment {start}, filtered"
                assert await history.replay_strictly(start) in (None, expected), f"from moment {start}, strictly"
            for expired in history.expired[-3:]:
                with pytest.raises(PositionExpired):
                    await table.changes(StartFrom.offsets(expired), StopAt.LATEST).to_arrow()
            assert history.changed > 3
            assert all(bucket.is_consistent for bucket in await client.check_table(name))
