"""Parses the rows of a request. They come from a client, so they are validated before any value is read."""

from __future__ import annotations

import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES, MAX_REQUEST_ROWS
from scankv.model.types.conform import check_batch


def read_request(data: bytes, schema: pa.Schema, optional: pa.Field | None = None) -> pa.RecordBatch:
    """Reads the rows of an Arrow IPC stream from a client.

    Trusts nothing: offsets, lengths and UTF-8 are validated before any value is read. Compressed buffers are refused,
    because their size is known only once they are decompressed.

    Args:
        data: The stream.
        schema: The columns that it must have.
        optional: A column that it may have in addition.

    Returns:
        One batch of exactly `schema`, with the optional column as the last one if the stream has it.

    Raises:
        InvalidRequest: The data is not a valid Arrow IPC stream.
        SchemaMismatch: The columns are not those of `schema`.
        RequestTooLarge: The data exceeds the limits of a request.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the request has {len(data)} bytes of rows; the limit is {MAX_REQUEST_BYTES}: send fewer rows at once"
        )
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            declared = reader.schema
            # Names are decoded on access. Access them here, where the error of a malformed name is caught.
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
    """Raises RequestTooLarge for too many rows or bytes. A short request may refer to the same bytes many times."""
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
                f"the Arrow IPC stream has a message of type {message.type}: send plain record batches"
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


def widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the batch with the columns that only the newer `schema` has, filled with nulls."""
    known = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in known else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
