"""Locks buckets, and waits until the state in which they were read is durable."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DiskFailed, DiskFull, Unavailable
from streaming_server.engine.bucket.commit_barrier import lock_latest, lock_mutexes, open_locked
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.engine.bucket.live_bucket import REPAIR_SECONDS, LiveBucket
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.storage.files.disk_space import details_of_cause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from streaming_server.engine.bucket.own_buckets import OwnBuckets
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_state import BucketState

OPENING_SECONDS: Final = 4.0
"""Shorter than clients wait for the answer of one attempt (10 s), for which they may have to queue here."""


@asynccontextmanager
async def lock_buckets(
    buckets: Sequence[LiveBucket], *, latest: bool = False, again: bool = False
) -> AsyncIterator[list[tuple[LiveBucket, Bucket]]]:
    """Holds the mutexes of some buckets for the length of the block, and opens the buckets.

    Nothing is written to any of them during the block. The buckets are given in ascending order. A call that opens a
    view under a hold uses the mutexes of the hold.

    Args:
        buckets: The buckets.
        latest: Whether to wait neither for a commit barrier nor for a sync; see `BarrierMutex.read_latest`. The block
            must not write.
        again: As for `BucketHold.use`.

    Raises:
        DataLoss: A bucket is damaged.
        Unavailable: Opening the buckets takes longer than a client waits for an answer. Another attempt gets further.
    """
    hold = CURRENT_HOLD.get()
    if hold is not None and not hold.taken.is_set():
        async with hold.use(buckets, again=again) as held:
            yield held
        return
    async with lock_latest(buckets) if latest else lock_mutexes(buckets):
        yield list(zip(buckets, await open_locked(buckets, within=OPENING_SECONDS), strict=True))


async def wait_until_durable(buckets: OwnBuckets, states: Mapping[int, BucketState]) -> dict[int, int]:
    """Waits until buckets are durable up to the states in which they were read. Returns the states' log offsets.

    Args:
        buckets: The buckets of the table.
        states: The states, by bucket number.

    Raises:
        Unavailable: As `wait_until_readable`.
    """
    offsets = {number: state.log_offset for number, state in states.items()}
    await wait_until_readable(buckets, offsets)
    return offsets


async def wait_until_readable(buckets: OwnBuckets, offsets: Mapping[int, int]) -> None:
    """Waits until buckets are durable up to the offsets at which they were read.

    Rule: a read returns durable rows only. A crash could undo others.

    Raises:
        Unavailable: The disk is full or fails, so the rows cannot be made durable before the bucket is reopened.
    """
    try:
        await all_ended(
            live.wait_durable(offset)
            for live, offset in ((buckets[number], offset) for number, offset in offsets.items())
            if not live.is_durable(offset)
        )
    except (DiskFull, DiskFailed) as error:
        raise Unavailable(
            f"the latest writes to these rows cannot be made durable: {error.message}",
            retry_after=REPAIR_SECONDS,
            **details_of_cause(error),
        ) from error
