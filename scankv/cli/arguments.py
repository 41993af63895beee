"""Parses rows given as arguments, by the column types of their table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.columns import check_no_others
from scankv.formats.csv_reader import csv_values
from scankv.formats.jsonl_reader import JsonlBlock, Lines
from scankv.formats.key_text import parse_values
from scankv.model.errors import UsageError
from scankv.model.types.conform import conform

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    columns = [parse_values([pairs[field.name]], field, csv_values) for field in given]
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


def _assignment(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals:
        raise UsageError(f'"{argument}" is neither column=value nor a JSON object')
    return name.strip(), value
