"""Whatever happens to a table and its published files, its rows are found in them.

A union read has the rows of a live scan of the same view, an earlier version those of its instant, and the changes
since the latest version lead to the live table.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import connect
from scankv.lake.formats import FORMATS
from scankv.lake.publisher import PublishOptions
from tests.model.lake_history import KEY
from tests.model.union_history import UnionHistory
from tests.support.examples import FACTOR, seeds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

_VECTORS = "vectors, "
_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "vectors, upsert": {"changelog": "upsert"},
    "vectors, partitions": {"partition_by": KEY[:1]},
    "iceberg": {},
    "parquet": {},
}


@pytest.mark.breadth
@seeds(1)
@pytest.mark.parametrize("options", _OPTIONS)
async def test_published_rows_lead_to_the_live_table(
    server: ServerProcess, tmp_path: Path, options: str, seed: int
) -> None:
    random = Random(f"union {options} {seed}")
    async with connect(server.url) as client:
        publishing = PublishOptions(file_rows=random.choice([5, 20, 1000]), masks=options.startswith(_VECTORS))
        format_ = options if options in FORMATS else "delta"
        history = UnionHistory(client, "lake.union", format_, str(tmp_path / "published"), random, publishing)
        await history.create(buckets=random.randrange(1, 4), **_OPTIONS[options])
        await history.read()
        for number in range(40 * (1 if FACTOR == 1 else 5)):
            await (history.rename_or_widen() if random.random() < 0.05 else history.step())
            await history.read()
            await history.travel()
            await history.follow()
            if random.random() < 0.05:
                history.expire()
            if number % 15 == 14:
                server.kill()
                server.restart()
                await history.read()
    assert history.fallbacks[None] > 10, history.fallbacks
    assert history.followed > 10
