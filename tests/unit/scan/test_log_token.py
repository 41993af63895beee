"""Resume tokens of changes round-trip, and everything else is refused."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, InvalidResumeToken
from streaming_server.scan.changes.log_token import (
    LaterView,
    LogPosition,
    LogTokenWriter,
    NetPosition,
    RescanPosition,
    read_log_token,
)
from streaming_server.scan.chunk_source import ScanPosition
from streaming_server.scan.resume_token import Fingerprint


def fingerprint(table: str = "t", query: str = "q") -> Fingerprint:
    return Fingerprint.of(table=[table], schema=b"", query=[query])


OFFSETS = st.integers(0, 2**63 - 1)
PLACES = st.builds(ScanPosition, st.integers(0, 1023), st.binary(max_size=40))


@st.composite
def positions(draw: st.DrawFn) -> LogPosition:
    buckets = draw(st.lists(st.integers(0, 1023), min_size=1, max_size=5, unique=True))
    offsets = st.fixed_dictionaries(dict.fromkeys(sorted(buckets), OFFSETS))
    views = draw(st.lists(st.builds(LaterView, PLACES, offsets), max_size=3))
    scanning = draw(st.booleans())
    scanned = draw(st.none() | PLACES) if scanning else None
    rescan = st.builds(RescanPosition, OFFSETS, st.binary(max_size=40))
    rescans = draw(st.dictionaries(st.sampled_from(buckets), rescan))
    catch_up = st.builds(NetPosition, OFFSETS, st.integers(0, 2**16 - 1), OFFSETS, st.integers(0, 2**32 - 1))
    net = draw(st.dictionaries(st.sampled_from(buckets), catch_up))
    return LogPosition(draw(offsets), scanned, tuple(views), scanning, net, rescans)


@given(positions(), st.none() | st.integers(0, 2**63 - 1))
def test_any_position_comes_back_with_what_is_left_of_the_limit(position: LogPosition, left: int | None) -> None:
    token = LogTokenWriter(fingerprint()).token(position, left)
    assert read_log_token(token, fingerprint()) == (position, left)


@given(positions(), st.data())
def test_a_token_with_any_byte_changed_or_missing_is_refused(position: LogPosition, data: st.DataObject) -> None:
    token = LogTokenWriter(fingerprint()).token(position, None)
    place = data.draw(st.integers(0, len(token) - 1))
    changed = bytearray(token)
    changed[place] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(changed), token[:place], token + b"x"):
        with pytest.raises(InvalidResumeToken):
            read_log_token(wrong, fingerprint())


def test_a_token_is_of_its_table_and_query() -> None:
    token = LogTokenWriter(fingerprint()).token(LogPosition({0: 5}), None)
    with pytest.raises(InvalidResumeToken, match="another table"):
        read_log_token(token, fingerprint(table="u"))
    with pytest.raises(InvalidResumeToken, match="another query"):
        read_log_token(token, fingerprint(query="r"))


def test_a_token_of_rows_is_none_of_changes() -> None:
    for wrong in (b"", b"nonsense", bytes(100)):
        with pytest.raises(InvalidResumeToken):
            read_log_token(wrong, fingerprint())


def test_a_token_that_names_a_bucket_twice_is_refused() -> None:
    """Anyone can compute the checksum of a token."""
    at = ScanPosition(1, b"key")
    position = LogPosition({1: 5, 2: 6}, at, (LaterView(at, {1: 7, 2: 8}),), scanning=True)
    body = LogTokenWriter(fingerprint()).token(position, None)[:-4]
    one, two = (struct.pack("<Hq", bucket, offset) for bucket, offset in position.offsets.items())
    twice = body.replace(one + two, one + one)
    assert twice != body
    with pytest.raises(InvalidResumeToken, match="damaged"):
        read_log_token(twice + struct.pack("<I", google_crc32c.value(twice)), fingerprint())


def test_too_many_cuts_among_the_rows_are_an_error_and_no_shortened_token() -> None:
    offsets = dict.fromkeys(range(1024), 1)
    views = tuple(LaterView(ScanPosition(n, b"key"), offsets) for n in range(10))
    with pytest.raises(InvalidRequest, match="too often"):
        LogTokenWriter(fingerprint()).token(LogPosition(offsets, ScanPosition(9, b"key"), views, scanning=True), None)


def test_keys_of_rescans_that_do_not_fit_are_left_out() -> None:
    buckets = range(1024)
    offsets = dict.fromkeys(buckets, 5)
    position = LogPosition(offsets, rescans={bucket: RescanPosition(9, bytes(16 * 1024)) for bucket in buckets})
    token = LogTokenWriter(fingerprint()).token(position, None)
    assert read_log_token(token, fingerprint()) == (LogPosition(offsets), None)


def test_a_token_is_as_earlier_servers_read_it_where_it_can_be() -> None:
    writer = LogTokenWriter(fingerprint())
    assert writer.token(LogPosition({0: 5}), None)[0] == 17
    assert writer.token(LogPosition({0: 5}, rescans={0: RescanPosition(6, b"k")}), None)[0] == 18
    assert writer.token(LogPosition({0: 5}, net={0: NetPosition(9, 4, 2, schema_id=1)}), None)[0] == 19
