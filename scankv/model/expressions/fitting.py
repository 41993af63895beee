"""Replaces comparisons with values that a column cannot have by equivalent ones with values that it can have.

SQL users compare without regard to the column's type: `count > 1.5`, `byte < 300`, `price > 1.005`, or a date with a
timestamp. The values of integers, decimals, dates and times are multiples of one step, so `count > 1.5` is `count > 1`.
A comparison that has the same result for all values becomes a comparison with the least value, which is unknown for
null as well. Planning, indexes and zone maps therefore see only values of the column's type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.expressions.literals import Literal, ValueList
from scankv.model.expressions.nodes import Comparison, Operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.expressions.nodes import FieldPath, IsIn, Predicate

_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_NANOSECONDS_A_DAY: Final = 86_400_000_000_000
_ABOVE: Final = (Operator.GREATER, Operator.GREATER_EQUAL)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The values that a column can have: the multiples of a step.

    Attributes:
        kind: What a value is. Values of one kind can be compared.
        step: The distance between neighboring values: a number, or nanoseconds.
        least: The least value, in steps.
        greatest: The greatest value, in steps.
    """

    kind: str
    step: Fraction
    least: int
    greatest: int


class _Multiple(NamedTuple):
    """Where a value is on the scale of a column.

    Attributes:
        step: The greatest multiple of the step that is not above the value.
        rest: Zero if the value is this multiple.
    """

    step: int
    rest: int


_NAN: Final = _Multiple(0, 1)


def fit_comparison(path: FieldPath, operator: Operator, value: Literal, type_: pa.DataType) -> Comparison | None:
    """Returns an equivalent of a comparison whose value the column cannot have.

    Args:
        path: The column.
        operator: The operator.
        value: The value, not null.
        type_: The type of the column.

    Returns:
        A comparison with a value of the column's type. None if values of these types cannot be compared.
    """
    steps = _steps_of(type_)
    multiples = None if steps is None else _multiples(value.as_array(), type_, steps)
    if steps is None or multiples is None:
        return None
    fitted, step = _nearest(operator, multiples[0], steps)
    return Comparison(path, fitted, Literal(_array([step], type_)[0]))


def fit_list(predicate: IsIn, type_: pa.DataType) -> Predicate | None:
    """Returns an equivalent of an `is_in` with values that the column cannot have, which are left out.

    Returns:
        The predicate with values of the column's type. None if values of these types cannot be compared.
    """
    steps, values = _steps_of(type_), predicate.values
    multiples = None if steps is None else _multiples(values.array.drop_null(), type_, steps)
    if steps is None or multiples is None:
        return None
    found: list[int | None] = [multiple.step for multiple in multiples if _is_value(multiple, steps)]
    if values.has_null:
        found.append(None)
    if not found:
        # An empty list would be false for null, too.
        return Comparison(predicate.path, Operator.LESS, Literal(_array([steps.least], type_)[0]))
    return replace(predicate, values=ValueList(_array(found, type_)))


def _steps_of(type_: pa.DataType) -> _Steps | None:
    """Returns the values of a type; None if they are not multiples of a step."""
    if pat.is_integer(type_):
        bits = type_.bit_width
        low, high = (0, 2**bits - 1) if pat.is_unsigned_integer(type_) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return _Steps("number", Fraction(1), low, high)
    if pat.is_decimal(type_):
        most = 10**type_.precision - 1
        return _Steps("number", Fraction(10) ** -type_.scale, -most, most)
    if pat.is_date32(type_):
        return _Steps("instant", Fraction(_NANOSECONDS_A_DAY), -(2**31), 2**31 - 1)
    if pat.is_timestamp(type_):
        kind = "instant" if type_.tz is None else "instant with time zone"
        return _Steps(kind, Fraction(_NANOSECONDS[type_.unit]), -(2**63), 2**63 - 1)
    if pat.is_time(type_):
        unit = _NANOSECONDS[type_.unit]
        return _Steps("time of day", Fraction(unit), 0, _NANOSECONDS_A_DAY // unit - 1)
    return None


def _multiples(values: pa.Array, type_: pa.DataType, steps: _Steps) -> list[_Multiple] | None:
    """Returns where values without null are on the scale of the column; None if they cannot be compared with it."""
    if pat.is_floating(values.type) and steps.kind == "number":
        return [_multiple_of_float(value, type_, steps) for value in values.to_pylist()]
    own = _steps_of(values.type)
    if own is None or own.kind != steps.kind:
        return None
    numerator, denominator = (own.step / steps.step).as_integer_ratio()
    return [_Multiple(*divmod(value * numerator, denominator)) for value in _in_steps(values)]


def _multiple_of_float(value: float, type_: pa.DataType, steps: _Steps) -> _Multiple:
    if math.isnan(value):
        return _NAN
    if math.isinf(value):
        return _Multiple(steps.greatest + 1 if value > 0 else steps.least - 1, 1)
    # Compared with a decimal, a float is the decimal of the same text: 0.1 is not 0.1000000000000000055.
    exact = Decimal(repr(value)) if pat.is_decimal(type_) else value
    above, below = exact.as_integer_ratio()
    return _Multiple(*divmod(above * steps.step.denominator, below * steps.step.numerator))


def _in_steps(values: pa.Array) -> list[int]:
    """Returns values as multiples of the step of their type."""
    if pat.is_decimal(values.type):
        return list(map(int, values.view(pa.decimal128(values.type.precision, 0)).to_pylist()))
    if pat.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    found: list[int] = values.to_pylist()
    return found


def _array(found: Sequence[int | None], type_: pa.DataType) -> pa.Array:
    """Returns the values of a type that are these multiples of its step."""
    if pat.is_decimal(type_):
        whole = pa.array([None if step is None else Decimal(step) for step in found], pa.decimal128(type_.precision, 0))
        return whole.view(type_)
    if pat.is_temporal(type_):
        return pa.array(found, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    return pa.array(found, type_)


def _is_value(multiple: _Multiple, steps: _Steps) -> bool:
    return not multiple.rest and steps.least <= multiple.step <= steps.greatest


def _nearest(operator: Operator, multiple: _Multiple, steps: _Steps) -> tuple[Operator, int]:
    """Returns an equivalent comparison with a value of the column, in steps."""
    if _is_value(multiple, steps):
        return operator, multiple.step
    always, never = (Operator.GREATER_EQUAL, steps.least), (Operator.LESS, steps.least)
    if operator is Operator.NOT_EQUAL:
        return always
    if operator is Operator.EQUAL or multiple is _NAN:
        return never
    if multiple.step < steps.least:
        return always if operator in _ABOVE else never
    if multiple.step >= steps.greatest:
        return never if operator in _ABOVE else always
    return (Operator.GREATER if operator in _ABOVE else Operator.LESS_EQUAL), multiple.step
