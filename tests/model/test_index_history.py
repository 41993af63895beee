"""Indexes and versions agree with a dictionary after every operation, alteration, restart and kill."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from tests.model.history import noted
from tests.model.index_history import IndexHistory
from tests.model.offline_checks import check_stored_table
from tests.support.bases import ALL_THE_TIME
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path


@pytest.mark.asyncio
async def test_indexes_and_versions_equal_those_of_the_dictionary(server: ServerProcess) -> None:
    seen = await check_history(server, seed=1, operations=30)
    assert seen["scans with an index"] > 10, seen
    assert min(seen["changed"], seen["unchanged"]) > 3, seen


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "operations", "partitioned"),
    [
        (2, 12, False),
        *(pytest.param(seed, 400, seed % 2 == 0, marks=pytest.mark.soak) for seed in range(3, 7)),
    ],
)
async def test_queries_over_constantly_rebuilt_bases_equal_those_of_the_dictionary(
    tmp_path: Path, seed: int, operations: int, partitioned: bool
) -> None:
    with ServerProcess(tmp_path / "data", *ALL_THE_TIME) as server:
        await check_history(server, seed, operations, columnar_base="eager", partitioned=partitioned)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "operations"), [(8, 12), *(pytest.param(seed, 400, marks=pytest.mark.soak) for seed in range(20, 24))]
)
async def test_indexes_of_partitioned_tables_equal_those_of_the_dictionary(
    server: ServerProcess, seed: int, operations: int
) -> None:
    await check_history(server, seed, operations, partitioned=True)


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(1000, 1012))
async def test_indexes_and_versions_equal_those_of_the_dictionary_in_a_long_history(
    server: ServerProcess, seed: int
) -> None:
    await check_history(server, seed, operations=400)


async def check_history(
    server: ServerProcess, seed: int, operations: int, columnar_base: str = "off", *, partitioned: bool = False
) -> Counter[str]:
    """Runs the history of a seed, then checks the files on disk. Returns the counts of the history."""
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            history = await IndexHistory.begin(
                server, client, Random(seed), columnar_base=columnar_base, partitioned=partitioned
            )
            await history.run(operations)
            await history.check()
            if columnar_base != "off":
                await history.check_bases()
        assert server.stop() == 0
        check_stored_table(server.data_dir, history.table.name, history.model)
    return history.seen
