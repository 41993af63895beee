"""Whether what a file holds are the columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.formats.blocks import BadRowError
from scankv.model.errors import SchemaMismatch, did_you_mean
from scankv.model.types.conform import conform

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def check_file_columns(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuses a file that has other columns than the table, before any row is read.

    Raises:
        SchemaMismatch: A column is unknown or missing.
    """
    check_no_others(names, schema)
    for name in schema.names:
        if name not in names:
            raise SchemaMismatch(f'the file has no column "{name}"{did_you_mean(name, names)}', column=name)


def check_no_others(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuses names that are not columns of the table.

    Raises:
        SchemaMismatch: A column is unknown.
    """
    for name in names:
        if name not in schema.names:
            raise SchemaMismatch(f'the table has no column "{name}"{did_you_mean(name, schema.names)}', column=name)


def conform_block(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Brings rows into a schema.

    Raises:
        BadRowError: A row does not fit.
    """
    try:
        return conform(rows, schema)
    except SchemaMismatch as error:
        # The caller tells the row by its place in the file.
        raise BadRowError(error.message.replace(f", row {error.details.get('row')}:", ":", 1)) from error
