"""Prepares the rows of a request for a merge engine: selects those that have an effect, and groups them by key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.changes.change_columns import CHANGE_SYMBOLS
from scankv.model.errors import InvalidRequest
from scankv.model.tables.columns import CHANGE_TYPE
from scankv.model.tables.merge_spec import NO_MERGING, partial_schema
from streaming_server.arrays.sorted_merge import stable_order
from streaming_server.engine.merging.prepared_rows import PreparedRows, prepare
from streaming_server.engine.merging.reading_few import read_few, replaces_rows
from streaming_server.engine.merging.rows import ADD, DELETE, RETRACT, WrittenRows
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.rows.conversion import convert_columns, convert_written, converted_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.functions.function import Mask
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.engine.merging.prepared_rows import EncodedKeys
    from streaming_server.engine.merging.rows import Kinds
    from streaming_server.storage.rows.table_codec import TableCodec

CHANGE_TYPE_FIELD: Final = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
"""The column with the kind of each row, which a request may have besides the table's columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteKind:
    """How a request writes its rows.

    Attributes:
        columns: The columns that the request names. Empty: all.
        overwrite: Whether its rows replace the current ones, whatever the table's merge engine.
        tracks_changes: Whether the changelog gets the changes of the rows. If not, it gets range markers.
    """

    columns: tuple[str, ...] = ()
    overwrite: bool = False
    tracks_changes: bool = True


MERGE: Final = WriteKind()
"""All columns, merged by the table's engine."""

OVERWRITE: Final = WriteKind(overwrite=True)
"""All columns, which replace the current ones."""


def request_schema(definition: TableDefinition, schema_id: int, kind: WriteKind) -> pa.Schema:
    """Returns the columns that the rows of a request must have, without the change type.

    Args:
        definition: The table.
        schema_id: The schema version of the rows, and of the names of columns. 0: the current one.
        kind: How the request writes its rows.

    Raises:
        SchemaMismatch, InvalidRequest: The request names columns that cannot be written alone.
    """
    asked = definition.schema_at(schema_id) if schema_id else definition.schema
    if not kind.columns:
        return asked.arrow
    columns = kind.columns
    if asked.id != definition.schema.id:
        columns = converted_names(columns, definition, asked.id)
    schema = _partial_schema(definition, kind, columns)
    if asked.id == definition.schema.id:
        return schema
    return asked.select([name for name in asked.names if name in kind.columns])


def current_kind(definition: TableDefinition, schema_id: int, kind: WriteKind) -> WriteKind:
    """Returns how a request writes its rows, with the current names of columns, without those dropped since.

    If all of them were dropped, it names the key, because a request that names no column writes all of them.
    """
    return replace(kind, columns=current_columns(definition, schema_id, kind.columns) or ())


def current_columns(definition: TableDefinition, schema_id: int, names: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the current names of the columns that a request writes. None: it names none, and so writes all.

    Args:
        definition: The table.
        schema_id: The schema version of the names. 0: the current one.
        names: The columns that the request names. Those that were dropped since are left out; if all were, the key is
            returned.

    Raises:
        SchemaMismatch: The schema version does not exist or does not have these columns.
    """
    if not names:
        return None
    if schema_id in (0, definition.schema.id):
        return tuple(names)
    return converted_names(names, definition, schema_id) or definition.primary_key


def current_rows(rows: pa.RecordBatch, definition: TableDefinition, schema_id: int, kind: WriteKind) -> pa.RecordBatch:
    """Returns the rows of a request, which have the schema `request_schema`, with the columns of the current schema."""
    if schema_id in (0, definition.schema.id):
        return rows
    old, new = definition.schema_at(schema_id), definition.schema
    return convert_columns(rows, old, new) if kind.columns else convert_written(rows, old, new)


def _partial_schema(definition: TableDefinition, kind: WriteKind, columns: Sequence[str]) -> pa.Schema:
    engine, merging = definition.options.merge_engine, definition.merging
    if kind.overwrite:
        engine, merging = "last_row", NO_MERGING
    return partial_schema(definition.schema.arrow, definition.primary_key, engine, merging, columns)


def prepare_upsert(
    rows: pa.RecordBatch,
    merger: Merger,
    kind: WriteKind,
    change_types: pa.Array | None = None,
    known: EncodedKeys | None = None,
) -> Sequence[BucketRows]:
    """Checks and encodes rows, and splits them by bucket, ascending.

    Args:
        rows: The rows, with columns of the current schema.
        merger: The rules of the table.
        kind: How the request writes its rows.
        change_types: The change type of each row, as text. None: all rows are inserted.
        known: As for `prepare`. Not with `change_types`.

    Raises:
        InvalidRequest: A change type is unknown, or the table refuses it.
        InvalidKey, RequestTooLarge: As `prepare`.
    """
    kinds = None
    codec, definition = merger.codec, merger.definition
    records_inputs = definition.options.changelog == "input"
    if records_inputs:
        _check_recorded(definition, kind)
    if change_types is not None and len(change_types):
        numbers = _numbers_of(change_types)
        if records_inputs:
            return _prepare_inputs(rows, merger, kind, numbers)
        rows, kinds = _select_effective(rows, numbers, definition, overwrite=kind.overwrite)
    if kinds is None and kind == MERGE:
        few = read_few(rows, codec, deletes=False)
        if few is not None:
            return few
    replaces = replaces_rows(definition) or (kind.overwrite and not codec.rows.hidden)
    if replaces and not kind.columns and kinds is None:
        return prepare(rows, codec, keys_only=False, known=known)
    columns = _columns_of(kind, codec)
    if kinds is not None and (kinds == RETRACT).any():
        merger.engines.check_retract(columns)
    return group_by_key(rows, codec, columns, kinds, overwrite=kind.overwrite, known=known)


def _columns_of(kind: WriteKind, codec: TableCodec) -> tuple[str, ...] | None:
    """Returns the columns outside the key that a request names. None: all."""
    return tuple(name for name in kind.columns if name not in codec.keys.names) if kind.columns else None


def _check_recorded(definition: TableDefinition, kind: WriteKind) -> None:
    """Raises InvalidRequest if a changelog of what is written cannot say what a request does."""
    what = None
    if kind.overwrite:
        what = "replace the rows of the table instead of being merged"
    elif not kind.tracks_changes:
        what = "leave out the rows that are written (track_changes=False)"
    elif kind.columns and definition.options.merge_engine != "partial_update":
        what = "name some columns only: null would not differ from a column that is not named"
    if what is not None:
        raise InvalidRequest(
            f'table {definition.name} has changelog="input", which records what is written, and so refuses writes '
            f"that {what}; write complete rows",
            table=definition.name,
        )


def _prepare_inputs(rows: pa.RecordBatch, merger: Merger, kind: WriteKind, numbers: Kinds) -> list[PreparedRows]:
    """Like `prepare_upsert`, for rows with change types that the changelog records even if they have no effect."""
    definition, columns = merger.definition, _columns_of(kind, merger.codec)
    effective, kinds = _effects(numbers, definition, overwrite=False)
    if (kinds[effective] == RETRACT).any():
        merger.engines.check_retract(columns)
    parts = []
    for part in group_by_key(rows, merger.codec, columns, numbers, overwrite=False):
        inputs = part.written
        assert inputs is not None
        assert inputs.kinds is not None
        effective, kinds = _effects(inputs.kinds, definition, overwrite=False)
        written = replace(inputs.where(effective), kinds=kinds[effective])
        parts.append(replace(part, written=written, inputs=inputs))
    return parts


def prepare_delete(
    rows: pa.RecordBatch, codec: TableCodec, kind: WriteKind, *, are_dropped: bool = False
) -> Sequence[BucketRows]:
    """Checks and encodes the keys of rows to delete, and splits them by bucket, ascending.

    If the request names columns, only these columns of the rows are deleted: they become null.

    Args:
        rows: The keys.
        codec: The table.
        kind: How the rows are deleted.
        are_dropped: Whether columns that the request names were dropped since, so that key columns may be left alone.

    Raises:
        InvalidRequest: The table refuses deletes, or the request names columns of the key only.
        SchemaMismatch: A column does not exist, or is NOT NULL.
        InvalidKey: As `prepare`.
    """
    definition = codec.definition
    deletes = "allow" if kind.overwrite else definition.options.deletes
    if deletes in ("disable", "retract"):
        raise _no_deletes(definition)
    columns = tuple(name for name in kind.columns if name not in codec.keys.names)
    if kind.columns:
        if not columns and not are_dropped:
            raise InvalidRequest("only key columns are named: name other columns, or none to delete the rows")
        if definition.options.changelog == "input":
            raise InvalidRequest(
                f'table {definition.name} has changelog="input", which cannot record deletes of some columns: delete '
                "rows, or write complete rows",
                table=definition.name,
            )
        request_schema(definition, 0, WriteKind(columns=(*codec.keys.names, *columns), overwrite=True))
    if deletes == "ignore":
        prepare(rows, codec, keys_only=True)
        return []
    if not kind.columns:
        return read_few(rows, codec, deletes=True) or prepare(rows, codec, keys_only=True)
    kinds = np.full(rows.num_rows, DELETE)
    return group_by_key(rows, codec, columns, kinds, overwrite=kind.overwrite)


def _no_deletes(definition: TableDefinition, row: int | None = None) -> InvalidRequest:
    where = "" if row is None else f"row {row}: "
    hint = (
        'to retract rows, write them with "-D" in _change_type'
        if definition.options.deletes == "retract"
        else 'its delete_behavior is "disable"'
    )
    return InvalidRequest(f"{where}table {definition.name} deletes no rows: {hint}", table=definition.name, row=row)


def _numbers_of(change_types: pa.Array) -> Kinds:
    """Returns the place of each change type among `CHANGE_SYMBOLS`. Raises InvalidRequest for an unknown one."""
    codes = pc.index_in(change_types, pa.array(CHANGE_SYMBOLS))
    if codes.null_count:
        row = pc.index(codes.is_null(), True).as_py()
        raise InvalidRequest(f"row {row}: {CHANGE_TYPE} must be +I, +U, -U or -D", column=CHANGE_TYPE, row=row)
    numbers: Kinds = codes.to_numpy().astype(np.uint8)
    return numbers


def _effects(numbers: Kinds, definition: TableDefinition, *, overwrite: bool) -> tuple[Mask, Kinds]:
    """Returns which rows have an effect in this table, by their row kinds, and what each of them does."""
    before, deleted = numbers == RowKind.UPDATE_BEFORE, numbers == RowKind.DELETE
    engine, deletes = definition.options.merge_engine, definition.options.deletes
    if not overwrite and (engine == "aggregate" or deletes == "retract"):
        return np.ones(len(numbers), np.bool_), np.where(before | deleted, RETRACT, ADD)
    if not overwrite and deletes == "disable" and deleted.any():
        raise _no_deletes(definition, int(np.argmax(deleted)))
    # The row before an update has no effect, because the row after the update replaces it.
    is_effective: Mask = ~before
    if not overwrite and deletes == "ignore":
        is_effective &= ~deleted
    return is_effective, np.where(deleted, DELETE, ADD)


def _select_effective(
    rows: pa.RecordBatch, numbers: Kinds, definition: TableDefinition, *, overwrite: bool
) -> tuple[pa.RecordBatch, Kinds | None]:
    """Returns the rows that have an effect in this table, and what each row does. None: all are added."""
    is_effective, kinds = _effects(numbers, definition, overwrite=overwrite)
    if is_effective.all():
        return rows, kinds if kinds.any() else None
    kinds = kinds[is_effective]
    return rows.filter(pa.array(is_effective)), kinds if kinds.any() else None


def group_by_key(
    rows: pa.RecordBatch,
    codec: TableCodec,
    columns: tuple[str, ...] | None,
    kinds: Kinds | None,
    *,
    overwrite: bool,
    known: EncodedKeys | None = None,
) -> list[PreparedRows]:
    """Groups rows that have to be merged by bucket and key, in the order of arrival within a key.

    Args:
        rows: The rows.
        codec: The table.
        columns: The written columns, without the key. None: all.
        kinds: What each row does. None: all are added.
        overwrite: Whether the rows replace the current ones.
        known: As for `prepare`.

    Returns:
        The rows of each bucket, ascending. The keys of a bucket ascend as well.

    Raises:
        InvalidKey: A key is null or too long.
    """
    if not rows.num_rows:
        return []
    if known is None:
        rows = codec.keys.canonicalize(rows)
        known = codec.keys.encode(rows)
    encoded, buckets = known
    dictionary = encoded.dictionary_encode()
    key_of_row = dictionary.indices.to_numpy()
    count = len(dictionary.dictionary)
    bucket_of_key = np.empty(count, buckets.dtype)
    bucket_of_key[key_of_row] = buckets
    # The keys of a bucket are sorted, because RocksDB reads and writes them faster in key order.
    by_key = stable_order(dictionary.dictionary).to_numpy()
    by_bucket = by_key[np.argsort(bucket_of_key[by_key], kind="stable")]
    number = np.empty(count, np.int64)
    number[by_bucket] = np.arange(count)
    order = np.argsort(number[key_of_row], kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(number[key_of_row], minlength=count))))
    if (order[1:] > order[:-1]).all():
        sorted_rows, sorted_kinds = rows, kinds
    else:
        sorted_rows, sorted_kinds = rows.take(pa.array(order)), None if kinds is None else kinds[order]
    written = WrittenRows(sorted_rows, starts, sorted_kinds, columns, overwrite)
    unique_keys = dictionary.dictionary.take(pa.array(by_bucket))
    key_rows = sorted_rows.select(codec.keys.names).take(pa.array(starts[:-1]))
    numbers, firsts = np.unique(bucket_of_key[by_bucket], return_index=True)
    parts = []
    for bucket, first, end in zip(numbers.tolist(), firsts.tolist(), [*firsts.tolist()[1:], count], strict=True):
        size = end - first
        parts.append(
            PreparedRows(
                bucket,
                codec.rows,
                key_rows.slice(first, size),
                unique_keys.slice(first, size),
                None,
                written.slice(first, size),
            )
        )
    return parts
