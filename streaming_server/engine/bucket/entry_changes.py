"""Computes what a write changes in the entries of one index. Pure, and vectorized over all rows of the write.

An entry is put for a new row, and for a row whose entry differs from that of the row it replaces. An entry is deleted
with its row, and when the entry of the row gets another key. A row that is older than the index may have columns that
are too long for an entry. Such a row has no entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import RequestTooLarge
from streaming_server.storage.bucket.bucket_change import EntryChange

if TYPE_CHECKING:
    from streaming_server.storage.rows.index_codec import IndexCodec

_NOTHING = pa.nulls(0, pa.binary())


def entries_of_upserts(
    index: IndexCodec,
    old_rows: pa.RecordBatch,
    new_rows: pa.RecordBatch,
    keys: pa.BinaryArray,
    exists: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> EntryChange:
    """Computes the puts and deletes that replace the index entries of old rows by those of new rows.

    Args:
        index: The index.
        old_rows: The rows that are replaced.
        new_rows: The rows that replace them, and inserted rows.
        keys: The encoded primary keys of the new rows.
        exists: Which of the new rows replace an old row. They are in the order of `old_rows`.

    Raises:
        RequestTooLarge: A new row cannot have an entry.
    """
    put_keys, put_values = index.entries(new_rows, keys)
    if not exists.any():
        return EntryChange(index=index.index.id, put_keys=put_keys, put_values=put_values, delete_keys=_NOTHING)
    replacing = pa.array(exists)
    old_keys, old_values = _old_entries(index, old_rows, keys.filter(replacing))
    same_key = pc.equal(old_keys, put_keys.filter(replacing)).fill_null(False)
    same_value = pc.equal(old_values, put_values.filter(replacing)).fill_null(False)
    put = np.ones(len(exists), np.bool_)
    put[exists] = pc.invert(pc.and_(same_key, same_value)).to_numpy(zero_copy_only=False)
    return EntryChange(
        index=index.index.id,
        put_keys=put_keys.filter(pa.array(put)),
        put_values=put_values.filter(pa.array(put)),
        delete_keys=old_keys.filter(pc.invert(same_key)).drop_null(),
    )


def entries_of_deletes(index: IndexCodec, old_rows: pa.RecordBatch, keys: pa.BinaryArray) -> EntryChange:
    """Computes the deletes of the index entries of deleted rows; `keys` are their encoded primary keys."""
    gone, _ = _old_entries(index, old_rows, keys)
    return EntryChange(index=index.index.id, put_keys=_NOTHING, put_values=_NOTHING, delete_keys=gone.drop_null())


def _old_entries(
    index: IndexCodec, rows: pa.RecordBatch, keys: pa.BinaryArray
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Returns the keys and values of the entries of stored rows, both null for a row without an entry."""
    try:
        return index.entries(rows, keys)
    except RequestTooLarge:
        if rows.num_rows == 1:
            return pa.nulls(1, pa.binary()), pa.nulls(1, pa.binary())
    # This is rare, so it may be slow: halve the rows until each row without an entry is alone.
    half = rows.num_rows // 2
    first_keys, first_values = _old_entries(index, rows.slice(0, half), keys.slice(0, half))
    last_keys, last_values = _old_entries(index, rows.slice(half), keys.slice(half))
    return pa.concat_arrays([first_keys, last_keys]), pa.concat_arrays([first_values, last_values])
