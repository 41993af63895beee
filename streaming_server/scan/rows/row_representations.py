"""In which form an ordered scan holds the rows that it has read ahead of each bucket, before they are in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from scankv.model.errors import DataLoss, InvalidKey
from streaming_server.arrays.arrow_buffers import columnless_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec


class OrderedForm(Protocol):
    """What can be done with rows in an Arrow array, one a value.

    Attributes:
        nothing: No rows.
    """

    nothing: pa.Array

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""

    def held(self, rows: Sequence[bytes] | pa.Array) -> pa.Array:
        """What `Cursor.next_rows` gave, as an array."""

    def keys_of(self, rows: pa.Array) -> pa.Array:
        """The encoded keys of rows. Raises DataLoss."""

    def decode(self, rows: pa.Array) -> pa.RecordBatch:
        """The columns that are returned, of the rows that are kept. Raises DataLoss."""


class StoredForm:
    """Rows as they are stored. Immutable.

    Args:
        decoder: Makes what is returned of them.
        codec: Decodes their keys.
        keys: Encodes these.
    """

    def __init__(self, decoder: Decoder, codec: RowCodec, keys: KeyCodec) -> None:
        self.nothing = pa.array([], pa.binary())
        self._decoder = decoder
        self._columns = codec.decoder(codec.definition.primary_key)
        self._keys = keys

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._decoder.schema

    def held(self, rows: Sequence[bytes]) -> pa.Array:
        """The rows as an array."""
        return pa.array(rows, pa.binary())

    def keys_of(self, rows: pa.Array) -> pa.Array:
        """The encoded keys of rows. Raises DataLoss."""
        try:
            return self._keys.encode(self._columns.decode(rows).columns)
        except InvalidKey as error:
            raise DataLoss("a stored row is damaged: its key is none") from error

    def decode(self, rows: pa.Array) -> pa.RecordBatch:
        """The columns that are returned, of the rows that are kept. Raises DataLoss."""
        return self._decoder.decode(rows)


class KeyedForm:
    """Rows as `keyed_rows` makes them. Immutable.

    Args:
        schema: The schema of the batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.nothing = keyed_rows(pa.array([], pa.binary()), pa.RecordBatch.from_pylist([], schema=schema))

    def held(self, rows: pa.StructArray) -> pa.Array:
        """The rows as they are."""
        return rows

    def keys_of(self, rows: pa.StructArray) -> pa.Array:
        """The encoded keys of rows."""
        return rows.field(0)

    def decode(self, rows: pa.StructArray) -> pa.RecordBatch:
        """The columns that are returned."""
        if len(self.schema):
            return pa.RecordBatch.from_arrays(rows.flatten()[1:], schema=self.schema)
        return columnless_batch(len(rows))


def keyed_rows(keys: pa.BinaryArray, batch: pa.RecordBatch) -> pa.StructArray:
    """The rows of a batch as structs of their encoded key and their columns; copies nothing."""
    columns = [keys, *batch.columns]
    return pa.StructArray.from_arrays(columns, names=[str(place) for place in range(len(columns))])
