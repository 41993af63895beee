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

_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "upsert": {"changelog": "upsert"},
    "bases": {"columnar_base": "eager"},
    "partitions": {"partition_by": KEY[:1]},
}
_VECTORS = "delta with vectors"
_CASES = [
    *(("delta", options) for options in _OPTIONS),
    *((_VECTORS, options) for options in ("plain", "upsert", "partitions")),
    *(("parquet", options) for options in ("plain", "partitions")),
    *(("iceberg", options) for options in ("plain", "upsert", "partitions")),
]


@pytest.mark.represented_by("parquet-partitions-1")
@seeds(2)
@pytest.mark.parametrize(("format_", "options"), _CASES)
async def test_each_version_shows_the_table_at_its_instant(
    server: ServerProcess, tmp_path: Path, format_: str, options: str, seed: int
) -> None:
    random = Random(f"{format_} {options} {seed}")
    async with connect(server.url) as client:
        publishing = PublishOptions(file_rows=random.choice([1, 5, 20, 1000]), masks=format_ == _VECTORS)
        uri = str(tmp_path / "published")
        history = LakeHistory(client, "lake.history", format_.split()[0], uri, random, publishing)
        await history.create(buckets=random.randrange(1, 4), **_OPTIONS[options])
        for number in range(40 * (1 if FACTOR == 1 else 5)):
            await history.step()
            if number % 15 == 14:
                server.kill()
                server.restart()
        await history.publish()
    history.check_versions()
    assert history.modes["changes"] > 0
