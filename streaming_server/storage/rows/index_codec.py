"""The entries of an index: keys in the order of its columns, and rows of what a query can ask of it alone.

An entry's key is the number of its index (4 bytes, big-endian), the index's columns and then the primary key, encoded
as in `key_codec`. Its value is a stored row, in the format of all rows, of a schema of its own: the columns of the
index and of the primary key. So a query that asks for no others is answered from the entries, and every other one finds
the key of the row in them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, InvalidKey, RequestTooLarge
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.tables.merge_spec import NO_MERGING
from scankv.model.tables.schema import Schema
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.schema import Index, TableDefinition
    from streaming_server.storage.rows.row_codec import RowDecoder


class IndexCodec:
    """Encodes and decodes the entries of one index. Immutable, thread-safe.

    Attributes:
        index: Which one.
        columns: Encodes its columns, without the primary key.
        covered: The columns that its entries have: those of the index, then the others of the primary key.
        all_entries: The keys of all its entries.
        rows: Encodes and decodes their values, as rows of a table with the columns covered.
    """

    def __init__(self, definition: TableDefinition, index: Index) -> None:
        """For an index of a table. Columns are never changed, so any later definition gives the same."""
        self.index = index
        columns = [definition.schema.column(name) for name in index.columns]
        others = [definition.schema.column(name) for name in definition.primary_key if name not in index.columns]
        self.columns = KeyCodec(
            [column.type for column in columns], index.columns, [column.nullable for column in columns]
        )
        self.covered = tuple(column.name for column in (*columns, *others))
        self._prefix = index.id.to_bytes(4, "big")
        self.all_entries = KeyRange.under(self._prefix)
        entry = replace(definition, schemas=(Schema(1, (*columns, *others)),), indexes=(), merging=NO_MERGING)
        self.rows = RowCodec(entry)
        self._primary_key = definition.primary_key
        self._keys = KeyCodec(definition.key_schema.types, definition.primary_key)

    def entries(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """The keys and values of the entries of some rows, in the same order.

        Args:
            rows: At least the columns of the index and of the primary key.
            keys: Their encoded primary keys.

        Raises:
            RequestTooLarge: The columns of the index take over 16 KiB in a row when encoded; names the row.
        """
        encoded = self._encoded_columns(rows)
        entry_keys = pc.binary_join_element_wise(pa.scalar(self._prefix), encoded, keys, b"")
        return entry_keys, self.rows.encode(rows.select(self.covered))

    def _encoded_columns(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        try:
            return self.columns.encode([rows.column(name) for name in self.index.columns])
        except (
            InvalidKey
        ) as error:  # of all that it can be, only its length is left to be wrong in rows that were checked
            row = error.details.get("row", "?")
            raise RequestTooLarge(
                f"row {row}: the columns of index ({', '.join(self.index.columns)}) take over {MAX_KEY_BYTES:,} bytes",
                row=row,
            ) from error

    def within(self, columns: KeyRange) -> KeyRange:
        """The keys of the entries whose encoded columns (see `columns`) are in a range."""
        start = self._prefix + (columns.start or b"")
        end = self.all_entries.end if columns.end is None else self._prefix + columns.end
        return KeyRange(start, end)

    def decoder(self, columns: Sequence[str] | None = None) -> RowDecoder:
        """A decoder of entries' values, for some of the columns covered. Raises SchemaMismatch for others."""
        return self.rows.decoder(columns)

    def row_keys(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """The encoded primary keys of the rows behind some entries, by their values. Raises DataLoss."""
        try:
            return self._keys.encode(self.decoder(self._primary_key).decode(values).columns)
        except InvalidKey as error:
            raise DataLoss("an index entry is damaged: its key is none that can be stored") from error
