"""Deleting a range of keys of a bucket with indexes: exactly its rows and their entries, counted."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.bucket import range_deletion
from streaming_server.engine.bucket.range_deletion import RangeDeletion
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import FACTOR
from tests.support.offline import OfflineBucket, check_entries, opened
from tests.support.tables import define, exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.storage.cursors.cursor import BucketCursor

SCHEMA = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.int64())])
KEYS = 300
DEFINITION = define(SCHEMA, "k").add_indexes([("v",), ("v", "k")])


class Model:
    """A bucket, and the rows that it should have."""

    def __init__(self, offline: OfflineBucket, rows: dict[int, int]) -> None:
        self.offline = offline
        self.rows = rows
        self.codec = TableCodec.of(offline.definition)

    def key(self, number: int) -> bytes:
        batch = pa.RecordBatch.from_pydict({"k": pa.array([number], pa.int32())})
        encoded: bytes = self.offline.keys.encode_stored(batch)[0].as_py()
        return encoded

    def put(self, numbers: list[int], value: int) -> None:
        self.offline.upsert(*({"k": number, "v": value} for number in numbers))
        self.rows |= dict.fromkeys(numbers, value)

    def delete(self, numbers: list[int]) -> None:
        self.offline.delete(*({"k": number} for number in numbers))
        for number in numbers:
            self.rows.pop(number, None)

    def delete_range(self, first: int | None, end: int | None) -> None:
        bucket = self.offline.bucket
        keys = KeyRange(None if first is None else self.key(first), None if end is None else self.key(end))
        gone = [k for k in self.rows if (first is None or k >= first) and (end is None or k < end)]
        deletion, before = RangeDeletion(keys), bucket.state.count
        changes = 0
        while not deletion.is_done:
            while not deletion.read(bucket, self.codec):
                pass
            change = deletion.take_change(bucket, self.codec)
            if change is not None:
                bucket.apply(change)
                changes += 1
        assert deletion.rows == len(gone)
        assert bucket.state.count == before + changes
        for number in gone:
            del self.rows[number]

    def check(self) -> None:
        bucket = self.offline.bucket
        expected = sorted(self.rows.items())
        assert exact_rows(self.offline.rows()) == expected
        assert bucket.state.rows == len(expected)
        check_entries(self.offline)
        keys = [self.key(number) for number in range(KEYS)]
        for found in (bucket.get(keys), bucket.find_cached(keys) or bucket.get(keys)):
            assert [number for number, row in enumerate(found) if row is not None] == sorted(self.rows)
        for first in range(0, KEYS, 50):
            has_rows = bucket.has_rows_among(keys[first : first + 20])
            assert has_rows or self.rows.keys().isdisjoint(range(first, first + 20))


def step(model: Model, random: Random) -> None:
    match random.randrange(6):
        case 0 | 1:
            model.put(random.sample(range(KEYS), random.randrange(1, 120)), random.randrange(5))
        case 2:
            model.delete(random.sample(range(KEYS), random.randrange(1, 60)))
        case 3:
            model.delete_range(None, None)
        case 4:
            first = random.randrange(KEYS)
            model.delete_range(first, random.choice([first, first + 1, first + 40, None]))
        case 5:
            model.offline.bucket.flush()


@pytest.fixture
def views() -> Iterator[list[tuple[BucketCursor, list[tuple[int, int]]]]]:
    held: list[tuple[BucketCursor, list[tuple[int, int]]]] = []
    yield held
    for cursor, _ in held:
        cursor.close()


@pytest.mark.seeds
def test_any_history_leaves_the_rows_and_entries_that_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, views: list[tuple[BucketCursor, list[tuple[int, int]]]]
) -> None:
    monkeypatch.setattr(range_deletion, "_STEP_ROWS", 17)
    monkeypatch.setattr(range_deletion, "_INDEXED_ROWS", 30)
    random = Random(7)
    path, rows = tmp_path / "0000", dict[int, int]()
    for _ in range(min(3 * FACTOR, 12)):
        with opened(path, DEFINITION) as offline:
            model = Model(offline, rows)
            for _ in range(15):
                step(model, random)
                model.check()
                codec = offline.codec
                cursor = offline.bucket.cursor(codec, codec.decoder(), offline.keys.codec)
                views.append((cursor, sorted(rows.items())))
            # Views that were open before a deletion keep their rows.
            for cursor, expected in views:
                batches = list(iter(lambda cursor=cursor: cursor.next_batch(8192, 1 << 20), None))  # type: ignore[misc]
                assert [row for batch in batches for row in exact_rows(batch)] == expected
                cursor.close()
            views.clear()
