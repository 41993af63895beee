"""Reads the isolation of a request, and refuses what does not go with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest
from scankv.v1 import lookup_pb2, scan_pb2

if TYPE_CHECKING:
    from streaming_server.services.query_request import QueryRequest


def reads_latest(request: scan_pb2.ScanKvRequest | QueryRequest | lookup_pb2.LookupRequest) -> bool:
    """Returns whether a request reads what is applied, durable or not.

    Raises:
        InvalidRequest: The isolation is unknown, or is `read_latest` together with something that needs durable rows.
    """
    if request.isolation not in scan_pb2.Isolation.values():
        raise InvalidRequest(f"isolation must be a value of Isolation, not {request.isolation}")
    if request.isolation != scan_pb2.ISOLATION_READ_LATEST:
        return False
    if not isinstance(request, lookup_pb2.LookupRequest):
        if request.HasField("snapshot"):
            raise InvalidRequest(
                "a snapshot cannot be read with ISOLATION_READ_LATEST, because it is durable and never changes: leave "
                "isolation out"
            )
        if request.HasField("if_changed_since"):
            raise InvalidRequest(
                "if_changed_since cannot be used with ISOLATION_READ_LATEST, because only durable contents have a "
                "version: leave one of them out"
            )
    if isinstance(request, scan_pb2.ScanKvRequest) and request.log.consumer_id:
        raise InvalidRequest(
            "a stream with a consumer cannot be read with ISOLATION_READ_LATEST, because a power failure may undo the "
            "changes before the position that it commits: leave isolation or log.consumer_id out"
        )
    return True
