"""Sums and means of integers and decimals without overflow: each value is split into limbs of 32 bits.

A value is the sum of its limbs times 2**0, 2**32, 2**64, ... All limbs but the last are below 2**32; the last one has
the sign. So int64 columns of limbs can add up 2**31 rows, and as many again after `propagate_carries`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from scankv.model.rows.decimal_arrays import unscaled_array
from streaming_server.arrays.arrow_buffers import validity_buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_BITS = 32
_LOW = 2**_BITS - 1


def limb_count(type_: pa.DataType) -> int:
    """Returns the number of limbs of an integer or decimal type."""
    return 4 if pat.is_decimal(type_) else 2


def limb(array: pa.Array, number: int) -> pa.Array:
    """Returns one limb of integers or decimals, the lowest is 0, as int64; null where the value is null."""
    if pat.is_decimal(array.type):
        words = np.frombuffer(array.buffers()[1] or b"", "<i4" if number == 3 else "<u4")
        mine = words[4 * array.offset + number : 4 * (array.offset + len(array)) : 4]
        return pa.array(mine.astype(np.int64), mask=_nulls(array))
    wide = pa.uint64() if pat.is_uint64(array.type) else pa.int64()
    cut = pc.shift_right if number else pc.bit_wise_and
    return cut(array.cast(wide), pa.scalar(_BITS if number else _LOW, wide)).cast(pa.int64())


def propagate_carries(limbs: Sequence[pa.Array]) -> list[pa.Array]:
    """Returns the same sums in normal form: all limbs but the last are below 2**32."""
    nulls = _nulls(limbs[0])
    carry: npt.NDArray[np.int64] = np.zeros(len(nulls), np.int64)
    result = []
    for each in limbs[:-1]:
        total = _numbers(each) + carry
        result.append(pa.array(total & _LOW, mask=nulls))
        carry = total >> _BITS
    return [*result, pa.array(_numbers(limbs[-1]) + carry, mask=nulls)]


def as_integers(limbs: Sequence[pa.Array], type_: pa.DataType) -> pa.Array | None:
    """Sums in normal form as int64 or uint64. None: a sum is out of range."""
    low, high = map(_numbers, limbs)
    if ((high < 0) | (high > _LOW)).any() if pat.is_uint64(type_) else _is_over(high):
        return None
    return pa.array((high << _BITS | low).astype(type_.to_pandas_dtype()), type_, mask=_nulls(limbs[0]))


def as_decimals(limbs: Sequence[pa.Array], type_: pa.DataType) -> pa.Array | None:
    """Sums in normal form as a decimal128 type of 38 digits. None: a sum is out of range."""
    numbers = list(map(_numbers, limbs))
    if _is_over(numbers[-1]):
        return None
    words = np.stack([number.astype(np.uint32) for number in numbers], axis=1)
    sums = pa.Array.from_buffers(type_, len(words), [validity_buffer(~_nulls(limbs[0])), pa.py_buffer(words)])
    try:
        sums.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return sums


def as_float_means(limbs: Sequence[pa.Array], counts: pa.Array) -> pa.Array:
    """Sums in normal form, of any size, divided by counts, as the nearest float64. Null where the count is zero."""
    pairs = zip(_totals(limbs), counts.fill_null(0).to_pylist(), strict=True)
    # Python rounds the quotient of two integers only once.
    return pa.array([total / count if count else None for total, count in pairs], pa.float64())


def as_decimal_means(limbs: Sequence[pa.Array], counts: pa.Array, scale: int, type_: pa.DataType) -> pa.Array:
    """Sums in normal form, of any size, divided by counts. Null where the count is zero.

    Args:
        limbs: The sums of decimals.
        counts: The counts.
        scale: The scale of the decimals.
        type_: A decimal type of at least this scale, which can hold all means. They are rounded to its scale, ties away
            from zero.
    """
    factor = 10 ** (type_.scale - scale)
    pairs = zip(_totals(limbs), counts.fill_null(0).to_pylist(), strict=True)
    means = [_round_half_up(total * factor, count) if count else None for total, count in pairs]
    return unscaled_array(means, type_)


def _totals(limbs: Sequence[pa.Array]) -> list[int]:
    total = _numbers(limbs[-1]).astype(object)
    for each in reversed(limbs[:-1]):
        total = total * 2**_BITS + _numbers(each).astype(object)
    totals: list[int] = total.tolist()
    return totals


def _round_half_up(total: int, count: int) -> int:
    mean, rest = divmod(abs(total), count)
    mean += 2 * rest >= count
    return mean if total >= 0 else -mean


def _numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = array.fill_null(0).to_numpy()
    return numbers


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _is_over(high: npt.NDArray[np.int64]) -> bool:
    return bool((high != high.astype(np.int32)).any())
