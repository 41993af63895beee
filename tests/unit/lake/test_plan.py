"""Which data files a change of rows replaces."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.lake.lake_table import DataFile, LakeColumn
from scankv.lake.plan import BucketPlan, find_obstacle, find_obstacle_by_id, small_appended_files
from scankv.model.keys.key_range import KeyRange
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence


def key(number: int) -> bytes:
    return number.to_bytes(2, "big")


def data_file(first: int, last: int, rows: int = 10, masked_rows: int = 0) -> DataFile:
    return DataFile(
        path=f"{first}-{last}",
        bucket=0,
        rows=rows,
        size_bytes=1,
        first_key=key(first),
        last_key=key(last),
        schema_id=1,
        masked_rows=masked_rows,
    )


FILES = [data_file(10, 19), data_file(20, 29), data_file(40, 49), data_file(50, 59)]


def replaced(files: Sequence[DataFile], *keys: int, file_rows: int = 10) -> list[tuple[KeyRange, list[str]]]:
    plan = BucketPlan(0, files)
    plan.add_keys([key(each) for each in keys])
    return [(each.keys, [file.path for file in each.files]) for each in plan.replacements(file_rows)]


def test_nothing_is_replaced_if_no_key_has_changed() -> None:
    assert replaced(FILES) == []


def test_a_changed_key_replaces_its_file_alone() -> None:
    assert replaced(FILES, 42) == [(KeyRange(key(40), key(49) + b"\0"), ["40-49"])]


def test_changed_files_side_by_side_are_read_as_one_range() -> None:
    ((keys, paths),) = replaced(FILES, 11, 29)
    assert keys == KeyRange(key(10), key(29) + b"\0")
    assert paths == ["10-19", "20-29"]


def test_new_keys_between_complete_files_make_a_file_of_their_own() -> None:
    assert replaced(FILES, 35) == [(KeyRange(key(29) + b"\0", key(40)), [])]


def test_new_keys_after_a_small_file_are_added_to_it() -> None:
    assert replaced([data_file(10, 19, rows=4)], 30) == [(KeyRange(key(10), None), ["10-19"])]
    assert replaced([data_file(10, 19, rows=10, masked_rows=6)], 30) == [(KeyRange(key(10), None), ["10-19"])]
    assert replaced([data_file(10, 19, rows=5)], 30) == [(KeyRange(key(19) + b"\0", None), [])]


def test_the_first_and_the_last_key_of_a_bucket_are_covered() -> None:
    assert replaced([], 1) == [(KeyRange(), [])]
    assert replaced(FILES, 1, 99) == [(KeyRange(None, key(10)), []), (KeyRange(key(59) + b"\0", None), [])]


def test_overlapping_files_are_replaced_together() -> None:
    files = [data_file(10, 30), data_file(15, 20), data_file(40, 49)]
    assert replaced(files, 16) == [(KeyRange(key(10), key(30) + b"\0"), ["10-30", "15-20"])]


def test_many_small_files_side_by_side_are_joined() -> None:
    files = [data_file(10 * number, 10 * number + 9, rows=1) for number in range(1, 9)]
    assert replaced(files[:7], 200, file_rows=1) == [(KeyRange(key(79) + b"\0", None), [])]
    ((keys, paths),) = replaced(files, 200, file_rows=16)
    assert keys == KeyRange(key(10), None)
    assert len(paths) == 8


def test_small_files_of_different_partitions_are_not_joined() -> None:
    files = [replace(data_file(10 * n, 10 * n + 9, rows=1), partition_id=str(n % 2)) for n in range(1, 17)]
    assert [paths for _, paths in replaced(files, 11, file_rows=16)] == [["10-19"]]


def test_small_appended_files_are_joined_up_to_a_complete_one() -> None:
    files = [data_file(number, number, rows=2) for number in range(40)]
    runs = small_appended_files(reversed(files), 30)
    assert [len(run) for run in runs] == [15, 15, 10]
    assert [file for run in runs for file in run] == files
    assert small_appended_files(files[:7], 30) == []
    assert small_appended_files([data_file(number, number, rows=3) for number in range(40)], 30) == []


def test_a_deleted_range_replaces_the_files_with_its_keys() -> None:
    plan = BucketPlan(0, FILES)
    plan.add_range(key(25), key(40))
    assert [each.files for each in plan.replacements(10)] == [(FILES[1],)]
    plan.add_range(None, None)
    assert [each.files for each in plan.replacements(10)] == [tuple(FILES)]


_BOUNDS = st.lists(st.integers(0, 60), unique=True, max_size=16).map(sorted)


@examples(100)
@given(_BOUNDS, st.sets(st.integers(0, 60)), st.integers(1, 30))
def test_ranges_cover_all_changed_keys_and_exactly_the_files_that_they_replace(
    bounds: list[int], changed: set[int], file_rows: int
) -> None:
    files = [data_file(first, last) for first, last in zip(bounds[::2], bounds[1::2], strict=False)]
    plan = BucketPlan(0, files)
    plan.add_keys(sorted(map(key, changed)))
    found = plan.replacements(file_rows)
    assert all(any(key(each) in one.keys for one in found) for each in changed)
    for before, after in pairwise(found):
        assert before.keys.end is not None
        assert after.keys.start is not None
        assert before.keys.end <= after.keys.start
    for file in files:
        holders = [one for one in found if file in one.files]
        inside = [file.first_key in one.keys and file.last_key in one.keys for one in found]
        outside = [(KeyRange(file.first_key, file.last_key + b"\0") & one.keys).is_empty for one in found]
        assert len(holders) == sum(inside) <= 1
        assert all(is_inside is not is_outside for is_inside, is_outside in zip(inside, outside, strict=True))


PLAYER, SCORE = LakeColumn(1, "player", "string"), LakeColumn(2, "score", "int32")


@pytest.mark.parametrize(
    ("columns", "obstacle"),
    [
        ([PLAYER, SCORE], None),
        ([SCORE, PLAYER], None),
        ([PLAYER], None),
        ([PLAYER, SCORE, LakeColumn(3, "league", "string")], None),
        ([PLAYER, SCORE, LakeColumn(4, "league", "string")], 'column "league" was added with a default'),
        ([PLAYER, LakeColumn(2, "points", "int32")], 'column "score" was renamed to "points"'),
        ([PLAYER, LakeColumn(2, "score", "int64")], 'column "score" was changed from int32 to int64'),
        ([PLAYER, LakeColumn(3, "score", "int32")], 'column "score" replaces a column with the same name'),
        (
            [LakeColumn(2, "player", "string"), LakeColumn(1, "score", "int32")],
            'column "player" replaces a column with the same name',
        ),
    ],
)
def test_files_stay_as_long_as_a_reader_finds_their_columns(columns: list[LakeColumn], obstacle: str | None) -> None:
    assert find_obstacle([PLAYER, SCORE], columns, {3}) == obstacle


def test_columns_without_ids_are_not_taken_for_other_columns() -> None:
    unknown = [replace(column, id=-1 - place) for place, column in enumerate((PLAYER, SCORE))]
    for find in (find_obstacle, find_obstacle_by_id):
        assert str(find(unknown, [PLAYER, SCORE], {})).startswith("the table had no changelog")
