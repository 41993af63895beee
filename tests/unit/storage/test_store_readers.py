"""The iterators of a reader, whenever they are created, show the store as it was when the reader was made."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, InternalError
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.scan.bucket_cursors import BucketCursors
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.examples import examples
from tests.support.offline import OfflineBucket
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streaming_server.scan.chunk_source import Cursor

KEYS = 12
ROOM = 1 << 20
# A write puts or deletes a key, `read` reads a step of the oldest or the newest reader, and the others make a reader.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete", "scan", "ranges", "late", "read old", "read new"]),
        st.integers(0, KEYS - 1),
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[OfflineBucket]:
    bucket = new_bucket(tmp_path / "bucket")
    yield bucket
    bucket.bucket.close()


def new_bucket(path: Path) -> OfflineBucket:
    return OfflineBucket(path, define(pa.schema([pa.field("k", pa.int64()), ("v", pa.int64())]), "k"))


def all_rows(offline: OfflineBucket) -> Cursor:
    return offline.bucket.cursor(offline.codec, offline.codec.decoder(), offline.keys.codec)


def all_keys(offline: OfflineBucket) -> Cursor:
    keys, _ = offline.keys.encode(pa.record_batch({"k": pa.array(range(KEYS), pa.int64())}))
    return offline.bucket.ranges_cursor(offline.codec.decoder(), KeyRanges.of_keys(keys.to_pylist()))


class BatchReader(Protocol):
    """What the tests use of a cursor."""

    def next_batch(self, most: int, room: int, /) -> pa.RecordBatch | None: ...

    def close(self) -> None: ...


class LateCursor:
    """The cursor of one bucket, made when it is first read or before the bucket changes."""

    def __init__(self, offline: OfflineBucket) -> None:
        self._cursors = BucketCursors(lambda _: all_rows(offline))
        self._cursors.create_later(0, offline.bucket.late_readers)

    def next_batch(self, most: int, room: int) -> pa.RecordBatch | None:
        return self._cursors[0].next_batch(most, room)

    def close(self) -> None:
        self._cursors.free(0)


MAKERS: dict[str, Callable[[OfflineBucket], BatchReader]] = {
    "scan": all_rows,
    "ranges": all_keys,
    "late": LateCursor,
}


class CursorReading:
    """A cursor, what it has returned, and what it has to return in all."""

    def __init__(self, cursor: BatchReader, rows: dict[int, int]) -> None:
        self.cursor = cursor
        self.expected = sorted(rows.items())
        self.found: list[tuple[int, int]] = []

    def step(self, most: int) -> bool:
        """Reads at most so many rows. Returns whether there may be more."""
        batch = self.cursor.next_batch(most, ROOM)
        if batch is not None:
            self.found += zip(batch.column("k").to_pylist(), batch.column("v").to_pylist(), strict=True)
        return batch is not None

    def finish(self) -> None:
        while self.step(5):
            pass
        self.cursor.close()
        assert self.found == self.expected


@given(STEPS)
@examples(30)
def test_a_reader_shows_the_instant_at_which_it_was_made(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        offline = new_bucket(Path(directory) / "bucket")
        rows: dict[int, int] = {}
        readings: list[CursorReading] = []
        for number, (step, key) in enumerate(steps):
            if step == "put":
                rows[key] = number
                offline.upsert({"k": key, "v": number})
            elif step == "delete":
                rows.pop(key, None)
                offline.delete({"k": key})
            elif step in MAKERS:
                readings.append(CursorReading(MAKERS[step](offline), rows))
            elif readings:
                readings[0 if step == "read old" else -1].step(1)
        assert offline.bucket.readers >= len(readings)
        for reading in readings:
            reading.finish()
        assert offline.bucket.readers == 0
        assert BucketCursor.open_cursors == 0
        offline.bucket.close()


def test_the_changelog_is_that_of_the_instant(offline: OfflineBucket) -> None:
    offline.upsert({"k": 1, "v": 1})
    reader = offline.bucket.log.reader(KeyRange(), offline.definition, reverse=False)
    offline.upsert({"k": 1, "v": 2})
    record = reader.read()
    assert record is not None
    assert len(record.changes) == 1
    assert reader.read() is None
    reader.close()


@pytest.mark.breadth
def test_a_thread_that_writes_while_readers_begin_shows_them_nothing(offline: OfflineBucket) -> None:
    """Each round makes readers, then writes in a thread while some are read for the first time, and others closed."""
    rows = dict.fromkeys(range(KEYS), -1)
    offline.upsert(*({"k": key, "v": value} for key, value in rows.items()))
    for number in range(100):
        readings = [CursorReading(make(offline), rows) for make in MAKERS.values() for _ in range(3)]
        unread = [make(offline) for make in MAKERS.values() for _ in range(3)]
        rows = dict.fromkeys(range(KEYS), number)
        writer = Thread(
            target=lambda rows=rows: offline.upsert(*({"k": key, "v": value} for key, value in rows.items()))
        )
        writer.start()
        for reading, other in zip(readings, unread, strict=True):
            other.close()
            reading.finish()
        writer.join()
    assert offline.bucket.readers == BucketCursor.open_cursors == 0


def test_a_reader_that_is_closed_unread_has_created_nothing(offline: OfflineBucket) -> None:
    offline.upsert({"k": 1, "v": 1})
    cursor = MAKERS["late"](offline)
    assert offline.bucket.readers == 1
    cursor.close()
    cursor.close()
    assert offline.bucket.readers == BucketCursor.open_cursors == 0
    offline.upsert({"k": 2, "v": 2})
    assert BucketCursor.open_cursors == 0


def test_iterators_that_cannot_be_created_fail_their_reader_and_no_write(offline: OfflineBucket) -> None:
    def fail() -> None:
        raise RuntimeError("Corruption: block checksum mismatch")

    def break_down() -> None:
        raise RuntimeError("something else")

    reader, other = (offline.bucket.late_readers.add(each) for each in (fail, break_down))
    offline.upsert({"k": 1, "v": 1})
    for _ in range(2):
        with pytest.raises(DataLoss, match="is damaged"):
            reader.begin()
        with pytest.raises(InternalError):
            other.begin()
    reader.close()
    other.close()
    assert offline.rows().num_rows == 1


def test_a_cursor_that_cannot_be_made_fails_its_bucket_and_no_write(offline: OfflineBucket, tmp_path: Path) -> None:
    buckets = [offline, new_bucket(tmp_path / "damaged"), new_bucket(tmp_path / "unread")]

    def make(number: int) -> Cursor:
        if number == 1:
            raise DataLoss("the bucket is damaged")
        return all_rows(buckets[number])

    cursors = BucketCursors(make)
    for number, each in enumerate(buckets):
        cursors.create_later(number, each.bucket.late_readers)
    for each in buckets:
        each.upsert({"k": 1, "v": 1})
    assert cursors[0].next_batch(5, ROOM) is None
    for _ in range(2):
        with pytest.raises(DataLoss, match="the bucket is damaged"):
            cursors[1]
    cursors.close()
    cursors.close()
    assert [each.bucket.readers for each in buckets] == [0, 0, 0]
    assert BucketCursor.open_cursors == 0
    assert [each.rows().num_rows for each in buckets] == [1, 1, 1]
    for each in buckets[1:]:
        each.bucket.close()
