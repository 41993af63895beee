"""Reads the encoded key of one stored row directly from its bytes.

For a single row, most of the time of `RowDecoder` and `KeyCodec.encode`, which work on chunks, would be fixed costs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss
from scankv.model.rows.row_layout import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.rows.row_layout import RowLayout, Slot
    from scankv.model.tables.columns import ColumnDefinition

_END = struct.Struct("<I")


class RowKeys:
    """Reads the encoded keys of stored rows of any schema of a table. Thread-safe."""

    def __init__(self, layouts: Iterable[RowLayout], columns: Sequence[ColumnDefinition], keys: KeyCodec) -> None:
        """Creates a reader.

        Args:
            layouts: The layouts of all schemas that the rows may have.
            columns: The key columns, in key order.
            keys: The codec of these columns.
        """
        self._layouts = {layout.header: layout for layout in layouts}
        self._columns = columns
        self._keys = keys
        self._locations: dict[bytes, _KeyLocations] = {}

    def key_of(self, row: bytes) -> bytes:
        """Returns the encoded key of a stored row, equal to what `KeyCodec.encode` returns for its decoded columns.

        Raises:
            DataLoss: The row is damaged.
        """
        header = row[: HEADER.size]
        locations = self._locations.get(header)
        if locations is None:
            layout = self._layouts.get(header)
            if layout is None:
                raise DataLoss("a stored row is damaged: it has no header of this table")
            locations = self._locations[header] = _KeyLocations(
                layout, [layout.by_id[column.id] for column in self._columns]
            )
        return self._keys.encode_stored(locations.values(row))


class _KeyLocations:
    """The locations of the key columns in rows of one schema."""

    def __init__(self, layout: RowLayout, slots: Sequence[Slot]) -> None:
        self._layout = layout
        self._slots = [(slot.start, slot.start + slot.width if slot.width else None, slot.segment) for slot in slots]
        self._not_null = sum(1 << slot.index for slot in slots)
        self._bitmap = slice(layout.bitmap_start, layout.bitmap_start + layout.bitmap_bytes)

    def values(self, row: bytes) -> list[bytes]:
        """Returns the bytes of each key column."""
        layout = self._layout
        if len(row) < layout.fixed_bytes or self._end(row, layout.segments) != len(row):
            raise DataLoss("a stored row is damaged: its length is not the length of its columns")
        if int.from_bytes(row[self._bitmap], "little") & self._not_null != self._not_null:
            raise DataLoss("a stored row is damaged: its key is null")
        return [
            self._segment(row, segment) if stop is None else row[start:stop] for start, stop, segment in self._slots
        ]

    def _segment(self, row: bytes, number: int) -> bytes:
        start, stop = self._end(row, number), self._end(row, number + 1)
        if not self._layout.fixed_bytes <= start <= stop <= len(row):
            raise DataLoss("a stored row is damaged: its columns overlap")
        return row[start:stop]

    def _end(self, row: bytes, segments: int) -> int:
        """Returns the end of the first `segments` segments."""
        layout = self._layout
        if segments == 0:
            return layout.fixed_bytes
        end: int = _END.unpack_from(row, layout.ends_start + 4 * (segments - 1))[0]
        return end
