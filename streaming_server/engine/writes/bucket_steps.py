"""The steps of writes and lookups in one bucket. They run in a thread, with the bucket's mutex held."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.engine.merging.expired_rows import UnexpiredRows, removal_of
from streaming_server.engine.writes.partition_counts import count_by_partition
from streaming_server.storage.bucket.bucket_change import as_array
from streaming_server.storage.bucket.write_times import set_write_times
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD, NO_ORIGIN, ChangeOrigin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.merging.merger import Merger, StoredRows
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.bucket.bucket_snapshot import BucketSnapshot
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.bucket.writer_states import WriteStep
    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.rows.table_codec import TableCodec

# A step fills changelog records, so that readers get full chunks.
_MAX_BATCH_ROWS = 2 * MAX_CHANGES_PER_RECORD
_STEP_BYTES = 32 * 1024 * 1024

_log = logging.getLogger(__name__)


def apply_rows(
    live: LiveBucket,
    bucket: Bucket,
    rows: BucketRows,
    merger: Merger,
    step: WriteStep | None = None,
    writer: str | None = None,
    commit_micros: int | None = None,
) -> None:
    """Merges rows into their bucket, and adds them to the delta of its columnar base.

    The same WriteBatch records `step`, if it is given. The changelog records `writer`, if it is given, as the author of
    the changes, and `commit_micros` as their commit time: see `Bucket.apply`.

    Runs with the bucket's mutex held, so the codec of `merger` knows every schema stored there, and all indexes.
    """
    codec = merger.codec.rows
    rows = rows.for_codec(codec)
    stored: StoredRows = bucket
    if codec.definition.expiry is not None:
        commit_micros = bucket.commit_time_of(commit_micros)
        stored = UnexpiredRows(bucket, merger.codec, commit_micros)
    apply_change(
        live,
        bucket,
        lambda: merger.merge(stored, rows),
        codec,
        step,
        origin_of(writer, rows.columns, codec),
        commit_micros,
        stored if isinstance(stored, UnexpiredRows) else None,
    )


def apply_change(
    live: LiveBucket,
    bucket: Bucket,
    make: Callable[[], BucketChange],
    codec: RowCodec,
    step: WriteStep | None,
    origin: ChangeOrigin,
    commit_micros: int | None,
    stored: UnexpiredRows | None = None,
) -> None:
    """Applies the change that `make` returns; otherwise as `apply_rows`.

    The expired rows that `stored` has met are removed first, in a WriteBatch of their own: a crash after it changes no
    view.
    """
    micros = commit_micros
    try:
        change = make()
        if origin is not NO_ORIGIN:
            if change.changes is not None:
                change = replace(change, changes=replace(change.changes, origin=origin))
            elif change.marker is not None:
                change = replace(change, marker=replace(change.marker, origin=origin))
        if codec.write_time is not None:
            micros = bucket.commit_time_of(commit_micros)
            change = set_write_times(change, codec, micros)
        if stored is not None and stored.expired:
            remove_expired(live, bucket, stored.expired, stored.codec, micros)
        bucket.apply(_with_counts(change, codec.definition), step, micros)
    except (RequestTooLarge, InvalidRequest):
        raise  # before anything was written
    except BaseException:
        live.columnar.drop("it may lack a failed write")
        raise
    live.columnar.delete_ranges(change.delete_ranges, bucket.state.log_offset)
    _add_to_base(live, bucket, change)


def remove_expired(
    live: LiveBucket, bucket: Bucket, rows: Mapping[bytes, bytes], codec: TableCodec, commit_micros: int | None = None
) -> None:
    """Removes expired rows, given as they are stored by key, from a bucket and from its columnar base. Blocks.

    Hold the bucket's mutex.
    """
    change = removal_of(rows, codec, live.number)
    try:
        bucket.apply(_with_counts(change, codec.definition), None, commit_micros)
    except BaseException:
        live.columnar.drop("it may lack a failed write")
        raise
    _add_to_base(live, bucket, change)


def _with_counts(change: BucketChange, definition: TableDefinition) -> BucketChange:
    """Returns a change with the rows that each partition gains and loses, if the table is partitioned."""
    if definition.partitioning is None:
        return change
    return replace(change, partitions=count_by_partition(change, definition.partitioning))


def _add_to_base(live: LiveBucket, bucket: Bucket, change: BucketChange) -> None:
    """Adds an applied change to the delta of the columnar base."""
    live.columnar.record.changed_bytes += change.put_keys.nbytes + change.put_values.nbytes + change.delete_keys.nbytes
    # Read the delta once: a damaged base may be dropped at any time.
    delta = live.columnar.delta
    if delta is None:
        return
    try:
        delta.add(*_delta_rows(change), bucket.state.log_offset)
    except OverflowError as error:
        live.columnar.record.drops += 1
        live.columnar.drop(f"its delta has grown too large: {error}", at_once=False)
        _log.warning("the columnar base of %s is dropped: %s", live.location, error)
    except Exception:
        # The write itself has succeeded.
        _log.exception("%s: a write cannot be added to the delta of the columnar base, which is dropped", live.location)
        live.columnar.drop("a write could not be added to its delta")


def _delta_rows(change: BucketChange) -> tuple[pa.Array, pa.Array | None]:
    """Returns the keys of a change and their new values; None instead of the values if all keys are deleted."""
    put_keys, put_values = as_array(change.put_keys), as_array(change.put_values)
    delete_keys = as_array(change.delete_keys)
    if not len(delete_keys):
        return put_keys, put_values
    if not len(put_keys):
        return delete_keys, None
    nothing = pa.nulls(len(delete_keys), pa.binary())
    return pa.concat_arrays([put_keys, delete_keys]), pa.concat_arrays([put_values, nothing])


def origin_of(writer: str | None, columns: Sequence[str] | None, codec: RowCodec) -> ChangeOrigin:
    """Returns the origin that the changelog records. Undo reads it: the writer, and the columns of a partial write."""
    if writer is None and columns is None:
        return NO_ORIGIN
    return ChangeOrigin.of(writer, [codec.definition.schema.column(name).id for name in columns or ()])


def step_rows(state: BucketState, indexes: int = 0, *, most_bytes: int = _STEP_BYTES) -> int:
    """Returns how many rows one step may read by key, so that the longest, with their entries, fit in memory.

    Args:
        state: The state of the bucket.
        indexes: The number of indexes.
        most_bytes: The most bytes of a step on a small disk.
    """
    most_bytes = min(most_bytes, _STEP_BYTES)
    return max(1, min(_MAX_BATCH_ROWS, most_bytes // (max(state.longest_row, 1) * (1 + indexes))))


def get_within(bucket: Bucket | BucketSnapshot, keys: list[bytes], room: int) -> list[bytes | None]:
    """Returns the stored rows of some keys, None where no row exists. Raises RequestTooLarge over `room` bytes."""
    rows: list[bytes | None] = []
    step = step_rows(bucket.state)
    for start in range(0, len(keys), step):
        part = bucket.get(keys[start : start + step])
        rows += part
        room -= total_bytes(part)
        if room < 0:
            raise RequestTooLarge(
                f"the answer has more than {MAX_REQUEST_BYTES:,} bytes; the limit is {MAX_REQUEST_BYTES:,}: ask "
                "for fewer keys at once"
            )
    return rows


def total_bytes(rows: list[bytes | None]) -> int:
    """Returns the total size of some rows in bytes."""
    return sum(map(len, filter(None, rows)))
