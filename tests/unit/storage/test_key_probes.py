"""Lookups of many keys find the same rows with and without the probe that tells that no row lies between the keys."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss
from streaming_server.clock import ServerClock
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.rocks.store import RocksResources, RocksStore

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
