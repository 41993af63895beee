"""Aggregators on Python values, for few rows: the same results as `MergeFunction`, one key at a time.

A result that does not fit its column is noticed when its row is encoded. Then the columns decide, and name the reason.
"""

from __future__ import annotations

import math
import struct
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
    match function:
        case Sum():
            add = _adder(type_)
            return lambda old, inputs: (add(old[0], _not_null(inputs)),)
        case Count():
            return lambda old, inputs: ((old[0] or 0) + len(_not_null(inputs)),)
        case Average():
            return _average_fold(type_)
        case Extreme():
            return _extreme_fold(type_, max if function.greatest else min)
        case Product():
            return None if pat.is_decimal(type_) else partial(_multiply, _narrowing(type_))
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


def _adder(type_: pa.DataType) -> Callable[[Any, Sequence[Any]], Any]:
    """Returns the function that adds values, none of them null, to a sum."""
    if pat.is_integer(type_):
        return lambda old, values: (old or 0) + sum(values) if values else old
    if pat.is_decimal(type_):
        return _add_decimals
    narrow = _narrowing(type_)

    def add(old: float | None, values: Sequence[float]) -> float | None:
        # From -0.0, as for columns, because -0.0 + -0.0 is -0.0.
        total = -0.0 if old is None else old
        for value in values:
            total = narrow(total + value)
        return total if values else old

    return add


def _add_decimals(old: Decimal | None, values: Sequence[Decimal | int]) -> Decimal | None:
    total = old
    for value in values:
        total = Decimal(value) if total is None else _EXACT.add(total, Decimal(value))
    return total


def _multiply(narrow: Callable[[Any], Any], old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    factors = _not_null(inputs)
    if not factors:
        return old
    product = 1 if old[0] is None else old[0]
    for factor in factors:
        product = narrow(product * factor)
    return (product,)


def _narrowing(type_: pa.DataType) -> Callable[[Any], Any]:
    """Returns the function that rounds the result of a step to a narrow float, as columns do after each step."""
    if not pat.is_float16(type_) and not pat.is_float32(type_):
        return _keep
    form = struct.Struct("<e" if pat.is_float16(type_) else "<f")

    def narrow(value: float) -> float:
        try:
            (rounded,) = form.unpack(form.pack(value))
        except OverflowError as error:
            raise NotExactError from error
        return float(rounded)

    return narrow


def _keep(value: Any) -> Any:  # noqa: ANN401
    return value


def _average_fold(type_: pa.DataType) -> Fold:
    is_float, is_decimal = pat.is_floating(type_), pat.is_decimal(type_)
    add, scale = _adder(pa.float64()) if is_float else _add_decimals, type_.scale if is_decimal else 0

    def fold(old: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        _, total, count = old
        values = _not_null(inputs)
        total = add(total, values)
        count = (count or 0) + len(values) if values else count
        if total is None or not count:
            return None, total, count
        if is_float:
            return total / count, total, count
        mean = _round_mean(int(_EXACT.scaleb(total, scale)), count)
        return _EXACT.scaleb(Decimal(mean), -scale) if is_decimal else mean, total, count

    return fold


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
