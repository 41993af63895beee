"""A cursor reads in slices, reads little outside of its range, and takes no early end of an iterator for its own."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from scankv.model.expressions import bind, col
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.row_reader import RowReader
from streaming_server.storage.cursors import cursor as cursor_module
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.offline import OfflineBucket, opened
from tests.support.prepared import flip, rows_file
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEFINITION = define(pa.schema([("v", pa.int32()), ("k", pa.binary()), ("w", pa.string())]), "k")
ROOM = 1 << 20


def cursor_of(offline: OfflineBucket, key_range: KeyRange, reverse: bool) -> BucketCursor:
    return offline.bucket.cursor(
        offline.codec, offline.codec.decoder(["k"]), offline.keys.codec, key_range, reverse=reverse
    )


def encoded(offline: OfflineBucket, names: list[bytes]) -> list[bytes]:
    keys: list[bytes] = offline.keys.codec.encode([pa.array(names, pa.binary())]).to_pylist()
    return keys


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


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("columns", "filters"), [(["k"], False), (["k"], True), (["k", "w"], False)], ids=["few", "few, filtered", "all"]
)
def test_a_batch_of_few_columns_has_the_rows_of_several_reads(
    offline: OfflineBucket, columns: list[str], filters: bool, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a step that takes long would end the batch earlier.
    monkeypatch.setattr(cursor_module, "STEP_SECONDS", 3600.0)
    names = [b"x%04d" % number for number in range(2000)]
    offline.upsert(*({"k": name, "w": "w" * 1000} for name in names))
    where = bind(col("w") != "", offline.codec.schema) if filters else None
    reader = RowReader.of(offline.codec, offline.keys.codec, tuple(columns), where, KeyRange())
    key_range = KeyRange(encoded(offline, [b"x"])[0])
    cursor = offline.bucket.cursor(offline.codec, reader.decoder, offline.keys.codec, key_range, reverse=reverse)
    most, found, sizes = 32 * 1024, [], []
    while cursor.prefetch(150, most) is not None:
        while cursor.prefetch(150, most) is False:
            pass
        batch = cursor.next_batch(150, most)
        assert batch is not None
        found += batch.column("k").to_pylist()
        sizes.append(batch.num_rows)
        assert cursor.last_key == encoded(offline, found[-1:])[0]
        assert cursor.rows_scanned == len(found)
    cursor.close()
    assert found == (names[::-1] if reverse else names)
    first, *others, _ = sizes
    assert first <= 32
    # A predicate may take long for the rows of one read.
    is_long = columns == ["k"] and not filters
    assert all(size == 150 for size in others) if is_long else max(sizes) <= 32


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
