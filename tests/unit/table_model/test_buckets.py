"""Which bucket a key belongs to: the same for one key and for many, spread evenly, and for ever."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from table_model.buckets import bucket_of, bucket_of_one


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


# Rows lie where these numbers say: a change here loses them.
@pytest.mark.parametrize(
    ("key", "bucket"), [(b"", 138), (b"\x80\x00\x00\x00\x00\x00\x00\x01", 57), (b"ann\x00\x00", 433)]
)
def test_bucket_is_the_one_on_disk(key: bytes, bucket: int) -> None:
    assert bucket_of_one(key, 1000) == bucket
