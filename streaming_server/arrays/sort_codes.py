"""Values as Arrow compares and groups them in the order of keys: all types but floats and odd decimals as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

_ALL_BUT_SIGN = np.int64(2**63 - 1)


def sort_codes(array: pa.Array) -> pa.Array:
    """An array of one type, nulls where they were, whose order is that of keys and whose equal values are equal.

    Arrow has no order for float16 and decimals of a negative scale, passes over NaN, and tells -0.0 from 0.0. So floats
    become integers, NaN above infinity, and such decimals lose their scale.

    Args:
        array: n values of a type that can be in a key.
    """
    type_ = array.type
    if pa.types.is_floating(type_):
        nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        with np.errstate(invalid="ignore"):  # adding to a signalling NaN
            floats = array.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        floats[np.isnan(floats)] = np.nan
        return pa.array(_flipped(floats.view(np.int64)), mask=nulls)
    if pa.types.is_decimal(type_) and type_.scale < 0:
        return array.view(pa.decimal128(type_.precision, 0))
    return array


def values_of(codes: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values of a type that have these sort codes; -0.0 became 0.0."""
    if pa.types.is_floating(type_):
        nulls = codes.is_null().to_numpy(zero_copy_only=False) if codes.null_count else None
        floats = _flipped(codes.fill_null(0).to_numpy()).view(np.float64)
        return pa.array(floats, mask=nulls, from_pandas=False).cast(type_)
    return codes if codes.type == type_ else codes.view(type_)


def _flipped(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bits of floats as integers of the same order, and back."""
    return np.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits)
