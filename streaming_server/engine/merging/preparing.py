"""Turning a request's rows into those that an engine merges: which of them count, key by key, split by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import InvalidRequest
from scankv.model.tables.merge_spec import NO_MERGING, partial_schema
from scankv.model.tables.schema import CHANGE_TYPE
from streaming_server.arrays.sorted_merge import stable_order
from streaming_server.engine.bucket.request_rows import widen
from streaming_server.engine.merging.prepared_rows import PreparedRows, prepare
from streaming_server.engine.merging.rows import ADD, DELETE, RETRACT, WrittenRows

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.functions.function import Mask
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.engine.merging.rows import Kinds
    from streaming_server.storage.rows.table_codec import TableCodec

CHANGE_TYPE_FIELD: Final = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
"""The column that a request's rows may have beside those of the table."""

_SYMBOLS: Final = ("+I", "+U", "-U", "-D")
_BEFORE, _DELETED = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteKind:
    """What a request does with its rows beside what the table's engine says.

    Attributes:
        columns: The columns that it names. Empty: all.
        overwrite: Whether its rows replace what stands, whatever the engine.
    """

    columns: tuple[str, ...] = ()
    overwrite: bool = False


MERGE: Final = WriteKind()
"""Whole rows, merged."""


def request_schema(definition: TableDefinition, schema_id: int, kind: WriteKind) -> pa.Schema:
    """The columns of a request's rows, without their change type.

    Raises:
        SchemaMismatch, InvalidRequest: It names columns that cannot be written alone.
    """
    schema = definition.schema_at(schema_id).arrow if schema_id else definition.schema.arrow
    if not kind.columns:
        return schema
    engine, merging = definition.options.merge_engine, definition.merging
    if kind.overwrite:
        engine, merging = "last_row", NO_MERGING
    return partial_schema(schema, definition.primary_key, engine, merging, kind.columns)


def prepare_upsert(
    rows: pa.RecordBatch,
    merger: Merger,
    kind: WriteKind,
    change_types: pa.Array | None = None,
) -> list[PreparedRows]:
    """Checks rows, and splits them by bucket, ascending, with what it takes to merge them.

    Args:
        rows: Rows of the columns that the request is about.
        merger: The table.
        kind: What the request does with its rows.
        change_types: What each row is, as texts. None: all are inserted.

    Raises:
        InvalidRequest: A change type is none, or is refused by the table.
        InvalidKey, RequestTooLarge: As `prepare`.
    """
    kinds = None
    if change_types is not None and len(change_types):
        rows, kinds = _counted(rows, change_types, merger.definition, overwrite=kind.overwrite)
    codec, definition = merger.codec, merger.definition
    plain = kind.overwrite or (definition.options.merge_engine == "last_row" and not definition.merging.order_columns)
    if plain and not kind.columns and kinds is None and not codec.rows.hidden:
        return prepare(widen(rows, codec.schema), codec, keys_only=False)
    columns = tuple(name for name in kind.columns if name not in codec.keys.names) if kind.columns else None
    if kinds is not None and (kinds == RETRACT).any():
        merger.engines.check_retract(columns)
    return grouped(rows, codec, columns, kinds, overwrite=kind.overwrite)


def prepare_delete(rows: pa.RecordBatch, codec: TableCodec, kind: WriteKind) -> list[PreparedRows]:
    """The same of keys whose rows, or columns of them, are deleted.

    Raises:
        InvalidRequest: The table refuses deletes; or all columns that are named are of the key.
        SchemaMismatch: A column does not exist, or takes no null.
        InvalidKey: As `prepare`.
    """
    definition = codec.definition
    deletes = "allow" if kind.overwrite else definition.options.deletes
    if deletes in ("disable", "retract"):
        raise _no_deletes(definition)
    columns = tuple(name for name in kind.columns if name not in codec.keys.names)
    if kind.columns:
        if not columns:
            raise InvalidRequest("only columns of the key are named: name others, or none to delete the rows")
        request_schema(definition, 0, WriteKind(columns=(*codec.keys.names, *columns), overwrite=True))
    if deletes == "ignore":
        prepare(rows, codec, keys_only=True)
        return []
    if not columns:
        return prepare(rows, codec, keys_only=True)
    kinds = np.full(rows.num_rows, DELETE)
    return grouped(rows, codec, columns, kinds, overwrite=kind.overwrite)


def _no_deletes(definition: TableDefinition, row: int | None = None) -> InvalidRequest:
    where = "" if row is None else f"row {row}: "
    hint = (
        'it takes rows back that come with "-D" in _change_type'
        if definition.options.deletes == "retract"
        else 'its delete_behavior is "disable"'
    )
    return InvalidRequest(f"{where}table {definition.name} deletes no rows: {hint}", table=definition.name, row=row)


def _counted(
    rows: pa.RecordBatch, change_types: pa.Array, definition: TableDefinition, *, overwrite: bool
) -> tuple[pa.RecordBatch, Kinds | None]:
    """The rows that count in this table, and what each does; None: all are added."""
    codes = pc.index_in(change_types, pa.array(_SYMBOLS))
    if codes.null_count:
        row = pc.index(codes.is_null(), True).as_py()
        raise InvalidRequest(f"row {row}: {CHANGE_TYPE} is +I, +U, -U or -D", column=CHANGE_TYPE, row=row)
    numbers = codes.to_numpy()
    if not (numbers >= _BEFORE).any():
        return rows, None
    engine, deletes = definition.options.merge_engine, definition.options.deletes
    if not overwrite and (engine == "aggregate" or deletes == "retract"):
        return rows, np.where(numbers >= _BEFORE, RETRACT, ADD)
    if not overwrite and deletes == "disable" and (numbers == _DELETED).any():
        raise _no_deletes(definition, int(np.argmax(numbers == _DELETED)))
    # The row before an update says nothing that the one after it does not.
    counts: Mask = numbers != _BEFORE
    if not overwrite and deletes == "ignore":
        counts &= numbers != _DELETED
    kinds = np.where(numbers[counts] == _DELETED, DELETE, ADD)
    return rows.filter(pa.array(counts)), kinds if kinds.any() else None


def grouped(
    rows: pa.RecordBatch,
    codec: TableCodec,
    columns: tuple[str, ...] | None,
    kinds: Kinds | None,
    *,
    overwrite: bool,
) -> list[PreparedRows]:
    """Splits rows by bucket and key, in the order in which they came. Raises InvalidKey."""
    if not rows.num_rows:
        return []
    rows = codec.keys.canonical(rows)
    encoded, buckets = codec.keys.encode(rows)
    dictionary = encoded.dictionary_encode()
    key_of_row = dictionary.indices.to_numpy()
    count = len(dictionary.dictionary)
    bucket_of_key = np.empty(count, buckets.dtype)
    bucket_of_key[key_of_row] = buckets
    # Keys by bucket, and those of one bucket in their order, in which RocksDB reads and writes them faster.
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
    for bucket, first, behind in zip(numbers.tolist(), firsts.tolist(), [*firsts.tolist()[1:], count], strict=True):
        size = behind - first
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
