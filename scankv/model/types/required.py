"""Finds nulls in NOT NULL columns and in NOT NULL parts of nested columns, and replaces those inside null structs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc
from scankv.model.types.nested import item_offsets, map_as_list


@dataclass(frozen=True, slots=True)
class NullFound:
    """A null in a column, or part of a column, that is NOT NULL.

    Attributes:
        path: The part that is null: `tags`, `tags[]` for a list item, `address.city` for a struct field.
        row: The index of the row.
    """

    path: str
    row: int


def first_forbidden_null(column: pa.Array, field: pa.Field) -> NullFound | None:
    """Returns a null that the field does not allow, in the column itself or nested in it; None if no such null exists.

    A null list, map or struct has no parts, so its parts are not null.

    Args:
        column: An array of the field's type, which is storable.
        field: The column's name and type, including which parts are NOT NULL.
    """
    return _search(column, field, field.name)


def _search(column: pa.Array, field: pa.Field, path: str) -> NullFound | None:
    if not field.nullable and column.null_count:
        return NullFound(path, pc.index(column.is_null(), True).as_py())
    if not _forbids_null_below(field.type):
        return None
    if pat.is_struct(field.type):
        return _search_struct(column, field.type, path)
    if pat.is_map(field.type):
        entries = map_as_list(column)
        return _search_items(entries, entries.type.value_field, path)
    return _search_items(column, field.type.value_field, path)


def _search_struct(column: pa.StructArray, type_: pa.StructType, path: str) -> NullFound | None:
    rows = None
    if column.null_count:
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        column = column.drop_null()
    for index, field in enumerate(type_.fields):
        found = _search(column.field(index), field, f"{path}.{field.name}")
        if found is not None:
            return found if rows is None else NullFound(found.path, int(rows[found.row]))
    return None


def _search_items(column: pa.ListArray, item: pa.Field, path: str) -> NullFound | None:
    found = _search(column.flatten(), item, f"{path}[]")
    if found is None:
        return None
    offsets = item_offsets(column).to_numpy()
    return NullFound(found.path, int(np.searchsorted(offsets, found.row, side="right")) - 1)


def _forbids_null_below(type_: pa.DataType) -> bool:
    if pat.is_struct(type_):
        return any(_forbids_null(field) for field in type_.fields)
    return pat.is_map(type_) or (pat.is_list(type_) and _forbids_null(type_.value_field))


def _forbids_null(field: pa.Field) -> bool:
    return not field.nullable or _forbids_null_below(field.type)


def fill_hidden_nulls(column: pa.Array) -> pa.Array:
    """Returns a column in which no NOT NULL part of a null struct is null, as some writers of files demand.

    Args:
        column: An array of a storable type, without nulls that `first_forbidden_null` finds.
    """
    type_ = column.type
    if not _forbids_null_below(type_):
        return column
    mask = column.is_null() if column.null_count else None
    if pat.is_struct(type_):
        children = [
            fill_hidden_nulls(child if field.nullable else _all_valid(child))
            for child, field in zip(column.flatten(), type_.fields, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(type_.fields), mask=mask)
    if pat.is_map(type_):
        entries = map_as_list(column)
        keys, items = entries.flatten().flatten()
        return pa.MapArray.from_arrays(item_offsets(entries), keys, fill_hidden_nulls(items), type=type_, mask=mask)
    items = fill_hidden_nulls(column.flatten())
    return pa.ListArray.from_arrays(item_offsets(column), items, type=type_, mask=mask)


def _all_valid(column: pa.Array) -> pa.Array:
    """Returns a column with any value in place of each null."""
    type_ = column.type
    if not column.null_count:
        return column
    if pat.is_struct(type_):
        return pa.StructArray.from_arrays(column.flatten(), fields=list(type_.fields))
    if pat.is_map(type_):
        entries = map_as_list(column)
        return pa.MapArray.from_arrays(item_offsets(entries), *entries.flatten().flatten(), type=type_)
    if pat.is_list(type_):
        return pa.ListArray.from_arrays(item_offsets(column), column.flatten(), type=type_)
    return pa.Array.from_buffers(type_, len(column), [None, *column.buffers()[1:]], offset=column.offset)
