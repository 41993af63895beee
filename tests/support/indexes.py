"""Tables with indexes in the engine of this process, for tests of how indexes are kept, built and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.support.tables import ipc_stream
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streaming_server.engine.bucket.bucket_checker import BucketFindings
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables

INDEXED_TABLE = "game.players"
PLAYERS = pa.schema([("k", pa.int64()), ("score", pa.int64()), ("name", pa.string())])


async def players_table(
    tables: Tables, *, buckets: int = 1, indexes: Sequence[Sequence[str]] = (), rows: int = 0
) -> LiveTable:
    """Makes a table of players with the keys 0, 1, 2, ..."""
    await tables.create(
        INDEXED_TABLE, PLAYERS, primary_key=["k"], bucket_key=(), buckets=buckets, options={}, indexes=indexes
    )
    table = tables.table(INDEXED_TABLE)
    for start in range(0, rows, 20_000):
        await put_players(table, (player(key) for key in range(start, min(start + 20_000, rows))))
    return table


def player(key: int, score: int | None = None) -> dict[str, Any]:
    """A row; its score is one of a thousand unless given."""
    return {"k": key, "score": key * 7 % 1000 if score is None else score, "name": f"player {key % 17}"}


async def put_players(table: LiveTable, rows: Iterable[dict[str, Any]]) -> None:
    """Upserts rows in one request."""
    schema = table.state.codec.schema
    await table.writes.upsert(ipc_stream(schema, pa.RecordBatch.from_pylist(list(rows), schema=schema)), 0)


async def delete_players(table: LiveTable, keys: Sequence[int]) -> None:
    """Deletes rows in one request."""
    schema = table.definition.key_schema
    await table.writes.delete(ipc_stream(schema, pa.record_batch({"k": keys}, schema=schema)))


async def built(table: LiveTable) -> None:
    """Returns once every index of a table is ready in all buckets."""

    async def ready() -> bool:
        _, statuses = await table.statistics()
        assert [status.failure for status in statuses] == [""] * len(statuses)
        return all(status.ready for status in statuses)

    await await_until(ready, "all indexes ready")


async def findings(table: LiveTable) -> list[BucketFindings]:
    """What a check finds in each bucket of a table."""
    return [await (await table.open_check(live.number)).run() for live in table.buckets]


async def assert_sound(table: LiveTable) -> None:
    """A check finds every index ready and nothing wrong."""
    for found in await findings(table):
        assert found.problem == ""
        for index in found.indexes:
            assert (index.ready, index.problem, index.entries) == (True, "", found.rows)
