"""An engine in this process, without gRPC, for tests of pinned snapshots."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv.model.keys.key_range import KeyRange
from streaming_server.config import ServerConfig
from streaming_server.engine.tables.tables import Tables
from tests.support.tables import SCORES, ipc_stream, scores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from streaming_server.clock import MachineClocks
    from streaming_server.engine.snapshots.snapshots import Snapshots
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.storage.cursors.cursor import BucketCursor

TABLE = "game.scores"
EVERY_KEY = KeyRange()


@asynccontextmanager
async def tables_in(
    data_dir: Path, clocks: MachineClocks | None = None, /, *, max_hold_seconds: float = 60.0, **settings: Any
) -> AsyncIterator[Tables]:
    """Opens the tables of a data directory, as a running server has them."""
    tables = Tables(ServerConfig(data=data_dir, **settings), max_hold_seconds=max_hold_seconds, clocks=clocks)
    tables.start()
    try:
        yield tables
    finally:
        await tables.close()


async def new_table(tables: Tables, name: str = TABLE, *, buckets: int = 3, schema: pa.Schema = SCORES) -> LiveTable:
    """Creates a table whose key is the first column."""
    await tables.create(name, schema, primary_key=schema.names[:1], bucket_key=(), buckets=buckets, options={})
    return tables.table(name)


async def put(table: LiveTable, values: dict[str, int | None]) -> None:
    """Upserts scores."""
    await table.writes.upsert(ipc_stream(SCORES, scores(list(values), list(values.values()))), 0)


async def pinned_rows(
    snapshots: Snapshots,
    snapshot_id: str,
    table: str = TABLE,
    buckets: Sequence[int] | None = None,
    key_range: KeyRange = EVERY_KEY,
) -> pa.Table:
    """Returns the rows of a snapshot, bucket after bucket in key order."""
    async with snapshots.reading(snapshot_id, table, buckets) as reader:
        decoder = reader.codec.decoder()
        batches: list[pa.RecordBatch] = []
        for bucket in reader.rows:
            cursor = reader.cursor(bucket, decoder, key_range)
            try:
                batches += read_all(cursor)
            finally:
                cursor.close()
        return pa.Table.from_batches(batches, schema=decoder.schema)


def read_all(cursor: BucketCursor) -> list[pa.RecordBatch]:
    """Returns all batches of a cursor."""
    return list(iter(lambda: cursor.next_batch(8192, 1 << 20), None))


async def pinned_scores(snapshots: Snapshots, snapshot_id: str, **how: Any) -> dict[str, int | None]:
    """Returns the scores of a snapshot by player."""
    rows = (await pinned_rows(snapshots, snapshot_id, **how)).to_pydict()
    return dict(zip(rows["player"], rows["score"], strict=True))


def views_on_disk(data_dir: Path) -> list[Path]:
    """Returns the directories of all views in a data directory, complete or not."""
    return sorted((data_dir / "tables").glob("*/*/snapshots/*"))
