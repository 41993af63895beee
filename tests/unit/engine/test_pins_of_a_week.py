"""Pinning a table that is written to every minute keeps the number of files small, however long it continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streaming_server.storage.files.file_limit import open_files
from streaming_server.storage.rocks.small_files import FEW_FILES, SMALL_BYTES, SstFile, find_small_runs
from tests.support.snapshots import TABLE, new_table, pinned_rows, put, tables_in

if TYPE_CHECKING:
    from pathlib import Path

BUCKETS = 2
A_WEEK = 7 * 24 * 60
# For each of the four families: the small files that may remain, those of the flushes before the next check, and a few
# larger files.
MOST_FILES = BUCKETS * 4 * (FEW_FILES + 8 + 4)


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("pins", [120, pytest.param(A_WEEK, marks=pytest.mark.soak)])
@pytest.mark.timeout(180)  # 120 pins, each with a flush
async def test_pins_of_a_table_under_writes_leave_few_files_open(tmp_path: Path, pins: int) -> None:
    async with tables_in(tmp_path, log_maintenance_seconds=3600) as tables:
        table = await new_table(tables, buckets=BUCKETS)
        before, most = open_files(), 0
        expected: dict[str, int | None] = {}
        for number in range(pins):
            # Keys ascend, as in a changelog, so no compaction of RocksDB would merge their files.
            rows: dict[str, int | None] = {f"{number:08}/{place}": number for place in range(20)}
            expected |= rows
            await put(table, rows)
            snapshot = await tables.snapshots.pin(table.pinning)
            await tables.snapshots.release(snapshot.snapshot_id)
            if number % 5 == 4:
                for live in table.buckets:
                    await tables._log_maintenance.maintain(table.state, live)
            most = max(most, open_files() - before)
        assert most < MOST_FILES
        snapshot = await tables.snapshots.pin(table.pinning)
        found = await pinned_rows(tables.snapshots, snapshot.snapshot_id)
        assert dict(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    async with tables_in(tmp_path) as tables:
        assert (await tables.table(TABLE).reads.count(None))[0] == len(expected)


def file(first: int, last: int, size: int = 1000) -> SstFile:
    return SstFile(size, first.to_bytes(4, "big"), last.to_bytes(4, "big"))


def test_only_runs_of_many_small_files_without_larger_ones_are_made_one() -> None:
    many = [file(10 * place, 10 * place + 5) for place in range(FEW_FILES + 1)]
    whole = (many[0].first, many[-1].last)
    assert find_small_runs([]) == []
    assert find_small_runs(many[:FEW_FILES]) == []
    assert find_small_runs(reversed(many)) == [whole]
    behind = file(10_000, 20_000, SMALL_BYTES)
    assert find_small_runs([*many, behind]) == [whole]
    assert find_small_runs([*many, file(0, 20_000, SMALL_BYTES)]) == [], "a large file has keys in between"
    assert find_small_runs([*many[:5], file(51, 52, SMALL_BYTES), *many[6:]]) == [], "it parts them"
    more = [file(30_000 + 10 * place, 30_000 + 10 * place + 5) for place in range(FEW_FILES + 1)]
    assert find_small_runs([*many, behind, *more]) == [whole, (more[0].first, more[-1].last)]
    assert find_small_runs([file(0, 100) for _ in range(FEW_FILES + 1)]) == [(file(0, 100).first, file(0, 100).last)]
