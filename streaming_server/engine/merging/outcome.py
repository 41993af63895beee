"""Computes the change of a bucket from old and new rows: rows, changelog and index entries. The same for all engines.

Pure. The changelog gets `+I` for a new key, `-U old, +U new` for a changed row, nothing for an equal row (unless
`row_deduplicate` is off), `-D old` for a deleted row, and nothing for a delete without a row. A changelog of what is
written does not depend on any of this. Without before-images it
gets `+U new` and `-D key` for the same keys, and for all keys where the old rows were not read. A row whose hidden
columns alone have changed is put, but is no change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.engine.bucket.entry_changes import entries_of_deletes, entries_of_upserts
from streaming_server.engine.bucket.request_rows import widen
from streaming_server.engine.merging.prepared_rows import is_ascending
from streaming_server.storage.bucket.bucket_change import BucketChange, as_array
from streaming_server.storage.changelog.range_markers import RangeMarker
from streaming_server.storage.changelog.records import Changes, RowKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.storage.rows.index_codec import IndexCodec

_NOTHING = pa.nulls(0, pa.binary())


def reads_old_rows(definition: TableDefinition, indexes: Collection[IndexCodec]) -> bool:
    """Whether a write of complete rows must read the rows that it replaces, for the changelog or for indexes."""
    return definition.options.before_images or bool(indexes)


def merge_upsert(
    old: list[bytes | None] | None, new: PreparedRows, *, row_deduplicate: bool, indexes: Collection[IndexCodec] = ()
) -> BucketChange:
    """Computes an upsert of `new` over the rows `old` of the same keys (None: no row), with index entries.

    `old` is None where the rows were not read: see `reads_old_rows`. The changes are then not exact, if the changelog
    has before-images, and `mark_range` must replace them.

    Raises:
        DataLoss: An old row cannot be decoded.
        RequestTooLarge: A new row cannot have an entry in an index.
    """
    codec, batch, keys, values = new.codec, new.batch, new.keys, new.values
    assert values is not None
    if old is None:
        assert not indexes
        return BucketChange(
            put_keys=keys,
            put_values=values,
            delete_keys=_NOTHING,
            changes=_changes_without_old_rows(codec.definition, RowKind.UPDATE_AFTER, batch),
            rows_added=None,
            schema_id=codec.definition.schema.id,
        )
    stored = pa.array(old, pa.binary())
    exists: np.ndarray[tuple[int], np.dtype[np.bool_]] = stored.is_valid().to_numpy(zero_copy_only=False)
    old_rows = codec.decoder().decode(stored.drop_null())
    unlogged_keys = unlogged_values = _NOTHING
    if row_deduplicate and exists.any():
        same = exists.copy()
        new_values = values if not codec.stores_hidden else codec.encode(batch)
        # Encoded again, because rows of an older schema have other bytes for the same values.
        old_values = codec.encode(old_rows)
        same[exists] = pc.equal(old_values, new_values.filter(pa.array(exists))).to_numpy(zero_copy_only=False)
        if same.any():
            changed = pa.array(~same)
            if codec.stores_hidden:
                unlogged = pc.and_(pa.array(same), pc.not_equal(stored, values).fill_null(False))
                unlogged_keys, unlogged_values = keys.filter(unlogged), values.filter(unlogged)
            old_rows = old_rows.filter(pa.array(~same[exists]))
            batch, keys, values = batch.filter(changed), keys.filter(changed), values.filter(changed)
            exists = exists[~same]
    return BucketChange(
        put_keys=keys if not len(unlogged_keys) else pa.concat_arrays([keys, unlogged_keys]),
        put_values=values if not len(unlogged_keys) else pa.concat_arrays([values, unlogged_values]),
        delete_keys=_NOTHING,
        changes=_upsert_changes(old_rows, batch, exists)
        if codec.definition.options.before_images
        else _changes_without_old_rows(codec.definition, RowKind.UPDATE_AFTER, batch),
        rows_added=int((~exists).sum()),
        inserted=np.concatenate([~exists, np.zeros(len(unlogged_keys), np.bool_)]),
        schema_id=codec.definition.schema.id,
        entries=tuple(entries_of_upserts(index, old_rows, batch, keys, exists) for index in indexes),
    )


def merge_delete(
    old: list[bytes | None] | None, keys: PreparedRows, indexes: Collection[IndexCodec] = ()
) -> BucketChange:
    """Computes a delete of `keys`, whose rows are `old` (None: no row), as `merge_upsert`.

    Raises:
        DataLoss: An old row cannot be decoded.
    """
    codec, definition = keys.codec, keys.codec.definition
    if old is None:
        assert not reads_old_rows(definition, indexes)
        return _delete_change(
            definition, keys.keys, _changes_without_old_rows(definition, RowKind.DELETE, keys.batch), None
        )
    stored = pa.array(old, pa.binary())
    exists = stored.is_valid()
    old_rows, gone = codec.decoder().decode(stored.drop_null()), keys.keys.filter(exists)
    changes = (
        Changes(np.full(old_rows.num_rows, RowKind.DELETE, np.uint8), old_rows)
        if definition.options.before_images
        else _changes_without_old_rows(definition, RowKind.DELETE, keys.batch.filter(exists))
    )
    change = _delete_change(definition, gone, changes, -old_rows.num_rows)
    return replace(change, entries=tuple(entries_of_deletes(index, old_rows, gone) for index in indexes))


def combine_changes(puts: BucketChange, deletes: BucketChange) -> BucketChange:
    """Combines puts and deletes of different keys into one change."""
    changes = None
    if puts.changes is not None and deletes.changes is not None:
        rows = pa.concat_batches([puts.changes.rows, deletes.changes.rows])
        changes = Changes(np.concatenate([puts.changes.kinds, deletes.changes.kinds]), rows)
    assert puts.rows_added is not None
    assert deletes.rows_added is not None
    return replace(
        puts,
        delete_keys=deletes.delete_keys,
        changes=changes,
        rows_added=puts.rows_added + deletes.rows_added,
        entries=tuple(
            replace(put, delete_keys=pa.concat_arrays([put.delete_keys, gone.delete_keys]))
            for put, gone in zip(puts.entries, deletes.entries, strict=True)
        ),
    )


def inputs_of(rows: PreparedRows) -> Changes:
    """Returns what a changelog of what is written records: rows as they came, each key's in their order.

    The row kind of each is its change type. Without change types, it is `+U`. A delete is `-D` with the key.
    """
    definition, inputs = rows.codec.definition, rows.inputs or rows.written
    schema = definition.change_schema_at(definition.schema.id)
    if inputs is None:
        assert rows.values is None
        return Changes(np.full(len(rows.keys), RowKind.DELETE, np.uint8), widen(rows.batch, schema))
    kinds = np.full(inputs.batch.num_rows, RowKind.UPDATE_AFTER, np.uint8) if inputs.kinds is None else inputs.kinds
    return Changes(kinds, widen(inputs.batch, schema))


def mark_range(change: BucketChange) -> BucketChange:
    """Returns a change of upserts with a range marker in place of what it has for the changelog."""
    assert not len(change.delete_keys)
    if change.changes is None or not len(change.changes):
        return change
    keys = as_array(change.put_keys)
    if is_ascending(keys):
        return replace(change, changes=None, marker=RangeMarker.between(keys[0].as_py(), keys[-1].as_py()))
    extremes = pc.min_max(keys)
    return replace(change, changes=None, marker=RangeMarker.between(extremes["min"].as_py(), extremes["max"].as_py()))


def _delete_change(
    definition: TableDefinition, keys: pa.Array, changes: Changes | None, rows_added: int | None
) -> BucketChange:
    return BucketChange(
        put_keys=_NOTHING,
        put_values=_NOTHING,
        delete_keys=keys,
        changes=changes,
        rows_added=rows_added,
        schema_id=definition.schema.id,
    )


def _changes_without_old_rows(definition: TableDefinition, kind: RowKind, rows: pa.RecordBatch) -> Changes | None:
    """Returns changes of one kind, without old rows. `rows` may be keys only. None: the table has no changelog."""
    if definition.options.changelog == "none":
        return None
    schema = definition.change_schema_at(definition.schema.id)
    return Changes(np.full(rows.num_rows, kind, np.uint8), widen(rows, schema))


def _upsert_changes(
    old_rows: pa.RecordBatch, new_rows: pa.RecordBatch, exists: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Changes:
    """Returns the changes of an upsert: each new row, after its old row if one existed."""
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
    rows = pa.concat_batches([old_rows, new_rows])
    return Changes(kinds, rows.take(pa.array(source)))
