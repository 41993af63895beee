"""Rows that lie side by side are deleted as one range, and no other row is deleted with them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from streaming_server.clock import ServerClock
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.bucket_change import BucketChange
from streaming_server.storage.rocks.store_batch import StoreBatch
from streaming_server.storage.rocks.store_options import RocksResources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    resources = RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
    bucket = Bucket(tmp_path / "bucket", "a bucket", compression="lz4", resources=resources, clock=ServerClock())
    yield bucket
    bucket.close()


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def apply(bucket: Bucket, put: Iterable[int] = (), delete: Iterable[int] = ()) -> None:
    keys = pa.array([key(number) for number in put], pa.binary())
    deleted = pa.array([key(number) for number in delete], pa.binary())
    change = BucketChange(
        put_keys=keys, put_values=keys, delete_keys=deleted, changes=None, rows_added=None, schema_id=1
    )
    bucket.apply(change)


def rows_of(bucket: Bucket) -> set[int]:
    found = bucket._store.get_rows([key(number) for number in range(4000)])
    return {number for number, row in enumerate(found) if row is not None}


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that were deleted as ranges."""
    counts: list[int] = []
    delete = StoreBatch.delete_adjacent_rows

    def count(batch: StoreBatch, keys: list[bytes]) -> None:
        counts.append(len(keys))
        delete(batch, keys)

    monkeypatch.setattr(StoreBatch, "delete_adjacent_rows", count)
    return counts


def test_rows_side_by_side_are_deleted_as_one_range(bucket: Bucket, ranges: list[int]) -> None:
    apply(bucket, put=range(0, 4000, 2))
    bucket.get([key(number) for number in range(1000, 2000, 2)])
    apply(bucket, put=[1001, 5], delete=range(1000, 2000, 2))
    assert ranges == [500]
    assert rows_of(bucket) == {*range(0, 1000, 2), *range(2000, 4000, 2), 5, 1001}


def test_a_row_that_was_written_after_the_rows_were_read_stays(bucket: Bucket, ranges: list[int]) -> None:
    apply(bucket, put=range(0, 4000, 2))
    wanted = range(1000, 2000, 2)
    bucket.get([key(number) for number in wanted])
    apply(bucket, put=[1001])
    apply(bucket, delete=wanted)
    assert not ranges
    assert rows_of(bucket) == {*range(0, 1000, 2), *range(2000, 4000, 2), 1001}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.represented_by("0")
def test_whatever_was_read_before_only_the_named_rows_are_deleted(bucket: Bucket, ranges: list[int], seed: int) -> None:
    chosen = random.Random(seed)
    expected = set(chosen.sample(range(4000), 3000))
    apply(bucket, put=expected)
    for _ in range(60):
        put = chosen.sample(range(4000), chosen.choice([1, 600]))
        apply(bucket, put=put)
        expected |= set(put)
        here = sorted(expected)
        size = min(chosen.choice([255, 256, 700]), len(here))
        first = chosen.randrange(len(here) - size + 1)
        asked = here[first : first + size]
        if chosen.random() < 0.3:
            asked = sorted({*asked, chosen.randrange(4000)})
        bucket.get([key(number) for number in asked])
        deleted = [number for number in asked if number in expected]
        if chosen.random() < 0.3:
            del deleted[chosen.randrange(len(deleted))]
        apply(bucket, delete=deleted)
        expected -= set(deleted)
        assert rows_of(bucket) == expected
    assert ranges


@pytest.mark.parametrize("descending", [False, True])
def test_a_read_passes_the_deleted_rows_of_a_queue_at_once(bucket: Bucket, descending: bool) -> None:
    """A probe gives up after it has passed many marks of single keys, and says that there may be a row.

    The last deleted rows may still be passed one by one.
    """
    apply(bucket, put=range(4000))
    taken = [range(first, first + 50) for first in range(0, 3900, 50)]
    for number, keys in enumerate(reversed(taken) if descending else taken):
        apply(bucket, put=[4000 + number], delete=keys)
    rows = {*range(3900, 4000)}
    assert rows_of(bucket) == rows
    assert not bucket._store.has_rows_between(key(0), key(3899), deleted=200)
    apply(bucket, put=[7, 2000])
    assert rows_of(bucket) == rows | {7, 2000}


def test_few_deleted_rows_of_a_queue_stay_in_memory_where_a_read_passes_them_one_by_one(bucket: Bucket) -> None:
    apply(bucket, put=range(40_000))
    bucket.flush()
    entries = 0
    for first in range(0, 39_900, 100):
        apply(bucket, delete=range(first, first + 100))
        entries = max(entries, bucket._store.rows.property_int_value("rocksdb.num-entries-active-mem-table") or 0)
    assert 5000 < entries < 15_000


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.represented_by("0")
def test_rows_that_are_put_among_those_of_a_queue_stay(bucket: Bucket, seed: int) -> None:
    chosen, expected = random.Random(seed), set(range(3000))
    apply(bucket, put=expected)
    for first in range(0, 2900, 20):
        put = {chosen.randrange(4000) for _ in range(chosen.choice([0, 1, 3]))} - {*range(first, first + 20)}
        apply(bucket, put=put, delete=[number for number in range(first, first + 20) if number in expected])
        expected = (expected - {*range(first, first + 20)}) | put
    assert rows_of(bucket) == {number for number in expected if number < 4000}
