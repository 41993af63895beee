"""Makes Arrow arrays of any decimals. Arrow refuses some with a negative scale, or a scale above the precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.rows.row_values import unscaled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal


def decimal_array(values: Sequence[Decimal | None], type_: pa.Decimal128Type) -> pa.Array:
    """Returns decimals as an array. Raises NotExactError if the type cannot hold one of them exactly."""
    return unscaled_array([None if value is None else unscaled(value, type_) for value in values], type_)


def unscaled_array(numbers: Sequence[int | None], type_: pa.Decimal128Type) -> pa.Array:
    """Returns decimals, given as unscaled integers, as an array. The type must be able to hold all of them."""
    words = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in numbers)
    valid = pa.array([number is not None for number in numbers], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_, len(numbers), [valid, pa.py_buffer(words)])
