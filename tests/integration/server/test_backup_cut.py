"""The instant of a backup pauses writers for a bounded time, and is tried again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import Unavailable
from streaming_server.engine.backups import backup_cut
from streaming_server.engine.backups.backup_cut import CutTaker
from tests.support.snapshots import new_table, tables_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


async def test_an_instant_that_would_pause_writers_for_too_long_is_given_up_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_cut, "MAX_PAUSE_SECONDS", 0.05)
    async with tables_in(tmp_path / "data") as tables:
        await new_table(tables, "test.a")
        await new_table(tables, "test.b")
        live = [tables.table(name) for name in ("test.a", "test.b")]

        def taker(name: str) -> CutTaker:
            return CutTaker(tmp_path / name, live[0].state.executor, tables.clock, tables.transactions, {}, {})

        async with live[1].buckets[2].mutex:
            with pytest.raises(Unavailable, match="paused writers"):
                await taker("given up").take(live)
            # All other buckets are released.
            async with asyncio.timeout(5), live[0].buckets[0].mutex:
                pass
            taking = asyncio.create_task(taker("tried again").take(live))
            await asyncio.wait([taking], timeout=0.08)
            assert not taking.done()
        monkeypatch.setattr(backup_cut, "MAX_PAUSE_SECONDS", 5.0)
        cut = await taking
        assert [table.definition.name for table in cut.tables] == ["test.a", "test.b"]
