"""Which types a column can change to, so that every stored value keeps its meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.types.nested import item_offsets, map_as_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns whether each value of a type can be represented exactly by another type, which a column can change to.

    That is so from an integer to an integer with more bits (unsigned to signed as well), from a float to a wider float,
    from a decimal to one of the same scale and a greater precision, and from a date to a timestamp without time zone in
    seconds, milliseconds or microseconds. A struct can have other fields: those that stay, found by name, can become
    wider, and those that are added are nullable. A list or the values of a map can change like a column.
    """
    if pat.is_integer(old) and pat.is_integer(new):
        if pat.is_unsigned_integer(new) and not pat.is_unsigned_integer(old):
            return False
        return bool(new.bit_width > old.bit_width)
    if pat.is_floating(old) and pat.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if pat.is_decimal(old) and pat.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    if pat.is_date32(old):
        return pat.is_timestamp(new) and new.tz is None and new.unit != "ns"
    return pat.is_nested(old) and old != new and _can_become(old, new)


def _can_become(old: pa.DataType, new: pa.DataType) -> bool:
    if pat.is_struct(old) and pat.is_struct(new):
        before = {field.name: field for field in old}
        return all(
            _field_can_become(before[field.name], field) if field.name in before else field.nullable for field in new
        )
    if pat.is_map(old) and pat.is_map(new):
        return bool(old.key_type == new.key_type) and _field_can_become(old.item_field, new.item_field)
    if pat.is_list(old) and pat.is_list(new):
        return _field_can_become(old.value_field, new.value_field)
    return bool(old == new) or (not pat.is_nested(old) and is_wider(old, new))


def _field_can_become(old: pa.Field, new: pa.Field) -> bool:
    return (new.nullable or not old.nullable) and _can_become(old.type, new.type)


def reused_field(earlier: Iterable[pa.DataType], new: pa.DataType) -> str | None:
    """Returns a field of a struct that was dropped from a type earlier, and that a new type has again. None: no such.

    Fields are found by name, so such a field would have the old values.

    Args:
        earlier: The types that the column has had, the present one last.
        new: Its new type.
    """
    *before, present = (set(_paths(type_, ())) for type_ in earlier)
    dropped = set().union(*before) - present
    reused = sorted(dropped & set(_paths(new, ())))
    return ".".join(reused[0]) if reused else None


def _paths(type_: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the path of each field in a type. Elements of lists and values of maps have no name of their own."""
    if pat.is_struct(type_):
        for field in type_:
            yield (*path, field.name)
            yield from _paths(field.type, (*path, field.name))
    elif pat.is_map(type_):
        yield from _paths(type_.key_type, (*path, "key"))
        yield from _paths(type_.item_type, (*path, "value"))
    elif pat.is_list(type_):
        yield from _paths(type_.value_type, (*path, "element"))


def widen_values(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Returns values in a type that `is_wider` allows for them.

    Raises:
        pyarrow.ArrowInvalid: A date is out of the range of a timestamp.
    """
    old = values.type
    if old == type_:
        return values
    if pat.is_struct(old):
        children = dict(zip((field.name for field in old), values.flatten(), strict=True))
        fields = [
            widen_values(children[field.name], field.type)
            if field.name in children
            else pa.nulls(len(values), field.type)
            for field in type_
        ]
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=_nulls(values))
    if pat.is_map(old):
        entries = map_as_list(values)
        keys, items = entries.flatten().flatten()
        items = widen_values(items, type_.item_type)
        return pa.MapArray.from_arrays(item_offsets(entries), keys, items, type=type_, mask=_nulls(values))
    if pat.is_list(old):
        elements = widen_values(values.flatten(), type_.value_type)
        return pa.ListArray.from_arrays(item_offsets(values), elements, type=type_, mask=_nulls(values))
    return values.cast(type_)


def _nulls(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
