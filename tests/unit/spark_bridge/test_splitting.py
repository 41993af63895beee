"""Complete buckets for the tasks: evenly divided, every bucket once, or not at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.splitting import group_buckets


def test_even_buckets_are_shared_out() -> None:
    assert group_buckets({0: 100, 1: 101, 2: 99, 3: 100}, 4) == [(1,), (3,), (0,), (2,)]
    assert group_buckets({0: 100, 1: 101, 2: 99, 3: 100}, 2) == [(1, 2), (0, 3)]


def test_fewer_tasks_than_asked_for_are_made_of_few_buckets_but_not_less_than_half() -> None:
    assert group_buckets({0: 100, 1: 100}, 4) == [(1,), (0,)]
    assert group_buckets({0: 100, 1: 100}, 5) is None


def test_skewed_and_uncounted_buckets_are_not_shared_out() -> None:
    assert group_buckets({0: 1000, 1: 1, 2: 1, 3: 1}, 4) is None
    assert group_buckets({0: 100, 1: None}, 2) is None


def test_buckets_that_were_emptied_meanwhile_are_read_all_the_same() -> None:
    assert group_buckets({0: 0, 1: 0}, 2) == [(0, 1)]


@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=20), st.integers(1, 40))
def test_groups_have_every_bucket_once_and_are_even(rows: list[int], splits: int) -> None:
    groups = group_buckets(dict(enumerate(rows)), splits)
    if groups is not None:
        assert sorted(bucket for group in groups for bucket in group) == list(range(len(rows)))
        assert max(sum(rows[bucket] for bucket in group) for group in groups) <= 1.25 * sum(rows) / len(groups) + 1
