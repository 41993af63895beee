"""Random operations, restarts and kills through the real server leave what they leave in a dictionary."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from tests.model.history import History, noted
from tests.model.offline_checks import check_stored_table

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "changelog", "operations"),
    [(1, "full", 200), (3, "upsert", 80), (4, "none", 40)],
)
async def test_a_table_is_the_dictionary_that_had_the_same_history(
    server: ServerProcess, seed: int, changelog: str, operations: int
) -> None:
    await check_history(server, seed, operations, changelog)


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(1000, 1020))
async def test_a_table_is_the_dictionary_that_had_the_same_long_history(server: ServerProcess, seed: int) -> None:
    await check_history(server, seed, operations=1500, changelog=("full", "upsert", "full", "none")[seed % 4])


async def check_history(server: ServerProcess, seed: int, operations: int, changelog: str) -> None:
    """Runs the history of a seed, then looks at what lies on the disk."""
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            history = await History.begin(server, client, Random(seed), changelog)
            await history.run(operations)
            await history.check()
        assert server.stop() == 0
        check_stored_table(server.data_dir, history.table.name, history.model)
