"""Converts columns to layouts that all functions of Arrow support, at any depth of nesting.

Arrow has several layouts of the same values: dictionaries, runs, views of text and extension types. Many of its
functions lack some of them. Polars sends its Categorical and Enum as dictionaries of text views, which Arrow can
neither decode nor take rows of.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model.types.nested import item_offsets, map_as_list


def has_plain_layout(type_: pa.DataType) -> bool:
    """Returns whether columns of the type are already as `plain_layout` returns them."""
    if isinstance(type_, pa.BaseExtensionType) or pat.is_dictionary(type_) or pat.is_run_end_encoded(type_):
        return False
    if pat.is_string_view(type_) or pat.is_binary_view(type_):
        return False
    return all(has_plain_layout(type_.field(number).type) for number in range(type_.num_fields))


def plain_layout(column: pa.Array) -> pa.Array:
    """Returns the same values without dictionaries, runs, views of text, and extension types.

    A list that contains such values becomes a plain list.
    """
    type_ = column.type
    if has_plain_layout(type_):
        return column
    if isinstance(type_, pa.BaseExtensionType):
        return plain_layout(column.storage)
    if pat.is_dictionary(type_):
        return plain_layout(column.dictionary).take(column.indices)
    if pat.is_run_end_encoded(type_):
        rows = np.arange(column.offset, column.offset + len(column))
        runs = np.searchsorted(column.run_ends.to_numpy(), rows, side="right")
        return plain_layout(column.values).take(pa.array(runs))
    if pat.is_string_view(type_):
        return column.cast(pa.string())
    if pat.is_binary_view(type_):
        return column.cast(pa.binary())
    return _plain_nested(column)


def _plain_nested(column: pa.Array) -> pa.Array:
    mask = column.is_null() if column.null_count else None
    if pat.is_union(column.type):
        return column  # No table stores a union.
    if pat.is_struct(column.type):
        children = [plain_layout(child) for child in column.flatten()]
        fields = [field.with_type(child.type) for field, child in zip(column.type.fields, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if pat.is_map(column.type):
        entries = map_as_list(column)
        keys, values = (plain_layout(child) for child in entries.flatten().flatten())
        type_ = pa.map_(keys.type, column.type.item_field.with_type(values.type))
        return pa.MapArray.from_arrays(item_offsets(entries), keys, values, type=type_, mask=mask)
    items = plain_layout(column.flatten())
    type_ = pa.list_(column.type.value_field.with_type(items.type))
    return pa.ListArray.from_arrays(item_offsets(column), items, type=type_, mask=mask)
