"""Translates a `ScanKvRequest` into a read plan, and refuses values out of range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest, InvalidResumeToken
from scankv.model.expressions.wire import from_proto
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import (
    DEFAULT_CHUNK_BYTES,
    DEFAULT_CHUNK_ROWS,
    MAX_BUCKETS,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_ROWS,
    MAX_COLUMNS,
    MAX_KEY_BYTES,
    MAX_RESUME_TOKEN_BYTES,
    MIN_CHUNK_BYTES,
    MIN_HEARTBEAT_MILLIS,
)
from scankv.model.names import tablet_number
from scankv.v1 import scan_pb2
from streaming_server.config import LARGEST_CHUNK_BYTES
from streaming_server.scan.columnar.base_view import BASE_CHUNK_BYTES, BASE_CHUNK_ROWS
from streaming_server.scan.execution.producer import ChunkSpec
from streaming_server.scan.read_plan import ReadPath, ReadPlan
from streaming_server.services.isolation import reads_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_READ_PATHS = {
    scan_pb2.READ_PATH_UNSPECIFIED: ReadPath.AUTO,
    scan_pb2.READ_PATH_ROCKSDB: ReadPath.ROCKSDB,
    scan_pb2.READ_PATH_COLUMNAR: ReadPath.COLUMNAR,
}


def read_plan(request: scan_pb2.ScanKvRequest) -> ReadPlan:
    """Plans which rows to read. Raises InvalidRequest."""
    if len(request.resume_token) > MAX_RESUME_TOKEN_BYTES:
        raise InvalidResumeToken("the resume token is damaged: send it exactly as it was received")
    if request.resume_token and request.HasField("if_changed_since"):
        raise InvalidRequest(
            "if_changed_since and resume_token cannot be used together: a resumed scan returns the remaining rows, "
            "whether the table has changed or not; leave one of them out"
        )
    if request.HasField("expired_at_micros") and tablet_number(request.table) is None:
        raise InvalidRequest("expired_at_micros is only for the worker processes of a server: leave it out")
    if request.no_buckets:
        raise InvalidRequest("no_buckets can only be used in a scan of the changelog: leave it out")
    if request.HasField("snapshot") and not request.snapshot.snapshot_id:
        raise InvalidRequest("snapshot.snapshot_id is empty: it must be the id of a pinned snapshot")
    _check_consistency(request)
    return ReadPlan(
        buckets=bucket_numbers(request.buckets),
        columns=column_names(request.columns) if request.HasField("columns") else None,
        where=from_proto(request.where) if request.HasField("where") else None,
        where_message=request.where.SerializeToString(deterministic=True),
        key_range=key_range(request.key_range),
        reverse=request.reverse,
        ordered=request.ordered,
        limit=request.limit if request.HasField("limit") else None,
        resume_token=request.resume_token,
        read_path=_read_path(request),
        latest=reads_latest(request),
        changes_follow=request.changes_follow,
        expired_at=request.expired_at_micros if request.HasField("expired_at_micros") else None,
    )


def _check_consistency(request: scan_pb2.ScanKvRequest) -> None:
    if request.consistency not in scan_pb2.Consistency.values():
        raise InvalidRequest(f"consistency must be a value of Consistency, not {request.consistency}")
    if request.consistency == scan_pb2.CONSISTENCY_OWNER and request.HasField("snapshot"):
        raise InvalidRequest(
            "a snapshot cannot be read with CONSISTENCY_OWNER, because it is of one instant: leave consistency out"
        )


def _read_path(request: scan_pb2.ScanKvRequest) -> ReadPath:
    if request.read_path not in _READ_PATHS:
        raise InvalidRequest(f"read_path must be a value of ReadPath, not {request.read_path}")
    return _READ_PATHS[request.read_path]


def bucket_numbers(numbers: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the buckets that a request names; None: all. Raises InvalidRequest for more than any table has."""
    if len(numbers) > MAX_BUCKETS:
        raise InvalidRequest(f"the request names {len(numbers)} buckets: no table has more than {MAX_BUCKETS}")
    return tuple(numbers) or None


def column_names(message: scan_pb2.ColumnNames) -> tuple[str, ...]:
    """Returns the columns that a request names. Raises InvalidRequest for more than any table has."""
    if len(message.names) > MAX_COLUMNS:
        raise InvalidRequest(f"the request names {len(message.names)} columns: no table has more than {MAX_COLUMNS}")
    return tuple(message.names)


def key_range(message: scan_pb2.KeyRange) -> KeyRange:
    """Returns the key range of a message. Raises InvalidRequest for a bound that is longer than any key."""
    start = message.start if message.HasField("start") else None
    end = message.end if message.HasField("end") else None
    # One byte more than a key may have, because the bound right after a key is that key with a zero byte.
    if max(len(start or b""), len(end or b"")) > MAX_KEY_BYTES + 1:
        raise InvalidRequest(f"a bound of key_range has more than {MAX_KEY_BYTES + 1:,} bytes: no key is that long")
    return KeyRange(start, end)


def chunk_spec(
    request: scan_pb2.ScanKvRequest, default_bytes: int, default_rows: int = DEFAULT_CHUNK_ROWS
) -> ChunkSpec:
    """Returns the limits of chunks. Raises InvalidRequest."""
    rows, size = request.chunk.max_rows or default_rows, request.chunk.max_bytes or default_bytes
    if rows > MAX_CHUNK_ROWS:
        raise InvalidRequest(f"chunk.max_rows must be between 1 and {MAX_CHUNK_ROWS:,}, not {rows:,}")
    if not MIN_CHUNK_BYTES <= size <= MAX_CHUNK_BYTES:
        raise InvalidRequest(
            f"chunk.max_bytes must be between {MIN_CHUNK_BYTES:,} and {MAX_CHUNK_BYTES:,}, not {size:,}"
        )
    return ChunkSpec(rows=rows, bytes=min(size, LARGEST_CHUNK_BYTES))


def heartbeat_seconds(request: scan_pb2.ScanKvRequest, most: float) -> float:
    """Returns the interval of heartbeats of a stream, in seconds.

    Rule: no reader waits longer for a heartbeat than it has requested, down to `MIN_HEARTBEAT_MILLIS`.

    Args:
        request: The request.
        most: The interval in the server's configuration, in seconds.
    """
    if not request.heartbeat_millis:
        return most
    return min(most, max(request.heartbeat_millis, MIN_HEARTBEAT_MILLIS) / 1000)


def chunk_spec_of_base(request: scan_pb2.ScanKvRequest, chunk: ChunkSpec, large: Callable[[], bool]) -> ChunkSpec:
    """Returns the limits of chunks of rows from columnar bases.

    They are larger than those of other chunks, unless the request or a smaller setting of the server limits them.

    Args:
        request: The request.
        chunk: The limits of other chunks.
        large: Returns for each chunk whether it may be large, if the request does not limit it.
    """
    if request.chunk.max_rows and request.chunk.max_bytes:
        return chunk
    asked = request.chunk.max_bytes or chunk.bytes < DEFAULT_CHUNK_BYTES
    return ChunkSpec(
        rows=chunk.rows if request.chunk.max_rows else BASE_CHUNK_ROWS,
        bytes=chunk.bytes if asked else BASE_CHUNK_BYTES,
        large=large,
    )
