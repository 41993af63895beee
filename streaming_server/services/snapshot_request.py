"""Reads the fields of requests about snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.expressions.wire import from_proto
from scankv.v1 import scan_pb2, snapshot_pb2
from streaming_server.engine.snapshots.splits import SplitRequest
from streaming_server.services.scan_request import bucket_numbers, key_range

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.keys.key_range import KeyRange


def split_request(request: snapshot_pb2.SplitSnapshotRequest) -> SplitRequest:
    """Returns how to split a snapshot. Raises InvalidRequest."""
    return SplitRequest(
        request.splits,
        key_range(request.key_range),
        bucket_numbers(request.buckets),
        from_proto(request.where) if request.HasField("where") else None,
        request.rows_per_split or None,
    )


def split_response(ranges: Iterable[KeyRange]) -> snapshot_pb2.SplitSnapshotResponse:
    """Returns the answer with the ranges of a snapshot."""
    return snapshot_pb2.SplitSnapshotResponse(
        ranges=(scan_pb2.KeyRange(start=each.start, end=each.end) for each in ranges)
    )


def ttl_of(millis: int) -> float | None:
    """Returns the time to live, in seconds, that a request states. None: the default."""
    return millis / 1000 if millis else None
