"""Positions in the changes of a table with tablets: joined from positions in its tablets, and divided among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.scan.changes.log_token import LaterView, LogPosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streaming_server.scan.chunk_source import ScanPosition


def join_positions(parts: Iterable[LogPosition], scanned: ScanPosition | None) -> LogPosition:
    """Returns the position in the changes of all tablets.

    Args:
        parts: The positions in the tablets, in their order. Tablets have ascending ranges of buckets.
        scanned: The last row of the table that was read in any tablet. None: no row was read.
    """
    parts = list(parts)
    offsets = {bucket: offset for part in parts for bucket, offset in sorted(part.offsets.items())}
    views = tuple(
        # A view of one tablet says nothing about the buckets of others, of which no change is before offset 0.
        LaterView(view.after, {bucket: view.offsets.get(bucket, 0) for bucket in offsets})
        for part in parts
        for view in part.views
    )
    scanning = any(part.scanning for part in parts)
    return LogPosition(
        offsets,
        scanned if scanning else None,
        views,
        scanning,
        {bucket: net for part in parts for bucket, net in part.net.items()},
        {bucket: rescan for part in parts for bucket, rescan in part.rescans.items()},
    )


def part_of_position(position: LogPosition, buckets: Sequence[int]) -> LogPosition:
    """Returns the position in one tablet.

    While rows of the table are read, the tablets are read one after another. Tablets from which no row has come yet
    begin again.

    Args:
        position: The position in all tablets.
        buckets: The buckets of this tablet that are read, ascending.
    """
    offsets = {bucket: position.offsets.get(bucket, 0) for bucket in buckets}
    scanned, scanning = position.scanned, position.scanning
    if scanning and buckets and (scanned is None or scanned.bucket < buckets[0]):
        return LogPosition(offsets, scanning=True)
    if not buckets or scanned is None or scanned.bucket > buckets[-1]:
        scanned, scanning = None, scanning and not buckets
    views = tuple(
        LaterView(view.after, {bucket: view.offsets.get(bucket, 0) for bucket in buckets})
        for view in position.views
        if any(view.offsets.get(bucket) for bucket in buckets)
    )
    net = {bucket: net for bucket, net in position.net.items() if bucket in offsets}
    rescans = {bucket: rescan for bucket, rescan in position.rescans.items() if bucket in offsets}
    return LogPosition(offsets, scanned, views, scanning, net, rescans)
