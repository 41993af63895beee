"""Parses the rows of a request. They come from a client, so they are validated before any value is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES, MAX_REQUEST_ROWS
from scankv.model.types.conform import check_batch, check_columns
from scankv.model.types.ipc_compression import is_compressed

if TYPE_CHECKING:
    from collections.abc import Callable


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
    asked = [schema]

    def check(declared: pa.Schema) -> None:
        if optional is not None and optional.name in declared.names:
            asked[0] = schema.append(optional)
        check_columns(declared, asked[0])

    batch = read_batch(data, check)
    return check_batch(batch, asked[0])


def read_batch(data: bytes, check: Callable[[pa.Schema], None] = lambda _: None) -> pa.RecordBatch:
    """Reads the rows of an Arrow IPC stream from a client as one batch, as `read_request`.

    Args:
        data: The stream.
        check: Refuses a schema that is not wanted. It is called before any row is read, so that Arrow sees no array of
            a type that tables cannot have.

    Raises:
        InvalidRequest: The data is not a valid Arrow IPC stream.
        RequestTooLarge: The data exceeds the limits of a request.
        ScanKvError: What `check` raises.
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
            check(declared)
            batches = _plain_batches(data, declared)
            for batch in batches:
                batch.validate()
            _check_size(batches)
            for batch in batches:
                batch.validate(full=True)
                for column in batch.columns:
                    _check_empty_children(column)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"the rows are not a valid Arrow IPC stream: {error}") from error
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], declared)


def _check_size(batches: list[pa.RecordBatch]) -> None:
    """Raises RequestTooLarge for too many rows or bytes. A short request may refer to the same bytes many times.

    The sizes are those of the buffers. `RecordBatch.nbytes` follows offsets, which are not validated yet where an array
    is empty, and reads outside of the memory of the request.
    """
    rows = sum(batch.num_rows for batch in batches)
    columns = (column for batch in batches for column in batch.columns)
    size = sum(buffer.size for column in columns for buffer in column.buffers() if buffer is not None)
    if rows > MAX_REQUEST_ROWS or size > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the request has {rows} rows of {size} bytes; the limits are {MAX_REQUEST_ROWS} rows and "
            f"{MAX_REQUEST_BYTES} bytes: send fewer rows at once"
        )


def _check_empty_children(array: pa.Array) -> None:
    """Raises ValueError if an empty array, at any level, begins outside of its values. Arrow does not validate this."""
    type_ = array.type
    if not pa.types.is_nested(type_):
        return
    if pa.types.is_struct(type_):
        for number in range(type_.num_fields):
            _check_empty_children(array.field(number))
        return
    if not len(array):
        offsets = array.buffers()[1]
        at = 4 * array.offset
        first = int.from_bytes(memoryview(offsets)[at : at + 4], "little", signed=True) if offsets else 0
        if not 0 <= first <= len(array.values):
            raise ValueError(f"an empty {type_} begins at {first:,} of {len(array.values):,} values")
    _check_empty_children(array.values)


def _plain_batches(data: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    batches = []
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type == "schema":
            continue
        if message.type != "record batch":
            raise InvalidRequest(
                f"the Arrow IPC stream has a message of type {message.type}: send plain record batches"
            )
        if is_compressed(message.metadata):
            raise InvalidRequest("the Arrow IPC stream is compressed: send it without buffer compression")
        batches.append(pa.ipc.read_record_batch(message, schema))
    return batches


def widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the batch with the columns that only the newer `schema` has, filled with nulls."""
    known = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in known else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
