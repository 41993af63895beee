"""Reads lists and maps of any layout, sliced or not, as one array of items with offsets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from scankv.model import lazy_compute as pc


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
