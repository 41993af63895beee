"""Converts Python values to an Arrow column without loss. pyarrow alone would truncate 1.5 to 1 and drop time zones."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import did_you_mean
from scankv.model.types.casts import cast_exactly, check_not_rounded
from scankv.model.types.nested import map_scalar_types
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_VALUE: Final = 40
_PANDAS_NULLS: Final = {"NaTType", "NAType"}  # By name, because pandas may not be installed.
_UNITS_OF_TIME: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


class NotAValueError(ValueError):
    """A Python value cannot be a value of a column.

    Attributes:
        row: The row's index.
        reason: The value, and why it does not fit.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


def column_of(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    """Makes a column of Python, NumPy or Arrow values, each unchanged in kind and value; None is null.

    The kinds are those of `scankv.model.types.casts`, with one difference: a Python float has no width of its own, so a
    narrower float column rounds it.

    Args:
        values: The values in row order.
        type_: A storable type.

    Raises:
        NotAValueError: A value does not fit.
    """
    if not set(map(type, values)) <= _exact_classes(type_):
        values = [_exact_or_error(value, type_, row) for row, value in enumerate(values)]
    try:
        return _array(values, type_)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        for row, value in enumerate(values):
            _check_alone(value, type_, row)
        raise


def _array(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except pa.ArrowInvalid:
        # pyarrow counts the zeros that a negative scale leaves out, and refuses a scale above the precision.
        wide = map_scalar_types(type_, _with_all_digits)
        if wide == type_:
            raise
        numbers = pa.array(values, wide)
        try:
            return cast_exactly(numbers, type_)
        except pa.ArrowInvalid as error:
            raise ValueError("the column has no value that is exactly this number") from error


def _with_all_digits(type_: pa.DataType) -> pa.DataType:
    if pat.is_decimal(type_) and not 0 <= type_.scale <= type_.precision:
        return pa.decimal256(76, max(0, type_.scale))
    return type_


def _exact_classes(type_: pa.DataType) -> set[type]:
    """Returns the classes whose values pyarrow takes unchanged, or refuses."""
    classes: set[type] = {type(None)}
    if pat.is_integer(type_):
        classes |= {int}
    elif pat.is_float64(type_):
        classes |= {int, float}
    elif pat.is_decimal(type_):
        classes |= {int, Decimal}
    elif pat.is_boolean(type_):
        classes |= {bool}
    elif pat.is_string(type_):
        classes |= {str}
    elif pat.is_binary(type_):
        classes |= {bytes}
    elif pat.is_date32(type_):
        classes |= {dt.date}
    return classes


def _exact_or_error(value: object, type_: pa.DataType, row: int) -> object:
    try:
        return _exact(value, type_)
    except (ValueError, TypeError, OverflowError) as error:
        raise NotAValueError(row, _reason(value, type_, error)) from error


def _check_alone(value: object, type_: pa.DataType, row: int) -> None:
    try:
        _array([value], type_)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise NotAValueError(row, _reason(value, type_, error)) from error


def _reason(value: object, type_: pa.DataType, error: Exception) -> str:
    text = "" if isinstance(value, pa.Scalar) else repr(value)  # A date after the year 9999 has no text.
    shown = text if 0 < len(text) <= _LONGEST_VALUE else f"a value of type {type(value).__name__}"
    return f"{shown} cannot be cast to {format_type(type_)}: {str(error).partition(chr(10))[0]}"


def _exact(value: Any, type_: pa.DataType) -> object:  # noqa: ANN401  # whatever a caller puts into a row
    """Returns the value in a form that pyarrow takes unchanged. Raises ValueError or TypeError otherwise."""
    if isinstance(value, pa.Scalar):
        if pat.is_temporal(value.type) or pat.is_nested(value.type):
            # Python has no nanoseconds in a time of day, and no years after 9999.
            return cast_exactly(pa.array([value], value.type), type_)[0]
        value = value.as_py()
    if value is None or type(value).__name__ in _PANDAS_NULLS:
        return None
    if pat.is_timestamp(type_):
        return _exact_timestamp(value, type_)
    if pat.is_nested(type_):
        return _exact_nested(value, type_)
    if pat.is_integer(type_):
        return _exact_integer(value)
    if pat.is_floating(type_):
        return _exact_float(value, type_)
    if pat.is_decimal(type_):
        return _of_class(value, Decimal) if isinstance(value, Decimal) else _exact_integer(value)
    if pat.is_boolean(type_):
        return bool(_of_class(value, bool, np.bool_))
    if pat.is_string(type_):
        return _of_class(value, str)
    if pat.is_binary(type_):
        return bytes(_of_class(value, bytes, bytearray, memoryview))
    if pat.is_time(type_):
        return _exact_time(value, type_)
    if isinstance(value, dt.datetime):
        raise TypeError("it has a time of day")
    return _of_class(value, dt.date)


def _of_class(value: Any, *classes: type) -> Any:  # noqa: ANN401  # the value itself
    if not isinstance(value, classes):
        raise TypeError(f"it is of type {type(value).__name__}, not {classes[0].__name__}")
    return value


def _exact_integer(value: Any) -> int:  # noqa: ANN401  # checked here
    if isinstance(value, bool | np.bool_):
        raise TypeError("it is a bool, not a number")
    if isinstance(value, float | np.floating | Decimal):
        if not math.isfinite(value) or value != int(value):
            raise ValueError("it is not a whole number")
        if not isinstance(value, Decimal):
            check_not_rounded(value)
        return int(value)
    if not hasattr(value, "__index__"):
        raise TypeError(f"it is of type {type(value).__name__}, not a number")
    return operator.index(value)


def _exact_float(value: Any, type_: pa.DataType) -> float | int:  # noqa: ANN401  # checked here
    number = float(value) if isinstance(value, float | np.floating) else _exact_integer(value)
    if not math.isfinite(number):
        return number
    if abs(number) > float(np.finfo(type_.to_pandas_dtype()).max):
        raise ValueError("it is out of range")
    if isinstance(number, int) and int(type_.to_pandas_dtype()(number)) != number:
        raise ValueError("the column has no value that is exactly this number")
    return number


def _exact_time(value: Any, type_: pa.DataType) -> dt.time:  # noqa: ANN401  # checked here
    time: dt.time = _of_class(value, dt.time)
    if time.tzinfo is not None:
        raise ValueError("it has a time zone, but the column has none")
    _check_precision(time.microsecond * 1000, type_.unit)
    return time


def _exact_timestamp(value: Any, type_: pa.TimestampType) -> dt.datetime | np.datetime64:  # noqa: ANN401  # checked here
    if isinstance(value, np.datetime64):
        exact: dt.datetime | np.datetime64 = value.astype(f"datetime64[{type_.unit}]")
        if exact != value and not np.isnat(value):
            raise ValueError(f"it is more precise than {type_.unit}")
        aware = False
    else:
        if type(value) is dt.date:
            value = dt.datetime.combine(value, dt.time())
        exact = value = _of_class(value, dt.datetime)
        _check_precision(value.microsecond * 1000 + getattr(value, "nanosecond", 0), type_.unit)
        aware = value.tzinfo is not None
    if aware and type_.tz is None:
        raise ValueError("it has a time zone, but the column has none")
    if not aware and type_.tz is not None:
        raise ValueError(f"it has no time zone, but the column is in {type_.tz}")
    return exact


def _check_precision(nanoseconds: int, unit: str) -> None:
    if nanoseconds % _UNITS_OF_TIME[unit]:
        raise ValueError(f"it is more precise than {unit}")


def _exact_nested(value: Any, type_: pa.DataType) -> object:  # noqa: ANN401  # checked here
    if pat.is_struct(type_):
        fields: Mapping[str, object] = _of_class(value, Mapping)
        known = type_.names
        for name in fields:
            if name not in known:
                raise ValueError(f'there is no field "{name}"{did_you_mean(str(name), known)}')
        return {field.name: _exact(fields.get(field.name), field.type) for field in type_.fields}
    if isinstance(value, str | bytes):
        raise TypeError(f"it is of type {type(value).__name__}, not a sequence")
    if pat.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else _of_class(value, Iterable)
        return [(_exact(key, type_.key_type), _exact(item, type_.item_type)) for key, item in pairs]
    if isinstance(value, Mapping):
        raise TypeError("it is a mapping, not a sequence")
    return [_exact(item, type_.value_type) for item in _of_class(value, Iterable)]
