"""Converts values to text and back, in one form for CSV fields, command-line arguments and cells of printed tables.

Scalars have the form of `scalar_text`. Lists, structs and maps are JSON.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.bounds import BeyondBoundsError
from scankv.formats.exact_floats import InexactNumberError
from scankv.formats.json_text import from_json, to_json
from scankv.formats.scalar_text import scalars_from_text, scalars_to_text
from scankv.model import lazy_compute as pc
from scankv.model.types.types import format_type


def to_text(column: pa.Array) -> pa.StringArray:
    """Returns the text of every value; a null stays null."""
    if pat.is_nested(column.type):
        return pc.if_else(column.is_valid(), to_json(column), None)
    return scalars_to_text(column)


def from_text(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Returns the values of texts; a null stays null.

    White space around a value is ignored, except in strings.

    Raises:
        ValueError: A text is not a value of the type, or the type cannot hold it exactly; a float may be rounded.
        InexactNumberError: A number is too large for its float type, or has many digits of which the float loses some.
    """
    if pat.is_nested(type_):
        return from_json(texts, type_)
    return scalars_from_text(texts, type_)


def not_a_value(error: ValueError, type_: pa.DataType) -> str:
    """Returns what is wrong with a text for which `from_text` raised an error, to follow the text in a message."""
    return str(error) if isinstance(error, BeyondBoundsError | InexactNumberError) else f"is not {format_type(type_)}"
