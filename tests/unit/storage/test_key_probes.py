"""Lookups of many keys find the same rows with and without the probe that tells that no row lies between the keys."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss
from streaming_server.clock import ServerClock
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.rocks.dense_rows import get_dense_rows
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def resources() -> RocksResources:
    return RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "store", "a bucket", compression="lz4", resources=resources())
    yield store
    store.close()


def put(store: RocksStore, numbers: Sequence[int]) -> None:
    batch = store.batch()
    batch.put_rows(map(key, numbers), [b"value"] * len(numbers))
    store.write(batch)


@pytest.mark.parametrize("flush", [False, True])
def test_a_probe_finds_the_first_and_the_last_key_and_nothing_beside_them(store: RocksStore, flush: bool) -> None:
    assert not store.has_rows_between(key(0), key(100))
    put(store, [10, 20])
    if flush:
        store.flush()
    assert store.has_rows_between(key(10), key(10))
    assert store.has_rows_between(key(0), key(10))
    assert store.has_rows_between(key(20), key(100))
    assert not store.has_rows_between(key(0), key(9))
    assert not store.has_rows_between(key(11), key(19))
    assert not store.has_rows_between(key(21), key(100))


def test_a_probe_gives_up_among_deleted_rows(store: RocksStore) -> None:
    put(store, range(1000))
    batch = store.batch()
    batch.delete_rows(map(key, range(1000)))
    store.write(batch)
    assert store.has_rows_between(key(0), key(999))
    assert not store.has_rows_between(key(900), key(999))


def test_a_probe_takes_damage_for_rows_and_the_lookups_report_it(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    bucket = open_bucket(path)
    put(bucket._store, range(10_000))
    bucket.flush()
    bucket.close()
    for file in path.glob("*.sst"):
        data = bytearray(file.read_bytes())
        middle = slice(100, len(data) // 2)
        data[middle] = bytes(byte ^ 0x55 for byte in data[middle])
        file.write_bytes(data)
    bucket = open_bucket(path)
    assert bucket._store.has_rows_between(key(0), key(500))
    with pytest.raises(DataLoss):
        bucket.get([key(number) for number in range(500)])
    bucket.abandon()


def open_bucket(path: Path) -> Bucket:
    return Bucket(path, "a bucket", compression="none", resources=resources(), clock=ServerClock())


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
@pytest.mark.represented_by("ascending")
def test_lookups_of_many_keys_equal_lookups_of_few(tmp_path: Path, order: str) -> None:
    seed = random.randrange(2**32)
    chosen = random.Random(seed)
    bucket = open_bucket(tmp_path / "bucket")
    for round_ in range(40):
        start = chosen.randrange(20_000)
        numbers = list(range(start, start + chosen.choice([255, 256, 400, 3000])))
        if order == "descending":
            numbers.reverse()
        if order == "shuffled":
            chosen.shuffle(numbers)
        keys = [key(number) for number in numbers]
        one_by_one = [bucket.get([each])[0] for each in keys]
        assert bucket.get(keys) == one_by_one, f"seed {seed}, round {round_}"
        put(bucket._store, [chosen.randrange(20_000) for _ in range(round_)])
        if round_ % 7 == 0:
            bucket.flush()
    bucket.close()


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.represented_by("0-False")
def test_an_iterator_finds_the_same_rows_as_lookups(store: RocksStore, seed: int, flush: bool) -> None:
    randomness = random.Random(seed)
    batch = store.batch()
    numbers = randomness.sample(range(20_000), 12_000)
    batch.put_rows(map(key, numbers), [b"value of %d" % number for number in numbers])
    store.write(batch)
    batch = store.batch()
    gap = randomness.randrange(18_000)  # more deleted rows side by side than the iterator skips
    deleted = {*randomness.sample(numbers, 3000), *range(gap, gap + 500)}
    batch.delete_rows(map(key, deleted))
    rows = sorted(set(numbers) - deleted)
    store.write(batch)
    if flush:
        store.flush()
    for asked in (256, 2000, 15_000):
        for span in (asked, 2 * asked, 20_000):
            start = randomness.randrange(-100, 20_000 - asked // 2)
            wanted = randomness.sample(range(max(start, 0), start + span), min(asked, start + span - max(start, 0)))
            ascending = [key(number) for number in sorted(wanted)]
            found, are_all = get_dense_rows(store, ascending)
            assert found == store.get_rows(ascending)
            first, last = min(wanted), max(wanted)
            between = [number for number in rows if first <= number <= last]
            assert not are_all or between == sorted(wanted)
            alive = [key(number) for number in between]
            # Except after a gap of deleted rows, which ends the iterator.
            if len(alive) > 256 and not first <= gap <= last:
                assert get_dense_rows(store, alive) == (store.get_rows(alive), True)
            scattered = [key(number) for number in wanted]
            assert get_dense_rows(store, scattered) == (store.get_rows(scattered), False)


def test_rows_side_by_side_are_not_looked_up_one_by_one(store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, range(10_000))
    looked_up: list[bytes] = []

    def look_up(keys: list[bytes]) -> list[bytes | None]:
        looked_up.extend(keys)
        return [None] * len(keys)

    monkeypatch.setattr(store, "get_rows", look_up)
    assert get_dense_rows(store, [key(number) for number in range(0, 10_000, 2)]) == ([b"value"] * 5000, False)
    assert not looked_up
    # Of these, the rows between the keys would take longer to read.
    keys = [key(number) for number in range(0, 10_000, 10)]
    get_dense_rows(store, keys)
    assert looked_up == keys
