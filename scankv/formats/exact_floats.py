"""Finds numbers in text that a float would silently change to another number, not only round.

Floats round fractions such as 0.1, which is expected. But from a limit on, the gaps between floats are larger than 1,
and every digit of a number with 16 digits may matter: the number may be an id. So a number at or beyond the limit must
equal a float, either in all digits of the float or in the fewest digits that distinguish it from other floats, as
JavaScript writes it. Scientific notation, which programs use for floats, is rounded like fractions.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

_LIMITS: Final = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}
"""For each float type, the limit up to which it has all integers."""

_OF_TYPE: Final[dict[pa.DataType, Callable[[float], np.floating]]] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_INFINITY: Final = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_SCIENTIFIC: Final = re.compile(r"[+-]?[0-9](\.[0-9]*)?[eE][+-]?[0-9]+")
_MANY_DIGITS: Final = re.compile(rb"(?<![0-9.])[0-9]{2}[0-9.]{14,}")
"""Matches the start of every number that float64 would change: none is below 10 or in scientific notation."""

_SURELY_KEPT: Final = {
    type_: rf"^[+-]?(?:[0-9](?:\.[0-9]*)?[eE][+-]?[0-9]+|(?:[0-9]\.?){{1,{digits}}}0*)$"
    for type_, digits in ((pa.float16(), 3), (pa.float32(), 6), (pa.float64(), 15))
}
"""For each float type, a pattern of numbers that it rounds at most: in scientific notation, or with so few digits that
no other number with as few becomes the same float."""

_INTEGER: Final = r"^\s*[+-]?[0-9]+\s*$"
_MOST_DIGITS: Final = 38
_LONGEST_SHOWN: Final = 40
_LONGEST_INTEGER: Final = 1e21

FieldPath = tuple[str, ...]
"""The names of the fields around a number; `[]` stands for a list."""


class InexactNumberError(ValueError):
    """A float would change a number. The message continues a sentence that begins with the number, `shown`."""

    def __init__(self, text: str, type_: pa.DataType) -> None:
        self.shown: str = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
        self._number = text, type_
        rounded = float(_rounded(text, type_))
        changed = int(rounded) if abs(rounded) < _LONGEST_INTEGER else rounded
        is_beyond = math.isinf(rounded)
        what = "is beyond the range of" if is_beyond else f"would become {changed} as"
        super().__init__(f"{what} {format_type(type_)}: use a column type that holds it, such as {_exact_type(text)}")

    def within(self) -> InexactNumberError:
        """Returns the error for a sentence that begins with a text that contains the number."""
        error = InexactNumberError(*self._number)
        error.args = (f"has {self.shown}, which {self}",)
        return error


class _Number(str):
    """The text of a number in JSON."""

    __slots__ = ()


def check_texts(texts: pa.StringArray, values: pa.Array) -> None:
    """Checks that floats are the numbers that they were parsed from.

    Args:
        texts: The numbers.
        values: The floats.

    Raises:
        InexactNumberError: A float is another number.
    """
    if not may_have_changed(values):
        return
    sizes = pc.abs(values.cast(pa.float64()))
    is_rounded = pc.and_(pc.match_substring_regex(texts, _SURELY_KEPT[values.type]), pc.is_finite(sizes))
    large = pc.greater_equal(sizes, _LIMITS[values.type])
    # A loop, but only over numbers beyond the limit that have many digits.
    for text in texts.filter(pc.and_not(large, is_rounded)).unique().to_pylist():
        if _is_changed(text, values.type):
            raise InexactNumberError(text, values.type)


def may_have_changed(column: pa.Array) -> bool:
    """Returns whether a column has a float, at any depth, that may have been another number in text."""
    return any(largest >= _LIMITS[type_] for type_, largest in _largest_floats(column))


def has_large_float(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns which rows of a column have a float, at any depth, that may have been another number in text."""
    type_ = column.type
    found = np.zeros(len(column), np.bool_)
    if pat.is_floating(type_):
        large = pc.greater_equal(pc.abs(column.cast(pa.float64())), _LIMITS[type_])
        found |= pc.fill_null(large, False).to_numpy(zero_copy_only=False)
    elif pat.is_map(type_):
        entry = pa.struct([pa.field("key", type_.key_type, nullable=False), pa.field("value", type_.item_type)])
        found = has_large_float(column.cast(pa.list_(entry)))
    elif pat.is_struct(type_):
        for each in column.flatten():
            found |= has_large_float(each)
    elif pat.is_nested(type_):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(column)), lengths)
        found[rows[has_large_float(column.flatten())]] = True
    return found


def has_infinity(column: pa.Array) -> bool:
    """Returns whether a column has a float, at any depth, that is infinite."""
    return any(math.isinf(largest) for _, largest in _largest_floats(column))


def _largest_floats(column: pa.Array) -> Iterator[tuple[pa.DataType, float]]:
    """Yields the type and the largest absolute value of the floats in a column, at any depth."""
    type_ = column.type
    if pat.is_floating(type_):
        largest = pc.max(pc.abs(column.cast(pa.float64()))).as_py()
        yield type_, largest or 0.0
    elif pat.is_map(type_):
        yield from _largest_floats(column.keys)
        yield from _largest_floats(column.items)
    elif pat.is_struct(type_):
        for each in column.flatten():
            yield from _largest_floats(each)
    elif pat.is_nested(type_):
        yield from _largest_floats(column.flatten())


def check_json(line: bytes, schema: pa.Schema) -> None:
    """Checks that the floats of a schema would not change the numbers of a JSON object.

    Raises:
        InexactNumberError: A float would be another number.
        ValueError: The line is not JSON.
    """
    values = _parse(line)
    for field in schema:
        if field.name in values:
            _check(values[field.name], field.type)


def has_many_digits(text: bytes) -> bool:
    """Returns whether JSON may have a number that float64 would change."""
    return _MANY_DIGITS.search(text) is not None


def has_large_integer(texts: pa.StringArray, values: pa.Array) -> bool:
    """Returns whether a text is an integer beyond the limit of float64, which should not become float64.

    Args:
        texts: Numbers.
        values: The same numbers as int64 or float64.
    """
    floats = values.cast(pa.float64(), safe=False)
    if not may_have_changed(floats):
        return False
    large = pc.greater_equal(pc.abs(floats), _LIMITS[pa.float64()])
    return bool(pc.any(pc.match_substring_regex(texts.filter(large), _INTEGER)).as_py())


def large_numbers(line: bytes) -> Iterator[tuple[FieldPath, str]]:
    """Yields the integers of a JSON object beyond the limit of float64, and other numbers that float64 would change.

    Raises:
        ValueError: The line is not JSON.
    """
    for path, text in _numbers(_parse(line), ()):
        is_large = re.match(_INTEGER, text) and abs(float(text)) >= _LIMITS[pa.float64()]
        if is_large or _is_changed(text, pa.float64()):
            yield path, text


def large_paths(column: pa.Array, path: FieldPath) -> Iterator[FieldPath]:
    """Yields the paths of the numbers in a column from JSON that may be among those of `large_numbers`."""
    type_ = column.type
    if pat.is_struct(type_):
        for field, child in zip(type_.fields, column.flatten(), strict=True):
            yield from large_paths(child, (*path, field.name))
    elif pat.is_list(type_):
        yield from large_paths(column.flatten(), (*path, "[]"))
    elif pat.is_floating(type_) and may_have_changed(column):
        yield path
    elif pat.is_integer(type_):
        limits = pc.min_max(column)
        if any(abs(each.as_py() or 0) >= _LIMITS[pa.float64()] for each in limits.values()):
            yield path


def _parse(line: bytes) -> dict[str, object]:
    try:
        values = json.loads(line, parse_int=_Number, parse_float=_Number, strict=False)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("the line is not an object")
    return values


def _check(value: object, type_: pa.DataType) -> None:
    if isinstance(value, _Number):
        if pat.is_floating(type_) and _is_changed(value, type_):
            raise InexactNumberError(value, type_)
    elif isinstance(value, list) and (pat.is_map(type_) or pat.is_list(type_)):
        items = pa.struct([("key", type_.key_type), ("value", type_.item_type)]) if pat.is_map(type_) else None
        for item in value:
            _check(item, type_.value_type if items is None else items)
    elif isinstance(value, dict) and pat.is_struct(type_):
        for field in type_.fields:
            _check(value.get(field.name), field.type)


def _numbers(value: object, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    if isinstance(value, _Number):
        yield path, value
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, (*path, "[]"))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, (*path, name))


def _is_changed(text: str, type_: pa.DataType) -> bool:
    """Returns whether a float would be another number than a text."""
    text = text.strip()
    rounded = _rounded(text, type_)
    if math.isinf(rounded):
        return _INFINITY.fullmatch(text) is None
    if abs(rounded) < _LIMITS[type_] or _SCIENTIFIC.fullmatch(text):
        return False
    return Decimal(text) not in (Decimal(float(rounded)), Decimal(str(rounded)))


def _rounded(text: str, type_: pa.DataType) -> np.floating:
    with np.errstate(over="ignore"):
        return _OF_TYPE[type_](float(text))


def _exact_type(text: str) -> str:
    """Returns a type that holds a number exactly."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # Its exponent has 19 digits or more.
        return format_type(pa.string())
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or len(digits) + max(exponent, 0) > _MOST_DIGITS:
        return format_type(pa.string())
    if number == number.to_integral_value() and -(2**63) <= number < 2**63:
        return format_type(pa.int64())
    return format_type(pa.decimal128(_MOST_DIGITS, max(-exponent, 0)))
