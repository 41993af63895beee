"""Estimates of the number of keys by range: every key is in a range, few seeks are made, even keys are counted well."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.snapshots.key_density import KEYS_PER_PROBE, KeySpan, estimate_spans
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable


class CountedKeys:
    """Keys in memory that count how many of them were read."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.given = 0

    def keys_from(self, start: bytes, count: int) -> list[bytes]:
        first = bisect_left(self.keys, start)
        found = self.keys[first : first + count]
        self.given += len(found)
        return found

    def last_below(self, end: bytes | None) -> bytes | None:
        place = len(self.keys) if end is None else bisect_left(self.keys, end)
        return self.keys[place - 1] if place else None


def stretches_of(keys: CountedKeys, key_range: KeyRange, looks: int) -> list[KeySpan]:
    *others, found = estimate_spans(keys, key_range, looks, len(keys.keys))
    assert found is not None
    assert all(other is None for other in others)
    return found


@given(
    st.lists(st.binary(min_size=1, max_size=20), unique=True, max_size=300).map(sorted),
    st.binary(max_size=3) | st.none(),
    st.binary(max_size=3) | st.none(),
    st.integers(0, 50),
)
@examples(15)
def test_every_key_of_the_range_is_in_one_stretch(
    keys: list[bytes], start: bytes | None, end: bytes | None, looks: int
) -> None:
    counted, key_range = CountedKeys(keys), KeyRange(start, end)
    found = stretches_of(counted, key_range, looks)
    assert counted.given <= (looks + 1) * KEYS_PER_PROBE
    assert all(before.end <= after.start for before, after in pairwise(found))
    for key in keys:
        assert sum(stretch.start <= key < stretch.end for stretch in found) == (key in key_range)
    if len(found) and all(len(stretch.run) < KEYS_PER_PROBE for stretch in found):
        assert sum(stretch.rows for stretch in found) == sum(key in key_range for key in keys)


def even(rows: int) -> list[bytes]:
    return [int(number).to_bytes(8) for number in range(5, rows * 7, 7)]


def random_ids(rows: int) -> list[bytes]:
    random = np.random.default_rng(3)
    return sorted(random.bytes(16) for _ in range(rows))


def in_clusters(rows: int) -> list[bytes]:
    return [b"player-%06d\0\0" % (number // 20) + (number % 20).to_bytes(4) for number in range(rows)]


@pytest.mark.parametrize(("make", "error"), [(even, 0.05), (random_ids, 0.1), (in_clusters, 0.1)])
@pytest.mark.represented_by("even-0.05")
def test_a_hundred_times_more_keys_are_looked_at_as_often_and_places_are_about_right(
    make: Callable[[int], list[bytes]], error: float
) -> None:
    for rows in (2_000, 200_000):
        keys = CountedKeys(make(rows))
        found = stretches_of(keys, KeyRange(), 128)
        assert keys.given <= 129 * KEYS_PER_PROBE
        total, below = sum(stretch.rows for stretch in found), 0.0
        for stretch in found:
            share = below / total
            assert abs(bisect_left(keys.keys, stretch.start) / rows - share) < error
            below += stretch.rows
