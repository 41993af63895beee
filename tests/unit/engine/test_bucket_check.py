"""The check of a bucket distinguishes every kind of damage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import ScanCancelled, TableNotFound
from streaming_server.engine.indexes import index_builds
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.indexes import INDEXED_TABLE, findings, player, players_table, put_players
from tests.support.offline import offline_table
from tests.support.snapshots import tables_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streaming_server.engine.bucket.bucket_checker import BucketFindings
    from streaming_server.storage.rocks.store_batch import StoreBatch
    from tests.support.offline import OfflineBucket

pytestmark = pytest.mark.asyncio

ROWS = 3_000


async def found_after(data_dir: Path, tamper: Callable[[OfflineBucket, StoreBatch], None]) -> BucketFindings:
    """Returns the result of checking a table with indexes on (score) and (name, score) after a manipulation."""
    async with tables_in(data_dir) as tables:
        await players_table(tables, indexes=[["score"], ["name", "score"]], rows=ROWS)
    with offline_table(data_dir, INDEXED_TABLE) as (offline,):
        write(offline, tamper)
    async with tables_in(data_dir) as tables:
        (found,) = await findings(tables.table(INDEXED_TABLE))
        assert BucketCursor.open_cursors == 0
        return found


def write(offline: OfflineBucket, tamper: Callable[[OfflineBucket, StoreBatch], None]) -> None:
    """Writes what no merge would; the batch, which keeps the files open, is gone afterwards."""
    batch = offline.bucket._store.batch()
    tamper(offline, batch)
    offline.bucket._store.write(batch)


def problems(found: BucketFindings) -> list[str]:
    """Returns the problems of the bucket, of (score) and of (name, score)."""
    return [found.problem, *(index.problem for index in found.indexes)]


@pytest.mark.parametrize(("gone", "text"), [(1, "1 entry fewer than rows"), (3, "3 entries fewer than rows")])
async def test_entries_that_are_missing_are_counted(tmp_path: Path, gone: int, text: str) -> None:
    found = await found_after(tmp_path, lambda offline, batch: batch.delete_entries(sorted(offline.entries())[-gone:]))
    assert problems(found) == ["", "", text]


async def test_entries_that_are_left_over_are_counted(tmp_path: Path) -> None:
    def add(offline: OfflineBucket, batch: StoreBatch) -> None:
        key, value = next(iter(offline.entries().items()))
        batch.put_entries([key + b"\0", key + b"\1"], [value, value])

    assert problems(await found_after(tmp_path, add)) == ["", "2 entries more than rows", ""]


async def test_values_that_changed_places_differ_from_the_rows(tmp_path: Path) -> None:
    def swap(offline: OfflineBucket, batch: StoreBatch) -> None:
        (first, second), *_ = zip(*[iter(sorted(offline.entries().items()))] * 2, strict=False)
        batch.put_entries([first[0], second[0]], [second[1], first[1]])

    assert problems(await found_after(tmp_path, swap)) == ["", "differs from the rows", ""]


async def test_entries_of_no_index_of_the_table_are_told(tmp_path: Path) -> None:
    def add(offline: OfflineBucket, batch: StoreBatch) -> None:
        batch.put_entries([b"\0\0\0\1", b"\0\0\0\3abc", b"\xff\xff\xff\xff", b"\0"], [b""] * 4)
        batch.delete_entries([next(iter(offline.entries()))])

    found = await found_after(tmp_path, add)
    text = "bucket 0 of game.players has 3 entries of indexes that the table does not have"
    assert problems(found) == [text, "differs from the rows", ""]


async def test_a_row_that_is_missing_is_told_of_the_rows_and_of_each_index(tmp_path: Path) -> None:
    def remove(offline: OfflineBucket, batch: StoreBatch) -> None:
        keys, _ = offline.keys.encode(offline.rows().to_batches()[0])
        batch.delete_rows([keys[0].as_py()])

    text = "bucket 0 of game.players has 2,999 rows, but its row count is 3,000"
    assert problems(await found_after(tmp_path, remove)) == [text] + ["1 entry more than rows"] * 2


async def test_a_row_under_the_key_of_another_one_is_told(tmp_path: Path) -> None:
    def misplace(offline: OfflineBucket, batch: StoreBatch) -> None:
        rows = offline.rows().to_batches()[0]
        keys, values = offline.keys.encode(rows)[0].to_pylist(), offline.codec.encode(rows).to_pylist()
        batch.put_rows([keys[10]], [values[20]])

    found = await found_after(tmp_path, misplace)
    assert "bucket 0 of game.players has rows that are not in the order of their keys" in found.problem
    assert [index.problem for index in found.indexes] == ["differs from the rows"] * 2


async def test_rows_of_another_bucket_are_told(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        await players_table(tables, buckets=2, rows=100)
    with offline_table(tmp_path, INDEXED_TABLE) as (first, second):
        row = first.rows().to_batches()[0].slice(0, 1)
        key, value = second.keys.encode(row)[0].to_pylist(), second.codec.encode(row).to_pylist()
        write(second, lambda _, batch: batch.put_rows(key, value))
    async with tables_in(tmp_path) as tables:
        sound, strange = await findings(tables.table(INDEXED_TABLE))
    assert sound.problem == ""
    assert "bucket 1 of game.players has rows that belong to other buckets" in strange.problem


async def test_an_index_that_is_being_built_is_counted_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_builds.IndexBuilds, "wake", lambda self, live: None)
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, rows=100)
        await tables.alter(INDEXED_TABLE, add_indexes=[("score",)])
        await put_players(table, (player(key, -1) for key in range(7)))
        (found,) = await findings(table)
    assert found.problem == ""
    (index,) = found.indexes
    assert (index.ready, index.entries, index.problem) == (False, 7, "")


async def test_a_check_is_as_of_one_moment_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, indexes=[["score"], ["name", "score"]], rows=5_000)
        writes = 0

        async def put_on() -> None:
            nonlocal writes
            while True:
                await put_players(table, (player(key, writes) for key in range(writes % 50, 6_000, 50)))
                writes += 1

        writer = asyncio.create_task(put_on())
        overlapping = 0
        try:
            async with asyncio.timeout(60):
                while overlapping < 4:
                    before = writes
                    (found,) = await findings(table)
                    assert problems(found) == ["", "", ""]
                    overlapping += writes > before
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


async def test_a_check_that_is_aborted_frees_its_cursors_at_once(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, indexes=[["score"]], rows=10_000)
        for turns in (0, 1, 3, 20, 60):
            check = await table.open_check(0)
            assert BucketCursor.open_cursors == 2
            running = asyncio.create_task(check.run())
            for _ in range(turns):
                await asyncio.sleep(0)
            check.abort(ScanCancelled("an operator cancelled it"))
            assert BucketCursor.open_cursors == 0
            with pytest.raises(ScanCancelled):
                await running


async def test_a_table_dropped_in_mid_check_ends_it(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await players_table(tables, indexes=[["score"]], rows=10_000)
        checking = asyncio.create_task((await table.open_check(0)).run())
        await asyncio.sleep(0)
        await tables.drop(INDEXED_TABLE)
        with pytest.raises(TableNotFound):
            await checking
        assert BucketCursor.open_cursors == 0
