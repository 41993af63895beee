"""Range markers round-trip, and a changelog with markers never hides them from a reader."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, NewerFormat, RangeNotTracked
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.changelog.offsets import count_of, make_offset
from streaming_server.storage.changelog.range_markers import (
    MarkerReached,
    MarkerReason,
    MarkerRecord,
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
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.storage.changelog.log_span import LogSpan

DEFINITION = define(SCORES)
ANY = 1 << 40

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


class MarkedLog:
    """A changelog in RocksDB with commits of changes and markers, each at its own time.

    Attributes:
        expected: Each change (its number) or marker (None), in order.
        micros: The commit time of each.
    """

    def __init__(self, logged: RocksLog) -> None:
        self._logged = logged
        self.log = logged.log
        self.expected: list[int | None] = []
        self.micros: list[int] = []

    @property
    def _span(self) -> LogSpan:
        return self.log.span

    def commit(self, rows: int) -> None:
        """Appends a commit of some inserts, or a marker if `rows` is 0."""
        count, micros = self._span.end, 10 * len(self.micros)
        numbers = range(count, count + rows)
        changes = (
            Changes(np.full(rows, RowKind.INSERT, np.uint8), scores([f"p{n}" for n in numbers], list(numbers)))
            if rows
            else RangeMarker(b"k%d" % count, b"l")
        )
        self._logged.append(changes, 1, micros)
        self.expected += [*numbers] if rows else [None]
        self.micros += [micros] * max(rows, 1)

    def begin_epoch(self) -> None:
        """Begins a new epoch without losing changes."""
        self._logged.state = self.log.recover(self._logged.state)

    def read(self, start: int, max_changes: int) -> list[int | None]:
        """Reads to the end, stepping over markers as a reader does that understands them."""
        at, end, found = self._span.offset_of(start), self._span.offset_of(self._span.end), list[int | None]()
        while count_of(at) < count_of(end):
            try:
                records = self.log.read(at, end, DEFINITION, max_changes=max_changes, max_bytes=ANY)
            except MarkerReached as reached:
                at = self._after(at, reached.record)
                found.append(None)
            else:
                for record in records:
                    found += record.changes.rows.column("score").to_pylist()
                at = self._span.offset_of(start + len(found))
        return found

    def _after(self, at: int, record: MarkerRecord) -> int:
        assert record.offset == at
        assert record.marker.start == b"k%d" % count_of(at)
        assert self.log.read_markers(at, self._span.offset_of(self._span.end), most=1) == [record]
        return self._span.offset_of(count_of(at) + 1)

    def rewrite(self) -> list[tuple[int, bool]]:
        """Joins small records, as the maintenance of the changelog does.

        Returns the end of each segment, and whether it has replaced records.
        """
        ends = []
        while segment := self.log.next_segment(self._span.offset_of(self._span.end), DEFINITION):
            self._logged.put_segment(segment)
            ends.append((segment.end, segment.record is not None))
        return ends


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocksStore]:
    store = RocksStore(
        tmp_path_factory.mktemp("log") / "bucket", "bucket 0 of a.b", compression="lz4", resources=resources()
    )
    yield store
    store.close()


@pytest.fixture(scope="module")
def watermark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watermark") / "bucket.durable"


@contextmanager
def marked_log(store: RocksStore, watermark: Path) -> Iterator[MarkedLog]:
    with closing(RocksLog(store, watermark)) as logged:
        yield MarkedLog(logged)


@given(st.data())
@examples(15)
def test_every_read_returns_each_change_and_stops_at_each_marker(
    store: RocksStore, watermark: Path, data: st.DataObject
) -> None:
    with marked_log(store, watermark) as log:
        for rows in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12)):
            log.commit(rows)
            if data.draw(st.integers(0, 4)) == 0:
                log.begin_epoch()
        if data.draw(st.booleans()):
            log.rewrite()
        for start in range(len(log.expected)):
            assert log.read(start, data.draw(st.integers(1, 9))) == log.expected[start:]
        for micros in range(0, max(log.micros) + 20, 5):
            at = count_of(log.log.offset_at(micros, DEFINITION))
            assert at == sum(each < micros for each in log.micros)


def test_a_reader_that_does_not_know_markers_fails_with_a_typed_error(store: RocksStore, watermark: Path) -> None:
    with marked_log(store, watermark) as log:
        for rows in (3, 0, 2):
            log.commit(rows)
        (record,) = log.log.read(0, 6, DEFINITION, max_changes=100, max_bytes=ANY)
        assert len(record.changes) == 3
        with pytest.raises(RangeNotTracked, match=r"bucket 0 of a\.b: the changes at offset 3 are not") as caught:
            log.log.read(3, 6, DEFINITION, max_changes=100, max_bytes=ANY)
        assert caught.value.details["offset"] == "3"
        assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "RANGE_NOT_TRACKED")


def test_segments_never_contain_markers(store: RocksStore, watermark: Path) -> None:
    with marked_log(store, watermark) as log:
        for rows in (1, 1, 0, 1, 1, 1500):
            log.commit(rows)
        assert log.rewrite() == [(2, True), (3, False), (1505, True)]
