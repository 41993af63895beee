"""Builds of indexes: their progress, what makes them fail, and what comes between an index and a write."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.engine.indexes import index_builds
from tests.support.indexes import (
    INDEXED_TABLE,
    assert_sound,
    built,
    delete_players,
    findings,
    player,
    players_table,
    put_players,
)
from tests.support.offline import bucket_path, definition_in, opened
from tests.support.prepared import flip, rows_file
from tests.support.snapshots import tables_in
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable

pytestmark = pytest.mark.asyncio

TOO_LONG = "x" * (MAX_KEY_BYTES + 1)
TOO_LONG_FAILURE = "the indexed columns of a row take over 16,384 bytes when encoded"


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes builds of few rows take many steps."""
    monkeypatch.setattr(index_builds, "STEP_ROWS", 50)


@contextmanager
def no_builds() -> Iterator[None]:
    """Prevents builds in the block, as if the server ended before they could begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_builds.IndexBuilds, "wake", lambda self, live: None)
        yield


def ready_indexes(table: LiveTable) -> list[tuple[int, ...]]:
    """Returns the ids of the ready indexes of each open bucket."""
    return [live._bucket.state.ready_indexes for live in table.buckets if live._bucket is not None]


async def test_an_index_added_to_an_empty_bucket_is_ready_without_a_build(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables)
        with no_builds():
            await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
            await table.reads.count(None)
            assert ready_indexes(table) == [(1,)]


async def test_status_tells_how_far_a_build_is_and_never_more_than_there_is(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=200)
        with no_builds():
            await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
            (live,) = table.buckets
            bucket = await live.open()
            bucket.set_indexes([1])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(index_builds, "STEP_ROWS", 80)
                seen = []
                for _ in range(4):
                    (status,) = (await table.statistics())[1]
                    seen.append((status.ready, status.rows_done, status.rows))
                    index_builds.build_step(bucket, table.state.codec, 1)
                await delete_players(table, range(150))
        (status,) = (await table.statistics())[1]
    assert seen == [(False, 0, 200), (False, 80, 200), (False, 160, 200), (False, 200, 200)]
    assert (status.ready, status.rows_done, status.rows, status.failure) == (True, 50, 50, "")


async def test_a_row_too_long_for_the_index_makes_its_build_fail_and_nothing_else(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, buckets=2, rows=100)
        await put_players(table, [dict(player(7), name=TOO_LONG)])
        await tables.alter(INDEXED_TABLE, add_indexes=[("name", "k"), ("score",)])

        async def failed() -> bool:
            _, (name, score) = await table.statistics()
            return bool(name.failure) and score.ready

        await await_until(failed, "the failure told")
        _, (name, score) = await table.statistics()
        assert name.failure.startswith(TOO_LONG_FAILURE)
        assert "xxx" not in name.failure
        assert (name.ready, score.ready, score.failure) == (False, True, "")
        await put_players(table, [player(8, -1), dict(player(9), name="short")])
        with pytest.raises(RequestTooLarge, match=r"row 1: the columns of index \(name, k\) take over 16,384 bytes"):
            await put_players(table, [player(200), dict(player(201), name=TOO_LONG)])
        # The row itself can still be changed and deleted.
        await put_players(table, [dict(player(7, -5), name="short")])
        await tables.alter(INDEXED_TABLE, drop_indexes=[("name", "k")])
        await tables.alter(INDEXED_TABLE, add_indexes=[("name", "k")])
        await built(table)
        assert [index.id for index in table.definition.indexes] == [2, 3]
        await assert_sound(table)


async def test_a_damaged_block_makes_the_build_fail_in_its_bucket_alone(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, buckets=2, rows=40_000)
        for live in table.buckets:
            assert live._bucket is not None
            live._bucket.flush()
    file = rows_file(bucket_path(tmp_path, INDEXED_TABLE, 1))
    flip(file, file.stat().st_size // 2)
    async with tables_in(tmp_path) as tables:
        table = tables.table(INDEXED_TABLE)
        await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])

        async def failed() -> bool:
            _, (status,) = await table.statistics()
            return bool(status.failure)

        await await_until(failed, "the failure told")
        _, (status,) = await table.statistics()
        assert "bucket 1 of game.players is damaged" in status.failure
        assert not status.ready
        assert table.buckets[1].damage is not None
        await await_until(lambda: asyncio.sleep(0, ready_indexes(table)[0] == (1,)), "the other bucket's index ready")
        assert ready_indexes(table)[1] == ()


async def test_entries_that_writes_made_of_an_index_dropped_before_its_build_began_go_too(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=100)
        with no_builds():
            await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
            await put_players(table, (player(key, -1) for key in range(50)))
            await tables.alter(INDEXED_TABLE, drop_indexes=[("score",)])
    with opened(bucket_path(tmp_path, INDEXED_TABLE, 0), definition_in(tmp_path, INDEXED_TABLE)) as bucket:
        assert bucket.entries() == {}


async def test_a_table_dropped_in_mid_build_is_gone_at_once(tmp_path: Path, small_steps: None) -> None:
    async with tables_in(tmp_path) as tables:
        await players_table(tables, buckets=2, rows=5_000)
        await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
        await tables.drop(INDEXED_TABLE)
        assert not (tmp_path / "tables" / "game" / "players").exists()
        table = await players_table(tables, indexes=[["score"]], rows=10)
        await assert_sound(table)


async def test_an_index_added_while_a_write_is_on_its_way_has_its_rows(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=10)
        async with table.buckets[0].mutex:
            writing = asyncio.create_task(put_players(table, (player(key) for key in range(5, 50))))
            await await_until(lambda: asyncio.sleep(0, bool(table.buckets[0].mutex._waiters)), "the write waiting")
            await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
        await writing
        await built(table)
        await assert_sound(table)
        assert (await findings(table))[0].rows == 50


async def test_a_row_too_long_for_an_index_added_while_it_is_on_its_way_is_refused(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=10)
        async with table.buckets[0].mutex:
            writing = asyncio.create_task(put_players(table, [dict(player(3), name=TOO_LONG)]))
            await await_until(lambda: asyncio.sleep(0, bool(table.buckets[0].mutex._waiters)), "the write waiting")
            await tables.alter(INDEXED_TABLE, add_indexes=[("name", "k")])
        with pytest.raises(RequestTooLarge, match="an index was added during the write"):
            await writing
        await built(table)
        await assert_sound(table)
