"""Which values are exactly a value of Python."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc
from scankv.model.types.default_values import repeat_default
from scankv.model.types.nested import scalar_columns

_SMALLEST: Final = -(2**63)


def python_value(scalar: pa.Scalar) -> object:
    """Returns the Python value of a scalar, or the scalar itself if Python has no such value.

    Python has no years before 1 or after 9999, no nanoseconds of a time of day, and timestamps with nanoseconds only if
    pandas is installed.
    """
    try:
        check_python(repeat_default(scalar, 1))
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar


def check_python(column: pa.Array | pa.ChunkedArray) -> None:
    """Raises ValueError for values that pyarrow would convert to another Python value."""
    if not _has_nanoseconds(column.type):
        return
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for scalars in (each for chunk in chunks for each in scalar_columns(chunk)):
        if pat.is_time64(scalars.type) and scalars.type.unit == "ns":
            _check_microseconds(scalars)
        elif pat.is_timestamp(scalars.type) and scalars.type.unit == "ns":
            _check_is_no_nat(scalars)


def _check_microseconds(times: pa.Array) -> None:
    try:
        times.cast(pa.time64("us"))
    except pa.ArrowInvalid as error:
        raise ValueError("a time of day has nanoseconds") from error


def _check_is_no_nat(times: pa.Array) -> None:
    if pc.min(times.view(pa.int64())).as_py() == _SMALLEST:
        raise ValueError(f"{_SMALLEST} ns is not a time in pandas")


def _has_nanoseconds(type_: pa.DataType) -> bool:
    return getattr(type_, "unit", "") == "ns" or any(
        _has_nanoseconds(type_.field(index).type) for index in range(type_.num_fields)
    )
