"""Cursors over index entries read any range completely, in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES, KeyRanges
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.examples import examples
from tests.support.indexed import indexed_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.cursors.entry_cursor import EntryCursor

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("score", pa.int64())])
ROWS = 2000


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Makes a bucket with entries of two indexes, one after the other."""
    rows = pa.RecordBatch.from_pydict({"k": range(ROWS), "score": [k * 7 % 400 for k in range(ROWS)]}, schema=SCHEMA)
    path = tmp_path_factory.mktemp("entries")
    with indexed_table(path, rows, buckets=1, indexes=[["score"], ["k"]]) as table:
        yield table.buckets[0].bucket


@pytest.fixture(scope="module")
def everything(bucket: Bucket) -> list[bytes]:
    keys, _ = read(bucket.entry_cursor(ALL_KEY_RANGES))
    assert len(keys) == 2 * ROWS
    assert keys == sorted(keys)
    return keys


def read(cursor: EntryCursor, step: int = 1000) -> tuple[list[bytes], list[bytes]]:
    keys: list[bytes] = []
    values: list[bytes] = []
    try:
        while (found := cursor.next_entries(step)) is not None:
            assert len(found[0]) == len(found[1]) <= step
            keys += found[0]
            values += found[1]
        assert cursor.next_entries(step) is None
        assert cursor.ended
        assert cursor.entries_scanned == len(keys)
        return keys, values
    finally:
        cursor.close()
        cursor.close()


@given(st.data())
@examples(8)
def test_a_range_has_all_its_entries_in_both_directions(
    bucket: Bucket, everything: list[bytes], data: st.DataObject
) -> None:
    places = st.integers(0, len(everything) - 1)
    ends = st.none() | places.map(lambda place: everything[place]) | places.map(lambda place: everything[place] + b"\0")
    key_range = KeyRange(data.draw(ends), data.draw(ends))
    reverse, step = data.draw(st.booleans()), data.draw(st.sampled_from([7, 64, 65, 5000]))
    found, _ = read(bucket.entry_cursor(KeyRanges.of(key_range), reverse=reverse), step)
    assert found == [key for key in (everything[::-1] if reverse else everything) if key in key_range]
    assert BucketCursor.open_cursors == 0


@given(st.data())
@examples(8)
def test_several_ranges_have_all_their_entries_in_both_directions(
    bucket: Bucket, everything: list[bytes], data: st.DataObject
) -> None:
    near = data.draw(st.integers(0, len(everything) - 60))
    places = st.integers(0, len(everything) - 1) | st.integers(near, near + 59)
    drawn = st.lists(st.tuples(places, st.sampled_from([b"", b"\0", b"\0\0"])), unique=True, max_size=60)
    bounds = sorted(everything[place] + behind for place, behind in data.draw(drawn))
    ranges = KeyRanges.of(*(KeyRange(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=False)))
    reverse, step = data.draw(st.booleans()), data.draw(st.sampled_from([1, 7, 65, 5000]))
    found, _ = read(bucket.entry_cursor(ranges, reverse=reverse), step)
    assert found == [key for key in (everything[::-1] if reverse else everything) if key in ranges]
    assert BucketCursor.open_cursors == 0
