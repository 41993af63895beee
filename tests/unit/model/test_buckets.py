"""The bucket of a key: the same for one key and for many, evenly spread, and permanent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.buckets import KeyPlaces, bucket_of, bucket_of_one, tablet_of
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges


@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(1, 1024))
def test_many_keys_have_the_buckets_of_each(keys: list[bytes], buckets: int) -> None:
    found = bucket_of(pa.array(keys, pa.binary()), buckets)
    assert found.dtype == np.int32
    assert found.tolist() == [bucket_of_one(key, buckets) for key in keys]


def test_keys_are_spread_over_all_buckets() -> None:
    keys = pa.array([index.to_bytes(8, "big") for index in range(10_000)], pa.binary())
    counts = np.bincount(bucket_of(keys, 8), minlength=8)
    assert counts.min() > 1_100
    assert counts.max() < 1_400


# Rows are stored in these buckets: a change here would lose them.
@pytest.mark.parametrize(
    ("key", "bucket"), [(b"", 138), (b"\x80\x00\x00\x00\x00\x00\x00\x01", 57), (b"ann\x00\x00", 433)]
)
def test_bucket_is_the_one_on_disk(key: bytes, bucket: int) -> None:
    assert bucket_of_one(key, 1000) == bucket


KEY = pa.schema([("a", pa.int32()), ("b", pa.string())])
CODEC = KeyCodec(KEY.types)


@pytest.mark.parametrize("bucket_key", [["a", "b"], ["a"], ["b"]])
def test_the_places_of_keys_are_their_buckets(bucket_key: list[str]) -> None:
    places = KeyPlaces(KEY, bucket_key, 7)
    rows = [(number, "x\0" * (number % 3)) for number in range(-20, 20)]
    values = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    columns = [pa.array(values[name], KEY.field(name).type) for name in bucket_key]
    expected = bucket_of(KeyCodec([KEY.field(name).type for name in bucket_key]).encode(columns), 7)
    keys = [CODEC.encode_one(row) for row in rows]
    found = places.of_ranges(KeyRanges.of_keys(sorted(keys)), range(7))
    assert {key: bucket for bucket, ranges in found.items() for key in ranges.keys} == dict(
        zip(keys, expected.tolist(), strict=True)
    )


@given(st.integers(1, 200), st.data())
def test_tablets_are_ranges_of_buckets(buckets: int, data: st.DataObject) -> None:
    tablets = data.draw(st.integers(1, buckets))
    expected = [
        tablet
        for tablet in range(tablets)
        for _ in range(tablet * buckets // tablets, (tablet + 1) * buckets // tablets)
    ]
    assert [tablet_of(bucket, buckets, tablets) for bucket in range(buckets)] == expected
    assert tablet_of(np.arange(buckets), buckets, tablets).tolist() == expected


def test_ranges_lie_in_the_buckets_in_which_their_keys_can_be() -> None:
    key, later = CODEC.encode_one([5, "x"]), CODEC.encode_one([8, "x"])
    six = KeyRange.under(CODEC.encode_one([6, "x"])[:4])
    ranges = KeyRanges.of(KeyRange(key, key + b"\0"), six, KeyRange(later, None))
    found = KeyPlaces(KEY, ["a"], 7).of_ranges(ranges, range(7))
    of_five, of_six = (bucket_of_one(part[:4], 7) for part in (key, six.start or b""))
    for bucket in range(7):
        expected = ([0] if bucket == of_five else []) + ([1] if bucket == of_six else []) + [2]
        assert found[bucket] == ranges.at(expected)
    assert KeyPlaces(KEY, ["a"], 7).of_ranges(KeyRanges.of(six), [0, of_six]).keys() == {of_six}
    assert KeyPlaces(KEY, ["b"], 7).of_ranges(KeyRanges.of_keys([b"no key"]), range(7)).keys() <= set(range(7))


def test_a_range_lies_in_one_bucket_where_all_its_keys_have_one_bucket_key() -> None:
    key = CODEC.encode_one([5, "x"])
    five = KeyRange.under(key[:4])
    places = KeyPlaces(KEY, ["a"], 7)
    bucket = bucket_of_one(key[:4], 7)
    assert places.of_range(five) == places.of_range(KeyRange(key, key + b"\0")) == bucket
    assert places.of_range(KeyRange(five.start, CODEC.encode_one([6, ""]))) is None
    assert places.of_range(KeyRange(five.start, None)) is None
    assert places.of_range(KeyRange()) is None
    assert KeyPlaces(KEY, ["b"], 7).of_range(five) is None
    assert KeyPlaces(KEY, ["a", "b"], 7).of_range(five) is None
    assert KeyPlaces(KEY, ["a", "b"], 1).of_range(KeyRange()) == 0
