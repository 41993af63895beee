"""Turning a request's Arrow data into rows ready to be written: checked whole, encoded, and split by bucket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.buckets import bucket_of
from scankv.model.conform import check_batch
from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.key_codec import KeyCodec
from scankv.model.limits import MAX_KEY_BYTES, MAX_REQUEST_BYTES, MAX_REQUEST_ROWS, MAX_ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.schema import TableDefinition
    from streaming_server.engine.functions.function import Mask
    from streaming_server.engine.merging.rows import Written
    from streaming_server.storage.index_codec import IndexCodec
    from streaming_server.storage.row_codec import RowCodec


class KeyEncoder:
    """Encodes the primary and bucket keys of a table's batches. Immutable."""

    def __init__(self, definition: TableDefinition) -> None:
        key = definition.key_schema
        self.names = list(definition.primary_key)
        self.codec = KeyCodec(key.types, self.names)
        self._buckets = definition.buckets
        self._bucket_names = list(definition.bucket_key)
        self._bucket_codec = (
            self.codec
            if self._bucket_names == self.names
            else KeyCodec([key.field(name).type for name in self._bucket_names], self._bucket_names)
        )

    def canonical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its key columns in the one form in which equal keys have equal bytes."""
        for name in self.names:
            index = batch.schema.get_field_index(name)
            column = self.codec.canonical(batch.column(index))
            if column is not batch.column(index):
                batch = batch.set_column(index, batch.schema.field(index), column)
        return batch

    def encoded(self, batch: pa.RecordBatch) -> pa.Array:
        """The encoded primary keys of stored rows."""
        return self.codec.encode([batch.column(name) for name in self.names])

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.Array, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """The encoded primary keys of a batch, and the bucket of each. Raises InvalidKey."""
        keys = self.codec.encode([batch.column(name) for name in self.names])
        if self._bucket_codec is self.codec:
            return keys, bucket_of(keys, self._buckets)
        columns = [batch.column(name) for name in self._bucket_names]
        return keys, bucket_of(self._bucket_codec.encode(columns), self._buckets)


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
    written: Written | None = None

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


def read_request(data: bytes, schema: pa.Schema, optional: pa.Field | None = None) -> pa.RecordBatch:
    """The rows of an Arrow IPC stream from outside as one batch of exactly this schema.

    With `optional`, that column is the last one if it is there at all.

    Trusts nothing: offsets, lengths and UTF-8 are validated before anything looks at a value, and compressed buffers
    are refused, since their true size shows only once they are expanded.

    Raises:
        InvalidRequest: It is no valid Arrow IPC stream.
        SchemaMismatch: Its columns are not those of `schema`.
        RequestTooLarge: It is over the limit of a request.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the request has {len(data)} bytes of rows; the limit is {MAX_REQUEST_BYTES}: send fewer rows at once"
        )
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            declared = reader.schema
            # Names are decoded when they are looked at: here, where a broken one is caught.
            declared.names  # noqa: B018
            for field in declared:
                if pa.types.is_dictionary(field.type):
                    raise InvalidRequest(f'column "{field.name}" is dictionary-encoded: send plain values')
            batches = _plain_batches(data, declared)
            for batch in batches:
                batch.validate()
            _check_size(batches)
            for batch in batches:
                batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"the rows are not a valid Arrow IPC stream: {error}") from error
    batch = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], declared)
    if optional is not None and optional.name in batch.schema.names:
        schema = schema.append(optional)
    return check_batch(batch, schema)


def _check_size(batches: list[pa.RecordBatch]) -> None:
    """Bounds what the rows take once they are encoded: a short request may name the same bytes many times."""
    rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    if rows > MAX_REQUEST_ROWS or size > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the request has {rows} rows of {size} bytes; the limits are {MAX_REQUEST_ROWS} rows and "
            f"{MAX_REQUEST_BYTES} bytes: send fewer rows at once"
        )


def _plain_batches(data: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    batches = []
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type == "schema":
            continue
        if message.type != "record batch":
            raise InvalidRequest(
                f"the Arrow IPC stream holds a message of type {message.type}: send plain record batches"
            )
        if _is_compressed(message.metadata):
            raise InvalidRequest("the Arrow IPC stream is compressed: send it without buffer compression")
        batches.append(pa.ipc.read_record_batch(message, schema))
    return batches


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch message names a body compression.

    Reads two flatbuffer tables: `Message` (field 2 is the header) and in it `RecordBatch` (field 3 is the compression),
    as laid out in Arrow's `format/Message.fbs`.
    """
    data = memoryview(metadata)

    def u32(position: int) -> int:
        return int.from_bytes(data[position : position + 4], "little")

    def field(table: int, number: int) -> int:
        vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        size = int.from_bytes(data[vtable : vtable + 2], "little")
        slot = 4 + 2 * number
        offset = int.from_bytes(data[vtable + slot : vtable + slot + 2], "little") if slot < size else 0
        return table + offset if offset else 0

    header = field(u32(0), 2)
    return bool(header) and bool(field(header + u32(header), 3))


def prepare(
    batch: pa.RecordBatch, keys: KeyEncoder, codec: RowCodec, *, keys_only: bool, indexes: Iterable[IndexCodec] = ()
) -> list[PreparedRows]:
    """Checks and encodes a batch, keeps the last row of each key, and splits it by bucket, ascending.

    Args:
        batch: Rows of the codec's schema; with `keys_only`, just the key columns of rows to delete.
        keys: The table's key encoder.
        codec: The table's row codec.
        keys_only: Whether there are no rows to encode.
        indexes: The table's indexes.

    Raises:
        InvalidKey: A key is null or too long.
        RequestTooLarge: A row is over the limit of a row, or its columns of an index over that of a key.
    """
    batch = keys.canonical(batch)
    encoded, buckets = keys.encode(batch)
    values = None if keys_only else codec.encode(batch)
    if values is not None:
        _check_row_sizes(values)
        for index in indexes:
            _check_index_sizes(index, batch, encoded)
    last = _last_of_each(encoded)
    if 0 < len(last) == len(encoded) and (buckets == buckets[0]).all():
        return [PreparedRows(int(buckets[0]), codec, batch, encoded, values)]
    parts = []
    for number, rows in rows_by_bucket(buckets[last]):
        place = pa.array(last[rows])
        stored = values.take(place) if values is not None else None
        parts.append(PreparedRows(number, codec, batch.take(place), encoded.take(place), stored))
    return parts


def rows_by_bucket(
    buckets: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> list[tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """The buckets that occur, ascending, each with the indices at which it does, ascending."""
    if len(buckets) == 0:
        return []
    order = np.argsort(buckets, kind="stable")
    numbers, starts = np.unique(buckets[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


def widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns that a newer schema has in addition, null."""
    known = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in known else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
