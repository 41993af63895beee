"""What is done to a bucket in one step, in a thread and with its mutex held: rows merged, rows looked up."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES, MAX_REQUEST_BYTES
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert, reads_old_rows
from streaming_server.engine.merging.step import merge_rows
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD, NO_ORIGIN, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.engine import Engines
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.storage.bucket.bucket import Bucket, BucketChange, BucketSnapshot, BucketState
    from streaming_server.storage.bucket.writer_states import WriteStep
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import RowCodec

# So that the changelog has whole records, of which its readers make whole chunks.
_MAX_BATCH_ROWS = 2 * MAX_CHANGES_PER_RECORD
_STEP_BYTES = 32 * 1024 * 1024

_log = logging.getLogger(__name__)


def apply_rows(
    live: LiveBucket,
    bucket: Bucket,
    rows: PreparedRows,
    codec: RowCodec,
    indexes: Sequence[IndexCodec],
    engines: Engines,
    step: WriteStep | None = None,
    writer: str | None = None,
    commit_micros: int | None = None,
) -> None:
    """Merges rows into their bucket, and notes them beside its columnar base, and with them which step that was.

    The changelog says that `writer` has made the changes, if it is given; and when, see `Bucket.apply`.

    Runs with the bucket's mutex held, so `codec` knows every schema stored there, and `indexes` are all that there are;
    `engines` are of the codec's table.
    """
    rows = rows.for_codec(codec)
    columns = None if rows.written is None else rows.written.columns
    apply_change(
        live,
        bucket,
        lambda: merged(bucket, rows, codec, indexes, engines),
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
    origin: Origin,
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
        live.forget_base("a write failed that it may lack")
        raise
    live.base_record.changed_bytes += change.put_keys.nbytes + change.put_values.nbytes + change.delete_keys.nbytes
    # Read once: a damaged base may be forgotten at any time.
    overlay = live.overlay
    if overlay is None:
        return
    try:
        overlay.add(*_noted(change), bucket.state.log_offset)
    except Exception:
        # The rows are written all the same.
        _log.exception("%s: a write cannot be noted beside the columnar base, which is read no more", live.place)
        live.forget_base("a write could not be noted beside it")


def _noted(change: BucketChange) -> tuple[pa.Array, pa.Array | None]:
    """The keys of a change, and what stands there from now on; None: nothing at all of them."""
    if not len(change.delete_keys):
        return change.put_keys, change.put_values
    if not len(change.put_keys):
        return change.delete_keys, None
    nothing = pa.nulls(len(change.delete_keys), pa.binary())
    return pa.concat_arrays([change.put_keys, change.delete_keys]), pa.concat_arrays([change.put_values, nothing])


class StoredRows(Protocol):
    """Rows as they are stored: a bucket, or what would be one."""

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Those of some encoded keys, None where there is none."""


def merged(
    bucket: StoredRows, rows: PreparedRows, codec: RowCodec, indexes: Sequence[IndexCodec], engines: Engines
) -> BucketChange:
    """What writing rows, which are for the codec, does to their bucket.

    Raises:
        InvalidRequest, RequestTooLarge: They cannot be merged with what stands.
        DataLoss: That is damaged.
    """
    if rows.written is not None:
        return merge_rows(bucket.get(rows.keys.to_pylist()), rows, engines.of(rows.written), indexes)
    old = bucket.get(rows.keys.to_pylist()) if reads_old_rows(codec.definition, indexes) else None
    if rows.values is None:
        return merge_delete(old, rows, indexes)
    deduplicate = codec.definition.options.row_deduplicate
    try:
        return merge_upsert(old, rows, row_deduplicate=deduplicate, indexes=indexes)
    except RequestTooLarge as error:
        # Every other index was asked before anything was written.
        raise RequestTooLarge(
            f"an index was added meanwhile, and a row's columns of it take over {MAX_KEY_BYTES:,} bytes; rows before "
            "it may have been written: send shorter ones"
        ) from error


def origin_of(writer: str | None, columns: Sequence[str] | None, codec: RowCodec) -> Origin:
    """What the changelog says of who writes rows: only an undo need know more than the columns of a partial write."""
    if writer is None and columns is None:
        return NO_ORIGIN
    return Origin.of(writer, [codec.definition.schema.column(name).id for name in columns or ()])


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
