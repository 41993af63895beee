"""The encoding of index entries.

The key of an entry is the id of its index (4 bytes, big-endian), then the columns of the index and the primary key,
encoded as in `key_codec`. In a partitioned table, the partition columns come before those of the index: see
`TableDefinition.entry_columns`.

The value is a stored row in the usual format, with a schema of its own: the columns of the index and of the primary
key. So a query for these columns alone is answered from the entries, and every other query finds the keys of the rows
in them.
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
from scankv.model.tables.columns import Schema
from scankv.model.tables.merge_spec import NO_MERGING
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.schema import Index, TableDefinition
    from streaming_server.storage.rows.row_codec import RowDecoder


class IndexCodec:
    """Encodes and decodes the entries of one index. Immutable, thread-safe.

    Attributes:
        index: The index.
        columns: The codec of the columns of the index, without the primary key; in a partitioned table after the
            partition columns.
        prefix: What the keys of all entries begin with.
        covered: The columns in the entries: those of the index, then the other columns of the primary key.
        all_entries: The key range of all entries.
        rows: The codec of the values of the entries, which are rows of the covered columns.
    """

    def __init__(self, definition: TableDefinition, index: Index) -> None:
        """Creates the codec, which is the same for all later definitions: the columns of an index never change."""
        self.index = index
        names = definition.entry_columns(index)
        columns = [definition.schema.column(name) for name in names]
        others = [definition.schema.column(name) for name in definition.primary_key if name not in names]
        self.columns = KeyCodec([column.type for column in columns], names, [column.nullable for column in columns])
        self.covered = tuple(column.name for column in (*columns, *others))
        self.prefix = index.id.to_bytes(4, "big")
        self.all_entries = KeyRange.under(self.prefix)
        entry = replace(
            definition,
            schemas=(Schema(1, (*columns, *others)),),
            indexes=(),
            merging=NO_MERGING,
            # The row has the time from which it lives.
            options=replace(definition.options, ttl_seconds=0, ttl_column=""),
            write_times_from=0,
        )
        self.rows = RowCodec(entry)
        self._primary_key = definition.primary_key
        self._keys = KeyCodec(definition.key_schema.types, definition.primary_key)

    def entries(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Encodes the entries of some rows: keys and values, in the same order.

        Args:
            rows: The rows, with at least the columns of the index and of the primary key.
            keys: The encoded primary keys of the rows.

        Raises:
            RequestTooLarge: The encoded columns of the index take more than 16 KiB in a row. The message names the row.
        """
        encoded = self._encode_columns(rows)
        entry_keys = pc.binary_join_element_wise(pa.scalar(self.prefix), encoded, keys, b"")
        return entry_keys, self.rows.encode(rows.select(self.covered))

    def _encode_columns(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        try:
            return self.columns.encode([rows.column(name) for name in self.columns.names])
        except InvalidKey as error:  # in validated rows, only the length can be wrong
            row = error.details.get("row", "?")
            raise RequestTooLarge(
                f"row {row}: the columns of index ({', '.join(self.index.columns)}) take over {MAX_KEY_BYTES:,} bytes",
                row=row,
            ) from error

    def within(self, columns: KeyRange) -> KeyRange:
        """Returns the key range of the entries whose columns, encoded by `columns`, are in a range."""
        start = self.prefix + (columns.start or b"")
        end = self.all_entries.end if columns.end is None else self.prefix + columns.end
        return KeyRange(start, end)

    def decoder(self, columns: Sequence[str] | None = None) -> RowDecoder:
        """Creates a decoder of the values of entries, for some covered columns. Raises SchemaMismatch for others."""
        return self.rows.decoder(columns)

    def row_keys(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """Returns the encoded primary keys of rows, from the values of their entries. Raises DataLoss."""
        try:
            return self._keys.encode(self.decoder(self._primary_key).decode(values).columns)
        except InvalidKey as error:
            raise DataLoss("an index entry is damaged: its key is invalid") from error
