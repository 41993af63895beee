"""Versions stay equal while nothing changes, even across restarts, and never recur."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_server.scan.versions import version_of
from streaming_server.storage.changelog.offsets import count_of, make_offset
from tests.support.tables import SCORES, define

DEFINITION = define(SCORES, buckets=3)
OFFSETS = st.builds(make_offset, st.integers(0, 100), st.integers(0, 1_000))
STATES = st.dictionaries(st.integers(0, 1023), OFFSETS, min_size=1, max_size=5)


@given(STATES, STATES)
def test_versions_are_equal_exactly_when_the_counts_of_the_same_buckets_are(
    one: dict[int, int], other: dict[int, int]
) -> None:
    same = {bucket: count_of(offset) for bucket, offset in one.items()} == {
        bucket: count_of(offset) for bucket, offset in other.items()
    }
    assert (version_of(DEFINITION, one, 0) == version_of(DEFINITION, other, 0)) is same


@given(STATES, st.integers(0, 100))
def test_the_epoch_and_the_order_of_the_buckets_are_no_part_of_a_version(state: dict[int, int], epoch: int) -> None:
    again = {bucket: make_offset(epoch, count_of(state[bucket])) for bucket in reversed(state)}
    assert version_of(DEFINITION, again, 0) == version_of(DEFINITION, state, 0)


@pytest.mark.parametrize(
    "other",
    [
        replace(DEFINITION, incarnation="1" * 32),
        DEFINITION.add_columns(pa.schema([("extra", pa.int64())])),
    ],
)
def test_another_incarnation_and_another_schema_are_other_versions(other: object) -> None:
    assert isinstance(other, type(DEFINITION))
    assert version_of(other, {0: 5}, 0) != version_of(DEFINITION, {0: 5}, 0)


def test_a_version_says_the_same_in_every_process() -> None:
    assert version_of(DEFINITION, {0: 5, 1: make_offset(3, 7)}, 0).hex() == "1f1c23aaac8c86b6c2d7a380e9a7f1af"
