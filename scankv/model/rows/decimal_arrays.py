"""Decimals from Python as Arrow arrays. Arrow refuses some with a negative scale, or a scale above their precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.rows.row_values import unscaled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal


def decimal_array(values: Sequence[Decimal | None], type_: pa.Decimal128Type) -> pa.Array:
    """Returns decimals as an array. Raises NotExactError if the type does not have one of them exactly."""
    numbers = [0 if value is None else unscaled(value, type_) for value in values]
    words = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(words)])
