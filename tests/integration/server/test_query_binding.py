"""A query binds its predicate once for each result that is computed, and not at all for one from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import connect
from scankv.model.expressions import Predicate, binding, col
from scankv.model.expressions.binding import columns_of
from streaming_server.config import ServerConfig
from streaming_server.server import Server
from tests.support.tables import SCORES, scores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aio_client import Table

pytestmark = pytest.mark.asyncio

WHERE = col("player") >= "b"


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> list[Predicate]:
    """The predicates that are bound, in their order; the client binds none."""
    found: list[Predicate] = []

    def record(predicate: Predicate, schema: pa.Schema) -> tuple[str, ...]:
        found.append(predicate)
        return columns_of(predicate, schema)

    # Every call of `bind` makes this call.
    monkeypatch.setattr(binding, "columns_of", record)
    return found


@pytest.mark.whole_tables  # Each tablet binds the predicate, too.
@pytest.mark.parametrize("indexes", [[], ["score"]])
@pytest.mark.parametrize(
    "ask",
    [
        lambda table: table.count(WHERE),
        lambda table: table.aggregate({"score": "max"}, WHERE),
        lambda table: table.top_n(3, "score", WHERE),
    ],
    ids=["count", "aggregate", "top_n"],
)
async def test_a_query_binds_its_predicate_once_a_result(
    tmp_path: Path, bindings: list[Predicate], ask: Callable[[Table], Awaitable[object]], indexes: list[str]
) -> None:
    async with Server(ServerConfig(data=tmp_path, port=0)) as server, connect(server.address) as client:
        table = await client.create_table("game.scores", SCORES, primary_key=["player"], indexes=indexes)
        await table.upsert(scores(["a", "b", "c"], [1, 2, 3]))
        for write in (False, True):
            if write:
                await table.upsert(scores(["d"], [4]))
            del bindings[:]
            await ask(table)
            assert len(bindings) == 1
            await ask(table)
            assert len(bindings) == 1
        table = await client.alter_table("game.scores", add_columns=pa.schema([("more", pa.int64())]))
        await ask(table)
        assert len(bindings) == 2
