"""Tables without a primary key, whose changelog is their storage: what they allow, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import InvalidOption, InvalidRequest, NoPrimaryKey, SchemaMismatch
from scankv.model.types.types import check_unique, is_key_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.tables.columns import Schema
    from scankv.model.tables.options import TableOptions

OFFSET_KEY: Final = pa.schema([pa.field("\0offset", pa.uint64(), nullable=False)])
"""What stands for the key in scans of a table without one: the log offset of a row, in eight bytes, big-endian.

No column can have this name."""

DEFAULTS: Final = {"log_retention_seconds": "0", "columnar_base": "off"}
"""The defaults that differ from those of other tables: a retention would delete rows, not only changes, and rows are
stored as Arrow record batches anyway."""

_ALLOWED: Final[dict[str, tuple[str | int, str]]] = {
    "merge_engine": ("last_row", "rows are never merged"),
    "delete_behavior": ("default", "rows are never deleted"),
    "changelog": ("full", "the changelog is where the rows are"),
    "columnar_base": ("off", "the rows are stored as Arrow record batches anyway"),
    "ttl_seconds": (0, "rows expire by log_retention_seconds"),
}
"""For each option that has one value only, this value, and why."""


def no_primary_key(table: str, consequence: str) -> NoPrimaryKey:
    """Returns the error for what needs a primary key.

    Args:
        table: The table, which has none.
        consequence: What follows, such as "rows cannot be deleted".
    """
    return NoPrimaryKey(f"table {table} has no primary key: {consequence}", table=table)


def require_key(table: str, primary_key: Sequence[str], consequence: str) -> None:
    """Raises NoPrimaryKey if a table has no key columns."""
    if not primary_key:
        raise no_primary_key(table, consequence)


def require_no_key(table: str, primary_key: Sequence[str]) -> None:
    """Raises InvalidRequest if a table, to which rows are to be appended, has key columns."""
    if primary_key:
        raise InvalidRequest(
            f"table {table} has the primary key ({', '.join(primary_key)}), so rows are not appended: use upsert",
            table=table,
        )


def with_defaults(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a new table without a key, with the defaults that differ from those of other tables."""
    return {**DEFAULTS, **options}


def check_options(options: TableOptions) -> None:
    """Raises InvalidOption if a table without a key cannot have these options."""
    for name, (allowed, why) in _ALLOWED.items():
        value = getattr(options, name)
        if value != allowed:
            raise InvalidOption(
                f'table option "{name}" must be "{allowed}" in a table without a primary key, not "{value}": {why}',
                option=name,
            )


def check_bucket_key(schema: Schema, bucket_key: Sequence[str]) -> tuple[str, ...]:
    """Checks the columns by which the rows of a table without a key are distributed. Empty: by turns.

    Raises:
        InvalidRequest: A column is named twice.
        SchemaMismatch: A column does not exist, or has a type that cannot be in a key.
    """
    check_unique(bucket_key, "is in the bucket key twice", InvalidRequest)
    for name in bucket_key:
        type_ = schema.column(name).type
        if not is_key_type(type_):
            raise SchemaMismatch(
                f'column "{name}": {type_} cannot be in the bucket key; use numbers, bool, string, binary, dates or '
                "times",
                column=name,
            )
    return tuple(bucket_key)
