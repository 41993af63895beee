"""What is done to a bucket in one step, in a thread and with its mutex held: rows merged, rows looked up."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD, NO_ORIGIN, ChangeOrigin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.bucket.bucket_snapshot import BucketSnapshot
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.bucket.writer_states import WriteStep
    from streaming_server.storage.rows.row_codec import RowCodec

# So that the changelog has whole records, of which its readers make whole chunks.
_MAX_BATCH_ROWS = 2 * MAX_CHANGES_PER_RECORD
_STEP_BYTES = 32 * 1024 * 1024

_log = logging.getLogger(__name__)


def apply_rows(
    live: LiveBucket,
    bucket: Bucket,
    rows: PreparedRows,
    merger: Merger,
    step: WriteStep | None = None,
    writer: str | None = None,
    commit_micros: int | None = None,
) -> None:
    """Merges rows into their bucket, and notes them beside its columnar base, and with them which step that was.

    The changelog says that `writer` has made the changes, if it is given; and when, see `Bucket.apply`.

    Runs with the bucket's mutex held, so the codec of `merger` knows every schema stored there, and all indexes.
    """
    codec = merger.codec.rows
    rows = rows.for_codec(codec)
    columns = None if rows.written is None else rows.written.columns
    apply_change(
        live,
        bucket,
        lambda: merger.merge(bucket, rows),
        codec,
        step,
        origin_of(writer, columns, codec),
        commit_micros,
    )


def apply_change(
    live: LiveBucket,
    bucket: Bucket,
    make: Callable[[], BucketChange],
    codec: RowCodec,
    step: WriteStep | None,
    origin: ChangeOrigin,
    commit_micros: int | None,
) -> None:
    """Applies the change that `make` gives, otherwise as `apply_rows`."""
    try:
        change = make()
        if change.changes is not None and origin is not NO_ORIGIN:
            change = replace(change, changes=replace(change.changes, origin=origin))
        bucket.apply(change, step, commit_micros)
    except (RequestTooLarge, InvalidRequest):
        raise  # before anything was written
    except BaseException:
        live.columnar.drop("a write failed that it may lack")
        raise
    live.columnar.record.changed_bytes += change.put_keys.nbytes + change.put_values.nbytes + change.delete_keys.nbytes
    # Read once: a damaged base may be forgotten at any time.
    delta = live.columnar.delta
    if delta is None:
        return
    try:
        delta.add(*_noted(change), bucket.state.log_offset)
    except Exception:
        # The rows are written all the same.
        _log.exception("%s: a write cannot be noted beside the columnar base, which is read no more", live.location)
        live.columnar.drop("a write could not be noted beside it")


def _noted(change: BucketChange) -> tuple[pa.Array, pa.Array | None]:
    """The keys of a change, and what stands there from now on; None: nothing at all of them."""
    if not len(change.delete_keys):
        return change.put_keys, change.put_values
    if not len(change.put_keys):
        return change.delete_keys, None
    nothing = pa.nulls(len(change.delete_keys), pa.binary())
    return pa.concat_arrays([change.put_keys, change.delete_keys]), pa.concat_arrays([change.put_values, nothing])


def origin_of(writer: str | None, columns: Sequence[str] | None, codec: RowCodec) -> ChangeOrigin:
    """What the changelog says of who writes rows: only an undo need know more than the columns of a partial write."""
    if writer is None and columns is None:
        return NO_ORIGIN
    return ChangeOrigin.of(writer, [codec.definition.schema.column(name).id for name in columns or ()])


def step_rows(state: BucketState, indexes: int = 0) -> int:
    """How many rows may be read by key at once so that even the longest ones fit into memory, with their entries."""
    return max(1, min(_MAX_BATCH_ROWS, _STEP_BYTES // (max(state.longest_row, 1) * (1 + indexes))))


def get_within(bucket: Bucket | BucketSnapshot, keys: list[bytes], room: int) -> list[bytes | None]:
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
