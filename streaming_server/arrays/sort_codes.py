"""Sort codes: values that Arrow compares and groups in the order of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

_ALL_BUT_SIGN = np.int64(2**63 - 1)


def sort_codes(array: pa.Array) -> pa.Array:
    """Maps values to codes of the same order as keys, with nulls where they were. Equal values have equal codes.

    Arrow cannot order float16 and decimals of a negative scale, ignores NaN, and distinguishes -0.0 from 0.0. So floats
    become integers, with NaN above infinity, and such decimals lose their scale. All other types stay as they are.

    Args:
        array: n values of a type that a key may have.
    """
    type_ = array.type
    if pa.types.is_floating(type_):
        nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        with np.errstate(invalid="ignore"):  # adding to a signalling NaN would warn
            floats = array.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        floats[np.isnan(floats)] = np.nan
        return pa.array(_flip_order(floats.view(np.int64)), mask=nulls)
    if pa.types.is_decimal(type_) and type_.scale < 0:
        return array.view(pa.decimal128(type_.precision, 0))
    return array


def decode_sort_codes(codes: pa.Array, type_: pa.DataType) -> pa.Array:
    """Maps sort codes back to values of a type; -0.0 has become 0.0."""
    if pa.types.is_floating(type_):
        nulls = codes.is_null().to_numpy(zero_copy_only=False) if codes.null_count else None
        floats = _flip_order(codes.fill_null(0).to_numpy()).view(np.float64)
        return pa.array(floats, mask=nulls, from_pandas=False).cast(type_)
    return codes if codes.type == type_ else codes.view(type_)


def _flip_order(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Maps the bits of floats to integers of the same order, and back."""
    return np.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits)
