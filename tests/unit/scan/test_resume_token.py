"""A resume token round-trips for the scan it belongs to, and every other scan refuses it."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidResumeToken
from scankv.model.limits import MAX_BUCKETS, MAX_KEY_BYTES, MAX_RESUME_TOKEN_BYTES
from streaming_server.scan.chunk_source import ScanPosition, View
from streaming_server.scan.resume_token import Fingerprint, ResumePoint, TokenWriter, read_token, time_of_token

HERE = Fingerprint.of(table=["game.scores", "7"], schema=b"columns", query=[None, 5])

keys = st.binary(max_size=40)
offsets = st.dictionaries(st.integers(0, MAX_BUCKETS - 1), st.integers(0, 2**63 - 1), min_size=1, max_size=8)
positions = st.builds(ScanPosition, st.integers(0, MAX_BUCKETS - 1), keys)
limits = st.none() | st.integers(0, 2**63 - 1)


def token_of(position: ScanPosition, remaining: int | None = None, view: View | None = None) -> bytes:
    return TokenWriter(HERE, view or View({0: 3, 1: 0}, 1_700_000_000_000_000, 9)).token(position, remaining)


@given(positions, limits, offsets, st.integers(0, 2**60))
def test_what_was_put_in_comes_out(
    position: ScanPosition, remaining: int | None, log_offsets: dict[int, int], micros: int
) -> None:
    token = TokenWriter(HERE, View(log_offsets, micros, 5)).token(position, remaining)
    assert read_token(token, HERE) == ResumePoint(position, remaining, View(log_offsets, micros, 0), micros)
    assert time_of_token(token) == micros


@given(positions, limits, offsets, st.integers(0, 2**60))
def test_a_token_of_rows_that_expire_has_the_time_of_the_first_view(
    position: ScanPosition, remaining: int | None, log_offsets: dict[int, int], micros: int
) -> None:
    token = TokenWriter(HERE, View(log_offsets, micros, 5), micros // 2).token(position, remaining)
    assert read_token(token, HERE) == ResumePoint(position, remaining, View(log_offsets, micros, 0), micros // 2)
    assert time_of_token(token) == micros // 2


@given(positions, st.data())
def test_any_change_of_a_token_is_refused(position: ScanPosition, data: st.DataObject) -> None:
    token = bytearray(token_of(position, 7))
    place = data.draw(st.integers(0, len(token) - 1))
    token[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidResumeToken, match="damaged"):
        read_token(bytes(token), HERE)


@given(positions, st.integers(1, 200))
def test_a_token_cut_short_or_with_more_behind_it_is_refused(position: ScanPosition, by: int) -> None:
    token = token_of(position)
    for changed in (token[:-by], token[by:], token + bytes(by)):
        with pytest.raises(InvalidResumeToken, match="damaged"):
            read_token(changed, HERE)


@pytest.mark.parametrize("buckets", [1, 3, 4, 500, 65_535])
def test_a_token_that_was_forged_checksum_and_all_is_refused(buckets: int) -> None:
    """The token has a wrong number of buckets, with a valid checksum."""
    forged = bytearray(token_of(ScanPosition(0, b"key"))[:-4])
    forged[21:23] = buckets.to_bytes(2, "little")
    try:
        point = read_token(bytes(forged) + google_crc32c.value(bytes(forged)).to_bytes(4, "little"), HERE)
    except InvalidResumeToken:
        return
    assert len(point.view.log_offsets) == buckets == 1, "only where there is room for it"


@given(st.binary(max_size=300))
def test_other_bytes_are_no_token(data: bytes) -> None:
    with pytest.raises(InvalidResumeToken):
        read_token(data, HERE)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (Fingerprint.of(table=["game.scores", "8"], schema=b"columns", query=[None, 5]), "another table or snapshot"),
        (Fingerprint.of(table=["game.scores", "7"], schema=b"others", query=[None, 5]), "another schema"),
        (Fingerprint.of(table=["game.scores", "7"], schema=b"columns", query=[None, 6]), "another query"),
    ],
)
def test_a_token_of_something_else_is_refused_and_says_what_differs(other: Fingerprint, what: str) -> None:
    with pytest.raises(InvalidResumeToken, match=what):
        read_token(token_of(ScanPosition(0, b"k")), other)


def test_the_longest_token_there_can_be_is_within_the_limit() -> None:
    view = View(dict.fromkeys(range(MAX_BUCKETS), 2**62), 2**60, 0)
    token = token_of(ScanPosition(MAX_BUCKETS - 1, bytes(MAX_KEY_BYTES)), 2**63 - 1, view)
    assert len(token) <= MAX_RESUME_TOKEN_BYTES
    assert read_token(token, HERE).position.key == bytes(MAX_KEY_BYTES)
