"""Tablets as their table is altered or dropped: what the archive records of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from scankv.model.errors import DiskFailed, TableNotFound, Unavailable
from streaming_server.config import ServerConfig
from streaming_server.engine.backups.archive_part import StoredCapture
from streaming_server.engine.bucket.commit_barrier import CommitBarrier
from streaming_server.engine.tables.tables import Tables
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
TTL = {"ttl_seconds": "60", "ttl_column": "at"}


@pytest.mark.asyncio
async def test_what_is_written_to_closed_tablets_is_left_out_until_they_are_open_again(tmp_path: Path) -> None:
    config = ServerConfig(data=tmp_path / "data", backup_location=str(tmp_path / "backups"), archive_every_seconds=3600)
    tables = Tables(config)
    try:
        tables.archive.part.is_recording = True
        table = await tables.create("t.t", SCHEMA, primary_key=["k"], bucket_key=[], options={}, buckets=2, tablets=2)
        await tables.tablets.follow("t.t", closing=True)
        during = await tables.archive.part.capture(StoredCapture())
        assert [*during.left_out] == [table.incarnation]
        assert during.files == {}
        await tables.tablets.follow("t.t", closing=False)
        after = await tables.archive.part.capture(StoredCapture())
        assert after.left_out == {}
        assert set(after.files) == {(table.incarnation, 0), (table.incarnation, 1)}
    finally:
        await tables.close()


@pytest_asyncio.fixture
async def tables(tmp_path: Path) -> AsyncIterator[Tables]:
    tables = Tables(ServerConfig(data=tmp_path / "data"))
    try:
        await tables.create("t.t", SCHEMA, primary_key=["k"], bucket_key=[], options={}, buckets=2, tablets=2)
        yield tables
    finally:
        await tables.close()


def tablets_of(tables: Tables) -> list[LiveTable]:
    return [tables.table(f"t.t#{number}") for number in range(2)]


@pytest.mark.asyncio
async def test_a_tablet_that_has_missed_a_change_follows_its_table_at_the_next_occasion(tables: Tables) -> None:
    tablet, _ = tablets_of(tables)
    before = tablet.definition
    changed = await tables.alter("t.t", set_options=TTL)
    tablet.alter(before)
    await tables.tablets.follow("t.t", closing=False)
    assert tablet.definition.version == changed.version == before.version + 1


@pytest.mark.asyncio
async def test_a_tablet_with_a_transaction_that_cannot_be_applied_follows_its_table(tables: Tables) -> None:
    tablets = tablets_of(tables)
    (bucket,) = tablets[0].buckets
    barrier = bucket.mutex.barrier = CommitBarrier()
    barrier.fail(DiskFailed("the disk is gone"))
    changed = await tables.alter("t.t", set_options=TTL)
    assert [each.definition.version for each in tablets] == [changed.version] * 2


@pytest.mark.asyncio
async def test_tablets_that_are_closed_stay_closed_when_a_late_call_shows_that_they_are_behind(tables: Tables) -> None:
    tablets_of(tables)
    async with tables.tablets.following:
        closing = asyncio.create_task(tables.tablets.follow("t.t", closing=True))
        await await_until(lambda: asyncio.sleep(0, bool(tables.tablets.following._waiters)), "the closing waiting")
        tables.tablets.catch_up("t.t")
    await closing
    await tables.tablets.join()
    with pytest.raises(Unavailable, match="being dropped"):
        tables.table("t.t#0")
    await tables.tablets.follow("t.t", closing=False)


@pytest.mark.asyncio
async def test_the_error_of_an_unknown_name_suggests_no_tablets(tables: Tables) -> None:
    with pytest.raises(TableNotFound, match=r'did you mean "t\.t"\?$'):
        tables.table("t.tt")
