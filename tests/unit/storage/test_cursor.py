"""A cursor returns exactly the rows of its range, in its direction, and continues after any of them."""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.cursors import cursor as cursor_module
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.examples import examples
from tests.support.offline import OfflineBucket, opened
from tests.support.prepared import flip, rows_file
from tests.support.tables import define

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

DEFINITION = define(pa.schema([("v", pa.int32()), ("k", pa.binary()), ("w", pa.string())]), "k")
ROOM = 1 << 20
NUMBERS = st.none() | st.integers(0, 700)


def name_of(number: int) -> bytes:
    """Returns keys of different lengths, some of them prefixes of others, some with zero bytes."""
    return b"%d" % number + bytes(number % 3)


def fill(offline: OfflineBucket, numbers: list[int], rng: random.Random) -> None:
    """Writes the rows so that they are in several table files and in memory, with deleted rows between them."""
    gone = [number + 1000 for number in numbers[::3]]
    for third in range(3):
        part = numbers[third::3] + gone
        offline.upsert(*({"k": name_of(number), "v": number, "w": "w" * (number % 7)} for number in part))
        if rng.random() < 0.5:
            offline.bucket.flush()
    offline.delete(*({"k": name_of(number)} for number in gone))


def cursor_of(offline: OfflineBucket, key_range: KeyRange, reverse: bool) -> BucketCursor:
    return offline.bucket.cursor(
        offline.codec, offline.codec.decoder(["k"]), offline.keys.codec, key_range, reverse=reverse
    )


def encoded(offline: OfflineBucket, names: list[bytes]) -> list[bytes]:
    keys: list[bytes] = offline.keys.codec.encode([pa.array(names, pa.binary())]).to_pylist()
    return keys


def next_batch(cursor: BucketCursor, max_rows: int, max_bytes: int, prefetches: int) -> pa.RecordBatch | None:
    """Returns the next batch, after as many slices, or as many as it takes."""
    is_ready: bool | None = False
    while prefetches and is_ready is False:
        is_ready = cursor.prefetch(max_rows, max_bytes)
        prefetches -= 1
    batch = cursor.next_batch(max_rows, max_bytes)
    assert batch is None or is_ready is not None
    return batch


def chunks(
    offline: OfflineBucket, key_range: KeyRange, reverse: bool, rng: random.Random, *, resume: bool
) -> Iterator[tuple[int, list[bytes] | None]]:
    """Returns the rows and keys of each chunk;

    no keys for a skimmed one. With `resume`, each chunk is read by a new cursor.
    """
    max_rows, max_bytes = rng.choice([1, 3, 50, 100, 8192]), rng.choice([64, 5000, ROOM])
    cursor = cursor_of(offline, key_range, reverse)
    try:
        assert cursor.last_key is None
        scanned = 0
        while True:
            keys: list[bytes] | None = None
            if rng.random() < 0.3:
                count = cursor.skim(max_rows, max_bytes) or 0
            elif (batch := next_batch(cursor, max_rows, max_bytes, rng.choice([0, 1, 1000]))) is None:
                count = 0
            else:
                keys = encoded(offline, batch.column("k").to_pylist())
                count = len(keys)
            scanned += count
            assert cursor.rows_scanned == scanned
            if not count:
                break
            last = cursor.last_key
            assert last is not None
            assert count <= max_rows
            assert keys is None or keys[-1] == last
            yield count, keys
            if resume:
                cursor.close()
                key_range, scanned = key_range.after(last, reverse=reverse), 0
                cursor = cursor_of(offline, key_range, reverse)
        assert cursor.skim(max_rows, max_bytes) is None
        assert cursor.next_batch(max_rows, max_bytes) is None
    finally:
        cursor.close()


@pytest.mark.breadth
@given(
    size=st.integers(0, 300),
    rng=st.randoms(use_true_random=False),
    ends=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=4, max_size=4),
)
@examples(6)
def test_any_range_in_any_direction_is_the_slice_of_the_sorted_keys(
    size: int, rng: random.Random, ends: list[tuple[int | None, int | None]]
) -> None:
    with tempfile.TemporaryDirectory() as directory, opened(Path(directory) / "b" / "0000", DEFINITION) as offline:
        numbers = rng.sample(range(600), size)
        fill(offline, numbers, rng)
        keys = sorted(encoded(offline, [name_of(number) for number in numbers]))
        for start, end in ends:
            bounds = [None if number is None else encoded(offline, [name_of(number)])[0] for number in (start, end)]
            key_range = KeyRange(*bounds)
            for reverse, resume in itertools.product((False, True), repeat=2):
                expected = sorted((key for key in keys if key in key_range), reverse=reverse)
                place = 0
                for count, part in chunks(offline, key_range, reverse, rng, resume=resume):
                    assert part in (None, expected[place : place + count])
                    place += count
                assert place == len(expected)


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[OfflineBucket]:
    with opened(tmp_path / "b" / "0000", DEFINITION) as bucket:
        bucket.upsert(*({"k": b"%05d" % number, "v": number} for number in range(5000)))
        yield bucket


@pytest.mark.parametrize("reverse", [False, True])
def test_a_batch_in_slices_is_the_same_as_at_once(
    offline: OfflineBucket, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_module, "SLICE_SECONDS", 0.0)
    # On a busy machine, a step that takes long would end the batch earlier.
    monkeypatch.setattr(cursor_module, "STEP_SECONDS", 3600.0)
    monkeypatch.setattr(cursor_module, "_PIECE_ROWS", 700)
    at_once, sliced = (cursor_of(offline, KeyRange(), reverse) for _ in range(2))
    for max_rows in (300, 4000, 4000, 4000):
        expected, slices = at_once.next_batch(max_rows, ROOM), 0
        while sliced.prefetch(max_rows, ROOM) is False:
            slices += 1
        found = sliced.next_batch(max_rows, ROOM)
        assert found == expected
        assert sliced.last_key == at_once.last_key
        assert sliced.rows_scanned == at_once.rows_scanned
        assert slices >= (0 if found is None else found.num_rows // 1024)
    assert found is None
    assert sliced.prefetch(10, ROOM) is None
    for cursor in (at_once, sliced):
        cursor.close()


def test_a_cursor_can_be_closed_between_slices(offline: OfflineBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "SLICE_SECONDS", 0.0)
    cursor = cursor_of(offline, KeyRange(), reverse=False)
    assert cursor.prefetch(8192, ROOM) is False
    cursor.close()
    assert BucketCursor.open_cursors == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_an_empty_range_reads_nothing(offline: OfflineBucket, reverse: bool) -> None:
    for key_range in (KeyRange(b"2", b"2"), KeyRange(b"3", b"2"), KeyRange(None, b""), KeyRange(b"", b"")):
        cursor = cursor_of(offline, key_range, reverse)
        assert cursor.next_batch(10, ROOM) is None
        assert cursor.skim(10, ROOM) is None
        assert cursor.rows_scanned == 0
        cursor.close()


def test_a_small_range_in_descending_order_reads_few_rows_below_it(offline: OfflineBucket) -> None:
    """The next row of RocksDB's iterator after the end shows how far it has read."""
    start, end = encoded(offline, [b"04000", b"04010"])
    cursor = cursor_of(offline, KeyRange(start, end), reverse=True)
    below = fast_of(cursor)
    batch = cursor.next_batch(8192, ROOM)
    assert batch is not None
    assert batch.column("k").to_pylist() == [b"%05d" % number for number in range(4009, 3999, -1)]
    following = offline.codec.decoder(["k"]).decode(pa.array([next(below)], pa.binary()))
    assert following.column("k").to_pylist() == [b"03945"]
    assert cursor.rows_scanned == 10
    del below
    cursor.close()


def fast_of(cursor: BucketCursor) -> Iterator[bytes]:
    assert cursor._reader is not None
    cursor._reader._use.begin()
    assert cursor._reader._fast is not None
    return cursor._reader._fast


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(None, None), (b"01000", b"04000")])
@pytest.mark.parametrize("max_rows", [0, 10])
def test_an_iterator_that_stops_early_without_a_word_is_never_the_end(
    offline: OfflineBucket, bounds: tuple[bytes | None, bytes | None], reverse: bool, max_rows: int
) -> None:
    start, end = (None if bound is None else encoded(offline, [bound])[0] for bound in bounds)
    cursor = cursor_of(offline, KeyRange(start, end), reverse)
    try:
        if max_rows:
            assert cursor.skim(max_rows, ROOM) == max_rows
        assert cursor._reader is not None
        cursor._reader._use.begin()
        cursor._reader._fast = iter(())
        while cursor.skim(1000, ROOM) is not None:
            pass
        assert cursor.rows_scanned == (5000 if start is None else 3000)
    finally:
        cursor.close()


def test_an_error_that_is_kept_keeps_no_iterator(tmp_path: Path) -> None:
    """A reader may take long to receive the error. In the meantime, the bucket can be closed, and its lock is free."""
    path = tmp_path / "b" / "0000"
    with opened(path, DEFINITION) as offline:
        offline.upsert(*({"k": b"%05d" % number, "v": number, "w": "x" * 500} for number in range(500)))
        offline.bucket.flush()
    file = rows_file(path)
    flip(file, file.stat().st_size // 4)
    with opened(path, DEFINITION) as offline:
        cursor = cursor_of(offline, KeyRange(), reverse=False)
        with pytest.raises(DataLoss) as kept:
            deque(iter(partial(cursor.skim, 100, ROOM), None), maxlen=0)
        cursor.close()
    with opened(path, DEFINITION):
        assert kept.tb is not None
