"""`sum` and `product`. Exact for integers and decimals; floats are added or multiplied in the order of arrival."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from scankv.model.rows.decimal_arrays import decimal_array
from scankv.model.types.types import format_type
from streaming_server.arrays.arrow_buffers import validity_buffer
from streaming_server.arrays.exact_sums import limb, limb_count
from streaming_server.engine.functions.function import RefusedValueError, not_null_mask, refuse_where

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streaming_server.engine.functions.function import Inputs, Mask

    Numbers = npt.NDArray[np.int64]

_LOW: Final = np.int64(2**32 - 1)
_EXACT: Final = Context(prec=160, rounding=ROUND_HALF_UP)
# A product of fewer bits fits into int64, and one of more bits fits into no type. The logarithm is not exact between.
_SURELY_FITS, _SURELY_OVER = 62.9, 64.1


class Sum:
    """The sum of the inputs that are not null; null without such an input."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Refuses a sum that does not fit the column."""
        return [add_sums(old[0], inputs.not_null())]


class Product:
    """The product of the inputs that are not null; null without such an input. A retraction divides."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Refuses a product that does not fit, and a retraction that cannot be divided."""
        inputs = inputs.not_null()
        if inputs.retracted is not None:
            places = np.flatnonzero(_is_zero(inputs.values) & inputs.retracted)
            if len(places):
                raise RefusedValueError(inputs.keys[places[0]], "a factor of zero cannot be retracted")
        type_ = old[0].type
        if pat.is_floating(type_):
            return [_float_product(old[0], inputs)]
        if pat.is_integer(type_) and inputs.retracted is None:
            return [_integer_product(old[0], inputs)]
        return [_fold_product(old[0], inputs)]


def add_sums(old: pa.Array, inputs: Inputs) -> pa.Array:
    """Adds the inputs, none of them null, to the old values. Returns an array of the type of `old`.

    Raises:
        RefusedValueError: A sum does not fit the type.
    """
    has_sum = not_null_mask(old) | inputs.has_any
    if pat.is_floating(old.type):
        # Value by value in the order of arrival, so that the split into requests does not change the result. A sum
        # starts from -0.0, because -0.0 + -0.0 is -0.0.
        sums = _floats(old, -0.0)
        values = inputs.values.to_numpy(zero_copy_only=False)
        with np.errstate(all="ignore"):
            np.add.at(sums, inputs.keys, values if inputs.signs is None else values * inputs.signs.astype(values.dtype))
        return pa.array(sums, old.type, mask=~has_sum)
    limbs = _propagate_carries([_limb_sums(old, inputs, number) for number in range(limb_count(old.type))])
    reason = f"the sum does not fit {format_type(old.type)}"
    convert = _as_decimals if pat.is_decimal(old.type) else _as_integers
    result, is_over = convert(limbs, old.type, has_sum)
    refuse_where(is_over & has_sum, reason)
    return result


def _limb_sums(old: pa.Array, inputs: Inputs, number: int) -> Numbers:
    sums: Numbers = limb(old, number).fill_null(0).to_numpy().copy()
    starts = inputs.first()
    if len(starts):
        values = limb(inputs.values, number).to_numpy()
        signed = values if inputs.signs is None else values * inputs.signs
        sums[inputs.keys[starts]] += np.add.reduceat(signed, starts)
    return sums


def _propagate_carries(limbs: list[Numbers]) -> list[Numbers]:
    """Returns the same sums in limbs from 0 to 2**32 - 1. Only the last limb keeps a sign."""
    for number in range(len(limbs) - 1):
        limbs[number + 1] += limbs[number] >> 32
        limbs[number] &= _LOW
    return limbs


def _as_integers(limbs: list[Numbers], type_: pa.DataType, has_sum: Mask) -> tuple[pa.Array, Mask]:
    low, high = limbs
    if pat.is_uint64(type_):
        is_over = (high < 0) | (high > _LOW)
        wide: npt.NDArray[Any] = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    else:
        wide = (high << 32) | low
        bounds = np.iinfo(type_.to_pandas_dtype())
        is_over = (high != high.astype(np.int32)) | (wide < bounds.min) | (wide > bounds.max)
    return pa.array(wide.astype(type_.to_pandas_dtype()), type_, mask=~has_sum), is_over


def _as_decimals(limbs: list[Numbers], type_: pa.DataType, has_sum: Mask) -> tuple[pa.Array, Mask]:
    high = limbs[-1]
    words = np.stack([number.astype(np.uint32) for number in limbs], axis=1)
    buffers = [validity_buffer(has_sum), pa.py_buffer(words)]
    # Compared without the scale, because Arrow cannot compare decimals of a negative scale.
    plain = pa.Array.from_buffers(pa.decimal128(38, 0), len(words), buffers)
    most = pa.scalar(Decimal(10**type_.precision - 1), pa.decimal128(38, 0))
    too_long = pc.or_(pc.greater(plain, most), pc.less(plain, pc.negate(most)))
    is_over = (high != high.astype(np.int32)) | too_long.fill_null(False).to_numpy(zero_copy_only=False)
    return pa.Array.from_buffers(type_, len(words), buffers), is_over


def _floats(array: pa.Array, empty: float) -> npt.NDArray[Any]:
    floats: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False).astype(array.type.to_pandas_dtype())
    return np.where(not_null_mask(array), floats, floats.dtype.type(empty)) if array.null_count else floats.copy()


def _float_product(old: pa.Array, inputs: Inputs) -> pa.Array:
    products = _floats(old, 1.0)
    factors = inputs.values.to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        if inputs.retracted is not None:
            factors = np.where(inputs.retracted, factors.dtype.type(1) / factors, factors)
        np.multiply.at(products, inputs.keys, factors)
    return pa.array(products, old.type, mask=~(not_null_mask(old) | inputs.has_any))


def _integer_product(old: pa.Array, inputs: Inputs) -> pa.Array:
    """Multiplies modulo 2**64, which is exact where the product fits. The sum of logarithms decides where it fits."""
    wide = np.uint64 if pat.is_uint64(old.type) else np.int64
    before = old.fill_null(1).to_numpy(zero_copy_only=False).astype(wide)
    factors, starts = inputs.values.to_numpy(zero_copy_only=False).astype(wide), inputs.first()
    keys = inputs.keys[starts]
    products, bits = before.copy(), _bits(before)
    if len(starts):
        products[keys] *= np.multiply.reduceat(factors, starts)
        bits[keys] += np.add.reduceat(_bits(factors), starts)
    reason = f"the product does not fit {format_type(old.type)}"
    refuse_where(bits > _SURELY_OVER, reason)
    bounds = np.iinfo(old.type.to_pandas_dtype())
    for key in np.flatnonzero(bits > _SURELY_FITS):
        # Rare: too close to the limit for the logarithm, so the exact product decides.
        first, end = np.searchsorted(inputs.keys, [key, key + 1])
        exact = int(before[key]) * math.prod(factors[first:end].tolist())
        if not bounds.min <= exact <= bounds.max:
            raise RefusedValueError(int(key), reason)
        products[key] = exact
    refuse_where((products < bounds.min) | (products > bounds.max), reason)
    has_product = not_null_mask(old) | inputs.has_any
    return pa.array(products.astype(old.type.to_pandas_dtype()), old.type, mask=~has_product)


def _is_zero(values: pa.Array) -> Mask:
    if pat.is_decimal(values.type):
        plain = values.view(pa.decimal128(38, 0))
        zero: Mask = pc.equal(plain, pa.scalar(Decimal(0), plain.type)).to_numpy(zero_copy_only=False)
        return zero
    is_zero: Mask = values.to_numpy(zero_copy_only=False) == 0
    return is_zero


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns binary logarithms of magnitudes; for zero, one so low that every product with it counts as small."""
    with np.errstate(divide="ignore"):
        bits: npt.NDArray[np.float64] = np.log2(np.abs(values.astype(np.float64)))
    return np.maximum(bits, -1e9)


def _fold_product(old: pa.Array, inputs: Inputs) -> pa.Array:
    """Multiplies value by value: decimals, which are rounded after each factor, and integers with retractions."""
    type_ = old.type
    results: list[Any] = old.to_pylist()
    retracted = np.zeros(len(inputs.keys), np.bool_) if inputs.retracted is None else inputs.retracted
    step = _decimal_step if pat.is_decimal(type_) else _integer_step
    for key, value, divide in zip(inputs.keys.tolist(), inputs.values.to_pylist(), retracted.tolist(), strict=True):
        before = results[key]
        results[key] = step(key, 1 if before is None else before, value, divide, type_)
    return decimal_array(results, type_) if pat.is_decimal(type_) else pa.array(results, type_)


def _integer_step(key: int, before: int, factor: int, divide: bool, type_: pa.DataType) -> int:
    if divide and before % factor:
        raise RefusedValueError(key, "the retracted value is not a factor of the product")
    product = before // factor if divide else before * factor
    bounds = np.iinfo(type_.to_pandas_dtype())
    if not bounds.min <= product <= bounds.max:
        raise RefusedValueError(key, f"the product does not fit {format_type(type_)}")
    return product


def _decimal_step(key: int, before: Decimal | int, factor: Decimal, divide: bool, type_: pa.DataType) -> Decimal:
    exact = _EXACT.divide(Decimal(before), factor) if divide else _EXACT.multiply(Decimal(before), factor)
    product = _EXACT.quantize(exact, Decimal(1).scaleb(-type_.scale))
    if len(product.as_tuple().digits) > type_.precision:
        raise RefusedValueError(key, f"the product does not fit {format_type(type_)}")
    return product
