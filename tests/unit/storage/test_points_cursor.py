"""A cursor over single keys finds exactly those that are there, as of its making, and tells damage from absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_server.storage.cursor import BucketCursor
from table_model.errors import DataLoss
from tests.support.offline import OfflineBucket, bucket_path, definition_in, opened
from tests.support.prepared import flip, prepared_table, rows_file, value_of
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.storage.points_cursor import PointsCursor

DEFINITION = define(pa.schema([("k", pa.int64()), ("v", pa.string())]))
ROWS = 2000
ROOM = 1 << 20


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineBucket]:
    """A bucket with the even numbers, in a file and in memory, and with deleted odd ones."""
    with opened(tmp_path_factory.mktemp("points") / "b" / "0000", DEFINITION) as offline:
        offline.upsert(*({"k": number, "v": "v"} for number in range(ROWS)))
        offline.bucket.flush()
        offline.delete(*({"k": number} for number in range(1, ROWS, 2)))
        yield offline


def cursor_of(offline: OfflineBucket, numbers: list[int], *, reverse: bool = False) -> PointsCursor:
    keys: list[bytes] = offline.keys.codec.encode([pa.array(numbers, pa.int64())]).to_pylist()
    return offline.bucket.points_cursor(offline.codec.decoder(["k"]), sorted(keys), reverse=reverse)


def read(cursor: PointsCursor, max_rows: int = 8192, max_bytes: int = ROOM) -> list[int]:
    found: list[int] = []
    try:
        while (batch := cursor.next_batch(max_rows, max_bytes)) is not None:
            assert batch.num_rows <= max_rows
            found += batch["k"].to_pylist()
    finally:
        cursor.close()
    return found


@given(
    numbers=st.sets(st.integers(-50, ROWS + 50), max_size=600),
    reverse=st.booleans(),
    max_rows=st.sampled_from([1, 100, 8192]),
    max_bytes=st.sampled_from([1, 200, ROOM]),
)
@settings(max_examples=15)
def test_it_finds_the_keys_that_are_there_in_order(
    offline: OfflineBucket, numbers: set[int], reverse: bool, max_rows: int, max_bytes: int
) -> None:
    cursor = cursor_of(offline, sorted(numbers), reverse=reverse)
    there = sorted((number for number in numbers if number in range(0, ROWS, 2)), reverse=reverse)
    assert read(cursor, max_rows, max_bytes) == there
    assert cursor.rows_scanned == len(there)
    assert BucketCursor.open_cursors == 0


def test_a_step_looks_up_few_keys_and_the_last_of_them_is_its_position(offline: OfflineBucket) -> None:
    cursor = cursor_of(offline, list(range(1, ROWS, 2)))
    assert cursor.last_key is None
    batch = cursor.next_batch(8192, ROOM)
    assert batch is not None
    assert batch.num_rows == 0
    assert cursor.last_key == offline.keys.codec.encode_one([511])
    cursor.close()


def test_it_shows_the_moment_of_its_making(offline: OfflineBucket) -> None:
    cursor = cursor_of(offline, [10, ROWS + 1000])
    offline.upsert({"k": ROWS + 1000, "v": "later"})
    offline.delete({"k": 10})
    assert read(cursor) == [10]
    assert read(cursor_of(offline, [10, ROWS + 1000])) == [ROWS + 1000]
    offline.upsert({"k": 10, "v": "v"})
    offline.delete({"k": ROWS + 1000})


@pytest.mark.parametrize("harmed", [0, 3000, 5999])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_key_in_a_damaged_block_is_data_loss_and_never_missing(tmp_path: Path, harmed: int, reverse: bool) -> None:
    rows = 6000
    prepared_table(tmp_path, "test.t", rows, buckets=1)
    path = bucket_path(tmp_path, "test.t", 0)
    file = rows_file(path)
    flip(file, file.read_bytes().find(value_of(harmed).encode()) + 3)
    with opened(path, definition_in(tmp_path, "test.t")) as offline:
        lost = 0
        for number in range(max(0, harmed - 1200), min(rows, harmed + 1200), 7):
            try:
                assert read(cursor_of(offline, [number], reverse=reverse)) == [number]
            except DataLoss:
                lost += 1
                assert abs(number - harmed) < 700
        assert 0 < lost
        with pytest.raises(DataLoss):
            read(cursor_of(offline, list(range(rows)), reverse=reverse))
    assert BucketCursor.open_cursors == 0
