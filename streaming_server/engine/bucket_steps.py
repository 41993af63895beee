"""What is done to a bucket in one step, in a thread and with its mutex held: rows merged, rows looked up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streaming_server.engine.last_row import merge_delete, merge_upsert, reads_old_rows
from table_model.errors import RequestTooLarge
from table_model.limits import MAX_KEY_BYTES, MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.live_bucket import LiveBucket
    from streaming_server.engine.prepare import PreparedRows
    from streaming_server.storage.bucket import Bucket, BucketState
    from streaming_server.storage.index_codec import IndexCodec
    from streaming_server.storage.row_codec import RowCodec

_MAX_BATCH_ROWS = 10_000
_STEP_BYTES = 32 * 1024 * 1024

_log = logging.getLogger(__name__)


def apply_rows(
    live: LiveBucket, bucket: Bucket, rows: PreparedRows, codec: RowCodec, indexes: Sequence[IndexCodec]
) -> None:
    """Merges rows into their bucket, and notes them beside its columnar base.

    Runs with the bucket's mutex held, so `codec` knows every schema stored there, and `indexes` are all that there are.
    """
    rows = rows.for_codec(codec)
    try:
        _merge(bucket, rows, codec, indexes)
    except RequestTooLarge:
        raise  # before anything was written
    except BaseException:
        live.forget_base("a write failed that it may lack")
        raise
    live.base_record.changed_bytes += rows.keys.nbytes + (0 if rows.values is None else rows.values.nbytes)
    # Read once: a damaged base may be forgotten at any time.
    overlay = live.overlay
    if overlay is None:
        return
    try:
        overlay.add(rows.keys, rows.values, bucket.state.log_offset)
    except Exception:
        # The rows are written all the same.
        _log.exception("%s: a write cannot be noted beside the columnar base, which is read no more", live.place)
        live.forget_base("a write could not be noted beside it")


def _merge(bucket: Bucket, rows: PreparedRows, codec: RowCodec, indexes: Sequence[IndexCodec]) -> None:
    old = bucket.get(rows.keys.to_pylist()) if reads_old_rows(codec.definition, indexes) else None
    if rows.values is None:
        bucket.apply(merge_delete(old, rows, indexes))
        return
    deduplicate = codec.definition.options.row_deduplicate
    try:
        bucket.apply(merge_upsert(old, rows, row_deduplicate=deduplicate, indexes=indexes))
    except RequestTooLarge as error:
        # Every other index was asked before anything was written.
        raise RequestTooLarge(
            f"an index was added meanwhile, and a row's columns of it take over {MAX_KEY_BYTES:,} bytes; rows before "
            "it may have been written: send shorter ones"
        ) from error


def step_rows(state: BucketState, indexes: int = 0) -> int:
    """How many rows may be read by key at once so that even the longest ones fit into memory, with their entries."""
    return max(1, min(_MAX_BATCH_ROWS, _STEP_BYTES // (max(state.longest_row, 1) * (1 + indexes))))


def get_within(bucket: Bucket, keys: list[bytes], room: int) -> list[bytes | None]:
    """The stored rows of some keys, None where there is none. Raises RequestTooLarge for more than `room` bytes."""
    rows: list[bytes | None] = []
    step = step_rows(bucket.state)
    for start in range(0, len(keys), step):
        part = bucket.get(keys[start : start + step])
        rows += part
        room -= total_bytes(part)
        if room < 0:
            raise RequestTooLarge(
                f"the rows found take more than {MAX_REQUEST_BYTES} bytes: ask for fewer keys at once"
            )
    return rows


def total_bytes(rows: list[bytes | None]) -> int:
    """How many bytes rows have together."""
    return sum(map(len, filter(None, rows)))
