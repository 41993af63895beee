"""Takes a bucket of a restored table back to an earlier instant, by the rows before each change in its changelog.

The reverse of each later change is written like any other write, so indexes, counts, partitions and the changelog stay
right, and consumers read it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.model.errors import ScanKvError
from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.engine.writes.partition_counts import count_by_partition
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import RowKind, record_key, rows_of
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange

_STEP_ROWS: Final = 8192


class CannotRewind(ScanKvError):
    """The changelog lacks what is needed to take a table back."""

    code = "FAILED_PRECONDITION"
    reason = "CANNOT_REWIND"


def check_can_rewind(definition: TableDefinition) -> None:
    """Raises CannotRewind if the changelog of a table never has what is needed to take it back."""
    options, why = definition.options, ""
    if not definition.has_key:
        why = "it has no primary key, so its rows are its changelog"
    elif not options.before_images:
        why = f'its changelog, which is "{options.changelog}", lacks the rows before changes'
    elif definition.hidden_columns(definition.schema) or definition.write_time(definition.schema) is not None:
        why = "its rows have hidden values, which its changelog lacks"
    elif definition.expiry is not None and options.ttl_changes == "none":
        why = "its changelog lacks the removal of expired rows"
    if why:
        raise CannotRewind(f"{definition.name} cannot be taken back: {why}")


def rewind(bucket: Bucket, definition: TableDefinition, micros: int) -> int:
    """Takes a bucket back to the last commit at or before an instant, in microseconds since 1970 UTC. Blocks.

    Memory: the rows that were changed since.

    Returns:
        The number of rows that were written or deleted.

    Raises:
        CannotRewind: The changelog does not reach back so far, or lacks changes since. Nothing was written.
        DataLoss: The bucket is damaged.
    """
    state = bucket.state
    start = bucket.log.offset_at(micros + 1, definition)
    if count_of(start) == state.log_first > 0:
        raise CannotRewind(f"the changelog of {bucket.location} begins later")
    if state.has_markers_since(start) or not state.is_recorded_as_now(start):
        raise CannotRewind(f"the changelog of {bucket.location} lacks changes that were made since")
    restored, deleted = _rows_before(bucket, definition, start)
    codec = TableCodec.of(definition)
    indexes = list(codec.indexes.values())
    for part in (each for batch in _steps(restored) for each in prepare(batch, codec, keys_only=False)):
        old = bucket.get(part.keys.to_pylist())
        _apply(bucket, merge_upsert(old, part, row_deduplicate=True, indexes=indexes), definition)
    for part in (each for batch in _steps(deleted) for each in prepare(batch, codec, keys_only=True)):
        old = bucket.get(part.keys.to_pylist())
        _apply(bucket, merge_delete(old, part, indexes), definition)
    bucket.sync(bucket.state.log_offset)
    return int(restored.num_rows + deleted.num_rows)


def _apply(bucket: Bucket, change: BucketChange, definition: TableDefinition) -> None:
    if definition.partitioning is not None:
        change = replace(change, partitions=count_by_partition(change, definition.partitioning))
    bucket.apply(change)


def _rows_before(bucket: Bucket, definition: TableDefinition, start: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Returns the rows that were changed or deleted since an offset, as before, and the keys that were inserted."""
    codec, schema = TableCodec.of(definition), definition.schema.arrow
    seen: set[bytes] = set()
    restored: list[pa.RecordBatch] = []
    deleted: list[pa.RecordBatch] = []
    reader = bucket.record_reader(KeyRange(start=record_key(start)), definition)
    try:
        while (record := reader.read()) is not None:
            rows, kinds = rows_of(record, definition, definition.schema.id, schema), record.changes.kinds
            keys = codec.keys.encode_stored(rows).to_pylist()
            first = np.zeros(len(kinds), dtype=np.bool_)
            for place, key in enumerate(keys):
                # Only the first change of each key tells what was there before.
                if key not in seen:
                    seen.add(key)
                    first[place] = True
            inserted = kinds == RowKind.INSERT
            restored.append(rows.filter(pa.array(first & ~inserted)))
            deleted.append(rows.filter(pa.array(first & inserted)))
    finally:
        reader.close()
    names = list(definition.primary_key)
    return _combined(restored, schema), _combined(deleted, schema).select(names)


def _combined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    combined = pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=schema)


def _steps(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(at, _STEP_ROWS) for at in range(0, batch.num_rows, _STEP_ROWS)]
