"""Turning a request's Arrow data into rows ready to be written: checked whole, encoded, and split by bucket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES, MAX_ROW_BYTES
from streaming_server.engine.bucket.request_rows import widen
from streaming_server.storage.rows.key_encoder import rows_by_bucket

if TYPE_CHECKING:
    from streaming_server.engine.functions.function import Mask
    from streaming_server.engine.merging.rows import WrittenRows
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.rows.table_codec import TableCodec


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows (or keys to delete) of one bucket, in request order, each key once.

    `values` are the rows as `codec` stores them; None for keys to delete, and where `written` has rows that are yet to
    be merged: then `batch` is the key columns alone.
    """

    bucket: int
    codec: RowCodec
    batch: pa.RecordBatch
    keys: pa.Array
    values: pa.Array | None
    written: WrittenRows | None = None

    def slice(self, start: int, rows: int) -> PreparedRows:
        """At most so many rows from `start` on."""
        values = None if self.values is None else self.values.slice(start, rows)
        batch, keys = self.batch.slice(start, rows), self.keys.slice(start, rows)
        written = None if self.written is None else self.written.slice(start, rows)
        return PreparedRows(self.bucket, self.codec, batch, keys, values, written)

    def where(self, mask: Mask) -> PreparedRows:
        """Those of some of the keys."""
        chosen = pa.array(mask)
        values = None if self.values is None else self.values.filter(chosen)
        written = None if self.written is None else self.written.of_keys(mask)
        return PreparedRows(
            self.bucket, self.codec, self.batch.filter(chosen), self.keys.filter(chosen), values, written
        )

    def by_key(self) -> PreparedRows:
        """The same rows in the order of their keys, in which RocksDB finds and takes them at half the cost or less.

        Rows that are yet to be merged stay as they are.
        """
        if self.written is not None or _ascend(self.keys):
            return self
        order = pc.array_sort_indices(self.keys)
        values = None if self.values is None else self.values.take(order)
        return PreparedRows(self.bucket, self.codec, self.batch.take(order), self.keys.take(order), values)

    def for_codec(self, codec: RowCodec) -> PreparedRows:
        """The same rows for the codec of a newer schema: columns added since are null."""
        if codec is self.codec:
            return self
        if self.values is None:
            return replace(self, codec=codec)
        batch = widen(self.batch, codec.schema)
        return PreparedRows(self.bucket, codec, batch, self.keys, codec.encode(batch))


def prepare(batch: pa.RecordBatch, codec: TableCodec, *, keys_only: bool) -> list[PreparedRows]:
    """Checks and encodes a batch, keeps the last row of each key, and splits it by bucket, ascending.

    Args:
        batch: Rows of the codec's schema; with `keys_only`, just the key columns of rows to delete.
        codec: The table.
        keys_only: Whether there are no rows to encode.

    Raises:
        InvalidKey: A key is null or too long.
        RequestTooLarge: A row is over the limit of a row, or its columns of an index over that of a key.
    """
    batch = codec.keys.canonical(batch)
    encoded, buckets = codec.keys.encode(batch)
    values = None if keys_only else codec.rows.encode(batch)
    if values is not None:
        _check_row_sizes(values)
        for index in codec.indexes.values():
            _check_index_sizes(index, batch, encoded)
    last = _last_of_each(encoded)
    if 0 < len(last) == len(encoded) and (buckets == buckets[0]).all():
        return [PreparedRows(int(buckets[0]), codec.rows, batch, encoded, values)]
    parts = []
    for number, rows in rows_by_bucket(buckets[last]):
        place = pa.array(last[rows])
        stored = values.take(place) if values is not None else None
        parts.append(PreparedRows(number, codec.rows, batch.take(place), encoded.take(place), stored))
    return parts


def _check_row_sizes(values: pa.Array) -> None:
    lengths = pc.binary_length(values)
    if len(lengths) and (longest := pc.max(lengths).as_py()) > MAX_ROW_BYTES:
        row = pc.index(lengths, longest).as_py()
        raise RequestTooLarge(
            f"row {row} takes {longest} bytes; the limit of a row is {MAX_ROW_BYTES}: store large values elsewhere",
            row=row,
        )


def _check_index_sizes(index: IndexCodec, rows: pa.RecordBatch, keys: pa.Array) -> None:
    """Refuses rows whose columns of an index are too long for an entry; encodes them only when there may be such."""
    columns = [rows.column(name) for name in index.index.columns]
    texts = [column for column in columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    longest = sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in texts)
    # Every byte of a text may become two. All else of a column takes less than 32 bytes.
    if 2 * longest + 32 * len(columns) > MAX_KEY_BYTES:
        index.entries(rows, keys)


def _last_of_each(keys: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The indices of the last row of each key, ascending."""
    if _ascend(keys):
        # As they often come: telling takes a thirtieth of the time.
        return np.arange(len(keys))
    dictionary = keys.dictionary_encode()
    last = np.zeros(len(dictionary.dictionary), np.int64)
    # Where an index repeats, the last assignment stays: that is the last row of the key.
    last[dictionary.indices.to_numpy()] = np.arange(len(keys))
    return np.sort(last)


def _ascend(keys: pa.Array) -> bool:
    """Whether each key is greater than the one before."""
    return bool(pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py())
