"""`count` and `avg`. The mean keeps its sum and count in hidden columns."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from scankv.model.types.types import format_type
from streaming_server.arrays.arrow_buffers import validity_buffer
from streaming_server.engine.functions.arithmetic import add_sums
from streaming_server.engine.functions.function import Inputs, not_null_mask, refuse_where

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streaming_server.engine.functions.function import Mask

    Words = npt.NDArray[np.uint64]

_DIGIT: Final = np.uint64(32)
_LOWEST: Final = np.uint64(2**32 - 1)
_SIGN: Final = np.uint64(63)


class Count:
    """The number of inputs that are not null. Negative if more inputs were retracted than added."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Refuses a number that does not fit the column."""
        (before,) = old
        # A key with an input, even null, counts from zero.
        before = before.fill_null(0) if inputs.has_any.all() else _zero_where(before, inputs)
        return [add_sums(before, _ones(inputs.not_null(), before.type))]


class Average:
    """The mean of the inputs that are not null; null without such an input. Hidden: sum and count."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Refuses a sum of over 38 digits, and a mean that does not fit the column."""
        before, total, count = old
        inputs = inputs.not_null()
        values = inputs.values.cast(pa.float64()) if pat.is_floating(before.type) else _decimals(inputs.values)
        total = add_sums(total, Inputs(values, inputs.keys, inputs.count, inputs.retracted))
        count = add_sums(count, _ones(inputs, pa.int64()))
        return [_mean(total, count, before.type), total, count]


def _zero_where(before: pa.Array, inputs: Inputs) -> pa.Array:
    return pc.if_else(pa.array(not_null_mask(before) | ~inputs.has_any), before, pa.scalar(0, before.type))


def _ones(inputs: Inputs, type_: pa.DataType) -> Inputs:
    ones = pa.array(np.ones(len(inputs.keys), np.int64)).cast(type_)
    return Inputs(ones, inputs.keys, inputs.count, inputs.retracted)


def _decimals(values: pa.Array) -> pa.Array:
    """Converts integers and decimals to decimals of the same scale and 38 digits."""
    if pat.is_integer(values.type):
        # Arrow casts only to decimals that can hold every integer of the type.
        values = values.cast(pa.decimal128(20, 0))
    return values.cast(pa.decimal128(38, values.type.scale))


def _mean(total: pa.Array, count: pa.Array, type_: pa.DataType) -> pa.Array:
    """Divides sums by counts. Null where the count is null or zero. Means other than floats are rounded, ties to even.

    Raises:
        RefusedValueError: A mean does not fit the column, which happens when more was retracted than added; or a mean
            other than a float has over four billion inputs.
    """
    some = pc.not_equal(count, pa.scalar(0, pa.int64())).fill_null(False)
    count = pc.if_else(some, count, pa.scalar(1, pa.int64()))
    if pat.is_floating(type_):
        divisor: npt.NDArray[Any] = count.to_numpy(zero_copy_only=False)
        with np.errstate(all="ignore"):
            means = total.fill_null(0.0).to_numpy(zero_copy_only=False) / divisor
            narrow = means.astype(type_.to_pandas_dtype())
        return pa.array(narrow, type_, mask=~(not_null_mask(total) & some.to_numpy(zero_copy_only=False)))
    # Without the scale, because Arrow cannot divide decimals of a negative scale.
    rounded = _divide_rounded(total.view(pa.decimal128(38, 0)), count)
    rounded = pc.if_else(some, rounded, pa.scalar(None, rounded.type))
    least, most = _bounds(type_)
    is_over = pc.or_(pc.greater(rounded, most), pc.less(rounded, least)).fill_null(False)
    refuse_where(is_over.to_numpy(zero_copy_only=False), f"the mean does not fit {format_type(type_)}")
    if pat.is_integer(type_):
        return rounded.cast(type_)
    return pa.Array.from_buffers(type_, len(rounded), rounded.buffers(), offset=rounded.offset)


def _divide_rounded(total: pa.Array, count: pa.Array) -> pa.Array:
    """Divides decimals of 38 digits and scale 0 by counts other than zero, and rounds, ties to even.

    Arrow rounds long decimals to wrong digits. So this is a long division with digits of 32 bits.
    """
    words = np.frombuffer(total.buffers()[1] or b"", np.uint64)[2 * total.offset : 2 * (total.offset + len(total))]
    low, high = words.reshape(-1, 2).T
    counts: npt.NDArray[np.int64] = count.to_numpy(zero_copy_only=False)
    is_less = high >> _SIGN == 1
    low, high = _negate_where(low, high, is_less)
    divisor, rest = np.abs(counts).astype(np.uint64), np.zeros(len(counts), np.uint64)
    refuse_where(divisor > _LOWEST, "the mean of over four billion inputs would not be exact")
    digits = []
    for digit in (high >> _DIGIT, high & _LOWEST, low >> _DIGIT, low & _LOWEST):
        # A remainder is less than the divisor, which has 32 bits, so 64 bits hold it and another digit.
        rest = rest << _DIGIT | digit
        digits.append(rest // divisor)
        rest %= divisor
    high, low = digits[0] << _DIGIT | digits[1], digits[2] << _DIGIT | digits[3]
    up = (rest > divisor - rest) | ((rest == divisor - rest) & (low & np.uint64(1) == 1))
    low = low + up
    high = high + (up & (low == 0))
    low, high = _negate_where(low, high, is_less != (counts < 0))
    made = np.stack((low, high), axis=1)
    return pa.Array.from_buffers(
        pa.decimal128(38, 0), len(made), [validity_buffer(not_null_mask(total)), pa.py_buffer(made)]
    )


def _negate_where(low: Words, high: Words, where: Mask) -> tuple[Words, Words]:
    """Negates numbers of 128 bits where the mask is true, as two's complements."""
    low = np.where(where, ~low + np.uint64(1), low)
    return low, np.where(where, ~high + (low == 0), high)


def _bounds(type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """Returns the least and the greatest value of a type, decimals without their scale."""
    if pat.is_integer(type_):
        bounds = np.iinfo(type_.to_pandas_dtype())
        least, most = int(bounds.min), int(bounds.max)
    else:
        least, most = 1 - 10**type_.precision, 10**type_.precision - 1
    return pa.scalar(Decimal(least), pa.decimal128(38, 0)), pa.scalar(Decimal(most), pa.decimal128(38, 0))
