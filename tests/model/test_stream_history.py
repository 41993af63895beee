"""Whatever happens to connections and server, the replay of a stream of changes equals the table."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from tests.model.history import noted
from tests.model.restarts import Restarts
from tests.model.stream_history import check_stream_history
from tests.support.server_process import ServerProcess
from tests.support.table_kinds import TableKind
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "steps", "restarts", "changelog", "kind"),
    [
        (1, 40, 1, "full", TableKind.PLAIN),
        (2, 25, 1, "upsert", TableKind.PLAIN),
        (3, 25, 1, "full", TableKind.EVOLVED),
        (4, 25, 1, "full", TableKind.PARTITIONED),
        *(pytest.param(seed, 2000, 20, "full", TableKind.PLAIN, marks=pytest.mark.soak) for seed in range(100, 105)),
        *(pytest.param(seed, 2000, 20, "upsert", TableKind.PLAIN, marks=pytest.mark.soak) for seed in range(200, 203)),
        *(
            pytest.param(seed, 2000, 20, changelog, kind, marks=pytest.mark.soak)
            for seed, kind in ((300, TableKind.EVOLVED), (301, TableKind.PARTITIONED))
            for changelog in ("full", "upsert")
        ),
    ],
)
async def test_every_stream_replays_to_the_table_at_its_offset(
    tmp_path: Path, seed: int, steps: int, restarts: int, changelog: str, kind: TableKind
) -> None:
    with noted(f"seed {seed}"), ServerProcess(tmp_path / "data", "--set", "follow_heartbeat_seconds=0.2") as server:
        random = Random(seed)
        seen = await check_stream_history(
            server,
            random,
            Restarts(server, random, steps=steps, restarts=restarts),
            name="test.followed",
            steps=steps,
            readers=max(8, steps // 20),
            changelog=changelog,
            kind=kind,
        )
        assert min(seen[what] for what in ("left", "cancelled", "resumed", "compared")) > 0, seen
        async with connect(server.url) as client:

            async def nothing_is_held() -> bool:
                stats = await client.stats()
                return (stats.live_scans, stats.open_cursors) == (0, 0)

            await await_until(nothing_is_held, "everything freed")
