"""Reads keys that are given as text: one text for each key."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.formats.text import from_text, not_a_value
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def parse_keys(texts: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Returns the keys that the texts name, one per text.

    Args:
        texts: A key of one column as its text; a key of several columns as a line of CSV.
        schema: The key columns in key order.

    Raises:
        UsageError: A key has a wrong number of parts, or a part is not of its column's type.
    """
    keys = [_parts(text, schema.names) for text in texts]
    columns = [parse_values([key[index] for key in keys], field, from_text) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def parse_values(
    texts: list[str | None] | list[str], field: pa.Field, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """Returns the values of texts for one column. Raises UsageError if a text is not of the column's type."""
    try:
        return convert(pa.array(texts, pa.string()), field.type)
    except ValueError as error:
        shown = " or ".join(f'"{text}"' for text in texts)
        raise UsageError(f'column "{field.name}": {shown} {not_a_value(error, field.type)}') from error


def _parts(text: str, names: Sequence[str]) -> list[str]:
    try:
        parts = [text] if len(names) == 1 else next(csv.reader([text]))
    except (csv.Error, StopIteration):
        parts = []
    if len(parts) != len(names):
        raise UsageError(f'the key "{text}" must have {len(names)} parts, not {len(parts)}: {",".join(names)}')
    return parts
