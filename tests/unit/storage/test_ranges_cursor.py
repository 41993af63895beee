"""A cursor over key ranges and single keys finds exactly their rows, in short steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.storage.cursors import range_reader
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.ranges_cursor import STEP_SECONDS, RangesCursor
from tests.support.examples import examples
from tests.support.offline import OfflineBucket, opened
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DEFINITION = define(pa.schema([("k", pa.int64()), ("v", pa.string())]))
ROWS = 2000
ROOM = 1 << 20


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineBucket]:
    """Makes a bucket with the even numbers, in a file and in memory, and with deleted odd numbers."""
    with opened(tmp_path_factory.mktemp("points") / "b" / "0000", DEFINITION) as offline:
        offline.upsert(*({"k": number, "v": "v"} for number in range(ROWS)))
        offline.bucket.flush()
        offline.delete(*({"k": number} for number in range(1, ROWS, 2)))
        yield offline


def cursor_of(offline: OfflineBucket, numbers: list[int], *, reverse: bool = False) -> RangesCursor:
    keys = KeyRanges.of_keys([key_of(offline, number) for number in sorted(numbers)])
    return offline.bucket.ranges_cursor(offline.codec.decoder(["k"]), keys, reverse=reverse)


def key_of(offline: OfflineBucket, number: int) -> bytes:
    return offline.keys.codec.encode_one([number])


def ranges_of(offline: OfflineBucket, bounds: list[int]) -> KeyRanges:
    """Returns the ranges between each two numbers, without the second number."""
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    return KeyRanges.of(*(KeyRange(key_of(offline, low), key_of(offline, high)) for low, high in pairs))


def read(cursor: RangesCursor, max_rows: int = 8192, max_bytes: int = ROOM) -> list[int]:
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
@examples(8)
def test_it_finds_the_keys_that_are_there_in_order(
    offline: OfflineBucket, numbers: set[int], reverse: bool, max_rows: int, max_bytes: int
) -> None:
    cursor = cursor_of(offline, sorted(numbers), reverse=reverse)
    there = sorted((number for number in numbers if number in range(0, ROWS, 2)), reverse=reverse)
    assert read(cursor, max_rows, max_bytes) == there
    assert cursor.rows_scanned == len(there)
    assert BucketCursor.open_cursors == 0


@given(
    bounds=st.lists(st.integers(-50, ROWS + 50), unique=True, max_size=40).map(sorted),
    singles=st.sets(st.integers(0, 50), max_size=10),
    open_ended=st.booleans(),
    reverse=st.booleans(),
    max_rows=st.sampled_from([1, 7, 100, 8192]),
    max_bytes=st.sampled_from([1, 200, ROOM]),
    resumed=st.booleans(),
)
@examples(10)
def test_it_finds_what_is_in_ranges_and_goes_on_from_wherever_it_was(
    offline: OfflineBucket,
    bounds: list[int],
    singles: set[int],
    open_ended: bool,
    reverse: bool,
    max_rows: int,
    max_bytes: int,
    resumed: bool,
) -> None:
    ranges = ranges_of(offline, [bound + 110 for bound in bounds])
    keys = KeyRanges.of_keys([key_of(offline, number) for number in sorted(singles)])
    ranges = KeyRanges(keys.starts + ranges.starts, keys.ends + ranges.ends)
    if open_ended:
        ranges = KeyRanges.of(*ranges, KeyRange(key_of(offline, ROWS + 300), None))
    expected = sorted((n for n in range(0, ROWS, 2) if key_of(offline, n) in ranges), reverse=reverse)
    found = read_on(offline, ranges, reverse, max_rows, resumed, max_bytes)
    assert found == expected
    assert BucketCursor.open_cursors == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_ends_when_it_took_long_and_tells_how_far_it_came(offline: OfflineBucket, reverse: bool) -> None:
    keys = KeyRanges.of_keys([key_of(offline, number) for number in range(1, ROWS, 2)])
    ticks = iter(range(1_000_000))
    decoder = offline.codec.decoder(["k"])
    cursor = RangesCursor(
        offline.bucket._store, decoder, keys, 100, reverse=reverse, clock=lambda: next(ticks) * STEP_SECONDS / 9.5
    )
    assert cursor.last_key is None
    batch = cursor.next_batch(8192, ROOM)
    assert batch is not None
    assert batch.num_rows == 0
    assert cursor.last_key == key_of(offline, ROWS - 19 if reverse else 19)
    cursor.close()


def read_on(
    offline: OfflineBucket, left: KeyRanges, reverse: bool, max_rows: int, resumed: bool, max_bytes: int = ROOM
) -> list[int]:
    """Returns the rows in the ranges; with `resumed`, each batch is read by a new cursor."""
    found: list[int] = []
    while left:
        cursor = offline.bucket.ranges_cursor(offline.codec.decoder(["k"]), left, reverse=reverse)
        try:
            while (batch := cursor.next_batch(max_rows, max_bytes)) is not None:
                assert batch.num_rows <= max_rows
                found += batch["k"].to_pylist()
                if resumed:
                    break
            if batch is None:
                break
            assert cursor.last_key is not None
            left = left.after(cursor.last_key, reverse=reverse)
        finally:
            cursor.close()
    return found


@pytest.mark.parametrize("reverse", [False, True])
def test_ranges_that_are_seen_to_be_empty_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    moves: list[KeyRange] = []
    move_to = range_reader.RangeReader.move_to

    def counted(self: range_reader.RangeReader[object], key_range: KeyRange) -> None:
        moves.append(key_range)
        move_to(self, key_range)

    monkeypatch.setattr(range_reader.RangeReader, "move_to", counted)
    there = [0, 4003, 4500, 9999]
    with opened(tmp_path / "b" / "0000", DEFINITION) as offline:
        offline.upsert(*({"k": number, "v": "v"} for number in there))
        ranges = ranges_of(offline, [bound for low in range(1, 10_000, 10) for bound in (low, low + 5)])
        assert len(ranges) == 1000
        found = read(offline.bucket.ranges_cursor(offline.codec.decoder(["k"]), ranges, reverse=reverse))
        assert found == [4003]
        # The first range, those with the two next keys or after them, and the last one.
        assert len(moves) <= 5
        for max_rows in (1, 8192):
            assert read_on(offline, ranges, reverse, max_rows, resumed=True) == [4003]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("behind", [1, 2, 3, 5, 70])
def test_ranges_of_few_rows_are_read_to_the_last_key_of_all(tmp_path: Path, reverse: bool, behind: int) -> None:
    with opened(tmp_path / "b" / "0000", DEFINITION) as offline:
        offline.upsert(*({"k": number, "v": "v"} for number in range(2 * behind + 1)))
        ranges = ranges_of(offline, [0, behind, behind + 1, 2 * behind + 1])
        found = read(offline.bucket.ranges_cursor(offline.codec.decoder(["k"]), ranges, reverse=reverse))
        assert sorted(found) == [number for number in range(2 * behind + 1) if number != behind]
