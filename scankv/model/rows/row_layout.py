"""The layout of stored rows: the location of each column of a schema.

    format u8 · flags u8 · schema id u32 · null bitmap · fixed-width slots · ends u32 ... · bytes of the segments

All integers are little-endian. The null bitmap has one bit per column (1 = not null), in column order, least
significant bit first. Each fixed-width column has a slot (zeros when null; a bool takes one byte). Every other column
has one or more segments (a nested one as `streaming_server.storage.rows.shredding` says); `ends` holds the end of each
segment, counted from the start of the row. The part before the segments has the same length in all rows of one schema,
so that a chunk can be decoded by column.

Hidden columns of fixed width follow the columns of the table. They hold the state of the merge engine, and the last one
the time of the last write, if rows expire by it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_FORMAT: Final = 1
HEADER: Final = struct.Struct("<BBI")


@dataclass(frozen=True, slots=True)
class Slot:
    """The location of one column: a slot of `width` bytes at `start`, or `segments` segments from `segment` on."""

    type: pa.DataType
    index: int
    width: int | None
    start: int
    segment: int
    segments: int


class RowLayout:
    """The layout of the rows of one schema. Immutable.

    Args:
        schema_id: The id of the schema.
        types: The types of its columns, then those of the hidden columns.
        ids: The ids of these columns. Empty: they are not needed.
    """

    def __init__(self, schema_id: int, types: Sequence[pa.DataType], ids: Sequence[int] = ()) -> None:
        self.header: bytes = HEADER.pack(ROW_FORMAT, 0, schema_id)
        self.bitmap_start: int = HEADER.size
        self.bitmap_bytes: int = (len(types) + 7) // 8
        self._ids = ids
        position, segment = self.bitmap_start + self.bitmap_bytes, 0
        slots: list[Slot] = []
        for index, type_ in enumerate(types):
            width = fixed_width(type_)
            count = segment_count(type_) if width is None else 0
            slots.append(Slot(type_, index, width, position, segment, count))
            position, segment = position + (width or 0), segment + count
        self.slots: tuple[Slot, ...] = tuple(slots)
        self.ends_start: int = position
        self.segments: int = segment
        self.fixed_bytes: int = position + 4 * segment

    @cached_property
    def by_id(self) -> dict[int, Slot]:
        """The slots by column id."""
        return dict(zip(self._ids, self.slots, strict=True))


def fixed_width(type_: pa.DataType) -> int | None:
    """Returns how many bytes a value of the type takes in a row; a bool takes one. None: it has no fixed width."""
    if pa.types.is_boolean(type_):
        return 1
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_nested(type_):
        return None
    return int(type_.bit_width) // 8


def segment_count(type_: pa.DataType) -> int:
    """Returns how many segments a column of this type has. Not for fixed-width types."""
    if pa.types.is_struct(type_):
        return sum(1 + _nested_count(field.type) for field in type_)
    if pa.types.is_map(type_):
        return segment_count(map_storage(type_))
    if pa.types.is_list(type_):
        return 2 + _nested_count(type_.value_type)
    return 1


def map_storage(type_: pa.MapType) -> pa.ListType:
    """Returns the type as which a map is stored: a list of structs of key and value."""
    return pa.list_(pa.struct([type_.key_field, type_.item_field]))


def _nested_count(type_: pa.DataType) -> int:
    return 2 if pa.types.is_string(type_) or pa.types.is_binary(type_) else segment_count(type_)
