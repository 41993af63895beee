"""One step of a merge: turns the current rows of some keys and the written rows into the change of a bucket."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError
from scankv.model.limits import MAX_ROW_BYTES
from streaming_server.engine.functions.function import last_places
from streaming_server.engine.merging.aggregate import RefusedColumnError
from streaming_server.engine.merging.outcome import combine_changes, merge_delete, merge_upsert
from streaming_server.engine.merging.rows import DELETE, CurrentRows, MergeResult

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from streaming_server.engine.functions.function import Mask, Places
    from streaming_server.engine.merging.engine import MergeEngine
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.engine.merging.rows import WrittenRows
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.rows.index_codec import IndexCodec

_BEFORE = "its batch of up to 8,192 keys was not written, but earlier batches of the request may have been"


def restate(error: ScanKvError, outcome: str) -> ScanKvError:
    """Returns an error of `merge_rows` with another statement of what was written."""
    reason = error.message.partition(";")[0]
    restated = type(error)(f"{reason}; {outcome}")
    restated.details.update(error.details)
    return restated


def merge_rows(
    old: Sequence[bytes | None], new: PreparedRows, engine: MergeEngine, indexes: Collection[IndexCodec] = ()
) -> BucketChange:
    """Merges written rows into stored rows, and returns the change of the bucket.

    Args:
        old: The stored rows of the same keys; None: no row.
        new: The rows.
        engine: Merges them.
        indexes: The indexes of the table.

    Raises:
        InvalidRequest: The rows cannot be merged; names the column and the key.
        RequestTooLarge: A row would become too large, or cannot have an entry in an index.
        DataLoss: An old row cannot be decoded.
    """
    written, before = new.written, CurrentRows.of(new.codec, old)
    assert written is not None
    try:
        after, touched = _merge_written(before, written, engine)
        rows = _rows(new, after)
    except RefusedColumnError as error:
        raise _invalid_request(error, new) from error
    puts, gone = after.exists & touched, before.exists & ~after.exists
    change = merge_upsert(
        _select_old(old, puts),
        replace(
            _select_keys(new, puts), batch=rows.filter(pa.array(puts)), values=_encode_rows(new, after, rows, puts)
        ),
        row_deduplicate=new.codec.definition.options.row_deduplicate,
        indexes=indexes,
    )
    return (
        combine_changes(change, merge_delete(_select_old(old, gone), _select_keys(new, gone), indexes))
        if gone.any()
        else change
    )


def _merge_written(before: CurrentRows, written: WrittenRows, engine: MergeEngine) -> tuple[CurrentRows, Mask]:
    """Returns the rows after the write, and the keys at which the write had an effect. Raises RefusedColumnError."""
    deleted = np.zeros(written.count, np.bool_)
    standing = before
    if written.kinds is not None and (written.kinds == DELETE).any():
        places = engine.last_deletes(before, written)
        places = _last_deletes(written) if places is None else places
        deleted = places >= 0
        standing = _apply_deletes(before, written, deleted)
        # Rows before an effective delete have no effect, nor do ineffective deletes.
        kept = (np.arange(len(written.kinds)) > places[written.keys]) & (written.kinds != DELETE)
        written = written.where(kept)
    result: MergeResult = engine.merge(standing, written)
    after = standing.with_columns(result.columns, standing.exists | result.wrote)
    return after, result.wrote | (deleted & before.exists)


def _last_deletes(written: WrittenRows) -> Places:
    assert written.kinds is not None
    deletes = np.flatnonzero(written.kinds == DELETE)
    keys = written.keys[deletes]
    last = last_places(keys)
    places = np.full(written.count, -1)
    places[keys[last]] = deletes[last]
    return places


def _apply_deletes(before: CurrentRows, written: WrittenRows, deleted: Mask) -> CurrentRows:
    """Returns the rows after deletes of rows or of some columns. A row without a value outside its key is deleted."""
    targets = set(written.targets(before))
    # Not if_else, which changes the type of decimals with a negative scale.
    kept = pa.array(np.arange(written.count), mask=deleted)
    columns = {name: old.take(kept) for name, old in before.columns.items() if name.partition("\0")[0] in targets}
    exists = before.exists & ~deleted
    if written.columns is not None and not targets:
        exists = before.exists  # All columns to delete were dropped since.
    elif written.columns is not None:
        has_value = np.zeros(written.count, np.bool_)
        for name, old in before.columns.items():
            if name not in targets and "\0" not in name:
                has_value |= old.is_valid().to_numpy(zero_copy_only=False)
        exists = before.exists & (~deleted | has_value)
    return before.with_columns(columns, exists)


def _rows(new: PreparedRows, after: CurrentRows) -> pa.RecordBatch:
    """Returns the merged rows. Keys without a row have arbitrary values. Raises RefusedColumnError."""
    schema, key = new.codec.schema, new.batch.schema.names
    columns = [new.batch.column(field.name) if field.name in key else after.columns[field.name] for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            nulls = after.exists & column.is_null().to_numpy(zero_copy_only=False)
            if nulls.any():
                raise RefusedColumnError(field.name, "it would be null, but it is NOT NULL", int(np.argmax(nulls)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _encode_rows(new: PreparedRows, after: CurrentRows, rows: pa.RecordBatch, puts: Mask) -> pa.Array:
    mask = pa.array(puts)
    hidden = [after.columns[column.name].filter(mask) for column in new.codec.hidden]
    values = new.codec.encode(rows.filter(mask), hidden)
    longest = pc.max(pc.binary_length(values)).as_py() if len(values) else 0
    if longest > MAX_ROW_BYTES:
        raise RequestTooLarge(
            f"a row would take {longest} bytes once merged; the limit of a row is {MAX_ROW_BYTES}; {_BEFORE}"
        )
    return values


def _select_old(old: Sequence[bytes | None], mask: Mask) -> list[bytes | None]:
    return list(old) if mask.all() else [old[place] for place in np.flatnonzero(mask).tolist()]


def _select_keys(new: PreparedRows, mask: Mask) -> PreparedRows:
    """Returns some of the keys, without their rows."""
    selection = pa.array(mask)
    return replace(new, batch=new.batch.filter(selection), keys=new.keys.filter(selection), values=None, written=None)


def _invalid_request(error: RefusedColumnError, new: PreparedRows) -> InvalidRequest:
    values = new.batch.slice(error.place, 1).to_pylist()[0].values()
    key = ", ".join(str(value)[:40] for value in values)
    return InvalidRequest(
        f'column "{error.column}", key ({key}): {error.reason}; {_BEFORE}', column=error.column, key=key
    )
