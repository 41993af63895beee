"""Everything that changes a partitioned table, in any order: its rows and its partitions stay as a dict says."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import connect
from aio_client.mirror import mirror
from tests.model.history import noted
from tests.model.partition_history import (
    ENGINES,
    KEY,
    PARTITION_TTL,
    ROW_TTL,
    SCHEMA,
    PartitionHistory,
    VirtualTime,
    by_key,
)
from tests.support.bases import ALL_THE_TIME, SOON
from tests.support.jumping_clock import jumping
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

SETTINGS = ("follow_heartbeat_seconds=0.2", "partition_expiry_seconds=0.05", "clock_trust_seconds=0")
LASTING = (*SOON, "--set", "base_changed_share=10")
ARGUMENTS = [each for setting in SETTINGS for each in ("--set", setting)]


@pytest.mark.parametrize(
    ("engine", "seed", "steps", "restarts"),
    [
        *((engine, seed, 10, 1) for seed, engine in enumerate(ENGINES)),
        *(
            pytest.param(engine, 100 * n + seed, 300, 8, marks=pytest.mark.soak)
            for n in range(1, 4)
            for seed, engine in enumerate(ENGINES)
        ),
    ],
)
async def test_rows_and_partitions_stay_as_the_model_says(
    tmp_path: Path, engine: str, seed: int, steps: int, restarts: int
) -> None:
    random = Random(seed)
    restarting = set(random.sample(range(5, steps), restarts))
    is_wide, expires = (random.random() < 0.5 for _ in range(2))
    # Bases do not have the time of the last write.
    has_bases = not expires and random.random() < 0.7
    options: dict[str, Any] = {"partition_ttl": f"{PARTITION_TTL.days} days"} | ENGINES[engine]
    options |= {"ttl_seconds": int(ROW_TTL.total_seconds())} if expires else {}
    options |= {"columnar_base": "eager"} if has_bases else {}
    time = VirtualTime(tmp_path / "clock")
    # Some bases are built again after each change, others live through deletes and drops.
    arguments = (*ARGUMENTS, *(LASTING if seed % 2 else ALL_THE_TIME)) if has_bases else ARGUMENTS
    with (
        noted(f"{engine}, seed {seed}"),
        ServerProcess(tmp_path / "data", *arguments, wrapper=jumping(tmp_path / "clock")) as server,
    ):
        async with connect(server.url) as client:
            table = await client.create_table(
                f"test.{engine}", SCHEMA, primary_key=KEY, partition_by=KEY[: 1 + is_wide], buckets=2, **options
            )
            history = PartitionHistory(server, client, table, time, random, expires)
            async with mirror(table) as copy:
                for number in range(steps):
                    await history.step()
                    if number in restarting:
                        await history.restart()
                    await history.check()
                    if len(history.pinned) == 3:
                        await history.check_pinned()
                await history.check_pinned()
                # A copy gets to know new columns with the first change that has them.
                await history.upsert()
                await copy.wait_for(await history.table.log_offsets())
                history.check_copy(by_key(copy.to_arrow().to_pylist()))
            assert all(bucket.is_consistent for bucket in await client.check_table(table.name))
    assert history.counted > steps // 3
    if steps > 100:
        assert history.dropped > 0
        assert history.outlived > 0
