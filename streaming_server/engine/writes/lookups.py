"""Looks up stored rows by key: entirely before or after each transaction, and mostly without waiting for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.current_call import claim_answer, expect_answer
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_readable
from streaming_server.engine.writes.bucket_steps import get_within, total_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.own_buckets import OwnBuckets
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_snapshot import BucketSnapshot

_MAX_TRIES: Final = 3
"""How often a lookup reads its buckets one by one before it locks all of them together."""

_MAX_CACHED_KEYS: Final = 256
"""The most keys that are looked up on the event loop, which takes half a millisecond."""

_MAX_CACHED_BYTES: Final = 1024 * 1024
"""The most bytes of rows that are copied on the event loop."""

_SMALL_BYTES: Final = 64 * 1024
"""Rows of at most this size claim no memory before their answer is built."""


async def lookup_rows(
    buckets: OwnBuckets, keys: Mapping[int, list[bytes]], *, latest: bool = False
) -> tuple[list[bytes | None], dict[int, int]]:
    """Returns the durable rows of encoded keys (None: no row), and the offset at which each bucket was read.

    Args:
        buckets: The buckets of the table.
        keys: The keys, by the numbers of their buckets, ascending.
        latest: Whether to read the rows that are applied, durable or not, and maybe a part of a transaction.

    Raises:
        RequestTooLarge: The rows do not fit into an answer.
        ServerBusy: No memory is left for the answer.
        DataLoss: A bucket is damaged.
    """
    wanted = [(buckets[number], each) for number, each in keys.items()]
    cached = _find_cached(wanted, latest)
    if cached is not None:
        return cached
    if latest:
        return await _read_one_by_one(wanted, latest=True)
    # Under a hold, its mutexes are used, and no transaction is being applied.
    for _ in range(_MAX_TRIES if CURRENT_HOLD.get() is None else 0):
        commits = [live.commits for live, _ in wanted]
        rows, offsets = await _read_one_by_one(wanted)
        # Otherwise the rows may have one part of a transaction and lack another.
        if len(wanted) < 2 or commits == [live.commits for live, _ in wanted]:
            break
    else:
        rows, offsets = await _read_together(wanted)
    await wait_until_readable(buckets, offsets)
    return rows, offsets


def _find_cached(
    wanted: Sequence[tuple[LiveBucket, list[bytes]]], latest: bool
) -> tuple[list[bytes | None], dict[int, int]] | None:
    """Reads few keys on the event loop, where no writer comes between two buckets.

    Returns None if it would have to wait, or to copy too much.

    For few keys, two changes of thread cost ten times as much as reading what is in memory.
    """
    if sum(len(keys) for _, keys in wanted) > _MAX_CACHED_KEYS:
        return None
    rows: list[bytes | None] = []
    offsets: dict[int, int] = {}
    room = _MAX_CACHED_BYTES
    for live, keys in wanted:
        found = live.find_cached(keys, latest=latest)
        if found is None:
            return None
        rows += found[0]
        offsets[live.number] = found[1]
        if (room := room - total_bytes(found[0])) < 0:
            return None
    return rows, offsets


async def _read(
    live: LiveBucket, bucket: Bucket | BucketSnapshot, keys: list[bytes], room: int
) -> tuple[list[bytes | None], int]:
    """Reads rows in a thread. Returns them, and how many bytes more may be read."""
    # Bounds the rows that threads have read and that are not claimed yet.
    async with live.large_reads:
        expected = min(bucket.state.longest_row * len(keys), room)
        if expected > _SMALL_BYTES:
            expect_answer(expected)
        found = await live.run(get_within, bucket, keys, room)
        room -= total_bytes(found)
        if (size := MAX_REQUEST_BYTES - room) > _SMALL_BYTES:
            claim_answer(size)
    return found, room


async def _read_one_by_one(
    wanted: Sequence[tuple[LiveBucket, list[bytes]]], *, latest: bool = False
) -> tuple[list[bytes | None], dict[int, int]]:
    """Reads one bucket after another.

    A bucket that a transaction is being applied to is read as of before it, or with `latest` as of now.
    """
    rows: list[bytes | None] = []
    offsets: dict[int, int] = {}
    room = MAX_REQUEST_BYTES
    for live, keys in wanted:
        async with live.mutex.read_latest() if latest else live.mutex.look_up():
            bucket: Bucket | BucketSnapshot = await live.open()
            if not latest:
                bucket = live.before or bucket
            found, room = await _read(live, bucket, keys, room)
            offsets[live.number] = bucket.state.log_offset
        rows += found
    return rows, offsets


async def _read_together(wanted: Sequence[tuple[LiveBucket, list[bytes]]]) -> tuple[list[bytes | None], dict[int, int]]:
    """Reads all buckets with all mutexes held, which waits for running commits of transactions."""
    rows: list[bytes | None] = []
    room = MAX_REQUEST_BYTES
    async with lock_buckets([live for live, _ in wanted]) as opened:
        for (live, keys), (_, bucket) in zip(wanted, opened, strict=True):
            found, room = await _read(live, bucket, keys, room)
            rows += found
        return rows, {live.number: bucket.state.log_offset for live, bucket in opened}
