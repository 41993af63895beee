"""Compares the columns of a file with those of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.formats.blocks import BadRowError
from scankv.model.errors import SchemaMismatch, did_you_mean
from scankv.model.types.conform import conform
from scankv.model.types.default_values import NO_DEFAULTS, with_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


def check_file_columns(
    names: Sequence[str], schema: pa.Schema, defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS
) -> None:
    """Checks, before any row is read, that a file has the columns of the table. It may lack columns with a default.

    Raises:
        SchemaMismatch: The file has a column that the table does not have, or lacks a column without a default.
    """
    check_no_others(names, schema)
    for name in schema.names:
        if name not in names and name not in defaults:
            raise SchemaMismatch(f'the file has no column "{name}"{did_you_mean(name, names)}', column=name)


def check_no_others(names: Sequence[str], schema: pa.Schema) -> None:
    """Checks that all names are columns of the table.

    Raises:
        SchemaMismatch: A name is not a column of the table.
    """
    known = set(schema.names)
    for name in names:
        if name not in known:
            raise SchemaMismatch(f'the table has no column "{name}"{did_you_mean(name, schema.names)}', column=name)


def conform_block(
    rows: pa.RecordBatch, schema: pa.Schema, defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS
) -> pa.RecordBatch:
    """Casts rows to a schema. Columns that the rows lack get their defaults.

    Raises:
        BadRowError: A row does not fit the schema.
    """
    try:
        return conform(with_defaults(rows, defaults), schema)
    except SchemaMismatch as error:
        raise bad_row(error) from error


def bad_row(error: SchemaMismatch) -> BadRowError:
    """Returns the error for a row that does not fit a schema."""
    # The caller names the row by its position in the file, so the row number within the block is removed.
    return BadRowError(error.message.replace(f", row {error.details.get('row')}:", ":", 1))
