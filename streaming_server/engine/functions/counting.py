"""`count` and `avg`: how many, and their mean, which keeps sum and count beside the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from streaming_server.engine.functions.arithmetic import added_up
from streaming_server.engine.functions.function import Inputs, valid

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Count:
    """How many inputs are not null. 0 where all are; less than that where more was taken back than came."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """As `MergeFunction.merge`; refuses a number that does not fit the column."""
        (before,) = old
        # A column that was given, also as null, counts from zero.
        before = before.fill_null(0) if inputs.has_any.all() else _zero_where(before, inputs)
        return [added_up(before, _ones(inputs.not_null(), before.type))]


class Average:
    """The mean of what is not null, null where nothing is. Hidden: sum and count."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """As `MergeFunction.merge`; refuses a sum of over 38 digits."""
        before, total, count = old
        inputs = inputs.not_null()
        values = inputs.values.cast(pa.float64()) if pat.is_floating(before.type) else _decimals(inputs.values)
        total = added_up(total, Inputs(values, inputs.keys, inputs.count, inputs.retracted))
        count = added_up(count, _ones(inputs, pa.int64()))
        return [_mean(total, count, before.type), total, count]


def _zero_where(before: pa.Array, inputs: Inputs) -> pa.Array:
    return pc.if_else(pa.array(valid(before) | ~inputs.has_any), before, pa.scalar(0, before.type))


def _ones(inputs: Inputs, type_: pa.DataType) -> Inputs:
    ones = pa.array(np.ones(len(inputs.keys), np.int64)).cast(type_)
    return Inputs(ones, inputs.keys, inputs.count, inputs.retracted)


def _decimals(values: pa.Array) -> pa.Array:
    """Integers and decimals as decimals of the same scale and 38 digits."""
    if pat.is_integer(values.type):
        # Arrow takes only decimals that hold every integer of the type.
        values = values.cast(pa.decimal128(20, 0))
    return values.cast(pa.decimal128(38, values.type.scale))


def _mean(total: pa.Array, count: pa.Array, type_: pa.DataType) -> pa.Array:
    """Sum by count, null where there is none; without a float rounded, ties to even."""
    some = pc.not_equal(count, pa.scalar(0, pa.int64())).fill_null(False)
    count = pc.if_else(some, count, pa.scalar(1, pa.int64()))
    if pat.is_floating(type_):
        divisor: npt.NDArray[Any] = count.to_numpy(zero_copy_only=False)
        with np.errstate(all="ignore"):
            means = total.fill_null(0.0).to_numpy(zero_copy_only=False) / divisor
            narrow = means.astype(type_.to_pandas_dtype())
        return pa.array(narrow, type_, mask=~(valid(total) & some.to_numpy(zero_copy_only=False)))
    # Without their scale, as a negative one has no division. Nineteen digits behind the point tell every tie.
    plain = total.view(pa.decimal128(38, 0)).cast(pa.decimal256(38, 0))
    means = pc.divide(plain, count.cast(pa.decimal256(19, 0)))
    rounded = pc.round(means, ndigits=0, round_mode="half_to_even").cast(pa.decimal256(38, 0))
    rounded = pc.if_else(some, rounded, pa.scalar(None, rounded.type)).cast(pa.decimal128(38, 0))
    if pat.is_integer(type_):
        return rounded.cast(type_)
    # A mean of values has no more digits than they do, so it fits.
    return pa.Array.from_buffers(type_, len(rounded), rounded.buffers(), offset=rounded.offset)
