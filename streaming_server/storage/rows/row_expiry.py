"""Which stored rows have expired, from the bytes of the slot that has their time."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.arrays.arrow_buffers import var_offsets
from streaming_server.storage.rows.fixed_parts import PartsInPlace

if TYPE_CHECKING:
    from streaming_server.arrays.arrow_buffers import Mask
    from streaming_server.storage.rows.fixed_parts import FixedParts
    from streaming_server.storage.rows.row_codec import RowCodec

_FEW: Final = 64
"""The most rows that are looked at one by one."""


class ExpirySlot:
    """Finds expired rows by the column that has their times. Immutable.

    Args:
        codec: The codec of the rows, which also decodes rows of older schemas.
        column_id: The id of the column: see `Expiry`.
        name: Its name.
    """

    def __init__(self, codec: RowCodec, column_id: int, name: str) -> None:
        self._codec = codec
        self._column = name
        layout = codec.layout
        self._slot = layout.by_id[column_id]
        self._header = layout.header
        self._least_bytes = layout.fixed_bytes
        self._valid_at, self._valid_bit = layout.bitmap_start + self._slot.index // 8, 1 << self._slot.index % 8
        self._width = self._slot.width or 0
        self._unpack = struct.Struct("<i" if self._width == 4 else "<q").unpack_from

    def unexpired(self, values: pa.Array, bound: int) -> Mask | None:
        """Returns which rows have not expired; None if none has.

        Args:
            values: Stored rows of any schema of the table.
            bound: The greatest time that has expired: see `Expiry.bound_at`.

        Raises:
            DataLoss: A row is damaged.
        """
        if not len(values):
            return None
        lengths = np.diff(var_offsets(values))
        if lengths.min() >= self._least_bytes:
            fixed = PartsInPlace(values, lengths, self._codec.layout)
            if fixed.has_header():
                return self.unexpired_of_current(fixed, bound)
        column = self._codec.decoder((self._column,)).decode(values).column(0)
        stored = column.view(pa.int32() if self._width == 4 else pa.int64())
        alive: Mask = pc.fill_null(pc.greater(stored, bound), True).to_numpy(zero_copy_only=False)
        return None if alive.all() else alive

    def unexpired_of_current(self, fixed: FixedParts, bound: int) -> Mask | None:
        """Like `unexpired`, given the fixed parts of rows of the current schema."""
        alive: Mask = fixed.numbers(self._slot.start, self._width).view(f"<i{self._width}") > bound
        if alive.all():
            return None
        valid = fixed.valid(self._slot)
        if valid is not None:
            alive |= ~valid
        return None if alive.all() else alive

    def without_expired(self, rows: list[bytes | None], bound: int) -> list[bytes | None]:
        """Returns stored rows with None in place of those that have expired; the same list if none has.

        Raises:
            DataLoss: A row is damaged.
        """
        if len(rows) <= _FEW:
            return [None if row is not None and self._has_expired(row, bound) else row for row in rows]
        alive = self.unexpired(pa.array(rows, pa.binary()).drop_null(), bound)
        if alive is None:
            return rows
        kept = iter(alive.tolist())
        return [row if row is not None and next(kept) else None for row in rows]

    def _has_expired(self, row: bytes, bound: int) -> bool:
        if row.startswith(self._header) and len(row) >= self._least_bytes:
            return bool(row[self._valid_at] & self._valid_bit) and self._unpack(row, self._slot.start)[0] <= bound
        return self.unexpired(pa.array([row], pa.binary()), bound) is not None
