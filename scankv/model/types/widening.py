"""Which types a column can change to, so that every stored value keeps its meaning."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns whether each value of a type can be represented exactly by another type, which a column can change to.

    That is so from an integer to an integer with more bits (unsigned to signed as well), from a float to a wider float,
    from a decimal to one of the same scale and a greater precision, and from a date to a timestamp without time zone in
    seconds, milliseconds or microseconds.
    """
    if pat.is_integer(old) and pat.is_integer(new):
        if pat.is_unsigned_integer(new) and not pat.is_unsigned_integer(old):
            return False
        return bool(new.bit_width > old.bit_width)
    if pat.is_floating(old) and pat.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if pat.is_decimal(old) and pat.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return pat.is_date32(old) and pat.is_timestamp(new) and new.tz is None and new.unit != "ns"
