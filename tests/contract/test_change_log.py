"""The contract of `ChangeLog`, checked for the implementation in RocksDB."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, PositionExpired, PositionOutOfRange
from scankv.model.keys.key_range import KeyRange
from scankv.model.tables.evolution import ColumnChanges
from streaming_server.storage.changelog.offsets import count_of, epoch_of, make_offset, row_key
from streaming_server.storage.changelog.range_markers import MarkerReached, RangeMarker
from streaming_server.storage.changelog.records import (
    Changes,
    LogRecord,
    RowKind,
    decode_record,
    encode_segment,
    record_key,
)
from streaming_server.storage.changelog.retention_holds import RetentionHolds
from streaming_server.storage.changelog.segments import Segment
from streaming_server.storage.changelog.verification import count_changes
from streaming_server.storage.rocks.store import RocksStore
from tests.support.examples import examples
from tests.support.offline import resources
from tests.support.rocks_log import RocksLog
from tests.support.tables import SCORES, define, exact_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.change_log import ChangeLog
    from streaming_server.storage.changelog.log_span import LogSpan

FIRST = define(SCORES)
TEAM = pa.schema([("team", pa.string())])
LATER = {
    "with another column": FIRST.add_columns(TEAM),
    "with a renamed column in another place": FIRST.change_columns(
        ColumnChanges(rename={"score": "points"}, add=TEAM, order=("team", "points", "player"))
    ),
    "with another column of the same name": FIRST.change_columns(
        ColumnChanges(drop=("score",), add=pa.schema([("score", pa.string())]))
    ),
}
"""The table after a change of its columns."""
ANY = 1 << 40
PAIR = [RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER]


class FixedClock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class LoggedChange:
    """The expected content of one change."""

    offset: int
    kind: RowKind
    schema_id: int
    micros: int
    row: tuple[Any, ...]


class Logged(RocksLog):
    """A log with operations that modify it."""

    def __init__(self, store: RocksStore, watermark: Path, clock: FixedClock, later: TableDefinition) -> None:
        super().__init__(store, watermark)
        self.log.holds = RetentionHolds(clock)
        self._later = later

    def lose_from(self, count: int) -> None:
        """Simulates a power failure: begins a new epoch without these changes."""
        self._delete(record_key(self.state.log_span.offset_of(count)), b"\xff" * 9)
        kept = replace(self.state, count=count, log_first=min(self.state.log_first, count), clean=False)
        self.state = self.log.recover(kept)

    def lose(self, count: int) -> None:
        """Simulates damage that the log does not know: removes a change, and perhaps neighbours."""
        key, _, _ = next(r for r in self._records() if count < count_of(r[2].offset) + len(r[2].changes))
        self._delete(key, key + b"\0")

    def rewrite(self, start: int, end: int) -> None:
        """Rewrites the changes between two counts as one record."""
        records = [
            (key, record)
            for key, _, record in self._records()
            if start <= count_of(record.offset) and count_of(record.offset) + len(record.changes) <= end
        ]
        records = [each for each in records if _kind_of(each[1]) == _kind_of(records[0][1])]
        if not records:
            return
        self.put_segment(Segment(end, encode_segment([record for _, record in records]), records[-1][0]))

    def _records(self) -> Iterator[tuple[bytes, bytes, LogRecord]]:
        for stored in sorted(self.store.log.items()):
            key, value = cast("tuple[bytes, bytes]", stored)
            yield key, value, decode_record(key, value, self._later)

    def _delete(self, start: bytes, end: bytes) -> None:
        batch = self.store.batch()
        batch.delete_log(start, end)
        self.store.write(batch)


def _kind_of(record: LogRecord) -> tuple[int, int]:
    return record.epoch, record.schema_id


@dataclass
class LogHistory:
    """A log and its expected changes. `later` is the table after a change of its columns."""

    logged: Logged
    clock: FixedClock
    later: TableDefinition
    changes: list[LoggedChange] = field(default_factory=list)
    first: int = 0
    micros: int = 1000
    schema: TableDefinition = FIRST
    unsynced: list[int] = field(default_factory=list)
    """The start of each commit that a power failure may undo."""

    @property
    def log(self) -> ChangeLog:
        return self.logged.log

    def commit(self, kinds: list[RowKind], later: int = 0) -> int:
        """Appends changes in one commit, and returns the offset of the first."""
        self.micros += later
        start, span = len(self.changes), self.log.span
        columns = self.schema.schema.arrow
        rows = [tuple(_value_of(each, start + n) for each in columns) for n in range(len(kinds))]
        arrays = [pa.array(values, each.type) for values, each in zip(zip(*rows, strict=True), columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
        schema_id = self.schema.schema.id
        self.unsynced.append(start)
        self.logged.append(Changes(np.array(kinds, np.uint8), batch), schema_id, self.micros)
        for place, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
            offset = span.offset_of(span.end) + place
            self.changes.append(LoggedChange(offset, kind, schema_id, self.micros, row))
        return span.offset_of(span.end)

    def lose_from(self, count: int) -> None:
        self.logged.lose_from(count)
        del self.changes[count:]
        self.unsynced.clear()

    def rewrite(self, start: int, end: int) -> None:
        self.logged.rewrite(start, end)
        self.unsynced.clear()

    def trim(self, offset: int) -> None:
        self.first = self.logged.trim(offset)

    def read(self, start: int, end: int, *, max_changes: int = ANY, max_bytes: int = ANY) -> list[LoggedChange]:
        records = self.log.read(start, end, self.later, max_changes=max_changes, max_bytes=max_bytes)
        return [change for record in records for change in self.changes_of(record)]

    def changes_of(self, record: LogRecord) -> list[LoggedChange]:
        rows, kinds = exact_rows(record.changes.rows), record.changes.kinds.tolist()
        assert len(rows) == len(kinds) == len(record.commit_micros)
        assert epoch_of(record.offset) == record.epoch
        assert record.changes.rows.schema.equals(self.later.schema_at(record.schema_id).arrow)
        return [
            LoggedChange(record.offset + place, RowKind(kind), record.schema_id, micros, row)
            for place, (kind, micros, row) in enumerate(zip(kinds, record.commit_micros.tolist(), rows, strict=True))
        ]

    def check(self) -> None:
        span = self.log.span
        assert (span.first, span.end) == (self.first, len(self.changes))
        assert self.read(span.offset_of(span.first), span.offset_of(span.end)) == self.changes[self.first :]


def _value_of(field: pa.Field, number: int) -> Any:
    return number if field.type == pa.int64() else f"{field.name} {number}"


@pytest.fixture(scope="module", params=LATER)
def later(request: pytest.FixtureRequest) -> TableDefinition:
    """Returns the table after a change of its columns."""
    return LATER[request.param]


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory, later: TableDefinition) -> Iterator[Callable[[], LogHistory]]:
    """Returns a function that creates an empty log."""
    path = tmp_path_factory.mktemp("log") / "bucket"
    store = RocksStore(path, "bucket 0 of test.table", compression="lz4", resources=resources())
    opened = ExitStack()

    def empty() -> LogHistory:
        opened.close()
        clock = FixedClock()
        logged = opened.enter_context(closing(Logged(store, path.with_suffix(".durable"), clock, later)))
        return LogHistory(logged, clock, later)

    yield empty
    opened.close()
    store.close()


KINDS = st.lists(st.sampled_from([[RowKind.INSERT], PAIR, PAIR, [RowKind.DELETE]]), min_size=1, max_size=5).map(
    lambda groups: [kind for group in groups for kind in group]
)


def grown(new: Callable[[], LogHistory], data: st.DataObject, *, trims: bool = False) -> LogHistory:
    """Creates a log with a random history, and checks that it is complete."""
    history = new()
    for _ in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["commit"] * 6 + ["alter", "crash", "rewrite", "rewrite"]))
        end = len(history.changes)
        if what == "commit":
            history.commit(data.draw(KINDS), later=data.draw(st.sampled_from([0, 0, 1, 50])))
        elif what == "alter":
            history.schema = history.later
        elif what == "crash":
            history.lose_from(data.draw(st.sampled_from([*history.unsynced, end, end])))
        else:
            start, stop = sorted(data.draw(st.tuples(st.integers(0, end), st.integers(0, end))))
            history.rewrite(start, stop)
        if trims and data.draw(st.integers(0, 4)) == 0:
            history.trim(history.log.span.offset_of(data.draw(st.integers(0, len(history.changes)))))
            history.unsynced.clear()
    history.check()
    return history


@pytest.mark.represented_by(
    "with another column of the same name",
    "with a renamed column in another place",
)
@given(data=st.data())
@examples(8)
def test_appended_changes_can_be_read_between_any_two_positions(
    new: Callable[[], LogHistory], data: st.DataObject
) -> None:
    history = grown(new, data, trims=True)
    span = history.log.span
    start, end = sorted(data.draw(st.tuples(*[st.integers(span.first, span.end)] * 2)))
    assert history.read(span.offset_of(start), span.offset_of(end)) == history.changes[start:end]


@pytest.mark.breadth
@given(data=st.data())
@examples(8)
def test_bounded_reads_one_after_another_give_all_changes_once(
    new: Callable[[], LogHistory], data: st.DataObject
) -> None:
    """Each read continues at the offset after the last change, even at the end of an epoch."""
    history = grown(new, data)
    span = history.log.span
    max_changes, max_bytes = data.draw(st.sampled_from([2, 3, 5, ANY])), data.draw(st.sampled_from([1, 700, ANY]))
    place, end, found = span.offset_of(span.first), span.offset_of(span.end), list[LoggedChange]()
    while count_of(place) < count_of(end):
        part = history.read(place, end, max_changes=max_changes, max_bytes=max_bytes)
        assert 0 < len(part) <= max_changes
        assert part[-1].kind is not RowKind.UPDATE_BEFORE, "a row before an update without the row after it"
        found += part
        place = part[-1].offset + 1
    assert found == history.changes


def test_one_change_at_a_time_can_be_read(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([*PAIR, RowKind.INSERT])
    assert [history.read(n, 3, max_changes=1) for n in range(3)] == [[change] for change in history.changes]


def test_an_empty_read_returns_nothing(new: Callable[[], LogHistory]) -> None:
    history = new()
    assert history.read(0, 0) == []
    history.commit([RowKind.INSERT])
    assert history.read(1, 1) == []


def test_the_end_of_an_epoch_is_read_as_the_start_of_the_next(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([RowKind.INSERT] * 3)
    history.lose_from(3)
    history.commit([RowKind.INSERT] * 2)
    end = make_offset(1, 5)
    assert history.read(make_offset(0, 3), end) == history.read(make_offset(1, 3), end) == history.changes[3:]
    assert history.read(make_offset(0, 2), end) == history.changes[2:]


@pytest.mark.represented_by("with another column")
def test_a_commit_of_many_thousand_changes_is_read_in_parts(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([RowKind.INSERT, *PAIR * 2500])
    history.check()
    assert history.read(4000, 5001) == history.changes[4000:]


@given(data=st.data())
@examples(10)
def test_every_read_of_a_lost_change_is_data_loss(new: Callable[[], LogHistory], data: st.DataObject) -> None:
    """Even at the very end, and with the smallest reads, a read never returns fewer changes."""
    history = grown(new, data)
    if not history.changes:
        return
    lost, found = data.draw(st.integers(0, len(history.changes) - 1)), list[LoggedChange]()
    history.logged.lose(lost)
    with pytest.raises(DataLoss):
        read_on(history, data.draw(st.sampled_from([2, 3, ANY])), found)
    assert found == history.changes[: len(found)]
    assert len(found) <= lost


def read_on(history: LogHistory, max_changes: int, found: list[LoggedChange]) -> None:
    span = history.log.span
    place, end = span.offset_of(span.first), span.offset_of(span.end)
    while count_of(place) < count_of(end):
        part = history.read(place, end, max_changes=max_changes)
        assert part, "no change, and no error"
        found += part
        place = found[-1].offset + 1


def test_changes_that_are_missing_at_the_end_are_data_loss(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([RowKind.INSERT] * 2)
    history.commit([RowKind.INSERT])
    with pytest.raises(DataLoss):
        history.read(0, 4)
    with pytest.raises(DataLoss):
        history.read(3, 4)


def test_a_position_must_be_a_change_or_the_end(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([RowKind.INSERT] * 3)
    span = history.log.span
    assert [span.resolve(offset, location="here") for offset in range(4)] == [0, 1, 2, 3]
    for wrong in (4, make_offset(1, 3), make_offset(7, 0)):
        with pytest.raises(PositionOutOfRange, match="here") as beyond:
            span.resolve(wrong, location="here")
        assert beyond.value.details == {"wanted": str(wrong), "earliest": "0", "latest": "3"}
        assert span.resolve(wrong, location="here", clamp=True) == 3


def test_a_position_before_the_first_change_is_expired(new: Callable[[], LogHistory]) -> None:
    history = new()
    for _ in range(5):
        history.commit([RowKind.INSERT])
    history.trim(3)
    span = history.log.span
    with pytest.raises(PositionExpired) as expired:
        span.resolve(2, location="here")
    assert expired.value.details == {"wanted": "2", "earliest": "3", "latest": "5"}
    assert span.resolve(3, location="here") == 3
    assert span.resolve(2, location="here", clamp=True) == 3


def test_the_end_of_an_epoch_begins_the_next_and_offsets_that_a_crash_undid_are_invalid(
    new: Callable[[], LogHistory],
) -> None:
    history = new()
    history.commit([RowKind.INSERT] * 3)
    history.commit([RowKind.INSERT] * 2)
    history.lose_from(3)  # offsets 3 and 4 were never durable
    span = history.log.span
    assert span.offset_of(span.end) == span.resolve(3, location="here") == make_offset(1, 3)
    for undone in (4, 5):
        with pytest.raises(PositionOutOfRange) as refused:
            span.resolve(undone, location="here")
        assert refused.value.details["latest"] == str(make_offset(1, 3))
        assert span.resolve(undone, location="here", clamp=True) == make_offset(1, 3)
    history.commit([RowKind.INSERT] * 2)
    history.check()
    span = history.log.span
    assert span.resolve(make_offset(1, 4), location="here") == make_offset(1, 4)
    for never in (4, make_offset(1, 2), make_offset(1, 6)):
        with pytest.raises(PositionOutOfRange):
            span.resolve(never, location="here")


def test_positions_pass_through_epochs_in_which_nothing_was_written(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([RowKind.INSERT])
    for _ in range(3):
        history.lose_from(1)
    span = history.log.span
    assert [span.resolve(make_offset(epoch, 1), location="here") for epoch in range(4)] == [make_offset(3, 1)] * 4
    history.commit([RowKind.INSERT])
    history.check()
    assert history.read(make_offset(0, 1), make_offset(3, 2)) == history.changes[1:]


@given(data=st.data())
@examples(8)
@pytest.mark.represented_by("with another column")
def test_a_time_is_resolved_to_the_first_change_committed_at_or_after_it(
    new: Callable[[], LogHistory], data: st.DataObject
) -> None:
    """Trimmed changes do not count. Changes with the same time are in the order of the log."""
    history = grown(new, data, trims=True)
    span = history.log.span
    times = [change.micros for change in history.changes[span.first :]]
    for micros in {0, *times, *(time - 1 for time in times), *(time + 1 for time in times)}:
        found = history.log.offset_at(micros, history.later)
        assert found == span.offset_of(span.first + bisect_left(times, micros)), micros


def test_a_trimmed_log_keeps_all_later_changes(new: Callable[[], LogHistory]) -> None:
    history = new()
    for _ in range(6):
        history.commit([RowKind.INSERT, *PAIR])
    for offset in (4, 2, 9, 9, 17):
        history.trim(offset)
        assert history.first == max(offset, history.first)
        history.check()
    history.trim(100)
    assert history.first == 18
    history.check()
    history.commit([RowKind.DELETE])
    history.check()


@given(data=st.data())
@examples(10)
def test_changes_that_are_held_are_not_trimmed(new: Callable[[], LogHistory], data: st.DataObject) -> None:
    history = grown(new, data)
    span = history.log.span
    places = st.integers(0, span.end)
    held = data.draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), places))
    for owner, count in held.items():
        history.log.holds.hold(owner, span.offset_of(count))
    while True:
        wanted, before = data.draw(places), history.first
        history.trim(span.offset_of(wanted))
        assert history.first == max(before, min([wanted, *held.values()]))
        history.check()
        if not held:
            break
        owner = data.draw(st.sampled_from(sorted(held)))
        history.log.holds.release(owner)
        del held[owner]
    history.trim(span.offset_of(span.end))
    assert history.first == span.end


def test_a_cleared_log_has_no_changes_and_no_holds_and_counts_on(new: Callable[[], LogHistory]) -> None:
    history = new()
    history.commit([RowKind.INSERT] * 3)
    history.log.holds.hold("reader", 1)
    history.logged.clear()
    assert history.log.holds.oldest() is None
    span = history.log.span
    assert (span.first, span.end) == (3, 3)
    with pytest.raises(PositionExpired):
        span.resolve(1, location="here")
    history.first = 3
    history.commit([RowKind.INSERT])
    history.check()


def _bound(span: LogSpan, count: int, data: st.DataObject) -> bytes:
    """Returns a key between those of two changes: that of the later one, or what follows the key of the earlier one."""
    if count > span.first and data.draw(st.booleans()):
        return row_key(span.offset_of(count - 1)) + b"\0"
    return row_key(span.offset_of(count))


@given(data=st.data())
@examples(8)
@pytest.mark.represented_by("with another column")
def test_a_reader_shows_a_range_of_the_log_as_of_its_creation_in_either_direction(
    new: Callable[[], LogHistory], data: st.DataObject
) -> None:
    history = grown(new, data, trims=True)
    span, reverse = history.log.span, data.draw(st.booleans())
    first, end = sorted(data.draw(st.tuples(*[st.integers(span.first, span.end)] * 2)))
    expected = history.changes[first:end]
    start = None if first == span.first and data.draw(st.booleans()) else _bound(span, first, data)
    stop = None if end == span.end and data.draw(st.booleans()) else _bound(span, end, data)
    reader = history.log.reader(KeyRange(start, stop), history.later, reverse=reverse)
    history.commit([RowKind.INSERT, *PAIR])
    history.rewrite(span.first, span.end)
    history.trim(history.log.span.offset_of(data.draw(st.integers(span.first, span.end + 3))))
    try:
        parts = [history.changes_of(record) for record in iter(reader.read, None)]
        assert reader.read() is None
    finally:
        reader.close()
    assert [change for part in (parts[::-1] if reverse else parts) for change in part] == expected


@given(data=st.data())
@examples(10)
def test_every_reader_and_the_verification_find_a_lost_change(
    new: Callable[[], LogHistory], data: st.DataObject
) -> None:
    history = grown(new, data, trims=True)
    span = history.log.span
    assert count_changes(history.log, history.later) == span.end - span.first
    if span.first == span.end:
        return
    history.logged.lose(data.draw(st.integers(span.first, span.end - 1)))
    with pytest.raises(DataLoss):
        count_changes(history.log, history.later)
    reader = history.log.reader(KeyRange(), history.later, reverse=data.draw(st.booleans()))
    with closing(reader), pytest.raises(DataLoss):
        list(iter(reader.read, None))


def test_a_hold_ends_with_its_time_to_live_and_a_new_hold_of_the_same_owner_replaces_it(
    new: Callable[[], LogHistory],
) -> None:
    history = new()
    for _ in range(6):
        history.commit([RowKind.INSERT])
    history.log.holds.hold("for ever", 4)
    history.log.holds.hold("for a while", 1, 10.0)
    history.trim(5)
    assert history.first == 1
    history.clock.now = 9.0
    history.log.holds.hold("for a while", 2, 10.0)
    history.trim(5)
    assert history.first == 2
    history.clock.now = 18.9
    history.trim(5)
    assert history.first == 2
    history.clock.now = 19.0
    history.trim(5)
    assert history.first == 4
    history.log.holds.release("for ever")
    history.log.holds.release("for ever")
    history.trim(5)
    assert history.first == 5
    history.check()


def test_a_rewritten_log_returns_the_same_changes_and_accepts_appends(new: Callable[[], LogHistory]) -> None:
    history = new()
    for number in range(40):
        history.commit(PAIR if number % 3 else [RowKind.INSERT], later=number % 2)
    history.rewrite(5, 50)
    history.check()
    history.rewrite(0, len(history.changes))
    history.check()
    history.commit([RowKind.DELETE], later=5)
    history.check()
    history.trim(30)
    history.check()
    assert history.log.offset_at(0, history.later) == 30
    for before, after in pairwise(history.changes):
        if after.micros > before.micros:
            assert history.log.offset_at(after.micros, history.later) == max(after.offset, 30)


@given(st.data())
@examples(10)
def test_a_read_ends_before_a_marker_and_a_marker_is_read_as_such(
    new: Callable[[], LogHistory], data: st.DataObject
) -> None:
    logged = new().logged
    expected: list[bool] = []
    for is_marker in data.draw(st.lists(st.booleans(), min_size=1, max_size=10)):
        rows = pa.RecordBatch.from_pylist([{"player": f"p{len(expected)}", "score": 1}], schema=SCORES)
        written = RangeMarker(b"%02d" % len(expected), b"x")
        marker = data.draw(st.sampled_from([written, RangeMarker.of_deletion(written.keys)]))
        change = marker if is_marker else Changes(np.zeros(1, np.uint8), rows)
        logged.append(change, 1, 10 * len(expected))
        expected.append(is_marker)
    end = len(expected)
    for start in range(end):
        following = [*expected[start:], not expected[start]]
        same = following.index(not expected[start])
        most = data.draw(st.integers(1, 5))
        found = logged.log.read_markers(start, end, most=most)
        assert [(each.offset, each.marker.start) for each in found] == [
            (offset, b"%02d" % offset) for offset in range(start, start + min(same, most)) if expected[start]
        ]
        assert logged.log.offset_at(10 * start, FIRST) == start
        if expected[start]:
            with pytest.raises(MarkerReached, match="read the rows of the table again") as caught:
                logged.log.read(start, end, FIRST, max_changes=ANY, max_bytes=ANY)
            assert (caught.value.record.offset, caught.value.record.commit_micros) == (start, 10 * start)
        else:
            records = logged.log.read(start, end, FIRST, max_changes=ANY, max_bytes=ANY)
            assert sum(len(record.changes) for record in records) == same
    assert count_changes(logged.log, FIRST) == end
