"""Whatever happens to a table, each published version shows it as it was at the instant of the version."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import connect
from scankv.lake.publisher import PublishOptions
from tests.model.lake_history import KEY, LakeHistory
from tests.support.examples import FACTOR, seeds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

# Table options; those that publish with deletion vectors have the prefix.
_VECTORS = "vectors, "
_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "upsert": {"changelog": "upsert"},
    "bases": {"columnar_base": "eager"},
    "partitions": {"partition_by": KEY[:1]},
    "vectors, plain": {},
    "vectors, upsert": {"changelog": "upsert"},
    "vectors, partitions": {"partition_by": KEY[:1]},
}


@seeds(2)
@pytest.mark.parametrize("options", _OPTIONS)
async def test_each_version_shows_the_table_at_its_instant(
    server: ServerProcess, tmp_path: Path, options: str, seed: int
) -> None:
    random = Random(f"{options} {seed}")
    async with connect(server.url) as client:
        masks = options.startswith(_VECTORS)
        publishing = PublishOptions(file_rows=random.choice([1, 5, 20, 1000]), masks=masks)
        history = LakeHistory(client, "lake.history", str(tmp_path / "published"), random, publishing)
        await history.create(buckets=random.randrange(1, 4), **_OPTIONS[options])
        for number in range(40 * (1 if FACTOR == 1 else 5)):
            await history.step()
            if number % 15 == 14:
                server.kill()
                server.restart()
        await history.publish()
    history.check_versions()
    assert history.modes["changes"] > 0
