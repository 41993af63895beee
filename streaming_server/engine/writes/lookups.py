"""Stored rows looked up by key: as of one side of every transaction, and without waiting for one."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final

from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_readable
from streaming_server.engine.writes.bucket_steps import get_within, total_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_snapshot import BucketSnapshot

_TRIES_APART: Final = 3
"""So often a lookup reads its buckets one by one before it waits until it has all of them at once."""


async def lookup_rows(
    buckets: Sequence[LiveBucket], keys: Mapping[int, list[bytes]]
) -> tuple[list[bytes | None], dict[int, int]]:
    """The stored rows of encoded keys, bucket by bucket, and the offset that each bucket's are as of; durable.

    Args:
        buckets: All buckets of the table.
        keys: The keys, by the numbers of their buckets, ascending.

    Raises:
        RequestTooLarge: The rows do not fit into an answer.
        DataLoss: A bucket is damaged.
    """
    wanted = [(buckets[number], each) for number, each in keys.items()]
    for _ in range(_TRIES_APART):
        commits = [live.commits for live, _ in wanted]
        rows, offsets = await _apart(wanted)
        # Else a part of a transaction may be in it, and another not.
        if len(wanted) < 2 or commits == [live.commits for live, _ in wanted]:
            break
    else:
        rows, offsets = await _at_once(wanted)
    await wait_until_readable(buckets, offsets)
    return rows, offsets


async def _apart(wanted: Sequence[tuple[LiveBucket, list[bytes]]]) -> tuple[list[bytes | None], dict[int, int]]:
    """Reads one bucket after another: those that a transaction is being written to, as of before it."""
    rows: list[bytes | None] = []
    offsets: dict[int, int] = {}
    room = MAX_REQUEST_BYTES
    for live, keys in wanted:
        async with live.mutex.bypass_barrier():
            if live.mutex.failure is not None:
                raise copy(live.mutex.failure)
            bucket: Bucket | BucketSnapshot = await live.open()
            bucket = live.before or bucket
            found = await live.run(get_within, bucket, keys, room)
            offsets[live.number] = bucket.state.log_offset
        room -= total_bytes(found)
        rows += found
    return rows, offsets


async def _at_once(wanted: Sequence[tuple[LiveBucket, list[bytes]]]) -> tuple[list[bytes | None], dict[int, int]]:
    """Reads all buckets while nothing is written to any: waits for a transaction that is."""
    rows: list[bytes | None] = []
    room = MAX_REQUEST_BYTES
    async with lock_buckets([live for live, _ in wanted]) as opened:
        for (live, keys), (_, bucket) in zip(wanted, opened, strict=True):
            found = await live.run(get_within, bucket, keys, room)
            room -= total_bytes(found)
            rows += found
        return rows, {live.number: bucket.state.log_offset for live, bucket in opened}
