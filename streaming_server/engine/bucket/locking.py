"""Locking buckets, and waiting until what was read of them is durable."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from scankv.model.errors import DiskFull, Unavailable
from streaming_server.engine.bucket.commit_barrier import lock_mutexes
from streaming_server.engine.bucket.live_bucket import REPAIR_SECONDS, LiveBucket
from streaming_server.engine.tasks.executor import all_ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_state import BucketState


@asynccontextmanager
async def lock_buckets(chosen: Sequence[LiveBucket]) -> AsyncIterator[list[tuple[LiveBucket, Bucket]]]:
    """All these buckets, open, with their mutexes held: nothing is written to any of them meanwhile."""
    async with lock_mutexes(chosen):
        opened = await all_ended(live.open() for live in chosen)
        yield list(zip(chosen, opened, strict=True))


async def wait_until_durable(buckets: Sequence[LiveBucket], states: Mapping[int, BucketState]) -> dict[int, int]:
    """Returns once some of a table's buckets, as they were read, are durable up to these states: their log offsets."""
    offsets = {number: state.log_offset for number, state in states.items()}
    await wait_until_readable(buckets, offsets)
    return offsets


async def wait_until_readable(buckets: Sequence[LiveBucket], offsets: Mapping[int, int]) -> None:
    """Returns once what was read of some buckets, which were at these offsets, is durable.

    Raises:
        Unavailable: It is not, because the disk is full: reads, too, have to wait until the bucket was opened again.
    """
    try:
        await all_ended(buckets[number].wait_durable(offset) for number, offset in offsets.items())
    except DiskFull as error:
        raise Unavailable(
            f"what others have written meanwhile cannot be made durable: {error.message}", retry_after=REPAIR_SECONDS
        ) from error
