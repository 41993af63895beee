"""Casts values to another type only if nothing is lost, which is stricter than pyarrow's safe casts.

pyarrow's safe casts still round 0.1 to the nearest float32, truncate timestamps to dates and parse numbers from text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model.types.layouts import has_plain_layout, plain_layout
from scankv.model.types.nested import item_offsets, map_as_list

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Cast = Callable[[pa.Array, pa.DataType], pa.Array]


def cast_exactly(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Casts a column if every value keeps its kind and can be represented exactly.

    The kinds are number, bool, text, binary, date, time of day, timestamp without time zone, timestamp with time zone,
    list, struct and map. Numbers can change width, and change between integer, float and decimal. A date can become a
    timestamp without time zone. A column of type null can become any type.

    Args:
        column: An array of any Arrow type.
        target: A storable type.

    Returns:
        An array of type `target`; the same array if it already has that type. NOT NULL of nested fields is not checked.

    Raises:
        TypeError: The kinds differ, so no value can be cast.
        ValueError: A value cannot be represented exactly, or text is not valid UTF-8.
    """
    source = column.type
    if pat.is_null(source):
        return pa.nulls(len(column), target)
    if not has_plain_layout(source):
        return cast_exactly(plain_layout(column), target)
    if source == target:
        _validate(column)
        return column
    cast = _cast_between(source, target)
    if cast is None:
        raise TypeError(_how_kinds_differ(source, target))
    return cast(column, target)


def _cast_between(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """Returns the cast for a pair of different types, or None if their kinds differ."""
    if pat.is_floating(target):
        return _cast_to_float if pat.is_floating(source) or pat.is_integer(source) else None
    if pat.is_decimal(target):
        return _cast_to_decimal if pat.is_decimal(source) or pat.is_integer(source) else None
    if pat.is_integer(target) and not pat.is_integer(source):
        return _cast_to_integer if pat.is_floating(source) or pat.is_decimal(source) else None
    if pat.is_struct(target):
        return _cast_struct if pat.is_struct(source) else None
    if pat.is_map(target):
        return _cast_map if pat.is_map(source) else None
    if pat.is_list(target):
        return _cast_list if _is_list(source) else None
    return _plain_cast if _plain_cast_is_exact(source, target) else None


def _how_kinds_differ(source: pa.DataType, target: pa.DataType) -> str:
    if pat.is_timestamp(source) and pat.is_timestamp(target):
        return f"{source} and {target}: one has a time zone, the other has none"
    return f"{source} and {target} are different kinds of values"


def _plain_cast_is_exact(source: pa.DataType, target: pa.DataType) -> bool:
    """Returns whether pyarrow's safe cast between these scalar types keeps every value or raises."""
    exact = False
    if pat.is_integer(target):
        exact = pat.is_integer(source)
    elif pat.is_string(target):
        exact = pat.is_large_string(source)
    elif pat.is_binary(target):
        exact = pat.is_large_binary(source) or pat.is_fixed_size_binary(source)
    elif pat.is_timestamp(target) and pat.is_timestamp(source):
        exact = (source.tz is None) == (target.tz is None)
    elif pat.is_timestamp(target):
        exact = pat.is_date(source) and target.tz is None
    elif pat.is_date32(target):
        exact = pat.is_date64(source)
    elif pat.is_time(target):
        exact = pat.is_time(source)
    return exact


def _plain_cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pat.is_string(target):
        _validate(column)
    return column.cast(target)


def _validate(column: pa.Array) -> None:
    """Raises ValueError for invalid Arrow data, most often text that is not UTF-8, at any depth of nesting."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError("it is not valid UTF-8" if "UTF8" in str(error) else str(error)) from error


def _cast_to_float(column: pa.Array, target: pa.DataType) -> pa.Array:
    # float64 can represent every integer that pyarrow casts to it, and every narrower float.
    wide = column.cast(pa.float64())
    result = wide.cast(target)
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        before, after = _floats(wide), _floats(result).astype(np.float64)
    if not np.array_equal(before, after, equal_nan=True):
        raise ValueError(f"no {target.bit_width}-bit float is exactly this number")
    return result


def _floats(column: pa.Array) -> npt.NDArray[Any]:
    floats: npt.NDArray[Any] = column.drop_null().to_numpy(zero_copy_only=False)
    return floats


def _cast_to_decimal(column: pa.Array, target: pa.DataType) -> pa.Array:
    # pyarrow casts an integer only to decimals that can represent every integer of its width.
    if pat.is_integer(column.type):
        column = column.cast(pa.decimal128(20, 0))
    result = column.cast(target)
    # pyarrow does not notice when the unscaled integer overflows: 341 became 0.7176... as decimal128(38, 36).
    if not result.cast(column.type).equals(column):
        raise ValueError(f"the number has too many digits for {target}")
    return result


def _cast_to_integer(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pat.is_decimal(column.type):
        return _cast_to_decimal(column, pa.decimal128(38, 0)).cast(target)
    floats = _floats(column)
    check_not_rounded(np.max(np.abs(floats[np.isfinite(floats)]), initial=0))
    return column.cast(pa.float64()).cast(target)


def check_not_rounded(number: float | np.floating[Any]) -> None:
    """Checks a float that is to become an integer, by its type.

    From some number on, a float stands for several integers: 2^53 and 2^53 + 1 become the same float64. pandas turns
    integers into floats as soon as one value is missing.

    Raises:
        ValueError: It may have been another integer.
    """
    limit = 2 ** (np.finfo(type(number)).nmant + 1)
    if abs(number) >= limit:
        raise ValueError(f"floats round integers from {limit:,} on: give an integer type, in pandas such as Int64")


def _is_list(type_: pa.DataType) -> bool:
    return pat.is_nested(type_) and not (pat.is_struct(type_) or pat.is_map(type_) or pat.is_union(type_))


def _cast_list(column: pa.Array, target: pa.ListType) -> pa.Array:
    items = cast_exactly(column.flatten(), target.value_type)
    return pa.ListArray.from_arrays(item_offsets(column), items, type=target, mask=_null_mask(column))


def _cast_map(column: pa.MapArray, target: pa.MapType) -> pa.Array:
    entries = map_as_list(column)
    keys, values = entries.flatten().flatten()
    return pa.MapArray.from_arrays(
        item_offsets(entries),
        cast_exactly(keys, target.key_type),
        cast_exactly(values, target.item_type),
        type=target,
        mask=_null_mask(column),
    )


def _null_mask(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _cast_struct(column: pa.StructArray, target: pa.StructType) -> pa.Array:
    names = [field.name for field in column.type.fields]
    if sorted(names) != sorted(target.names):
        raise TypeError(f"{column.type} and {target} have different fields")
    children = column.flatten()
    fields = [cast_exactly(children[names.index(field.name)], field.type) for field in target.fields]
    return pa.StructArray.from_arrays(fields, fields=list(target.fields), mask=_null_mask(column))
