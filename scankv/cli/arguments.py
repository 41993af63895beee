"""Keys and rows written as arguments, read by the types of their table."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.columns import check_no_others
from scankv.formats.csv_reader import values_of
from scankv.formats.jsonl_reader import JsonlBlock, Lines
from scankv.formats.text import from_text
from table_model.conform import conform
from table_model.errors import UsageError
from table_model.types import format_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def parse_keys(arguments: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The keys of some rows, one an argument.

    Args:
        arguments: A key of one column as it is; one of several as a line of CSV.
        schema: The key columns in key order.

    Raises:
        UsageError: A key has another number of parts than the table's key, or a part is not of its column's type.
    """
    keys = [_parts(argument, schema.names) for argument in arguments]
    columns = [_values([key[index] for key in keys], field, from_text) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def parse_rows(arguments: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """One row from `column=value` arguments, or a row from each JSON object; columns that are not given are null.

    Raises:
        UsageError: A column does not exist, or a value is not of its type.
        SchemaMismatch: A column that takes no null is not given.
    """
    if arguments[0].lstrip().startswith("{"):
        # No JSON string holds a raw line break.
        lines = "\n".join(argument.replace("\n", " ") for argument in arguments)
        block = JsonlBlock(Lines(lines.encode(), 1), schema)
        (good,) = good_rows(block, BadRows("the rows given", skip=False))
        return good.rows
    pairs = dict(_assignment(argument) for argument in arguments)
    check_no_others(list(pairs), schema)
    columns = [_values([pairs.get(field.name)], field, values_of) for field in schema]
    return conform(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


def _parts(argument: str, names: Sequence[str]) -> list[str]:
    parts = [argument] if len(names) == 1 else next(csv.reader([argument]))
    if len(parts) != len(names):
        raise UsageError(f'the key "{argument}" has {len(parts)} parts instead of {len(names)}: {",".join(names)}')
    return parts


def _assignment(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals:
        raise UsageError(f'"{argument}" is neither column=value nor a JSON object')
    return name.strip(), value


def _values(
    texts: list[str | None] | list[str], field: pa.Field, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    try:
        return convert(pa.array(texts, pa.string()), field.type)
    except ValueError as error:
        shown = " or ".join(f'"{text}"' for text in texts)
        raise UsageError(f'column "{field.name}": {shown} is not {format_type(field.type)}') from error
