"""Staging the deletion of all rows of a table: repeated, too large, aborted, dropped and stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from scankv.model.errors import RequestTooLarge, TableNotFound, TransactionLost, Unavailable
from streaming_server.config import ServerConfig
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.transactions import delete_all
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False)])
ROWS = 3000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_all, "_STEP_ROWS", 3)
    monkeypatch.setattr(delete_all, "_PIECE_ROWS", 10)


async def opened(tmp_path: Path) -> Tables:
    config = ServerConfig(data=tmp_path, block_cache_bytes=1 << 20, storage_threads=2, max_transaction_bytes=1 << 20)
    tables = Tables(config)
    await tables.recover()
    return tables


@pytest_asyncio.fixture
async def tables(tmp_path: Path) -> AsyncIterator[Tables]:
    tables = await opened(tmp_path)
    try:
        yield tables
    finally:
        await tables.close()


async def made(tables: Tables, *, padding: int = 0) -> tuple[LiveTable, OpenTransaction]:
    await tables.create(
        "test.t", SCHEMA, primary_key=["k"], bucket_key=[], buckets=2, options={}, indexes=[], merging=None
    )
    table = tables.table("test.t")
    keys = pa.array([f"{key:06}" + "x" * padding for key in range(ROWS)])
    await table.writes.upsert(ipc_stream(SCHEMA, pa.RecordBatch.from_arrays([keys], schema=SCHEMA)), 0)
    return table, await begin(tables)


async def begin(tables: Tables) -> OpenTransaction:
    begun = await tables.transactions.begin(TransactionOptions(id="", attempt="one", finds_conflicts=False, ttl=60))
    assert isinstance(begun, OpenTransaction)
    return begun


def files_beside(begun: OpenTransaction) -> list[Path]:
    return list(begun.directory.path.glob("*.keys"))


@pytest.mark.breadth
async def test_a_call_that_does_not_wait_is_repeated_until_it_is_done(tables: Tables) -> None:
    table, begun = await made(tables)
    place = StagedRequestId(token=begun.token, part="main", sequence=0)
    rows, calls = None, 0
    while rows is None:
        rows = await tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 0)
        calls += 1
        await asyncio.sleep(0)
    assert rows == ROWS
    assert calls > 1
    assert BucketCursor.open_cursors == 0
    assert begun.size > sum(file.stat().st_size for file in files_beside(begun)) > 0
    committed = await tables.transactions.commit(begun.token, "", [("main", 1)])
    assert committed.rows == ROWS
    assert (await table.reads.count(None))[0] == 0


async def test_one_that_is_too_large_leaves_nothing(tables: Tables) -> None:
    table, begun = await made(tables, padding=500)
    place = StagedRequestId(token=begun.token, part="main", sequence=0)
    for _ in range(2):
        with pytest.raises(RequestTooLarge, match="max_transaction_bytes"):
            await tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 60)
    assert (begun.size, files_beside(begun), begun.parts) == (0, [], {})
    assert (await table.reads.count(None))[0] == ROWS


async def test_it_ends_when_its_transaction_or_its_table_goes(tables: Tables) -> None:
    table, begun = await made(tables)
    place = StagedRequestId(token=begun.token, part="main", sequence=0)
    assert await tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 0) is None
    (task,) = begun.deleting.values()
    await tables.transactions.abort(begun.token)
    with pytest.raises(TransactionLost):
        await task
    assert not begun.directory.path.exists()
    begun = await begin(tables)
    place = StagedRequestId(token=begun.token, part="main", sequence=0)
    assert await tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 0) is None
    (task,) = begun.deleting.values()
    await tables.drop("test.t")
    with pytest.raises(TableNotFound):
        await task
    assert (files_beside(begun), begun.parts, BucketCursor.open_cursors) == ([], {}, 0)


async def test_a_commit_waits_for_it(tables: Tables) -> None:
    table, begun = await made(tables)
    place = StagedRequestId(token=begun.token, part="main", sequence=0)
    assert await tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 0) is None
    committed = await tables.transactions.commit(begun.token, "", ())
    assert committed.rows == ROWS
    assert (await table.reads.count(None))[0] == 0


async def test_a_stop_does_not_wait_for_it(tmp_path: Path) -> None:
    tables = await opened(tmp_path)
    table, begun = await made(tables)
    place = StagedRequestId(token=begun.token, part="main", sequence=0)
    assert await tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 0) is None
    waiting = asyncio.create_task(tables.transactions.staging.stage_delete_all(place, table, MERGE, (), 60))
    await asyncio.sleep(0)
    await tables.close()
    with pytest.raises(Unavailable):
        await waiting
    assert (files_beside(begun), begun.parts, BucketCursor.open_cursors) == ([], {}, 0)
