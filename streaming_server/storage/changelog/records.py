"""The records of a changelog, each with up to 4,096 changes.

The key of a record is the offset of its first change, big-endian. Its value is a header and one Arrow IPC record batch
of the row kind and all columns of the table. A record is written in the same WriteBatch as the rows it describes. A
record of format 2, a *segment*, replaces several smaller records and also has the commit time of each change.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128_digest

from scankv.model.changes.change_columns import CHANGE_SYMBOLS
from scankv.model.counts import counted
from scankv.model.errors import DataLoss, SchemaMismatch
from streaming_server.storage.changelog.offsets import count_of, make_offset
from streaming_server.storage.files.formats import newer_format
from streaming_server.storage.rows.conversion import convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scankv.model.tables.schema import TableDefinition

MAX_CHANGES_PER_RECORD = 4096
MAX_RECORD_BYTES: Final = 1 << 20
"""Records are not joined to a segment of more bytes, which a reader would have to read at once."""

_RECORD_FORMAT = 1
_SEGMENT_FORMAT = 2
MARKER_FORMAT: Final = 3
"""The format of a record that is a range marker: see `range_markers`."""
DELETION_FORMAT: Final = 4
"""The format of a range marker whose rows were deleted."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_COMPRESSED_FROM = 64
_TRIED_ROWS = 512
_NO_WRITER = bytes(16)
_KIND_FIELD = pa.field("_change_type", pa.uint8(), nullable=False)
_KEY = struct.Struct(">Q")
# format, flags, epoch, schema id, commit timestamp (microseconds), count, writer id, sequence, transaction id, number
# of target columns; their ids follow as u32. An id of zeros means none; no target columns means all columns.
_HEADER = struct.Struct("<BBIIqI16sQ16sH")


class RowKind(IntEnum):
    """What a change did to its row (Flink: `RowKind`)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def symbol(self) -> str:
        """`+I`, `-U`, `+U` or `-D`."""
        return CHANGE_SYMBOLS[self]


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """The writer of changes, and the columns that it has written. Immutable.

    Attributes:
        writer: The hash of the id of an opened writer; zeros for all others.
        columns: The ids of the columns that the writer has named, ascending. Empty: all.
    """

    writer: bytes = _NO_WRITER
    columns: tuple[int, ...] = ()

    @classmethod
    def of(cls, writer: str | None, columns: Iterable[int]) -> ChangeOrigin:
        """Returns the origin of the changes of a writer. `writer` is None for an anonymous one."""
        return cls(_NO_WRITER if writer is None else xxh3_128_digest(writer.encode()), tuple(sorted(columns)))


NO_ORIGIN: Final = ChangeOrigin()
"""The origin of the changes of anonymous writers."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one bucket in their order.

    Attributes:
        kinds: The row kind of each change (uint8).
        rows: The row of each change: for `-U` and `-D` the row before the change; for a `-D` without before-image only
            the key, with nulls in the other columns.
        origin: The writer of the changes.
        record_rows: The most changes of a record that they are stored in.
    """

    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]
    rows: pa.RecordBatch
    origin: ChangeOrigin = NO_ORIGIN
    record_rows: int = MAX_CHANGES_PER_RECORD

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Adjacent changes whose rows have the same schema.

    Attributes:
        offset: The offset of the first change; the others follow.
        epoch: The epoch of all changes.
        schema_id: The version of the table's schema that the rows have.
        commit_micros: The commit time of each change, in microseconds since 1970 UTC; never decreasing.
        changes: The changes.
    """

    offset: int
    epoch: int
    schema_id: int
    commit_micros: np.ndarray[tuple[int], np.dtype[np.int64]]
    changes: Changes

    def between(self, start: int, end: int) -> LogRecord:
        """Returns the changes from offset `start` up to, but without, `end`."""
        first = max(count_of(start) - count_of(self.offset), 0)
        count = max(min(count_of(end) - count_of(self.offset), len(self.changes)) - first, 0)
        if count == len(self.changes):
            return self
        kinds, rows = self.changes.kinds[first : first + count], self.changes.rows.slice(first, count)
        times = self.commit_micros[first : first + count]
        changes = Changes(kinds, rows, self.changes.origin)
        return LogRecord(self.offset + first, self.epoch, self.schema_id, times, changes)


def rows_of(
    record: LogRecord, definition: TableDefinition, schema_id: int, schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """Returns the rows of a record as a schema version of its table.

    Args:
        record: The record.
        definition: The table, which has the version of the record, too.
        schema_id: The version to return.
        schema: Its columns, of which others may be nullable. None: `definition.change_schema_at(schema_id)`.

    Returns:
        The rows, with this schema.
    """
    if schema is None:
        schema = definition.change_schema_at(schema_id)
    if record.schema_id == schema_id:
        rows = record.changes.rows
        # Columns may be nullable in one of them only, if the option `changelog` has changed in the meantime.
        return rows if rows.schema.equals(schema) else pa.RecordBatch.from_arrays(rows.columns, schema=schema)
    old, new = definition.schema_at(record.schema_id), definition.schema_at(schema_id)
    columns = convert(record.changes.rows, old, new).columns
    if definition.changelogs != ("full",):
        only_key = pa.array(_have_only_key(record, definition))
        for place, column in enumerate(new.columns):
            if column.initial_default is not None and column.id not in old.by_id:
                columns[place] = pc.if_else(only_key, pa.scalar(None, column.type), columns[place])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _have_only_key(record: LogRecord, definition: TableDefinition) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns which changes are deletes that have the key alone, without the row before: they have no defaults."""
    only_key: np.ndarray[tuple[int], np.dtype[np.bool_]] = record.changes.kinds == RowKind.DELETE
    if set(definition.changelogs) != {"upsert"}:
        # Others of its deletes may have a row, which has a value outside the key.
        rows, key = record.changes.rows, definition.primary_key
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name not in key:
                only_key &= column.is_null().to_numpy(zero_copy_only=False)
    return only_key


def encode_records(
    changes: Changes, *, epoch: int, count: int, schema_id: int, commit_micros: int
) -> Iterator[tuple[bytes, bytes]]:
    """Encodes the changes of one commit as records: keys and values. The first change is number `count` of its bucket.

    The row before an update and the row after it are always in one record.
    """
    start = 0
    while start < len(changes):
        end = min(start + changes.record_rows, len(changes))
        if end < len(changes) and changes.kinds[end - 1] == RowKind.UPDATE_BEFORE:
            end -= 1
        rows, kinds = changes.rows.slice(start, end - start), changes.kinds[start:end]
        # The columns of `record_schema`, which takes longer to build than to add a column.
        batch = rows.add_column(0, _KIND_FIELD, pa.array(kinds))
        header = encode_header(_RECORD_FORMAT, epoch, schema_id, commit_micros, rows.num_rows, changes.origin)
        yield record_key(make_offset(epoch, count + start)), header + _to_ipc(batch)
        start = end


def encode_segment(records: Sequence[LogRecord]) -> tuple[bytes, bytes]:
    """Encodes the changes of adjacent records of the same epoch, schema and origin as one record: key and value."""
    first = records[0]
    kinds = np.concatenate([record.changes.kinds for record in records])
    times = np.concatenate([record.commit_micros for record in records])
    rows = pa.concat_batches([record.changes.rows for record in records])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(kinds), pa.array(times), *rows.columns], schema=record_schema(rows.schema, segment=True)
    )
    origin = first.changes.origin
    header = encode_header(_SEGMENT_FORMAT, first.epoch, first.schema_id, int(times[0]), len(kinds), origin)
    return record_key(first.offset), header + _to_ipc(batch)


def record_key(offset: int) -> bytes:
    """Returns the key of a record whose first change has this offset."""
    return _KEY.pack(offset)


def encode_header(
    format_: int, epoch: int, schema_id: int, commit_micros: int, count: int, origin: ChangeOrigin
) -> bytes:
    """Encodes the header with which every record begins."""
    columns = origin.columns
    fixed = (format_, 0, epoch, schema_id, commit_micros, count, origin.writer, 0, _NO_WRITER, len(columns))
    return _HEADER.pack(*fixed) + struct.pack(f"<{len(columns)}I", *columns)


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The header of a stored record; see `LogRecord`. The commit time is that of the first change."""

    format: int
    offset: int
    epoch: int
    schema_id: int
    commit_micros: int
    count: int
    origin: ChangeOrigin

    @property
    def length(self) -> int:
        """The bytes of the header."""
        return _HEADER.size + 4 * len(self.origin.columns)

    @property
    def is_marker(self) -> bool:
        """Whether the record is a range marker."""
        return self.format in (MARKER_FORMAT, DELETION_FORMAT)


def decode_header(key: bytes, value: bytes) -> RecordHeader:
    """Decodes the header of a stored record without its changes. Raises DataLoss when it is damaged."""
    try:
        format_, _, epoch, schema_id, commit_micros, count, writer, _, _, targets = _HEADER.unpack_from(value)
        columns = struct.unpack_from(f"<{targets}I", value, _HEADER.size)
        (offset,) = _KEY.unpack(key)
        return RecordHeader(format_, offset, epoch, schema_id, commit_micros, count, ChangeOrigin(writer, columns))
    except struct.error as error:
        raise DataLoss("a changelog record is damaged") from error


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    """Serializes a batch as one IPC message. It is compressed only if that halves its size.

    The changelog has a copy of every row, so halving it is worth the time. Saving less is not: decompressing a record
    of the benchmark table T4, which shrinks to 0.62, takes most of the time of reading it. A sample of the first rows
    decides whether to compress at all, because compressing every record in full took a tenth of the time of a write.
    """
    plain = cast("bytes", batch.serialize().to_pybytes())
    if batch.num_rows < _COMPRESSED_FROM:
        return plain
    if batch.num_rows > _TRIED_ROWS:
        tried = batch.slice(0, _TRIED_ROWS).serialize()
        if not _halves(pa.compress(tried, "lz4_raw", asbytes=True), tried):
            return plain
    compressed = _compress(batch)
    return cast("bytes", compressed.to_pybytes()) if _halves(compressed, plain) else plain


def _halves(compressed: pa.Buffer | bytes, plain: pa.Buffer | bytes) -> bool:
    return 2 * len(compressed) <= len(plain)


def _compress(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    # Arrow takes options only for a stream. Its second message is the batch.
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return messages.read_next_message().serialize()


def record_schema(schema: pa.Schema, *, segment: bool = False) -> pa.Schema:
    """Returns the schema of a record's batch: the row kind, in a segment the commit time, then the table's columns."""
    fields = [_KIND_FIELD]
    if segment:
        fields.append(pa.field("_commit_micros", pa.int64(), nullable=False))
    return pa.schema([*fields, *schema])


def refuse_newer_record(offset: int, format_: int, flags: int) -> None:
    """Raises NewerFormat if a record has an unknown format or flag."""
    if format_ > DELETION_FORMAT or flags:
        found = f"{format_} and flags {flags:#x}" if flags else format_
        raise newer_format(f"the changelog record at offset {offset}", found, DELETION_FORMAT)


def decode_record(key: bytes, value: bytes, definition: TableDefinition) -> LogRecord:
    """Decodes a record from its stored key and value.

    Raises:
        NewerFormat: The record has an unknown format or flag.
        DataLoss: The record is damaged.
    """
    try:
        (offset,) = _KEY.unpack(key)
        format_, flags, epoch, schema_id, commit_micros, count, writer, _, _, targets = _HEADER.unpack_from(value)
        refuse_newer_record(offset, format_, flags)
        origin = ChangeOrigin(writer, struct.unpack_from(f"<{targets}I", value, _HEADER.size))
        if format_ not in (_RECORD_FORMAT, _SEGMENT_FORMAT):
            raise DataLoss(f"the changelog record at offset {offset} has the unknown format {format_}")
        segment = format_ == _SEGMENT_FORMAT
        schema = record_schema(definition.change_schema_at(schema_id), segment=segment)
        batch = pa.ipc.read_record_batch(pa.py_buffer(value)[_HEADER.size + 4 * targets :], schema)
        batch.validate(full=True)
        kinds = batch.column(0).to_numpy()
        if len(kinds) and kinds.max() > max(RowKind):
            raise DataLoss(f"the changelog record at offset {offset} has the unknown row kind {kinds.max()}")
        times = batch.column(1).to_numpy() if segment else np.full(len(kinds), commit_micros, np.int64)
    except (struct.error, pa.ArrowException, OSError, EOFError, ValueError, SchemaMismatch) as error:
        raise DataLoss("a changelog record is damaged") from error
    if batch.num_rows != count:
        raise DataLoss(
            f"the changelog record at offset {offset} has {counted(batch.num_rows, 'change')} instead of {count:,}"
        )
    rows = batch.select(range(2 if segment else 1, batch.num_columns))
    return LogRecord(offset, epoch, schema_id, times, Changes(kinds, rows, origin))
