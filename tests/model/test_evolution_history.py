"""Columns that change at random, between writes, transactions, snapshots and restarts, in tables of every engine."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from scankv.mirror import mirror
from tests.model.evolution_checks import check, following
from tests.model.evolution_columns import ENGINES, SCHEMA
from tests.model.evolution_history import BUCKETS, EvolutionHistory
from tests.model.history import noted
from tests.support.bases import SOON
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


SOME_ENGINES = ("last_row", "based", "indexed", "sequence_columns", "aggregate", "partial_update")
"""Those of `make test`. `make soak` has all of them, and longer histories."""


@pytest.mark.parametrize(
    ("engine", "seed", "steps"),
    [
        *((engine, seed, 20) for seed, engine in enumerate(ENGINES) if engine in SOME_ENGINES),
        *(
            pytest.param(engine, 100 + 10 * n + seed, 200, marks=pytest.mark.soak)
            for n in range(3)
            for seed, engine in enumerate(ENGINES)
        ),
    ],
)
async def test_rows_are_what_the_model_has_whatever_columns_change(
    tmp_path: Path, engine: str, seed: int, steps: int
) -> None:
    random = Random(seed)
    with noted(f"{engine}, seed {seed}"), ServerProcess(tmp_path / "data", *SOON) as server:
        async with connect(server.url) as client:
            name = f"test.{engine}"
            table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS, **ENGINES[engine])
            history = EvolutionHistory(client, server, engine, random, table)
            async with following(history), mirror(table) as local:
                for step in range(steps):
                    await history.step()
                    if step % 10 == 9:
                        await check(history)
                await check(history)
                assert history.changes > steps // 10
                await history.insert()
                offsets = {bucket.bucket: bucket.log_offset for bucket in await history.table.stats()}
                await local.wait_for(offsets)
                assert local.to_arrow().sort_by("k").to_pylist() == history.expected()
