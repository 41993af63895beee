"""Finds numbers that are too large for a float type. Every parser makes them infinite without a word.

The words for infinity, such as `inf` and `Infinity`, are values like any other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INFINITY: Final = r"^[+-]?(?i:inf|infinity)$"
_INFINITY_IN_JSON: Final = re.compile(rb"-?\bInf(?:inity)?\b")


class BeyondRangeError(ValueError):
    """A number is too large for its float type. The message continues a sentence that begins with the number."""


def check_float_range(texts: pa.StringArray, values: pa.Array) -> None:
    """Raises BeyondRangeError if a text is a finite number, but its value, of a float type, is infinite."""
    is_infinite = _is_infinite(values)
    if is_infinite is not None and not pc.all(pc.match_substring_regex(texts.filter(is_infinite), _INFINITY)).as_py():
        raise BeyondRangeError(f"is beyond the range of {format_type(values.type)}")


def has_infinity(columns: Iterable[pa.Array]) -> bool:
    """Returns whether a float, at any depth, is infinite."""
    return any(_is_infinite(leaf) is not None for column in columns for leaf in _float_leaves(column))


def without_infinity(lines: bytes) -> bytes:
    """Returns lines of JSON with `null` for the words for infinity. Texts in the lines may change as well."""
    return _INFINITY_IN_JSON.sub(b"null", lines)


def _float_leaves(column: pa.Array) -> Iterator[pa.Array]:
    if pat.is_floating(column.type):
        yield column
    elif pat.is_map(column.type):
        yield from _float_leaves(column.keys)
        yield from _float_leaves(column.items)
    elif pat.is_struct(column.type):
        for child in column.flatten():
            yield from _float_leaves(child)
    elif pat.is_nested(column.type):
        yield from _float_leaves(column.flatten())


def _is_infinite(values: pa.Array) -> pa.BooleanArray | None:
    """Returns which floats are infinite; None if none is."""
    wider = values.cast(pa.float32()) if pat.is_float16(values.type) else values
    is_infinite = pc.fill_null(pc.is_inf(wider), False)
    return is_infinite if pc.any(is_infinite, min_count=0).as_py() else None
