"""Translates the changelog part of a `ScanKvRequest` into a plan, and refuses values out of range."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from scankv.model.changes.log_positions import PositionKind, StartFrom, StopAt
from scankv.model.errors import InvalidRequest, InvalidResumeToken
from scankv.model.expressions.wire import from_proto
from scankv.model.limits import MAX_LAG_THRESHOLD, MAX_LAST_CHANGES, MAX_RESUME_TOKEN_BYTES
from scankv.model.names import check_consumer_id
from streaming_server.scan.changes.log_plan import LogPlan
from streaming_server.services.isolation import reads_latest
from streaming_server.services.log_offsets import log_offsets
from streaming_server.services.scan_request import bucket_numbers, column_names

if TYPE_CHECKING:
    from scankv.v1 import scan_pb2

_Position = TypeVar("_Position", StartFrom, StopAt)


def log_plan(request: scan_pb2.ScanKvRequest) -> LogPlan:
    """Plans which changes to read. Raises InvalidRequest."""
    if len(request.resume_token) > MAX_RESUME_TOKEN_BYTES:
        raise InvalidResumeToken("the resume token is damaged: send it exactly as it was received")
    for name, asked, why in (
        ("key_range", request.HasField("key_range"), "select the keys to follow with `where`"),
        ("reverse", request.reverse, "changes come in the order in which they happened"),
        ("ordered", request.ordered, "changes come in the order in which they happened, those of each bucket together"),
        ("consistency", request.consistency, "changes of several buckets have no common instant"),
        ("changes_follow", request.changes_follow, "start with `full` to begin with the rows"),
        ("if_changed_since", request.HasField("if_changed_since"), "a stream of changes waits for the next change"),
    ):
        if asked:
            raise InvalidRequest(f"{name} cannot be used in a scan of the changelog: {why}")
    if request.no_buckets and request.buckets:
        raise InvalidRequest("no_buckets and buckets contradict each other: leave one of them out")
    _check_consumer(request)
    latest = reads_latest(request)
    return LogPlan(
        buckets=() if request.no_buckets else bucket_numbers(request.buckets),
        columns=column_names(request.columns) if request.HasField("columns") else None,
        where=from_proto(request.where) if request.HasField("where") else None,
        where_message=request.where.SerializeToString(deterministic=True),
        limit=request.limit if request.HasField("limit") else None,
        resume_token=request.resume_token,
        start=log_start(request.log),
        stop=_stop(request.log),
        clamp=request.log.clamp,
        net_changes=request.log.net_changes,
        consumer_id=request.log.consumer_id,
        consumer_fence=request.log.consumer_fence,
        consumer_must_exist=request.log.consumer_must_exist,
        lag_threshold=_lag_threshold(request.log),
        unmatched_delete=request.log.unmatched_delete,
        rescans=request.log.rescan_untracked,
        clears=_clears(request.log),
        latest=latest,
        rows_elsewhere=_rows_elsewhere(request.log),
    )


def _clears(log: scan_pb2.Changelog) -> bool:
    if log.clear_ranges and not log.rescan_untracked:
        raise InvalidRequest("log.clear_ranges is set without rescan_untracked: set rescan_untracked as well")
    return log.clear_ranges


def _rows_elsewhere(log: scan_pb2.Changelog) -> bool:
    if log.rows_elsewhere and (log.WhichOneof("start") != "offsets" or not log.consumer_id):
        raise InvalidRequest("log.rows_elsewhere is set without consumer_id and offsets to start at: set both")
    return log.rows_elsewhere


def _lag_threshold(log: scan_pb2.Changelog) -> int | None:
    if log.net_changes_lag_threshold and not log.net_changes:
        raise InvalidRequest(
            "log.net_changes_lag_threshold is set without net_changes: set net_changes, or leave the threshold out"
        )
    if log.net_changes_lag_threshold > MAX_LAG_THRESHOLD:
        raise InvalidRequest(
            f"log.net_changes_lag_threshold must be between 1 and {MAX_LAG_THRESHOLD:,}, "
            f"not {log.net_changes_lag_threshold:,}"
        )
    return log.net_changes_lag_threshold or None


def _check_consumer(request: scan_pb2.ScanKvRequest) -> None:
    log = request.log
    if not log.consumer_id:
        if log.consumer_must_exist:
            raise InvalidRequest("log.consumer_must_exist is set without log.consumer_id: give the consumer_id")
        if log.consumer_fence:
            raise InvalidRequest("log.consumer_fence is set without log.consumer_id: give the consumer_id")
        if log.consumer_principal:
            raise InvalidRequest("log.consumer_principal is set without log.consumer_id: give the consumer_id")
        return
    check_consumer_id(log.consumer_id)
    if request.HasField("limit"):
        raise InvalidRequest(
            "limit cannot be used with a consumer, because it commits complete chunks only: end the stream with a stop"
        )
    if request.resume_token and not log.consumer_fence:
        raise InvalidRequest(
            "a stream that takes a consumer over starts at its committed position: give the consumer_fence as well to "
            "resume by a token"
        )


def log_start(log: scan_pb2.Changelog) -> StartFrom:
    """Returns the start of a stream. Raises InvalidRequest."""
    match log.WhichOneof("start"):
        case "full":
            return StartFrom.FULL
        case "earliest":
            return StartFrom.EARLIEST
        case "timestamp_micros":
            return StartFrom(PositionKind.TIMESTAMP, micros=log.timestamp_micros)
        case "offsets":
            return _at(StartFrom, log.offsets)
        case "last":
            if not 1 <= log.last <= MAX_LAST_CHANGES:
                raise InvalidRequest(f"log.last must be between 1 and {MAX_LAST_CHANGES:,}, not {log.last:,}")
            return StartFrom(PositionKind.LAST, count=log.last)
    return StartFrom.LATEST


def _stop(log: scan_pb2.Changelog) -> StopAt | None:
    match log.WhichOneof("stop"):
        case "stop_offsets":
            return _at(StopAt, log.stop_offsets)
        case "stop_timestamp_micros":
            return StopAt(PositionKind.TIMESTAMP, micros=log.stop_timestamp_micros)
        case "stop_latest":
            return StopAt.LATEST
    return None


def _at(position: type[_Position], message: scan_pb2.LogOffsets) -> _Position:
    offsets = log_offsets(message)
    # Not by `position.offsets`, which checks the buckets: they are checked later, when the table is known.
    by_bucket = tuple(offsets.items())
    return position(PositionKind.OFFSETS, by_bucket=by_bucket, table_incarnation=offsets.table_incarnation)
