"""Row representations: the forms in which an ordered scan keeps rows that it has read ahead, before merging them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from scankv.model.errors import DataLoss, InvalidKey
from streaming_server.arrays.arrow_buffers import binary_from_values, columnless_batch

if TYPE_CHECKING:
    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec


class RowRepresentation(Protocol):
    """Operations on rows in an Arrow array with one value per row.

    Attributes:
        empty: An array without rows.
    """

    empty: pa.Array

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""

    def to_array(self, rows: list[bytes] | pa.Array) -> pa.Array:
        """Returns the result of `Cursor.next_rows` as an array."""

    def keys_of(self, rows: pa.Array) -> pa.Array:
        """Returns the encoded keys of rows. Raises DataLoss."""

    def decode(self, rows: pa.Array) -> pa.RecordBatch:
        """Returns the requested columns of the rows. Raises DataLoss."""


class StoredRepresentation:
    """Rows in stored representation. Immutable.

    Args:
        decoder: Decodes the requested columns.
        codec: Decodes the key columns.
        keys: Encodes the keys.
    """

    def __init__(self, decoder: Decoder, codec: RowCodec, keys: KeyCodec) -> None:
        self.empty = pa.array([], pa.binary())
        self._decoder = decoder
        self._columns = codec.decoder(codec.definition.primary_key)
        self._keys = keys

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._decoder.schema

    def to_array(self, rows: list[bytes]) -> pa.Array:
        return binary_from_values(rows)

    def keys_of(self, rows: pa.Array) -> pa.Array:
        """Returns the encoded keys of rows. Raises DataLoss."""
        try:
            return self._keys.encode(self._columns.decode(rows).columns)
        except InvalidKey as error:
            raise DataLoss("a stored row is damaged: its key is not a valid key") from error

    def decode(self, rows: pa.Array) -> pa.RecordBatch:
        """Returns the requested columns of the rows. Raises DataLoss."""
        return self._decoder.decode(rows)


class KeyedRepresentation:
    """Rows as structs made by `keyed_rows`. Immutable.

    Args:
        schema: The schema of the batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.empty = keyed_rows(pa.array([], pa.binary()), pa.RecordBatch.from_pylist([], schema=schema))

    def to_array(self, rows: pa.StructArray) -> pa.Array:
        return rows

    def keys_of(self, rows: pa.StructArray) -> pa.Array:
        return rows.field(0)

    def decode(self, rows: pa.StructArray) -> pa.RecordBatch:
        """Returns the requested columns of the rows."""
        if len(self.schema):
            return pa.RecordBatch.from_arrays(rows.flatten()[1:], schema=self.schema)
        return columnless_batch(len(rows))


def keyed_rows(keys: pa.BinaryArray, batch: pa.RecordBatch) -> pa.StructArray:
    """Returns the rows of a batch as structs of their encoded key and their columns. Copies nothing."""
    columns = [keys, *batch.columns]
    return pa.StructArray.from_arrays(columns, names=[str(place) for place in range(len(columns))])
