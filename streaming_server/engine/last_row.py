"""The `last_row` merge: the new row replaces the old one, and the changelog says what became of each key.

Pure: old rows and new rows in, one `BucketChange` out. New key `+I`; changed row `-U old, +U new`; the same row again
nothing (unless `row_deduplicate` is off); deleted row `-D old`; deleting what is not there nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.storage.bucket import BucketChange
from streaming_server.storage.changelog import Changes, RowKind

if TYPE_CHECKING:
    from streaming_server.engine.prepare import PreparedRows
    from streaming_server.storage.row_codec import RowCodec

_NOTHING = pa.array([], pa.binary())


def merge_upsert(old: list[bytes | None], new: PreparedRows, *, row_deduplicate: bool) -> BucketChange:
    """What upserting `new` does to the rows `old`, which stand at the same keys (None: no row).

    Raises:
        DataLoss: An old row cannot be decoded.
    """
    codec, batch, keys, values = new.codec, new.batch, new.keys, new.values
    assert values is not None
    stored = pa.array(old, pa.binary())
    exists: np.ndarray[tuple[int], np.dtype[np.bool_]] = stored.is_valid().to_numpy(zero_copy_only=False)
    old_rows = codec.decoder().decode(stored.drop_null())
    if row_deduplicate and exists.any():
        same = exists.copy()
        # Encoded anew, because rows of an older schema have other bytes for the same values.
        same[exists] = pc.equal(codec.encode(old_rows), values.filter(pa.array(exists))).to_numpy(zero_copy_only=False)
        if same.any():
            changed = pa.array(~same)
            old_rows = old_rows.filter(pa.array(~same[exists]))
            batch, keys, values = batch.filter(changed), keys.filter(changed), values.filter(changed)
            exists = exists[~same]
    return BucketChange(
        put_keys=keys,
        put_values=values,
        delete_keys=_NOTHING,
        changes=_upsert_changes(old_rows, batch, exists),
        rows_added=int((~exists).sum()),
        schema_id=codec.definition.schema.id,
    )


def merge_delete(old: list[bytes | None], keys: pa.Array, codec: RowCodec) -> BucketChange:
    """What deleting `keys` does, at which the rows `old` stand (None: no row). Raises DataLoss as `merge_upsert`."""
    stored = pa.array(old, pa.binary())
    old_rows = codec.decoder().decode(stored.drop_null())
    return BucketChange(
        put_keys=_NOTHING,
        put_values=_NOTHING,
        delete_keys=keys.filter(stored.is_valid()),
        changes=Changes(np.full(old_rows.num_rows, RowKind.DELETE, np.uint8), old_rows),
        rows_added=-old_rows.num_rows,
        schema_id=codec.definition.schema.id,
    )


def _upsert_changes(
    old_rows: pa.RecordBatch, new_rows: pa.RecordBatch, exists: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Changes:
    """The changes of an upsert: for each new row, before it the old row where there was one."""
    if not exists.any():
        return Changes(np.full(new_rows.num_rows, RowKind.INSERT, np.uint8), new_rows)
    after = np.cumsum(1 + exists) - 1
    before = after[exists] - 1
    kinds = np.empty(int(after[-1]) + 1, np.uint8)
    kinds[after] = np.where(exists, RowKind.UPDATE_AFTER, RowKind.INSERT)
    kinds[before] = RowKind.UPDATE_BEFORE
    source = np.empty(len(kinds), np.int64)
    source[before] = np.arange(len(before))
    source[after] = np.arange(len(after)) + len(before)
    both = pa.concat_batches([old_rows, new_rows])
    return Changes(kinds, both.take(pa.array(source)))
