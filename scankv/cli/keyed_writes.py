"""Rows that `put` and `delete` write by their keys, after they have read which of them exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from scankv.cli.defaults import defaults_of
from scankv.model.errors import PositionExpired, WriteConflict
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.tables.options import TableOptions
from scankv.model.types.default_values import repeat_default

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aio_client.sync import Table

T = TypeVar("T")

_TRIES: Final = 5


def put_rows(table: Table, rows: pa.RecordBatch) -> int:
    """Writes rows that all have the same columns. Columns that they lack stay as they are.

    In a new row, a column that is not given has its default, or is null. Merge engines that take only complete rows
    refuse changes of some columns of an existing row.

    Returns:
        The number of rows.

    Raises:
        WriteConflict: Others have changed the rows during each of several attempts.
        ScanKvError: As for `Table.upsert` and `Table.append`.
    """
    names, defaults = rows.schema.names, defaults_of(table)
    omitted = [name for name in table.schema.names if name not in names]
    if not table.primary_key:
        return table.append(_complete(rows, table)).rows
    if not omitted:
        return table.upsert(rows).rows
    # The server leaves columns that are not named as they are; in new rows they are null. It reports a missing key.
    if not any(name in defaults for name in omitted) or not set(table.primary_key).issubset(names):
        return table.upsert(rows, names).rows
    _retry(lambda: _put_as_read(table, rows))
    return int(rows.num_rows)


def delete_rows(table: Table, keys: pa.RecordBatch) -> tuple[int, list[int]]:
    """Deletes the rows with some keys.

    Returns:
        How many rows were deleted, and the positions of the keys that had no row.

    Raises:
        WriteConflict: Others have changed the rows during each of several attempts.
        ScanKvError: As for `Table.delete`.
    """

    def delete() -> tuple[int, list[int]]:
        read = table.lookup(keys, with_version=True)
        table.delete(keys, if_version=_version(table, read.log_offsets))
        existing = set(encoded_keys(read.rows, table.primary_key))
        missing = [place for place, key in enumerate(encoded_keys(keys, table.primary_key)) if key not in existing]
        ignores = TableOptions.from_strings(table.options).deletes == "ignore"
        return 0 if ignores else len(existing), missing

    return _retry(delete)


def encoded_keys(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[bytes]:
    """Returns the key of each row as the server stores it, where -0.0 is 0.0 and all NaNs are one.

    Raises:
        InvalidKey: A key is null or too long.
    """
    keys = (pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows).select(names)
    columns = [column.combine_chunks() for column in keys.columns]
    encoded: list[bytes] = KeyCodec(keys.schema.types, names).encode(columns).to_pylist()
    return encoded


def _retry(write: Callable[[], T]) -> T:
    for _ in range(_TRIES - 1):
        try:
            return write()
        except (WriteConflict, PositionExpired):
            continue
    return write()


def _version(table: Table, log_offsets: Mapping[int, int]) -> Mapping[int, int] | None:
    """Returns the precondition that rows are as they were read. None: no changelog exists to check it against."""
    return None if table.options.get("changelog") == "none" else log_offsets


def _put_as_read(table: Table, rows: pa.RecordBatch) -> None:
    """Reads which rows exist, and writes all rows. Raises WriteConflict if the rows have changed since the read.

    Existing rows are written first: if the merge engine takes only complete rows, it refuses them before any row is
    written.
    """
    read = table.lookup(rows.select(table.primary_key), with_version=True)
    version = _version(table, read.log_offsets)
    places = {key: place for place, key in enumerate(encoded_keys(read.rows, table.primary_key))}
    found = pa.array(map(places.get, encoded_keys(rows, table.primary_key)), pa.int64())
    existing, new = rows.filter(found.is_valid()), rows.filter(found.is_null())
    if existing.num_rows and _can_complete(table, rows.schema.names):
        table.upsert(_complete(existing, table, read.rows.take(found.drop_null())), if_version=version)
    elif existing.num_rows:
        table.upsert(existing, rows.schema.names, if_version=version)
    if new.num_rows:
        table.upsert(_complete(new, table), if_version=version)


def _can_complete(table: Table, names: Sequence[str]) -> bool:
    """Returns whether existing rows are to be written completely: the table takes no others, and replaces rows."""
    has_not_null = any(not field.nullable for field in table.schema if field.name not in table.primary_key)
    return table.merge_engine == "last_row" and has_not_null and set(table.sequence_column).issubset(names)


def _complete(rows: pa.RecordBatch, table: Table, current: pa.Table | None = None) -> pa.RecordBatch:
    """Returns rows with all columns of the table.

    Columns that are not given keep their values. In new rows they have their defaults, or are null.

    Args:
        rows: The rows.
        table: The table.
        current: The existing row for each of the rows. None: all rows are new.
    """
    given = set(rows.schema.names)
    for name, default in (_nulls(table.schema) | dict(defaults_of(table))).items():
        if name not in given:
            if current is None:
                values = repeat_default(default, rows.num_rows)
            else:
                values = current.column(name).combine_chunks()
            rows = rows.append_column(name, values)
    return rows


def _nulls(schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Returns a null for each column that may be null. The write reports other columns, which have to be given."""
    return {field.name: pa.scalar(None, field.type) for field in schema if field.nullable}
