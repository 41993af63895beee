"""Prepares the rows of a request for writing: checks all of them, encodes them, and splits them by bucket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES, MAX_ROW_BYTES
from streaming_server.storage.rows.conversion import convert_written
from streaming_server.storage.rows.key_encoder import rows_by_bucket

if TYPE_CHECKING:
    import numpy.typing as npt

    from streaming_server.engine.functions.function import Mask
    from streaming_server.engine.merging.rows import WrittenRows
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.rows.table_codec import TableCodec


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows of one bucket to put, or keys to delete, each key once.

    Attributes:
        bucket: The number of the bucket.
        codec: Encodes the rows.
        batch: The rows, one per key. Only the key columns for deletes and for rows that have to be merged.
        keys: The encoded keys, in the order of `batch`.
        values: The encoded rows. None for deletes and for rows that have to be merged.
        written: The rows that have to be merged, of the same keys. None: `values` replace the current rows, or are None
            because the keys are deleted.
        inputs: What the changelog records of the same keys, if it records what is written, and `written` lacks some of
            it: rows that have no effect, and the change type of each row as its kind. None: it records `written`.
    """

    bucket: int
    codec: RowCodec
    batch: pa.RecordBatch
    keys: pa.Array
    values: pa.Array | None
    written: WrittenRows | None = None
    inputs: WrittenRows | None = None

    @property
    def key_array(self) -> pa.BinaryArray:
        """The encoded keys as an array."""
        return self.keys

    @property
    def key_list(self) -> list[bytes]:
        """The encoded keys as a list."""
        keys: list[bytes] = self.keys.to_pylist()
        return keys

    @property
    def are_few(self) -> bool:
        """Whether the rows are written in less time than a change of threads takes. Few rows are `FewRows`."""
        return False

    @property
    def merges(self) -> bool:
        """Whether the rows have to be merged."""
        return self.written is not None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a partial write, without the key. None: all."""
        return None if self.written is None else self.written.columns

    def step_end(self, start: int, end: int) -> int:
        """Returns where a step from `start` ends, at `end` at the latest. Each key occurs once, so that is `end`."""
        return end

    def slice(self, start: int, rows: int) -> PreparedRows:
        """Returns at most `rows` keys from position `start` on."""
        values = None if self.values is None else self.values.slice(start, rows)
        batch, keys = self.batch.slice(start, rows), self.keys.slice(start, rows)
        written = None if self.written is None else self.written.slice(start, rows)
        inputs = None if self.inputs is None else self.inputs.slice(start, rows)
        return PreparedRows(self.bucket, self.codec, batch, keys, values, written, inputs)

    def where(self, mask: Mask) -> PreparedRows:
        """Returns the rows of some of the keys."""
        selection = pa.array(mask)
        values = None if self.values is None else self.values.filter(selection)
        written = None if self.written is None else self.written.of_keys(mask)
        inputs = None if self.inputs is None else self.inputs.of_keys(mask)
        batch, keys = self.batch.filter(selection), self.keys.filter(selection)
        return PreparedRows(self.bucket, self.codec, batch, keys, values, written, inputs)

    def by_key(self) -> PreparedRows:
        """Returns the same rows in key order, in which RocksDB reads and writes them at half the cost or less.

        Rows that have to be merged stay as they are; `group_by_key` has sorted their keys.
        """
        if self.written is not None or is_ascending(self.keys):
            return self
        order = pc.array_sort_indices(self.keys)
        values = None if self.values is None else self.values.take(order)
        return PreparedRows(self.bucket, self.codec, self.batch.take(order), self.keys.take(order), values)

    def for_codec(self, codec: RowCodec) -> PreparedRows:
        """Returns the same rows for the codec of a newer schema. Columns that were added since have their defaults."""
        if codec is self.codec:
            return self
        old, new = self.codec.definition.schema, codec.definition.schema
        if self.written is not None:
            inputs = None if self.inputs is None else self.inputs.converted(old, new)
            return replace(self, codec=codec, written=self.written.converted(old, new), inputs=inputs)
        if self.values is None:
            return replace(self, codec=codec)
        batch = convert_written(self.batch, old, new)
        return PreparedRows(self.bucket, codec, batch, self.keys, codec.encode(batch))


EncodedKeys: TypeAlias = "tuple[pa.BinaryArray, npt.NDArray[np.int32]]"
"""The encoded key and the bucket of each row."""


def prepare(
    batch: pa.RecordBatch, codec: TableCodec, *, keys_only: bool, known: EncodedKeys | None = None
) -> list[PreparedRows]:
    """Checks and encodes a batch, keeps the last row of each key, and splits it by bucket, ascending.

    Args:
        batch: Rows of the codec's schema. With `keys_only`, the key columns of rows to delete.
        codec: The table.
        keys_only: Whether the rows are deleted, so that only keys are encoded.
        known: The keys of the rows, whose key columns are canonical. None: they are not encoded yet.

    Raises:
        InvalidKey: A key is null or too long.
        RequestTooLarge: A row exceeds `MAX_ROW_BYTES`, or its columns of an index exceed `MAX_KEY_BYTES`.
    """
    if known is None:
        batch = codec.keys.canonicalize(batch)
        known = codec.keys.encode(batch)
    encoded, buckets = known
    values = None if keys_only else codec.rows.encode(batch)
    if values is not None:
        _check_row_sizes(values)
        for index in codec.indexes.values():
            _check_index_sizes(index, batch, encoded)
    last = _last_rows(encoded)
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
    """Raises RequestTooLarge for a row that cannot have an entry. Encodes the entries only if one may be too long."""
    columns = [rows.column(name) for name in index.columns.names]
    texts = [column for column in columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    longest = sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in texts)
    # Each byte of a text takes at most two bytes in an entry, and everything else of a column less than 32.
    if 2 * longest + 32 * len(columns) > MAX_KEY_BYTES:
        index.entries(rows, keys)


def _last_rows(keys: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the positions of the last row of each key, ascending."""
    if is_ascending(keys):
        # Rows often arrive sorted, and the comparison takes a thirtieth of the time of the dictionary below.
        return np.arange(len(keys))
    dictionary = keys.dictionary_encode()
    last = np.zeros(len(dictionary.dictionary), np.int64)
    # If an index repeats, the last assignment wins, which is the last row of the key.
    last[dictionary.indices.to_numpy()] = np.arange(len(keys))
    return np.sort(last)


def is_ascending(keys: pa.Array) -> bool:
    """Whether each key is greater than the key before it."""
    return bool(pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py())
