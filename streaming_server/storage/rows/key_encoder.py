"""Encodes the keys of a table, and finds the bucket of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scankv.model.keys.buckets import KeyPlaces, bucket_of
from scankv.model.keys.key_codec import KeyCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from scankv.model.tables.schema import TableDefinition


class KeyEncoder:
    """Encodes the primary and bucket keys of a table's batches. Immutable."""

    def __init__(self, definition: TableDefinition) -> None:
        key = definition.scan_key_schema
        self.names = list(definition.primary_key)
        self.codec = KeyCodec(key.types, key.names)
        self._buckets = definition.buckets
        self._places = KeyPlaces(key, definition.bucket_key, definition.buckets)
        self._bucket_names = list(definition.bucket_key)
        self._bucket_codec = self.codec if self._bucket_names == self.names else bucket_codec(definition)

    @property
    def has_bucket_key(self) -> bool:
        """Whether columns choose the bucket of a row. If not, the buckets take turns."""
        return bool(self._bucket_names)

    def canonicalize(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with its key columns in canonical form, in which equal keys have equal bytes."""
        for name in self.names:
            index = batch.schema.get_field_index(name)
            column = self.codec.canonical(batch.column(index))
            if column is not batch.column(index):
                batch = batch.set_column(index, batch.schema.field(index), column)
        return batch

    def buckets_of_rows(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Returns the bucket of each row by its bucket key. Nulls count as a value. Raises InvalidKey."""
        columns = [self._bucket_codec.canonical(batch.column(name)) for name in self._bucket_names]
        return bucket_of(self._bucket_codec.encode(columns), self._buckets)

    def bucket_of(self, key: bytes) -> int:
        """Returns the bucket that an encoded primary key belongs to. Any bucket for bytes that are no key."""
        return self._places.bucket_of(key)

    def encode_stored(self, batch: pa.RecordBatch) -> pa.Array:
        """Returns the encoded primary keys of stored rows."""
        return self.codec.encode([batch.column(name) for name in self.names])

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.Array, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Returns the encoded primary keys of a batch, and the bucket of each. Raises InvalidKey."""
        keys = self.codec.encode([batch.column(name) for name in self.names])
        if self._bucket_codec is self.codec:
            return keys, bucket_of(keys, self._buckets)
        columns = [batch.column(name) for name in self._bucket_names]
        return keys, bucket_of(self._bucket_codec.encode(columns), self._buckets)


def bucket_codec(definition: TableDefinition) -> KeyCodec:
    """Returns the codec of the bucket keys of a table. A table without a primary key may have nulls in them."""
    columns = definition.schema.select(definition.bucket_key)
    return KeyCodec(columns.types, columns.names, [column.nullable for column in columns])


def rows_by_bucket(
    buckets: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> list[tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Returns each bucket that occurs, ascending, with the indices at which it occurs, ascending."""
    if len(buckets) == 0:
        return []
    order = np.argsort(buckets, kind="stable")
    numbers, starts = np.unique(buckets[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
