"""Positions in the changes of a table with tablets: joined and divided again, they are the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming_server.scan.changes.log_token import LaterView, LogPosition, NetPosition, RescanPosition
from streaming_server.scan.changes.tablet_positions import join_positions, part_of_position
from streaming_server.scan.chunk_source import ScanPosition

PARTS = ([0, 1], [2, 3], [5])
BUCKETS = [bucket for part in PARTS for bucket in part]

offsets = st.integers(1, 1 << 50)


@st.composite
def parts_of_changes(draw: st.DrawFn) -> list[LogPosition]:
    """Draws the positions of tablets that have read all rows of the table."""
    found = []
    for buckets in PARTS:
        at = {bucket: draw(offsets) for bucket in buckets}
        views = draw(st.lists(st.builds(ScanPosition, st.sampled_from(buckets), st.binary(max_size=3)), max_size=2))
        net = {bucket: NetPosition(draw(offsets)) for bucket in draw(st.sets(st.sampled_from(buckets)))}
        rescans = {bucket: RescanPosition(draw(offsets), b"k") for bucket in draw(st.sets(st.sampled_from(buckets)))}
        later = tuple(LaterView(after, {bucket: draw(offsets) for bucket in buckets}) for after in views)
        found.append(LogPosition(at, views=later, net=net, rescans=rescans))
    return found


@given(parts=parts_of_changes())
def test_a_position_in_the_changes_is_divided_as_it_was_joined(parts: list[LogPosition]) -> None:
    joined = join_positions(parts, None)
    assert list(joined.offsets) == BUCKETS
    assert all(list(view.offsets) == BUCKETS for view in joined.views)
    assert [part_of_position(joined, buckets) for buckets in PARTS] == parts


def test_tablets_before_the_last_row_have_read_their_rows_and_tablets_after_it_begin() -> None:
    view = LaterView(ScanPosition(2, b"a"), {2: 5, 3: 6})
    read, reading, waiting = (
        LogPosition({0: 1, 1: 2}),
        LogPosition({2: 3, 3: 4}, ScanPosition(3, b"b"), (view,), scanning=True),
        LogPosition({5: 7}, scanning=True),
    )
    joined = join_positions([read, reading, waiting], ScanPosition(3, b"b"))
    assert joined.scanning
    assert joined.scanned == ScanPosition(3, b"b")
    assert [part_of_position(joined, buckets) for buckets in PARTS] == [read, reading, waiting]


def test_the_last_row_of_a_tablet_without_further_rows_is_where_it_continues() -> None:
    joined = join_positions(
        [LogPosition({0: 1, 1: 2}), LogPosition({2: 3, 3: 4}, scanning=True), LogPosition({5: 7}, scanning=True)],
        ScanPosition(1, b"z"),
    )
    first, *others = (part_of_position(joined, buckets) for buckets in PARTS)
    assert first == LogPosition({0: 1, 1: 2}, ScanPosition(1, b"z"), scanning=True)
    assert all(each.scanning and each.scanned is None for each in others)


def test_a_stream_without_buckets_has_a_position_without_offsets() -> None:
    assert part_of_position(LogPosition({}, scanning=True), []) == LogPosition({}, scanning=True)
    assert part_of_position(LogPosition({}), []) == LogPosition({})
