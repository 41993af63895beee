"""Consumer progress only moves forward, over streams of any buckets, and round-trips through its token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidResumeToken
from streaming_server.scan.changes.consumer_progress import ConsumerProgress, views_of
from streaming_server.scan.changes.log_token import LaterView, LogPosition, NetPosition
from streaming_server.scan.chunk_source import ScanPosition
from streaming_server.storage.changelog.offsets import count_of, make_offset

TABLE = b"tabl"
OFFSETS = st.dictionaries(st.integers(0, 4), st.builds(make_offset, st.just(0), st.integers(0, 9)), min_size=1)


def behind(*offsets: int, views: tuple[LaterView, ...] = ()) -> ConsumerProgress:
    """Returns a position among the changes of buckets 0, 1, ..."""
    return ConsumerProgress(LogPosition(dict(enumerate(offsets)), views=views), b"quer")


def among(key: bytes | None, *offsets: int, bucket: int = 0) -> ConsumerProgress:
    """Returns a position among the rows of a full start."""
    scanned = None if key is None else ScanPosition(bucket, key)
    return ConsumerProgress(LogPosition(dict(enumerate(offsets)), scanned, scanning=True), b"quer")


@given(st.lists(OFFSETS, min_size=1, max_size=8))
def test_of_any_commits_in_any_order_the_furthest_of_every_bucket_counts(commits: list[dict[int, int]]) -> None:
    committed = ConsumerProgress(LogPosition(commits[0]), b"quer")
    for offsets in commits:
        committed = committed.advance_to(ConsumerProgress(LogPosition(offsets), b"quer"))
    furthest = {
        bucket: max(offsets[bucket] for offsets in commits if bucket in offsets)
        for bucket in {bucket for offsets in commits for bucket in offsets}
    }
    assert committed.position.offsets == furthest
    for offsets in commits:
        assert committed.advance_to(ConsumerProgress(LogPosition(offsets), b"quer")) is committed


def test_an_offset_of_a_later_epoch_is_later_at_the_same_count() -> None:
    assert behind(make_offset(0, 7)).advance_to(behind(make_offset(1, 7))) == behind(make_offset(1, 7))
    assert behind(make_offset(1, 7)).advance_to(behind(make_offset(0, 7))) == behind(make_offset(1, 7))
    assert behind(make_offset(0, 8)).advance_to(behind(make_offset(1, 7))) == behind(make_offset(0, 8))


def test_rows_come_before_changes_and_each_other_in_the_order_of_the_scan() -> None:
    order = [among(None, 5, 5), among(b"b", 5, 5), among(b"c", 5, 5), among(b"a", 5, 5, bucket=1), behind(5, 5)]
    for place, earlier in enumerate(order):
        for later in order[place:]:
            assert earlier.advance_to(later) == later
            assert later.advance_to(earlier) == later


def test_only_a_position_behind_some_rows_is_among_them() -> None:
    assert [at.is_reading_rows for at in (among(None, 5), among(b"a", 5), behind(5))] == [False, True, False]


def test_a_token_of_other_buckets_is_refused_while_rows_are_read() -> None:
    with pytest.raises(InvalidResumeToken, match="other buckets"):
        among(b"a", 5, 5).advance_to(behind(9))


def test_buckets_that_a_later_stream_does_not_read_keep_their_place() -> None:
    assert behind(3, 4, 5).with_offsets({1: 9, 7: 2}).position.offsets == {0: 3, 1: 9, 2: 5, 7: 2}


def test_views_are_kept_until_every_bucket_has_passed_them() -> None:
    view = LaterView(ScanPosition(0, b"k"), {0: 10, 1: 20})
    committed = behind(5, 5, views=(view,))
    halfway = committed.advance_to(ConsumerProgress(LogPosition({0: 10}), b"quer"))  # a stream of one bucket
    assert halfway.position.views == (view,)
    with_other = halfway.with_offsets({2: 7})
    assert with_other.position.views == (LaterView(ScanPosition(0, b"k"), {0: 10, 1: 20, 2: 0}),)
    assert views_of(with_other.position, [1, 2]) == (LaterView(ScanPosition(0, b"k"), {1: 20, 2: 0}),)
    assert with_other.advance_to(ConsumerProgress(LogPosition({1: 20}), b"quer")).position.views == ()


@given(OFFSETS, st.booleans(), st.none() | st.binary(max_size=9))
def test_a_position_comes_back_from_its_token_and_from_that_of_no_other_table(
    offsets: dict[int, int], scanning: bool, key: bytes | None
) -> None:
    scanned = ScanPosition(min(offsets), key) if scanning and key is not None else None
    position = LogPosition(dict(sorted(offsets.items())), scanned, scanning=scanning)
    token = ConsumerProgress(position, b"quer").token(TABLE)
    assert ConsumerProgress.from_token(token, TABLE) == ConsumerProgress(position, b"quer")
    with pytest.raises(InvalidResumeToken, match="another table"):
        ConsumerProgress.from_token(token, b"othe")
    assert all(count_of(offset) <= 9 for offset in ConsumerProgress.from_token(token, TABLE).position.offsets.values())


def test_within_net_changes_the_one_that_was_given_more_is_later() -> None:
    def catching_up(offset: int, given: int) -> ConsumerProgress:
        return ConsumerProgress(LogPosition({0: offset, 1: 3}, net={0: NetPosition(90, 4, given)}), b"quer")

    assert behind(5, 3).advance_to(catching_up(5, 2)) == catching_up(5, 2)
    assert catching_up(5, 2).advance_to(catching_up(5, 7)) == catching_up(5, 7)
    assert catching_up(5, 7).advance_to(catching_up(5, 2)) == catching_up(5, 7)
    assert catching_up(5, 7).advance_to(behind(5, 3)) == catching_up(5, 7)
    assert catching_up(5, 7).advance_to(behind(90, 3)) == behind(90, 3)
    assert catching_up(5, 7).advance_to(behind(5, 4)).position.net == {0: NetPosition(90, 4, 7)}
    assert ConsumerProgress.from_token(catching_up(5, 7).token(TABLE), TABLE) == catching_up(5, 7)
    assert catching_up(5, 7).with_offsets({0: 2}) == behind(2, 3)
