"""Where the stream of a consumer starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from scankv.model.changes.log_positions import PositionKind, StartFrom
from scankv.model.errors import InvalidRequest
from streaming_server.scan.changes.consumer_progress import views_of
from streaming_server.scan.changes.log_token import LogPosition

if TYPE_CHECKING:
    from streaming_server.scan.changes.log_plan import LogPlan

FindOffsets: TypeAlias = Callable[[Sequence[int], StartFrom], Awaitable[dict[int, int]]]
"""Returns the offsets of a start in some buckets. Raises if they do not exist, unless the plan says otherwise."""


async def start_of_consumer(
    committed: LogPosition, plan: LogPlan, buckets: Sequence[int], find: FindOffsets
) -> LogPosition:
    """Returns the position at which the stream of a consumer starts.

    Buckets without a committed position start where the plan says.

    Args:
        committed: The position of the consumer.
        plan: The requested stream.
        buckets: The buckets that it reads.
        find: Finds offsets in them.

    Raises:
        InvalidRequest: The consumer has not read some of the buckets, which the stream was to start with all rows.
        ScanKvError: As `find`.
    """
    if committed.scanning and plan.rows_elsewhere:
        return LogPosition(await find(buckets, plan.start))
    if committed.scanning and committed.scanned is None:
        # No row was read yet, so the stream starts with the current rows.
        return LogPosition(await find(buckets, StartFrom.LATEST), scanning=True)
    known = [number for number in buckets if committed.scanning or number in committed.offsets]
    at = tuple(pair for pair in committed.offsets.items() if committed.scanning or pair[0] in known)
    offsets = await find(known, StartFrom(PositionKind.OFFSETS, by_bucket=at))
    if committed.scanning:
        return replace(committed, offsets=offsets)
    others = [number for number in buckets if number not in offsets]
    if others:
        if plan.start.kind is PositionKind.FULL:
            raise InvalidRequest(
                f"the consumer has not read buckets {sorted(others)}, and cannot start them with all rows, because "
                "it has read others: use another consumer, delete this one, or start from another position"
            )
        start = replace(plan.start, by_bucket=tuple(pair for pair in plan.start.by_bucket if pair[0] in others))
        offsets |= await find(others, start)
    net = {bucket: net for bucket, net in committed.net.items() if bucket in known}
    return LogPosition(dict(sorted(offsets.items())), views=views_of(committed, offsets), net=net)
