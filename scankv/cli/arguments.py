"""Parses keys and rows given as arguments, by the column types of their table."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.columns import check_no_others
from scankv.formats.csv_reader import csv_values
from scankv.formats.jsonl_reader import JsonlBlock, Lines
from scankv.formats.text import from_text
from scankv.model.errors import UsageError
from scankv.model.types.conform import conform
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def parse_keys(arguments: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Returns the keys that the arguments name, one per argument.

    Args:
        arguments: A key of one column as its text; a key of several columns as a line of CSV.
        schema: The key columns in key order.

    Raises:
        UsageError: A key has a wrong number of parts, or a part is not of its column's type.
    """
    keys = [_parts(argument, schema.names) for argument in arguments]
    columns = [_values([key[index] for key in keys], field, from_text) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def parse_rows(arguments: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Returns one row from `column=value` arguments, or one row from each JSON object, with the given columns only.

    Raises:
        UsageError: A column does not exist or is given twice, a value is not of its type, or the JSON objects have
            different columns.
        SchemaMismatch: A null is given for a column that must not be null.
    """
    if arguments[0].lstrip().startswith("{"):
        # A JSON string never contains a raw line break, so replacing them changes no value.
        lines = "\n".join(argument.replace("\n", " ") for argument in arguments)
        block = JsonlBlock(Lines(lines.encode(), 1), _select_fields(_names_of_all(arguments, schema), schema))
        (good,) = good_rows(block, BadRows("the rows given", skip=False))
        return good.rows
    assignments = [_assignment(argument) for argument in arguments]
    pairs = dict(assignments)
    if len(pairs) < len(assignments):
        names = [name for name, _ in assignments]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f'column "{twice}" is given twice: the arguments are one row; write rows as JSON objects')
    given = _select_fields(list(pairs), schema)
    columns = [_values([pairs[field.name]], field, csv_values) for field in given]
    return conform(pa.RecordBatch.from_arrays(columns, names=given.names), given)


def _select_fields(names: Sequence[str], schema: pa.Schema) -> pa.Schema:
    check_no_others(names, schema)
    return pa.schema([field for field in schema if field.name in names])


def _names_of_all(objects: Sequence[str], schema: pa.Schema) -> list[str]:
    """Returns the columns of the JSON objects. All objects must have the same, because a write has one set of columns.

    Raises:
        UsageError: The objects have different columns.
    """
    try:
        names = [list(values) for values in map(json.loads, objects) if isinstance(values, dict)]
    except ValueError:
        names = []
    if len(names) < len(objects):
        # The JSON reader reports which argument is not an object.
        return list(schema.names)
    for each in names:
        if set(each) != set(names[0]):
            shown = " and ".join(f"({', '.join(columns)})" for columns in (names[0], each))
            raise UsageError(
                f"the rows have different columns, {shown}: give each row the same columns, with null for no value"
            )
    return names[0]


def _parts(argument: str, names: Sequence[str]) -> list[str]:
    parts = [argument] if len(names) == 1 else next(csv.reader([argument]))
    if len(parts) != len(names):
        raise UsageError(f'the key "{argument}" must have {len(names)} parts, not {len(parts)}: {",".join(names)}')
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
