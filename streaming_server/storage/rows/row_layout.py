"""The layout of stored rows: the location of each column of a schema.

    format u8 · flags u8 · schema id u32 · null bitmap · fixed-width slots · ends u32 ... · bytes of the segments

All integers are little-endian. The null bitmap has one bit per column (1 = not null), in column order, least
significant bit first. Each fixed-width column has a slot (zeros when null; a bool takes one byte). Every other column
has one or more segments (`shredding`); `ends` holds the end of each segment, counted from the start of the row. The
part before the segments has the same length in all rows of one schema, so that a chunk can be decoded by column.

Hidden columns of fixed width follow the columns of the table. They hold the state of the merge engine.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from streaming_server.arrays.arrow_buffers import fixed_width
from streaming_server.storage.rows.shredding import segment_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.schema import ColumnDefinition, Schema

ROW_FORMAT = 1
HEADER = struct.Struct("<BBI")


@dataclass(frozen=True, slots=True)
class Slot:
    """The location of one column: a slot of `width` bytes at `start`, or `segments` segments from `segment` on."""

    column: ColumnDefinition
    index: int
    width: int | None
    start: int
    segment: int
    segments: int


class RowLayout:
    """The layout of the rows of one schema. Immutable.

    Args:
        schema: The columns of the table.
        hidden: Columns after them that no reader of the table sees.
    """

    def __init__(self, schema: Schema, hidden: Sequence[ColumnDefinition] = ()) -> None:
        self.schema = schema
        self.header = HEADER.pack(ROW_FORMAT, 0, schema.id)
        self.bitmap_start = HEADER.size
        columns = (*schema.columns, *hidden)
        self.bitmap_bytes = (len(columns) + 7) // 8
        position, segment = self.bitmap_start + self.bitmap_bytes, 0
        slots: list[Slot] = []
        for index, column in enumerate(columns):
            width = fixed_width(column.type)
            count = segment_count(column.type) if width is None else 0
            slots.append(Slot(column, index, width, position, segment, count))
            position, segment = position + (width or 0), segment + count
        self.slots = tuple(slots)
        self.ends_start = position
        self.segments = segment
        self.fixed_bytes = position + 4 * segment

    @cached_property
    def by_id(self) -> dict[int, Slot]:
        """The slots by column id."""
        return {slot.column.id: slot for slot in self.slots}
