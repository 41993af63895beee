"""Parses the log offsets of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import InvalidRequest
from scankv.model.limits import MAX_BUCKETS

if TYPE_CHECKING:
    from scankv.v1 import scan_pb2


def log_offsets(message: scan_pb2.LogOffsets) -> LogOffsets:
    """Returns the log offsets in a message, with the table incarnation that they belong to. Raises InvalidRequest."""
    if len(message.by_bucket) > MAX_BUCKETS or any(offset < 0 for offset in message.by_bucket.values()):
        raise InvalidRequest(
            f"log offsets must not be negative, and at most {MAX_BUCKETS} buckets may be named: no table has more"
        )
    return LogOffsets.of(dict(sorted(message.by_bucket.items())), message.table_incarnation)
