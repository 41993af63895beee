"""Aggregate functions on Python values, for few rows: the same results as `MergeFunction`, one key at a time.

A result that does not fit its column is noticed when its row is encoded. Then the columns decide, and name the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.rows.row_values import NotExactError, stored_form
from streaming_server.engine.functions.arithmetic import Product, Sum
from streaming_server.engine.functions.counting import Average, Count
from streaming_server.engine.functions.extremes import Extreme
from streaming_server.engine.functions.picking import First, FirstNotNull, Last

if TYPE_CHECKING:
    from streaming_server.engine.functions.function import MergeFunction

Fold: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Merges the inputs of one key, in the order of arrival, into the values of a column and its hidden columns. None is
null. Returns the new values of the same columns. Raises NotExactError where only columns give the result."""

_EXACT: Final = Context(prec=100)
_MOST_INPUTS: Final = 2**32 - 1
"""The most inputs of which `Average` computes an exact mean."""


def fold_of(function: MergeFunction, type_: pa.DataType) -> Fold | None:
    """Returns the fold of a function for a column of this type. None: only columns give its results."""
    # Narrow floats are rounded after each step, which Python's floats are not.
    is_narrow = pat.is_float16(type_) or pat.is_float32(type_)
    match function:
        case Sum():
            return None if is_narrow else lambda old, inputs: (_add(old[0], _not_null(inputs), type_),)
        case Count():
            return lambda old, inputs: ((old[0] or 0) + len(_not_null(inputs)),)
        case Average():
            return None if is_narrow else _average_fold(type_)
        case Extreme():
            return _extreme_fold(type_, max if function.greatest else min)
        case Product():
            return None if is_narrow or pat.is_decimal(type_) else _multiply
        case Last(skip_nulls=True):
            return lambda old, inputs: (next((value for value in reversed(inputs) if value is not None), old[0]),)
        case Last():
            return lambda _, inputs: (inputs[-1],)
        case FirstNotNull():
            return lambda old, inputs: (next((value for value in (old[0], *inputs) if value is not None), None),)
        case First():
            return lambda old, inputs: old if old[1] else (inputs[0], True)
    return None


def _not_null(inputs: Sequence[Any]) -> list[Any]:
    return [value for value in inputs if value is not None]


def _add(old: Any, inputs: Sequence[Any], type_: pa.DataType) -> Any:  # noqa: ANN401  # of the column's type
    if not inputs:
        return old
    if pat.is_integer(type_):
        return (old or 0) + sum(inputs)
    if pat.is_decimal(type_):
        total = inputs[0] if old is None else _EXACT.add(old, inputs[0])
        for value in inputs[1:]:
            total = _EXACT.add(total, value)
        return total
    # From -0.0, as for columns, because -0.0 + -0.0 is -0.0.
    total = -0.0 if old is None else old
    for value in inputs:
        total += value
    return total


def _multiply(old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    factors = _not_null(inputs)
    if not factors:
        return old
    product = 1 if old[0] is None else old[0]
    for factor in factors:
        product *= factor
    return (product,)


def _average_fold(type_: pa.DataType) -> Fold:
    if pat.is_floating(type_):
        return _average_floats
    scale = type_.scale if pat.is_decimal(type_) else 0

    def fold(old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        _, total, count = old
        values = _not_null(inputs)
        for value in values:
            total = Decimal(value) if total is None else _EXACT.add(total, Decimal(value))
        count = (count or 0) + len(values) if values else count
        if total is None or not count:
            return None, total, count
        mean = _round_mean(int(_EXACT.scaleb(total, scale)), count)
        return _EXACT.scaleb(Decimal(mean), -scale) if pat.is_decimal(type_) else mean, total, count

    return fold


def _average_floats(old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    _, total, count = old
    values = _not_null(inputs)
    total = _add(total, values, pa.float64())
    count = (count or 0) + len(values) if values else count
    return None if total is None or not count else total / count, total, count


def _round_mean(total: int, count: int) -> int:
    """Divides, and rounds ties to even."""
    if abs(count) > _MOST_INPUTS:
        raise NotExactError
    mean, rest = divmod(abs(total), abs(count))
    mean += 2 * rest > abs(count) or (2 * rest == abs(count) and mean % 2 == 1)
    return mean if (total < 0) == (count < 0) else -mean


def _extreme_fold(type_: pa.DataType, best: Callable[..., Any]) -> Fold:
    if pat.is_floating(type_):
        return partial(_extreme_float, best)
    # Times of one zone are compared by Python as clocks show them, which repeat an hour in autumn.
    key = stored_form(type_) if pat.is_timestamp(type_) else None

    def fold(old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        values = _not_null((*old, *inputs))
        return (best(values, key=key) if values else None,)

    return fold


def _extreme_float(best: Callable[..., Any], old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """Compares as `sort_codes`: NaN is above infinity, and -0.0 becomes 0.0."""
    values = [math.nan if value != value else value + 0.0 for value in _not_null((*old, *inputs))]
    return (best(values, key=lambda value: (value != value, value)) if values else None,)
