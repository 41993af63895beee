"""Reads lists and maps of any layout, sliced or not, as one array of items with offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def map_scalar_types(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns a storable type with each scalar type in it changed."""
    if pat.is_map(type_):
        item = type_.item_field.with_type(map_scalar_types(type_.item_type, change))
        return pa.map_(map_scalar_types(type_.key_type, change), item)
    if pat.is_struct(type_):
        return pa.struct([field.with_type(map_scalar_types(field.type, change)) for field in type_.fields])
    if pat.is_nested(type_):
        return pa.list_(type_.value_field.with_type(map_scalar_types(type_.value_type, change)))
    return change(type_)


def scalar_columns(column: pa.Array) -> Iterator[pa.Array]:
    """Yields the columns of scalars that a column of a storable type consists of, without values that a null hides."""
    if pat.is_map(column.type):
        column = map_as_list(column)
    if pat.is_struct(column.type):
        for child in column.flatten():
            yield from scalar_columns(child)
    elif pat.is_nested(column.type):
        yield from scalar_columns(column.flatten())
    else:
        yield column


def map_as_list(column: pa.MapArray) -> pa.ListArray:
    """Returns a map column as lists of `struct<key, value>`."""
    # Arrow's own cast fails for a null struct with a NOT NULL field, and its list constructor for sliced offsets.
    key = pa.field("key", column.type.key_type, nullable=False)
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=[key, column.type.item_field])
    offsets = pa.array(column.offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, entries, mask=column.is_null() if column.null_count else None)


def item_offsets(column: pa.Array) -> pa.Array:
    """Returns the offsets of each list's items in `column.flatten()`.

    The flattened array leaves out items of null lists and items outside the slice, so the column's own offsets do not
    fit it.

    Args:
        column: n lists of any layout.

    Returns:
        n + 1 int32 offsets, the first of them 0.
    """
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets).cast(pa.int32())
