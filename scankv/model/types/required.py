"""Finds nulls in NOT NULL columns and in NOT NULL parts of nested columns."""

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
