"""After random operations, restarts and kills, a table of a real server equals a dictionary with the same history."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from tests.model.history import History, noted
from tests.model.offline_checks import check_stored_table
from tests.support.bases import ALL_THE_TIME
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.represented_by("6-upsert-25-True-False")
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "changelog", "operations", "evolved", "partitioned"),
    [
        (1, "full", 60, False, False),
        (2, "full", 40, True, False),
        (3, "upsert", 40, False, False),
        (4, "none", 25, False, False),
        (6, "upsert", 25, True, False),
        (7, "full", 40, True, True),
        (8, "upsert", 25, False, True),
    ],
)
async def test_a_table_equals_a_dictionary_with_the_same_history(
    server: ServerProcess, seed: int, changelog: str, operations: int, evolved: bool, partitioned: bool
) -> None:
    await check_history(server, seed, operations, changelog, evolved=evolved, partitioned=partitioned)


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "changelog", "operations"),
    [
        (5, "full", 50),
        *(
            pytest.param(seed, ("full", "upsert", "none")[seed % 3], 1500, marks=pytest.mark.soak)
            for seed in range(7, 13)
        ),
    ],
)
async def test_a_table_with_constantly_rebuilt_bases_equals_a_dictionary_with_the_same_history(
    tmp_path: Path, seed: int, changelog: str, operations: int
) -> None:
    with ServerProcess(tmp_path / "data", *ALL_THE_TIME) as server:
        await check_history(
            server, seed, operations, changelog, columnar_base="eager", evolved=seed % 2 == 1, partitioned=seed % 4 == 0
        )
        assert "incident" not in server.log


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(1000, 1020))
async def test_a_table_equals_a_dictionary_with_the_same_long_history(server: ServerProcess, seed: int) -> None:
    changelog = ("full", "upsert", "full", "none")[seed % 4]
    await check_history(
        server, seed, operations=1500, changelog=changelog, evolved=seed % 3 == 0, partitioned=seed % 2 == 0
    )


async def check_history(
    server: ServerProcess,
    seed: int,
    operations: int,
    changelog: str,
    columnar_base: str = "off",
    *,
    evolved: bool = False,
    partitioned: bool = False,
) -> None:
    """Runs the history of a seed, then checks the files on disk."""
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            history = await History.begin(
                server, client, Random(seed), changelog, columnar_base, evolved=evolved, partitioned=partitioned
            )
            await history.run(operations)
            await history.check()
            if columnar_base != "off":
                await history.check_bases()
        assert server.stop() == 0
        check_stored_table(server.data_dir, history.table.name, history.model)
