"""Converts keys, in the forms that callers may use, to a batch of the key columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from aio_client._input.data import rows_of
from aio_client._input.frames import is_frame_of
from aio_client._input.python_values import NotAValueError, column_of
from scankv.model import lazy_compute as pc
from scankv.model.errors import InvalidKey, SchemaMismatch, did_you_mean
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.types.conform import conform


def keys_of(keys: object, schema: pa.Schema) -> pa.RecordBatch:
    """Converts keys to the key columns.

    Args:
        keys: One key (a scalar if the key has one column, a tuple in key order, or a dictionary of all key columns), an
            iterable of keys, an Arrow or NumPy array if the key has one column, or rows with the key columns in Arrow,
            pandas or Polars, whose other columns are ignored.
        schema: The key columns in key order.

    Returns:
        A batch of the given schema with one row per key, in the order given.

    Raises:
        InvalidKey: A key is incomplete, or a value is null or not of its column's type; the message names column and
            row.
    """
    if isinstance(keys, pa.Array | pa.ChunkedArray | np.ndarray):
        return _from_array(keys, schema)
    if _holds_rows(keys):
        return _from_rows(keys, schema)
    if is_one_key(keys):
        return _from_values([keys], schema)
    assert isinstance(keys, Iterable)
    return _from_values(list(keys), schema)


def is_one_key(keys: object) -> bool:
    """Returns whether the argument is one key, rather than several."""
    if isinstance(keys, str | bytes | bytearray | memoryview | tuple | Mapping):
        return True
    return not isinstance(keys, Iterable) and not _holds_rows(keys)


def check_key_sizes(rows: pa.RecordBatch, key_schema: pa.Schema, first_row: int = 0) -> None:
    """Raises InvalidKey for a key over 16 KiB when encoded.

    The server checks each request, but this check refuses a bad key before the first of several requests is sent.
    """
    columns = [rows.column(name) for name in key_schema.names]
    variable = [column for column in columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    if not variable:
        return
    lengths = sum(pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64) for column in variable)
    # Escaping at most doubles a key, and columns of fixed width are small, so only long values can exceed the limit.
    codec = KeyCodec(key_schema.types, key_schema.names)
    for row in np.flatnonzero(lengths > MAX_KEY_BYTES // 4):
        try:
            codec.encode([column.slice(row, 1) for column in columns])
        except InvalidKey as error:
            message = error.message.removeprefix("row 0: ")
            raise InvalidKey(f"row {first_row + row}: {message}", row=first_row + row) from error


def _holds_rows(keys: object) -> bool:
    if isinstance(keys, pa.RecordBatch | pa.Table | pa.RecordBatchReader):
        return True
    if is_frame_of("pandas", keys) or is_frame_of("polars", keys):
        return True
    # A Series of either library also has the Arrow interface, but is iterated for its values.
    return hasattr(keys, "__arrow_c_stream__") and type(keys).__name__ != "Series"


def _from_rows(keys: object, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batches = list(rows_of(keys).batches(schema))
    except SchemaMismatch as error:
        raise _invalid(f"keys: {error.message}", error) from error
    return pa.concat_batches(batches) if batches else _none(schema)


def _from_array(keys: Any, schema: pa.Schema) -> pa.RecordBatch:  # noqa: ANN401  # an array of one of three libraries
    if len(schema) != 1:
        raise InvalidKey(f"an array has keys of one column; this table's key is {_key_text(schema)}")
    chunked = keys if isinstance(keys, pa.ChunkedArray) else pa.chunked_array([pa.array(keys)])
    return _from_rows(pa.Table.from_arrays([chunked], names=schema.names), schema)


def _from_values(keys: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    if not keys:
        return _none(schema)
    rows = [_values_of(key, schema, row) for row, key in enumerate(keys)]
    columns = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        try:
            columns.append(column_of(values, field.type))
        except NotAValueError as error:
            raise InvalidKey(
                f'key column "{field.name}", row {error.row}: {error.reason}', column=field.name, row=error.row
            ) from error
    try:
        return conform(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)
    except SchemaMismatch as error:
        raise _invalid(f"key {error.message}", error) from error


def _values_of(key: object, schema: pa.Schema, row: int) -> tuple[object, ...]:
    """Returns the values of one key in key order."""
    if isinstance(key, Mapping):
        for name in key:
            if name not in schema.names:
                raise InvalidKey(
                    f'key {row}: "{name}" is not a key column{did_you_mean(str(name), schema.names)}',
                    column=name,
                    row=row,
                )
        for name in schema.names:
            if name not in key:
                raise InvalidKey(f'key {row}: key column "{name}" is missing', column=name, row=row)
        return tuple(key[name] for name in schema.names)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(schema):
        hint = "; several keys go into a list" if len(schema) == 1 else "; write it as a tuple or a dictionary"
        raise InvalidKey(
            f"key {row} has {len(values)} values, but this table's key is {_key_text(schema)}{hint}", row=row
        )
    return values


def _invalid(message: str, error: SchemaMismatch) -> InvalidKey:
    return InvalidKey(message, column=error.details.get("column"), row=error.details.get("row"))


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _key_text(schema: pa.Schema) -> str:
    return "(" + ", ".join(schema.names) + ")"
