"""The values of the model as Python has them, in the classes that a caller would use, and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tests.model.exact_calendar import PER_SECOND
from tests.model.exact_values import Mismatch, Plain, from_arrow, to_arrow, value_traits

_EPOCH = dt.datetime(1970, 1, 1)


def to_python(value: Plain, type_: pa.DataType) -> Any:  # a value of any class
    """Returns a value as an object of the usual class; of NumPy or Arrow if Python has no such value."""
    if value is None:
        return None
    if pat.is_map(type_):
        return [(to_python(key, type_.key_type), to_python(item, type_.item_type)) for key, item in value]
    if pat.is_struct(type_):
        return {field.name: to_python(value[field.name], field.type) for field in type_.fields}
    if pat.is_nested(type_):
        return [to_python(each, type_.value_type) for each in value]
    if not pat.is_temporal(type_):
        return value
    if value_traits(value, type_) or (type_.__class__ is pa.TimestampType and type_.unit == "ns" and value % 1000):
        return to_arrow([value], type_)[0]
    if pat.is_date32(type_):
        return dt.date(1970, 1, 1) + dt.timedelta(days=value)
    microseconds = dt.timedelta(microseconds=value * 10**6 // PER_SECOND[type_.unit])
    if pat.is_time(type_):
        return (_EPOCH + microseconds).time()
    if type_.tz is None and type_.unit in ("s", "ms") and value % 2:
        return np.datetime64(value, type_.unit)
    return _EPOCH + microseconds if type_.tz is None else _EPOCH.replace(tzinfo=dt.UTC) + microseconds


def of_python(found: Any, type_: pa.DataType) -> Plain:  # a value of any class
    """Returns the value of the model that an object is, whichever library made it."""
    if found is None or type(found).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(found, pa.Scalar):
        return from_arrow(pa.array([found], found.type), type_)[0]
    if isinstance(found, np.ndarray):
        found = found.tolist() if found.dtype.kind not in "Mm" else list(found)
    if pat.is_map(type_):
        pairs = [(each["key"], each["value"]) if isinstance(each, dict) else each for each in found]
        return [(of_python(key, type_.key_type), of_python(item, type_.item_type)) for key, item in pairs]
    if pat.is_struct(type_):
        assert found.keys() == set(type_.names), found
        return {field.name: of_python(found[field.name], field.type) for field in type_.fields}
    if pat.is_nested(type_):
        return [of_python(each, type_.value_type) for each in found]
    if pat.is_temporal(type_):
        return _time(found, type_)
    if pat.is_floating(type_):
        return float(found) if isinstance(found, float | np.floating) else Mismatch(repr(found))
    if pat.is_boolean(type_):
        return bool(found) if isinstance(found, bool | np.bool_) else Mismatch(repr(found))
    if pat.is_integer(type_):
        return int(found) if isinstance(found, int | np.integer) else Mismatch(repr(found))
    if pat.is_decimal(type_):
        return found if isinstance(found, Decimal) else Mismatch(repr(found))
    if pat.is_binary(type_):
        return bytes(found) if isinstance(found, bytes | bytearray) else Mismatch(repr(found))
    return found


def _time(found: Any, type_: pa.DataType) -> Plain:  # a value of any class
    if isinstance(found, np.datetime64):
        found = pa.scalar(found)
        return from_arrow(pa.array([found], found.type), type_)[0]
    if pat.is_date32(type_):
        is_date = type(found) is dt.date
        return (found - dt.date(1970, 1, 1)).days if is_date else Mismatch(repr(found))
    if pat.is_time(type_):
        if not isinstance(found, dt.time):
            return Mismatch(repr(found))
        clock = ((found.hour * 60 + found.minute) * 60 + found.second) * 10**6 + found.microsecond
        return _in_unit(clock * 1000 + getattr(found, "nanosecond", 0), type_.unit)
    if not isinstance(found, dt.datetime) or (found.tzinfo is None) != (type_.tz is None):
        return Mismatch(repr(found))
    if found.tzinfo is not None:
        found_utc = found.astimezone(dt.UTC)
        nanoseconds = getattr(found, "nanosecond", 0)
        found = found_utc.replace(tzinfo=None)
    else:
        nanoseconds = getattr(found, "nanosecond", 0)
    if hasattr(found, "to_pydatetime"):
        found = found.to_pydatetime(warn=False)
    micros = (found - _EPOCH) // dt.timedelta(microseconds=1)
    return _in_unit(micros * 1000 + nanoseconds, type_.unit)


def _in_unit(nanoseconds: int, unit: str) -> Plain:
    result, lost = divmod(nanoseconds * PER_SECOND[unit], 10**9)
    return Mismatch(f"{nanoseconds} ns") if lost else result
