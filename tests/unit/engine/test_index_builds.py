"""Indexes added to and dropped from tables in use: built during writes, complete or unused, and removed completely."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest, RequestTooLarge, SchemaMismatch
from scankv.model.keys.key_ranges import KeyRanges
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.tables.evolution import ColumnChanges
from streaming_server.engine.indexes import index_builds
from streaming_server.storage.rows.index_codec import IndexCodec
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
from tests.support.offline import bucket_path, check_entries, definition_in, offline_table, opened
from tests.support.prepared import flip, rows_file
from tests.support.snapshots import tables_in
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.storage.bucket.index_build import IndexBuild

pytestmark = pytest.mark.asyncio

TOO_LONG = "x" * (MAX_KEY_BYTES + 1)
TOO_LONG_FAILURE = "the indexed columns of a row take over 16,384 bytes when encoded"

TEAM = ColumnChanges(add=pa.schema([("team", pa.string())]))


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


async def test_a_new_table_has_its_indexes_ready_in_every_bucket_before_and_after_its_first_write(
    tmp_path: Path,
) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, buckets=3, indexes=[["score"], ["name", "score"]])
        await table.reads.count(None)
        assert ready_indexes(table) == [(1, 2)] * 3
        await put_players(table, map(player, range(100)))
        await assert_sound(table)
    async with tables_in(tmp_path) as tables:
        await assert_sound(tables.table(INDEXED_TABLE))


async def test_an_index_added_to_an_empty_bucket_is_ready_without_a_build(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables)
        with no_builds():
            await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
            await table.reads.count(None)
            assert ready_indexes(table) == [(1,)]


async def test_an_index_is_built_while_others_write(
    tmp_path: Path, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    writes_meanwhile = 0
    written = asyncio.Event()
    build_next = index_builds.IndexBuilds._step

    async def build_after_a_write(builds: index_builds.IndexBuilds, live: LiveBucket) -> bool:
        written.clear()
        await written.wait()
        return await build_next(builds, live)

    # Else a build may be over before a busy machine has let the writers write.
    monkeypatch.setattr(index_builds.IndexBuilds, "_step", build_after_a_write)
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, buckets=2, rows=2_000)

        async def write() -> None:
            nonlocal writes_meanwhile
            while True:
                keys = [rng.randrange(2_400) for _ in range(20)]
                if rng.random() < 0.3:
                    await delete_players(table, keys)
                else:
                    await put_players(table, (player(key, rng.randrange(5)) for key in keys))
                written.set()
                writes_meanwhile += not all(set(ready) == {1, 2} for ready in ready_indexes(table))

        writers = [asyncio.create_task(write()) for _ in range(3)]
        await tables.alter(INDEXED_TABLE, add_indexes=[("score",), ("name", "score")])
        await built(table)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        await assert_sound(table)
    assert writes_meanwhile > 20, f"seed {seed}"
    with offline_table(tmp_path, INDEXED_TABLE) as buckets:
        for bucket in buckets:
            assert bucket.bucket.state.ready_indexes == (1, 2)
            check_entries(bucket)


async def test_an_index_on_a_column_that_is_added_with_it_is_built_and_kept(tmp_path: Path, small_steps: None) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=300)
        await tables.alter(INDEXED_TABLE, columns=TEAM, add_indexes=[("team",)])
        await built(table)
        await assert_sound(table)
        await put_players(table, (dict(player(key), team="red" if key % 2 else None) for key in range(0, 400, 3)))
        await delete_players(table, range(0, 300, 5))
        await put_players(table, (dict(player(key), team="blue") for key in range(0, 300, 10)))
        await assert_sound(table)


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


@pytest.mark.breadth
async def test_a_build_that_was_interrupted_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough steps that a slow machine, which polls rarely, does not miss all of them.
    monkeypatch.setattr(index_builds, "STEP_ROWS", 5)
    positions: list[int] = []
    for attempt in range(3):
        async with tables_in(tmp_path) as tables:
            if attempt == 0:
                table = await players_table(tables, rows=2_000)
                await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
            else:
                table = tables.table(INDEXED_TABLE)
            await table.reads.count(None)
            (live,) = table.buckets
            before = live._bucket.builds.get(1) if live._bucket else None

            async def moved(live: LiveBucket = live, before: IndexBuild | None = before) -> bool:
                return live._bucket is not None and live._bucket.builds.get(1) != before

            await await_until(moved, "a step of the build")
        with offline_table(tmp_path, INDEXED_TABLE) as (bucket,):
            check_entries(bucket)
            positions.append(bucket.bucket.builds[1].rows)
    assert positions == sorted(set(positions))
    async with tables_in(tmp_path) as tables:
        table = tables.table(INDEXED_TABLE)
        await table.reads.count(None)
        await built(table)
        await assert_sound(table)


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


async def test_a_request_with_a_row_too_long_for_an_index_writes_nothing(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, buckets=3, indexes=[["score", "name"]])
        rows = [player(key) for key in range(50)]
        rows[20]["name"] = TOO_LONG
        with pytest.raises(RequestTooLarge, match=r"row 20: the columns of index \(score, name\)") as caught:
            await put_players(table, rows)
        assert caught.value.details["row"] == "20"
        assert (await table.reads.count(None))[0] == 0


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


async def test_a_dropped_index_leaves_no_entries_and_its_id_is_never_used_again(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, buckets=2, indexes=[["score"], ["name"]], rows=500)
        await tables.alter(INDEXED_TABLE, drop_indexes=[("score",)], add_indexes=[("score", "name")])
        assert set(table.state.codec.indexes) == {2, 3}
        await built(table)
        await assert_sound(table)
        await put_players(table, map(player, range(600)))
        await tables.alter(INDEXED_TABLE, drop_indexes=[("score", "name")])
        await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
        assert [index.id for index in table.definition.indexes] == [2, 4]
        await built(table)
        await assert_sound(table)
    with offline_table(tmp_path, INDEXED_TABLE) as buckets:
        for bucket in buckets:
            check_entries(bucket)
            assert bucket.bucket.state.indexes == bucket.bucket.state.ready_indexes == (2, 4)


async def test_entries_of_an_index_dropped_before_a_crash_go_when_the_bucket_is_opened(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        await players_table(tables, indexes=[["score"], ["name"]], rows=300)
    async with tables_in(tmp_path) as tables:
        with no_builds():
            await tables.alter(INDEXED_TABLE, drop_indexes=[("score",)])
    async with tables_in(tmp_path) as tables:
        await assert_sound(tables.table(INDEXED_TABLE))
    with offline_table(tmp_path, INDEXED_TABLE) as (bucket,):
        check_entries(bucket)
        assert len(bucket.entries()) == 300


async def test_entries_that_writes_made_of_an_index_dropped_before_its_build_began_go_too(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=100)
        with no_builds():
            await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
            await put_players(table, (player(key, -1) for key in range(50)))
            await tables.alter(INDEXED_TABLE, drop_indexes=[("score",)])
    with opened(bucket_path(tmp_path, INDEXED_TABLE, 0), definition_in(tmp_path, INDEXED_TABLE)) as bucket:
        assert bucket.entries() == {}


async def test_a_pinned_view_keeps_the_entries_of_an_index_that_is_dropped(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, indexes=[["score"]], rows=200)
        pinned = await tables.snapshots.pin(table.pinning)
        await tables.alter(INDEXED_TABLE, drop_indexes=[("score",)])
        await await_until(lambda: asyncio.sleep(0, ready_indexes(table) == [()]), "the index gone")
        async with tables.snapshots.reading(pinned.snapshot_id, INDEXED_TABLE, None) as reader:
            (index,) = reader.definition.indexes
            codec = IndexCodec(reader.definition, index)
            cursor = reader._view.checkpoint(0).entry_cursor(KeyRanges.of(codec.all_entries))
            keys, _ = cursor.next_entries(1_000) or ([], [])
            assert len(keys) == 200
            assert cursor.next_entries(1) is None
            cursor.close()


async def test_a_table_dropped_in_mid_build_is_gone_at_once(tmp_path: Path, small_steps: None) -> None:
    async with tables_in(tmp_path) as tables:
        await players_table(tables, buckets=2, rows=5_000)
        await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
        await tables.drop(INDEXED_TABLE)
        assert not (tmp_path / "tables" / "game" / "players").exists()
        table = await players_table(tables, indexes=[["score"]], rows=10)
        await assert_sound(table)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({}, InvalidRequest, "there is nothing to change"),
        ({"add_indexes": [("score",)]}, InvalidRequest, r"already has an index on \(score\)"),
        ({"drop_indexes": [("name",)]}, InvalidRequest, r"has no index on \(name\); its indexes: \(score\)"),
        ({"add_indexes": [("scroe",)]}, SchemaMismatch, 'no column "scroe"; did you mean "score"'),
        ({"add_indexes": [("name",), ("name",)]}, InvalidRequest, r"already has an index on \(name\)"),
        (
            {"columns": ColumnChanges(add=pa.schema([("tags", pa.list_(pa.int8()))])), "add_indexes": [("tags",)]},
            SchemaMismatch,
            "has no order",
        ),
        (
            {"columns": TEAM, "drop_indexes": [("score",), ("score",)]},
            InvalidRequest,
            "has no index on",
        ),
    ],
)
async def test_an_alteration_that_is_wrong_in_a_part_changes_nothing(
    tmp_path: Path, change: dict[str, object], error: type[Exception], message: str
) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, indexes=[["score"]], rows=10)
        before = table.definition
        with pytest.raises(error, match=message):
            await tables.alter(INDEXED_TABLE, **change)  # type: ignore[arg-type]
        assert table.definition == before
        assert tables.definitions() == [before]
        await assert_sound(table)
    assert definition_in(tmp_path, INDEXED_TABLE) == before


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
