"""Tablets as their table is altered or dropped: what the archive records of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from streaming_server.config import ServerConfig
from streaming_server.engine.backups.archive_part import StoredCapture
from streaming_server.engine.tables.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


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
