"""Range markers round-trip, a damaged or newer one is refused, and none is within a segment of the changelog."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, NewerFormat
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.changelog.offsets import make_offset
from streaming_server.storage.changelog.range_markers import (
    MarkerReason,
    RangeMarker,
    decode_marker,
    encode_marker,
)
from streaming_server.storage.changelog.records import ChangeOrigin, Changes, RowKind, decode_header, decode_record
from streaming_server.storage.rocks.store import RocksStore
from tests.support.examples import examples
from tests.support.offline import resources
from tests.support.rocks_log import RocksLog
from tests.support.tables import SCORES, define, scores

if TYPE_CHECKING:
    from pathlib import Path


DEFINITION = define(SCORES)

ranges = st.tuples(st.binary(max_size=40), st.binary(max_size=40)).filter(lambda pair: pair[0] < pair[1])
origins = st.builds(
    ChangeOrigin, st.binary(min_size=16, max_size=16), st.lists(st.integers(1, 2**32 - 1), max_size=3).map(tuple)
)
changelogs = st.sampled_from(["full", "upsert"])
markers = st.one_of(
    st.builds(
        lambda pair, origin: RangeMarker(pair[0], pair[1], MarkerReason.UNTRACKED_WRITE, origin), ranges, origins
    ),
    st.builds(
        lambda start, length, origin: replace(
            RangeMarker.of_deletion(KeyRange(start or None, None if length is None else start + length)), origin=origin
        ),
        st.binary(max_size=40),
        st.none() | st.binary(min_size=1, max_size=9),
        origins,
    ),
    st.builds(RangeMarker.of_changelogs, changelogs, changelogs),
)


@given(markers, st.integers(0, 2**14), st.integers(0, 2**48 - 1), st.integers(0, 2**60))
def test_any_marker_comes_back(marker: RangeMarker, epoch: int, count: int, micros: int) -> None:
    key, value = encode_marker(marker, epoch=epoch, count=count, schema_id=3, commit_micros=micros)
    record = decode_marker(key, value)
    assert record.marker == marker
    assert (record.offset, record.epoch) == (make_offset(epoch, count), epoch)
    assert (record.schema_id, record.commit_micros) == (3, micros)
    header = decode_header(key, value)
    assert header.is_marker
    assert (header.count, header.origin) == (len(marker), marker.origin)


@given(markers)
@examples(10)
def test_every_shortened_or_longer_marker_is_data_loss(marker: RangeMarker) -> None:
    key, value = encode_marker(marker, epoch=0, count=7, schema_id=1, commit_micros=0)
    for damaged in [*(value[:length] for length in range(2, len(value))), value + b"\0"]:
        with pytest.raises(DataLoss):
            decode_marker(key, damaged)


def test_a_marker_of_a_newer_format_is_refused_as_newer() -> None:
    key, value = encode_marker(RangeMarker(b"a", b"b"), epoch=0, count=7, schema_id=1, commit_micros=0)
    for newer in (b"\5" + value[1:], value[:1] + b"\1" + value[2:]):
        with pytest.raises(NewerFormat, match="changelog record at offset 7 has format"):
            decode_marker(key, newer)


@pytest.mark.parametrize("marker", [RangeMarker(b"a", b"b"), RangeMarker.of_deletion(KeyRange(b"a", b"b"))])
def test_a_marker_with_the_format_of_the_other_kind_is_data_loss(marker: RangeMarker) -> None:
    key, value = encode_marker(marker, epoch=0, count=7, schema_id=1, commit_micros=0)
    other = b"\3" if marker.is_deletion else b"\4"
    with pytest.raises(DataLoss):
        decode_marker(key, other + value[1:])


def test_a_marker_is_not_read_as_changes() -> None:
    key, value = encode_marker(RangeMarker(b"a", b"b"), epoch=0, count=7, schema_id=1, commit_micros=0)
    with pytest.raises(DataLoss):
        decode_record(key, value, DEFINITION)


def test_a_state_without_markers_is_stored_as_earlier_versions_store_it() -> None:
    assert b"last_marker" not in BucketState().to_bytes()
    state = BucketState(count=9, last_marker=4)
    assert BucketState.from_bytes(state.to_bytes()) == state
    assert [state.has_markers_since(offset) for offset in (0, 3, 4, 9)] == [True, True, False, False]


def test_a_state_knows_with_which_value_of_the_option_each_change_was_recorded() -> None:
    assert b"changelog_starts" not in BucketState().to_bytes()
    state = BucketState(count=9, changelog_starts=(3, 3, 7))
    assert BucketState.from_bytes(state.to_bytes()) == state
    values = ["full", "none", "upsert", "full"]
    found = [state.changelog_at(offset, values) for offset in (0, 2, 3, 6, 7, 9)]
    assert found == ["full", "full", "upsert", "upsert", "full", "full"]
    assert [state.is_recorded_as_now(offset) for offset in (0, 3, 6, 7, 9)] == [False, False, False, True, True]
    # A bucket that does not follow the table yet.
    assert BucketState(count=9).changelog_at(9, values) == "full"


def test_segments_never_contain_markers(tmp_path: Path) -> None:
    with closing(RocksStore(tmp_path / "0", "bucket 0", compression="lz4", resources=resources())) as store:
        with closing(RocksLog(store, tmp_path / "0.durable")) as logged:
            for rows in (1, 1, 0, 1, 1, 1500):
                inserted = Changes(np.full(rows, RowKind.INSERT, np.uint8), scores(["p"] * rows, [1] * rows))
                logged.append(inserted if rows else RangeMarker(b"k", b"l"), 1, 0)
            found = []
            while segment := logged.log.next_segment(logged.state.log_offset, DEFINITION):
                logged.put_segment(segment)
                found.append((segment.end, segment.record is not None))
            assert found == [(2, True), (3, False), (1505, True)]
