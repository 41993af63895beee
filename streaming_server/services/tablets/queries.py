"""Counts, aggregates and top-N of tables with tablets, as of one instant."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from scankv.v1 import lookup_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streaming_server.services.tablets.tablet_calls import TabletCalls

_COUNT = "scankv.v1.LookupService/Count"


def joined_version(versions: Iterable[bytes]) -> bytes:
    """Returns the version of what has these versions at its tablets, in their order. Empty if one is not known."""
    parts = list(versions)
    if not all(parts):
        return b""
    return hashlib.blake2b(b"".join(hashlib.blake2b(each).digest() for each in parts), digest_size=16).digest()


async def count(request: lookup_pb2.CountRequest, calls: TabletCalls) -> lookup_pb2.CountResponse:
    """Counts rows at all tablets as of one instant: see `LookupService.Count`."""
    requests: dict[int, Any] = {}
    for tablet, buckets in calls.buckets_by_tablet(request.buckets).items():
        each = requests[tablet] = lookup_pb2.CountRequest()
        each.CopyFrom(request)
        each.ClearField("if_changed_since")
        each.table, each.buckets[:] = calls.tablets[tablet].name, buckets
    async with calls.hold(requests) as holds:
        answers = await calls.ask(_COUNT, requests, lookup_pb2.CountResponse, holds)
    joined = lookup_pb2.CountResponse(version=joined_version(each.version for each in answers.values()))
    if request.HasField("if_changed_since") and joined.version == request.if_changed_since:
        joined.unchanged = True
        return joined
    for answer in answers.values():
        joined.rows += answer.rows
        for bucket, offset in answer.log_offsets.items():
            joined.log_offsets[bucket] = offset
    return joined
