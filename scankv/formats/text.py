"""How a value reads as text: one form for CSV fields, arguments of the command line and cells of a table.

Scalars read as in `scalar_text`; list, struct and map are JSON.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.json_text import from_json, to_json
from scankv.formats.scalar_text import scalars_from_text, scalars_to_text
from scankv.model import lazy_compute as pc


def to_text(column: pa.Array) -> pa.StringArray:
    """The text of every value, null where the value is null."""
    if pat.is_nested(column.type):
        return pc.if_else(column.is_valid(), to_json(column), None)
    return scalars_to_text(column)


def from_text(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """The values of texts, null where there is no text.

    White space around a value is passed over, except in strings.

    Raises:
        ValueError: A text is not a value of the type, or one that the type cannot hold exactly.
    """
    if pat.is_nested(type_):
        return from_json(texts, type_)
    return scalars_from_text(texts, type_)
