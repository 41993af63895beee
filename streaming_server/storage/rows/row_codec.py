"""Converts record batches to stored rows and back, a chunk at a time.

Only this module and `fixed_parts` read and write the row format, which `row_layout` describes. No step loops over rows:
each number of the fixed parts of all rows is one array, and each segment of all rows is one `take`
(`arrow_buffers.slice_values`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss
from scankv.model.rows.row_layout import HEADER, ROW_FORMAT, RowLayout, Slot
from streaming_server.arrays.arrow_buffers import (
    as_binary,
    binary_from_matrix,
    columnless_batch,
    fixed_array,
    fixed_bytes,
    slice_values,
    valid_mask,
    validity_buffer,
    var_offsets,
)
from streaming_server.storage.files.formats import newer_format
from streaming_server.storage.rows.conversion import initial_values, widened
from streaming_server.storage.rows.fixed_parts import fixed_matrix, fixed_parts
from streaming_server.storage.rows.row_expiry import ExpirySlot
from streaming_server.storage.rows.row_keys import RowKeys
from streaming_server.storage.rows.shredding import assemble, shred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.tables.columns import ColumnDefinition, Schema
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.arrays.arrow_buffers import Bytes, Mask, Offsets
    from streaming_server.storage.rows.fixed_parts import FixedParts


class RowCodec:
    """Encodes rows of a table's current schema, and creates decoders for rows of all its schemas.

    Immutable, so a scan keeps the codec with which it was opened while the table is altered.

    Attributes:
        definition: The definition of the table.
        schema: The columns of the table.
        hidden: The hidden columns of the table's merge engine.
        write_time: The hidden column with the time of the last write. It is null in rows that are encoded here:
            `write_times.set_write_times` sets it. None: rows do not have it.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.schema = definition.schema.arrow
        self.hidden = definition.hidden_columns(definition.schema)
        self.write_time = definition.write_time(definition.schema)
        self._layouts = {schema.id: layout_of(schema, definition) for schema in definition.schemas}
        self._layout = self._layouts[definition.schema.id]
        self._visible_layout = RowLayout(definition.schema.id, self.schema.types)

    def encode(self, batch: pa.RecordBatch, hidden: Sequence[pa.Array] = ()) -> pa.Array:
        """Encodes a batch of the current schema as a binary array with one stored row per value, in the same order.

        Equal rows have equal bytes.

        Args:
            batch: The rows.
            hidden: The hidden columns. Empty: all are null.
        """
        return self._encode(self._layout, batch, hidden)

    def visible(self, rows: list[bytes]) -> list[bytes]:
        """Returns stored rows of any schema as rows of the current schema, without hidden columns.

        Raises:
            DataLoss: A row is damaged.
        """
        header = self._layout.header
        if not self.stores_hidden and all(row.startswith(header) for row in rows):
            return rows
        batch = self.decoder().decode(pa.array(rows, pa.binary()))
        encoded: list[bytes] = self._encode(self._visible_layout, batch, ()).to_pylist()
        return encoded

    @staticmethod
    def _encode(layout: RowLayout, batch: pa.RecordBatch, hidden: Sequence[pa.Array]) -> pa.Array:
        count = batch.num_rows
        fixed = np.zeros((count, layout.fixed_bytes), np.uint8)
        fixed[:, : HEADER.size] = np.frombuffer(layout.header, np.uint8)
        segments: list[pa.Array] = []
        # Hidden columns have fixed width. One that is not given leaves zeros, like a null.
        for slot, array in zip(layout.slots, (*batch.columns, *hidden), strict=False):
            _set_valid(fixed, layout, slot, valid_mask(array))
            if slot.width is not None:
                fixed[:, slot.start : slot.start + slot.width] = fixed_bytes(array)
            elif pa.types.is_nested(array.type):
                segments += shred(array)
            else:
                segments.append(as_binary(array))
        end = np.full(count, layout.fixed_bytes, np.int64)
        for number, segment in enumerate(segments):
            end += np.diff(var_offsets(segment))
            position = layout.ends_start + 4 * number
            fixed[:, position : position + 4] = end.astype("<u4").view(np.uint8).reshape(count, 4)
        head = binary_from_matrix(fixed)
        return pc.binary_join_element_wise(head, *segments, pa.scalar(b"", pa.binary())) if segments else head

    @property
    def stores_hidden(self) -> bool:
        """Whether rows have hidden columns."""
        return bool(self.hidden) or self.write_time is not None

    @cached_property
    def expiry_slot(self) -> ExpirySlot | None:
        """Finds expired rows. None: rows do not expire."""
        expiry = self.definition.expiry
        return None if expiry is None else ExpirySlot(self, expiry.column.id, expiry.column.name)

    def without_expired(self, rows: list[bytes | None], now_micros: int) -> list[bytes | None]:
        """Returns stored rows with None in place of those that have expired at a time. Raises DataLoss."""
        expiry, slot = self.definition.expiry, self.expiry_slot
        return rows if expiry is None or slot is None else slot.without_expired(rows, expiry.bound_at(now_micros))

    @property
    def layout(self) -> RowLayout:
        """The layout of rows of the current schema."""
        return self._layout

    def decoder(self, columns: Sequence[str] | None = None) -> RowDecoder:
        """Creates a decoder for the named columns, in that order. None: all columns in table order.

        A predicate may name the hidden column with the time of the last write.

        Raises:
            SchemaMismatch: A column does not exist.
        """
        schema = self.definition.schema
        names = schema.names if columns is None else columns
        hidden = self.write_time
        if hidden is not None and hidden.name in names:
            chosen = [self.column(name) for name in names]
            fields = [pa.field(column.name, column.type, column.nullable) for column in chosen]
            return RowDecoder(self._layouts, self._layout, chosen, pa.schema(fields))
        return RowDecoder(self._layouts, self._layout, [schema.column(name) for name in names], schema.select(columns))

    def column(self, name: str) -> ColumnDefinition:
        """Returns a column of the current schema, or the hidden one with the time of the last write.

        Raises SchemaMismatch.
        """
        hidden = self.write_time
        return hidden if hidden is not None and name == hidden.name else self.definition.schema.column(name)

    @property
    def timed_columns(self) -> tuple[str, ...]:
        """The columns of the current schema, and then the one with the time of the last write, if rows have it."""
        return (*self.schema.names, *(() if self.write_time is None else (self.write_time.name,)))

    def merge_decoder(self) -> RowDecoder:
        """Creates a decoder for all columns in table order, then the hidden ones. All of them may be null."""
        columns = [*self.definition.schema.columns, *self.hidden]
        schema = pa.schema([pa.field(column.name, column.type) for column in columns])
        return RowDecoder(self._layouts, self._layout, columns, schema)

    def row_keys(self, keys: KeyCodec) -> RowKeys:
        """Creates a reader of the encoded keys of stored rows; `keys` is the codec of the table's primary key."""
        definition = self.definition
        columns = [definition.schema.column(name) for name in definition.primary_key]
        return RowKeys(self._layouts.values(), columns, keys)


def layout_of(schema: Schema, definition: TableDefinition) -> RowLayout:
    """Returns the layout of the rows that a table stores under one of its schemas, with the hidden columns."""
    columns = [*schema.columns, *definition.hidden_columns(schema)]
    if (write_time := definition.write_time(schema)) is not None:
        columns.append(write_time)
    return RowLayout(schema.id, [column.type for column in columns], [column.id for column in columns])


class Decoder(Protocol):
    """Decodes stored rows into batches."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        """Decodes a binary array of stored rows, in the same order; may drop rows. Raises DataLoss."""


class RowDecoder:
    """Decodes stored rows into batches of chosen columns. Immutable and thread-safe.

    Attributes:
        schema: The Arrow schema of the batches.
    """

    def __init__(
        self, layouts: dict[int, RowLayout], current: RowLayout, columns: list[ColumnDefinition], schema: pa.Schema
    ) -> None:
        self.schema = schema
        self._layouts = layouts
        self._current = current
        self._columns = columns

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        """Decodes a binary array of stored rows into a batch with one row for each, in the same order.

        Raises:
            DataLoss: A row is damaged.
        """
        lengths = np.diff(var_offsets(values))
        layout = self._layout_of_first(values)
        if len(lengths) == 0 or lengths.min() >= layout.fixed_bytes:
            fixed = fixed_parts(values, lengths, layout, len(self._columns))
            if fixed.has_header():
                return self._decode(layout, values, fixed)
        return self._decode_mixed(values, lengths)

    def decode_unexpired(self, values: pa.Array, slot: ExpirySlot, bound: int) -> pa.RecordBatch:
        """Decodes the rows that have not expired: see `ExpirySlot.unexpired`. Raises DataLoss."""
        lengths, layout = np.diff(var_offsets(values)), self._current
        if len(lengths) and lengths.min() >= layout.fixed_bytes:
            fixed = fixed_parts(values, lengths, layout, len(self._columns))
            if fixed.has_header():
                # Most often, no row of a chunk has expired, and the check costs next to nothing.
                alive = slot.unexpired_of_current(fixed, bound)
                if alive is None:
                    return self._decode(layout, values, fixed)
                return self.decode(values.filter(pa.array(alive)))
        alive = slot.unexpired(values, bound)
        return self.decode(values if alive is None else values.filter(pa.array(alive)))

    def _layout_of_first(self, values: pa.Array) -> RowLayout:
        """Returns the layout of the first row, which most often is that of all. If it is damaged: the current one."""
        if len(values):
            header = values[0].as_buffer()[: HEADER.size].to_pybytes()
            if header != self._current.header and len(header) == HEADER.size:
                return self._layouts.get(HEADER.unpack(header)[2], self._current)
        return self._current

    def _decode_mixed(self, values: pa.Array, lengths: Offsets) -> pa.RecordBatch:
        """Decodes rows of several schemas: the rows of each schema together, then restores the order of all rows."""
        if lengths.min() < HEADER.size:
            raise DataLoss(f"a stored row is damaged: {lengths.min()} bytes long")
        headers = np.ascontiguousarray(fixed_matrix(values, HEADER.size))
        if not (headers[:, :2] == (ROW_FORMAT, 0)).all():
            raise _unknown_format(headers[:, 0], headers[:, 1])
        schema_ids = headers[:, 2:].copy().view("<u4").reshape(-1)
        pieces: list[pa.RecordBatch] = []
        indices: list[Offsets] = []
        for schema_id in np.unique(schema_ids):
            layout = self._layouts.get(int(schema_id))
            if layout is None:
                raise DataLoss(f"a stored row is damaged: it names schema {schema_id}, which the table has never had")
            index = np.flatnonzero(schema_ids == schema_id)
            rows, row_lengths = values.take(pa.array(index)), lengths[index]
            if row_lengths.min() < layout.fixed_bytes:
                raise DataLoss(f"a stored row is damaged: {row_lengths.min()} bytes long")
            fixed = fixed_parts(rows, row_lengths, layout, len(self._columns))
            pieces.append(self._decode(layout, rows, fixed))
            indices.append(index)
        if len(pieces) == 1:
            return pieces[0]
        return pa.concat_batches(pieces).take(pa.array(np.argsort(np.concatenate(indices))))

    def _decode(self, layout: RowLayout, values: pa.Array, fixed: FixedParts) -> pa.RecordBatch:
        fixed.check_ends()
        arrays = [self._column(layout, column, values, fixed) for column in self._columns]
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return columnless_batch(len(values))

    @staticmethod
    def _column(layout: RowLayout, column: ColumnDefinition, values: pa.Array, fixed: FixedParts) -> pa.Array:
        count = len(values)
        slot = layout.by_id.get(column.id)
        if slot is None:
            return initial_values(column, count)
        mask = fixed.valid(slot)
        if slot.width is not None:
            return widened(fixed_array(slot.type, fixed.values(slot), mask), column)
        numbers = range(slot.segment, slot.segment + slot.segments)
        segments = (slice_values(values, *fixed.segment(number)) for number in numbers)
        if pa.types.is_nested(column.type):
            return widened(assemble(slot.type, count, mask, segments), column)
        _, offsets, data = next(segments).buffers() if count else pa.array([], column.type).buffers()
        return pa.Array.from_buffers(column.type, count, [validity_buffer(mask), offsets, data])


def _set_valid(fixed: Bytes, layout: RowLayout, slot: Slot, mask: Mask | None) -> None:
    byte, bit = layout.bitmap_start + slot.index // 8, np.uint8(1 << slot.index % 8)
    fixed[:, byte] |= bit if mask is None else np.where(mask, bit, np.uint8(0))


def _unknown_format(formats: np.typing.NDArray[np.uint8], flags: np.typing.NDArray[np.uint8]) -> DataLoss:
    """Returns the error for rows of which some have an unknown format or unknown flags."""
    newest, flag = int(formats.max()), int(np.bitwise_or.reduce(flags))
    if newest > ROW_FORMAT or flag:
        found = f"{newest} and flags {flag:#x}" if flag else newest
        return newer_format("a stored row", found, ROW_FORMAT)
    return DataLoss(f"a stored row is damaged: it has format {int(formats.min())}")
