"""Applies the staged deletion of a range of keys, which leaves markers in the changelog instead of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streaming_server.engine.bucket.range_deletion import RangeDeletion
from streaming_server.engine.writes.bucket_steps import apply_change
from streaming_server.storage.transactions.staging import DELETE_RANGE, decode_range, read_staged_requests

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from pathlib import Path

    from scankv.model.keys.key_range import KeyRange
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.bucket.writer_states import WriteStep
    from streaming_server.storage.changelog.records import ChangeOrigin
    from streaming_server.storage.rows.table_codec import TableCodec


class MakeStep(Protocol):
    """Makes the record of a step of a transaction in a bucket."""

    def __call__(self, rows: int, *, complete: bool) -> WriteStep:
        """Returns the step after which this number of rows is deleted."""


def read_staged_ranges(files: Sequence[tuple[Path, int]], tables: Container[str]) -> dict[str, KeyRange]:
    """Returns the range that a transaction deletes in each of some tables. Blocks. Raises DataLoss."""
    if not tables:
        return {}
    return {
        request.table: decode_range(payload)
        for path, count in files
        for request, payload in read_staged_requests(path, count)
        if request.action == DELETE_RANGE and request.table in tables
    }


async def apply_range(
    live: LiveBucket,
    bucket: Bucket,
    keys: KeyRange,
    codec: TableCodec,
    step: MakeStep,
    origin: ChangeOrigin,
    commit_micros: int,
    rows_before: int,
) -> int:
    """Deletes all rows of a bucket in a range of keys. Hold the mutex, or bypass its barrier.

    Nothing else is written to the bucket between a crash and the repetition of this, so the rows that are left in the
    range are those that it did not delete.

    Args:
        live: The bucket.
        bucket: The open bucket.
        keys: The range.
        codec: The table.
        step: Makes the record of each step.
        origin: The writer of the markers.
        commit_micros: The commit time of the transaction.
        rows_before: How many rows were deleted before a crash.

    Returns:
        How many rows were deleted in all.
    """
    deletion = RangeDeletion(keys)
    while not deletion.is_done:
        while not await live.run(deletion.read, bucket, codec):
            pass
        change = deletion.take_change(bucket, codec)
        done = step(rows_before + deletion.rows, complete=deletion.is_done)
        if change is None:
            if deletion.is_done:
                await live.write(bucket.record, done)
            continue
        await live.write(_apply, live, bucket, change, codec, done, origin, commit_micros)
    return rows_before + deletion.rows


def _apply(
    live: LiveBucket,
    bucket: Bucket,
    change: BucketChange,
    codec: TableCodec,
    step: WriteStep,
    origin: ChangeOrigin,
    commit_micros: int,
) -> None:
    apply_change(live, bucket, lambda: change, codec.rows, step, origin, commit_micros)
