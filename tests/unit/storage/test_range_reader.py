"""Reads of a range in which most rows were deleted are exact in both directions, and no step takes long."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.storage.cursors import range_reader, ranges_cursor
from streaming_server.storage.cursors.range_reader import RangeReader, items_projection
from streaming_server.storage.cursors.ranges_cursor import RangesCursor
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.examples import examples
from tests.support.offline import resources
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 40
# The imported values, before the tests extend them.
REAL_STEP_SECONDS = range_reader.STEP_SECONDS


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes gaps of a few rows count as long, and ends each step at once."""
    monkeypatch.setattr(range_reader, "FAST_SKIPS", 3)
    monkeypatch.setattr(range_reader, "CHECKED_SKIPS", 60)
    monkeypatch.setattr(range_reader, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(ranges_cursor, "STEP_SECONDS", 0.0)


@pytest.fixture
def real_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends steps after as much time as in a server."""
    monkeypatch.setattr(range_reader, "STEP_SECONDS", REAL_STEP_SECONDS)


def key_of(number: int, kind: int) -> bytes:
    """Returns keys that are dense or sparse, short or long, with zero and 0xFF bytes, some prefixes of others."""
    if kind == 0:
        return number.to_bytes(8, "big")
    if kind == 1:
        return b"tenant/%d/" % (number % 3) + b"\0" * (number % 4) + b"%06d" % number
    if kind == 2:
        return random.Random(number).randbytes(1 + number % 12)
    return b"\xff" * (number % 30) + bytes([number % 256, number // 256 % 256])


class StoreModel:
    """A store and a dictionary with the same writes."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.store = RocksStore(path, "a bucket", compression="lz4", resources=resources())
        self.rows: dict[bytes, bytes] = {}
        self._rng = rng

    def write(self, puts: list[bytes], deletes: list[bytes]) -> None:
        batch = self.store.batch()
        values = [key + b"=" + b"%d" % self._rng.randrange(1000) for key in puts]
        for put, delete in ((batch.put_rows, batch.delete_rows), (batch.put_entries, batch.delete_entries)):
            put(puts, values)
            delete(deletes)
        self.store.write(batch)
        self.rows |= dict(zip(puts, values, strict=True))
        for key in deletes:
            self.rows.pop(key, None)

    def work(self, keys: list[bytes]) -> None:
        """Writes and deletes single keys and ranges, some of them several times; flushes some of it."""
        rng = self._rng
        for _ in range(rng.randint(1, 8)):
            start, size = rng.randrange(len(keys)), rng.choice([1, 20, 200, len(keys)])
            part = sorted(keys)[start : start + size]
            if rng.random() < 0.4:
                self.write(rng.sample(part, len(part)), [])
            else:
                spared = set(rng.sample(part, min(len(part), rng.choice([0, 1, 3, 10]))))
                self.write([], [key for key in part if key not in spared])
            if rng.random() < 0.3:
                self.store.flush()


def read(reader: RangeReader[tuple[bytes, bytes]], reverse: bool, count: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Returns the rows of each step. A step advances, and never returns rows beyond its position."""
    reached: bytes | None = None
    try:
        while not reader.ended:
            part = reader.read(count)
            assert len(part) <= count
            if reader.ended and not part:
                break
            last = reader.last_key
            assert last is not None
            if part:
                assert last <= part[-1][0] if reverse else last >= part[-1][0]
            assert reached is None or (last <= reached if reverse else last >= reached)
            reached = last
            yield part
        assert reader.read(count) == []
    finally:
        reader.close()


@pytest.mark.usefixtures("small_steps")
@given(seed=st.integers(0, 2**32), kind=st.integers(0, 3))
@examples(8)
def test_every_range_is_that_of_the_model_as_of_the_making_of_its_reader(seed: int, kind: int) -> None:
    rng = random.Random(seed)
    keys = sorted({key_of(number, kind) for number in rng.sample(range(1200), 600)})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        model = StoreModel(Path(directory) / "db", rng)
        model.write(keys, [])
        model.work(keys)
        readers = []
        for _ in range(8):
            bounds = [rng.choice([None, rng.choice(keys), rng.choice(keys) + b"\0", rng.randbytes(3)]) for _ in "ab"]
            key_range, reverse = KeyRange(*bounds), rng.random() < 0.5
            if not key_range.is_empty:
                # Not kept in a variable, which would keep the store open after `close`.
                reader = RangeReader(
                    model.store,
                    model.store.rows if rng.random() < 0.5 else model.store.index,
                    items_projection(),
                    key_range,
                    longest=LONGEST,
                    reverse=reverse,
                )
                expected = sorted((item for item in model.rows.items() if item[0] in key_range), reverse=reverse)
                readers.append((reader, reverse, expected))
            if rng.random() < 0.2:
                model.work(keys)
        # Readers do not see these writes, but have to skip them.
        model.write([key + b"later" for key in keys], [])
        model.work(keys)
        for reader, reverse, expected in readers:
            found = [item for part in read(reader, reverse, rng.choice([1, 7, 1000])) for item in part]
            assert found == expected
        model.store.close()


DELETED = 150_000


@pytest.fixture(scope="module", params=["in memory", "in files"])
def emptied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocksStore]:
    """Makes a store in which all rows were deleted except one at the start and one at the end."""
    store = RocksStore(tmp_path_factory.mktemp("emptied") / "db", "a bucket", compression="lz4", resources=resources())
    keys = [number.to_bytes(8, "big") for number in range(DELETED)]
    batch = store.batch()
    batch.put_rows([b"\0", *keys, b"\xff"], [b"v" * 50] * (DELETED + 2))
    store.write(batch)
    batch = store.batch()
    batch.delete_rows(keys)
    if request.param == "in files":
        store.flush()
    # Otherwise the tombstones would be flushed and compacted away.
    batch.deletions = 0
    store.write(batch)
    yield store
    store.close()


@pytest.mark.usefixtures("real_steps")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(None, None), ((5).to_bytes(8, "big"), (DELETED - 5).to_bytes(8, "big"))])
@pytest.mark.represented_by("in memory-bounds0-False", "in files-bounds1-True")
def test_no_step_across_many_deleted_rows_takes_long(
    emptied: RocksStore, bounds: tuple[bytes | None, bytes | None], reverse: bool
) -> None:
    projection = items_projection()
    began = time.thread_time()
    reader = RangeReader(emptied, emptied.rows, projection, KeyRange(*bounds), longest=60, reverse=reverse)
    longest, steps, found = time.thread_time() - began, 0, 0
    while not reader.ended:
        began = time.thread_time()
        found += len(reader.read(8192))
        longest = max(longest, time.thread_time() - began)
        steps += 1
    reader.close()
    assert found == (2 if bounds[0] is None else 0)
    assert steps > 3
    assert longest < 0.05


@pytest.mark.usefixtures("small_steps")
@given(seed=st.integers(0, 2**32), kind=st.integers(0, 3), reverse=st.booleans())
@examples(8)
def test_ranges_and_single_keys_are_those_of_the_model(seed: int, kind: int, reverse: bool) -> None:
    rng = random.Random(seed)
    keys = sorted({key_of(number, kind) for number in rng.sample(range(1200), 600)})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        model = StoreModel(Path(directory) / "db", rng)
        model.write(keys, [])
        model.work(keys)
        places, pieces = sorted(rng.sample(keys, 40)), []
        while len(places) > 2:
            start = places.pop(0)
            pieces.append(KeyRange(start, places.pop(0) if rng.random() < 0.3 else start + b"\0"))
        if rng.random() < 0.5:
            pieces.append(KeyRange(places[0], None))
        ranges = KeyRanges.of(*pieces)
        decoder = RowCodec(define(pa.schema([("k", pa.int64())]))).decoder()
        cursor = RangesCursor(model.store, decoder, ranges, LONGEST, reverse=reverse)
        expected = [row for key, row in sorted(model.rows.items(), reverse=reverse) if key in ranges]
        model.write([key + b"later" for key in keys], [])
        model.work(keys)
        found: list[bytes] = []
        while (part := cursor.next_rows(rng.choice([1, 5, 1000]), 1 << 20)) is not None:
            found += part
        cursor.close()
        assert found == expected
        model.store.close()
