"""How changes are recorded: a bucket's changelog is a sequence of records of up to 4,096 changes each.

The key of a record is the offset of its first change, big-endian. Its value is a header and one Arrow IPC record batch
of the row kind and all columns of the table. Records are written in the WriteBatch of the rows they describe.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from streaming_server.storage.offsets import make_offset
from table_model.errors import DataLoss, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from table_model.schema import TableDefinition

MAX_CHANGES_PER_RECORD = 4096

_RECORD_FORMAT = 1
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_COMPRESSED_FROM = 64
_NO_WRITER = bytes(16)
_KEY = struct.Struct(">Q")
# format, flags, epoch, schema id, commit timestamp (microseconds), count, writer id, sequence, transaction id, number
# of target columns; their ids follow as u32. All-zero ids and no targets mean none.
_HEADER = struct.Struct("<BBIIqI16sQ16sH")


class RowKind(IntEnum):
    """What a change did to its row, in Flink's terms."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def symbol(self) -> str:
        """`+I`, `-U`, `+U` or `-D`."""
        return ("+I", "-U", "+U", "-D")[self]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one bucket in their order: the kind of each (uint8), and its row (before-image for `-U` and `-D`)."""

    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One stored record: `changes`, the first of which has `offset`; `commit_micros` since 1970 UTC."""

    offset: int
    epoch: int
    schema_id: int
    commit_micros: int
    changes: Changes


def encode_records(
    changes: Changes, *, epoch: int, count: int, schema_id: int, commit_micros: int
) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of the records of one commit, whose first change is number `count` of its bucket."""
    for start in range(0, len(changes), MAX_CHANGES_PER_RECORD):
        rows = changes.rows.slice(start, MAX_CHANGES_PER_RECORD)
        kinds = changes.kinds[start : start + MAX_CHANGES_PER_RECORD]
        header = _HEADER.pack(
            _RECORD_FORMAT, 0, epoch, schema_id, commit_micros, rows.num_rows, _NO_WRITER, 0, _NO_WRITER, 0
        )
        batch = pa.RecordBatch.from_arrays([pa.array(kinds), *rows.columns], schema=record_schema(rows.schema))
        yield _KEY.pack(make_offset(epoch, count + start)), header + _to_ipc(batch)


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    """The batch as one IPC message; compressed where that is worth it, since every row is in the log once more."""
    if batch.num_rows < _COMPRESSED_FROM:
        return cast("bytes", batch.serialize().to_pybytes())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    # Only a stream takes options: its second message is the batch.
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return cast("bytes", messages.read_next_message().serialize().to_pybytes())


def record_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a record's batch: the row kind, then the table's columns."""
    return pa.schema([pa.field("_change_type", pa.uint8(), nullable=False), *schema])


def decode_record(key: bytes, value: bytes, definition: TableDefinition) -> LogRecord:
    """The record of a stored key and value.

    Raises:
        DataLoss: It is not what `encode_records` writes.
    """
    try:
        (offset,) = _KEY.unpack(key)
        format_, _, epoch, schema_id, commit_micros, count, _, _, _, targets = _HEADER.unpack_from(value)
        if format_ != _RECORD_FORMAT:
            raise DataLoss(f"the changelog record at offset {offset} has the unknown format {format_}")
        schema = record_schema(definition.schema_at(schema_id).arrow)
        batch = pa.ipc.read_record_batch(pa.py_buffer(value)[_HEADER.size + 4 * targets :], schema)
        batch.validate(full=True)
        kinds = batch.column(0).to_numpy()
        if len(kinds) and kinds.max() > max(RowKind):
            raise DataLoss(f"the changelog record at offset {offset} has the unknown row kind {kinds.max()}")
    except (struct.error, pa.ArrowException, OSError, EOFError, ValueError, SchemaMismatch) as error:
        raise DataLoss("a changelog record is damaged") from error
    if batch.num_rows != count:
        raise DataLoss(f"the changelog record at offset {offset} has {batch.num_rows} changes where {count} belong")
    rows = batch.select(range(1, batch.num_columns))
    return LogRecord(offset, epoch, schema_id, commit_micros, Changes(kinds, rows))
