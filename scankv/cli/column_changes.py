"""The changes of columns that `scankv alter` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv.cli.arguments import parse_rows
from scankv.cli.options import split_names
from scankv.model.errors import UsageError
from scankv.model.types.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Sequence


def column_changes(
    schema: pa.Schema,
    *,
    add: str | None,
    drop: str | None,
    rename: Sequence[str] | None,
    widen: str | None,
    default: Sequence[str] | None,
    comment: Sequence[str] | None,
    order: str | None,
) -> dict[str, Any]:
    """Returns the arguments of `alter_table` for changes of columns, without those that are not given.

    Args:
        schema: The present columns of the table.
        add: Columns to add, with their types.
        drop: Names of columns to drop.
        rename: `OLD=NEW` for each column to rename.
        widen: Columns with their new types.
        default: `COLUMN=VALUE` for each default.
        comment: `COLUMN=TEXT` for each comment.
        order: All columns in their new order.

    Raises:
        UsageError: An argument has no `=`, names a column twice, or has a value that is not of the column's type.
        SchemaMismatch: A type cannot be parsed.
    """
    added = None if add is None else parse_schema(add)
    names, types = _pairs(rename, "--rename", "OLD=NEW"), {} if widen is None else _types(parse_schema(widen))
    changes: dict[str, Any] = {
        "add_columns": added,
        "drop_columns": None if drop is None else split_names(drop),
        "rename_columns": names,
        "column_types": types,
        "column_comments": _pairs(comment, "--comment", "COLUMN=TEXT"),
        "column_order": None if order is None else split_names(order),
    }
    if default:
        fields = [pa.field(names.get(each.name, each.name), types.get(each.name, each.type)) for each in schema]
        row = parse_rows(default, pa.schema([*fields, *(added or ())]))
        changes["column_defaults"] = {name: row.column(name)[0] for name in row.schema.names}
    return {name: value for name, value in changes.items() if value}


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema}


def _pairs(arguments: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for argument in arguments or ():
        name, equals, value = argument.partition("=")
        if not equals:
            raise UsageError(f'{option} must be {form}, not "{argument}"')
        if name in pairs:
            raise UsageError(f'column "{name}" is given twice with {option}')
        pairs[name] = value
    return pairs
