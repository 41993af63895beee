"""How a columnar base is written: rows in key order become batches, files with checksums, and a directory at last."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from streaming_server.storage.columnar.columnar_base import (
    KEYS_FILE,
    KEYS_SCHEMA,
    MANIFEST_FILE,
    ROWS_FILE,
    UNFINISHED,
    ZONES_FILE,
    BaseManifest,
    BatchEntry,
    list_base_names,
)
from streaming_server.storage.columnar.mapped_file import FileBlock
from streaming_server.storage.files.checked_json import sync_directory, write_checked_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition

BATCH_ROWS: Final = 32_768
"""Rows of a batch, at most."""

BATCH_BYTES: Final = 2 << 20
"""Bytes of a batch's Arrow body, about; a single longer row is a batch of its own."""

LONGEST_ZONE_VALUE: Final = 64
"""Bytes of a text or binary value that a zone keeps; where the least or the greatest is longer, there is no zone."""

_HELD_BYTES: Final = 4 * BATCH_BYTES
_BYTES_OF_A_PART: Final = 4096
_MAGIC_BYTES: Final = 8


class BaseWriter:
    """Writes one base of a bucket. Use it from one thread at a time, and end it with `finish` or `discard`.

    It holds the rows of one batch, and, where they are slices, 8 MiB of what they are slices of.

    Args:
        directory: That of the bucket's bases; made when there is none. One writer at a time.
        definition: The table; the rows have its current schema.
        bucket: The bucket.
        now_micros: The commit time of now.
        zone_columns: The columns beside the key whose zones are kept. None: all that can have them, which are those of
            integers, floats, decimals, booleans, dates, times, text and binary.

    Raises:
        OSError: It cannot be made, nor was anything.
    """

    def __init__(
        self,
        directory: Path,
        definition: TableDefinition,
        bucket: int,
        *,
        now_micros: int,
        zone_columns: Sequence[str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._definition = definition
        self._bucket = bucket
        self._schema = definition.schema.arrow
        self._cut_millis = now_micros // 1000
        self._name = _next_name(directory, now_micros)
        self._path = directory / (self._name + UNFINISHED)
        self._pending: list[tuple[pa.RecordBatch, pa.BinaryArray]] = []
        self._pending_rows = self._pending_bytes = self._held_bytes = 0
        self._batches: list[BatchEntry] = []
        self._zones = [
            _ZoneColumn(field)
            for field in self._schema
            if (zone_columns is None or field.name in {*zone_columns, *definition.primary_key})
            and not pat.is_nested(field.type)
        ]
        self._files: list[_MessageFile] = []
        self._path.mkdir()
        try:
            self._rows = self._file(ROWS_FILE, self._schema)
            self._keys = self._file(KEYS_FILE, KEYS_SCHEMA)
        except BaseException:
            self.discard()
            raise

    def write(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> None:
        """Appends rows. Blocks.

        Args:
            rows: Any number of rows, of the table's current schema.
            keys: Their encoded keys, ascending, all above those before.

        Raises:
            OSError: The disk is full, or the like; what is left is to discard the base.
        """
        assert len(keys) == rows.num_rows
        start = 0
        while start < rows.num_rows:
            left = rows.slice(start, BATCH_ROWS - self._pending_rows)
            count, size = _that_fit(left, BATCH_BYTES - self._pending_bytes)
            if count == 0 and not self._pending:
                count, size = 1, left.slice(0, 1).nbytes
            if count:
                self._keep(left.slice(0, count), keys.slice(start, count), size)
                start += count
            if count < left.num_rows or self._pending_rows == BATCH_ROWS:
                self._write_batch()

    def finish(self, log_offset: int) -> Path:
        """Makes the base one that is there, durable when this returns. Blocks.

        Args:
            log_offset: The offset of the first change that is not in it.

        Returns:
            Its directory.

        Raises:
            OSError: The disk is full, or the like; the base was discarded.
        """
        try:
            if self._pending:
                self._write_batch()
            self._write_zones()
            for file in self._files:
                file.close()
            write_checked_json(self._path / MANIFEST_FILE, self._manifest(log_offset).to_json())
            path = self._directory / self._name
            self._path.rename(path)
            sync_directory(self._directory)
        except BaseException:
            self.discard()
            raise
        return path

    def discard(self) -> None:
        """Removes what was written, unless it was finished. To be called any number of times."""
        for file in self._files:
            file.abandon()
        self._pending.clear()
        shutil.rmtree(self._path, ignore_errors=True)

    def _file(self, name: str, schema: pa.Schema) -> _MessageFile:
        file = _MessageFile(self._path / name, schema)
        self._files.append(file)
        return file

    def _keep(self, rows: pa.RecordBatch, keys: pa.BinaryArray, size: int) -> None:
        self._pending.append((rows, keys))
        self._pending_rows += rows.num_rows
        self._pending_bytes += size
        self._held_bytes += rows.get_total_buffer_size() + keys.get_total_buffer_size() + _BYTES_OF_A_PART
        if self._held_bytes > _HELD_BYTES and len(self._pending) > 1:
            self._pending = [self._joined()]
            # Of its own buffers, so it holds nothing but what is counted in pending bytes.
            self._held_bytes = 0

    def _joined(self) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """All pending rows as one batch."""
        if len(self._pending) == 1:
            return self._pending[0]
        rows, keys = zip(*self._pending, strict=True)
        return pa.concat_batches(rows), pa.concat_arrays(keys)

    def _write_batch(self) -> None:
        rows, keys = self._joined()
        entry = BatchEntry(rows.num_rows, keys[0].as_py(), keys[-1].as_py())
        assert not self._batches or self._batches[-1].last_key < entry.first_key, "rows do not ascend by key"
        self._rows.append(rows)
        self._keys.append(pa.RecordBatch.from_arrays([keys], schema=KEYS_SCHEMA))
        for zone in self._zones:
            zone.add(rows.column(zone.field.name))
        self._batches.append(entry)
        self._pending.clear()
        self._pending_rows = self._pending_bytes = self._held_bytes = 0

    def _write_zones(self) -> None:
        zones = pa.RecordBatch.from_arrays(
            [zone.values() for zone in self._zones], names=[zone.field.name for zone in self._zones]
        )
        self._file(ZONES_FILE, zones.schema).append(zones)

    def _manifest(self, log_offset: int) -> BaseManifest:
        return BaseManifest(
            name=self._name,
            incarnation=self._definition.incarnation,
            bucket=self._bucket,
            schema_id=self._definition.schema.id,
            log_offset=log_offset,
            cut_millis=self._cut_millis,
            rows=sum(batch.rows for batch in self._batches),
            schema=self._schema,
            batches=self._batches,
            files={file.name: file.blocks for file in self._files},
        )


def _next_name(directory: Path, now_micros: int) -> str:
    newest = max((int(name[:16], 16) for name in list_base_names(directory)), default=0)
    # Of the time, so that the name of one that was removed, which a reader may still know, is not used again.
    return f"{max(newest + 1, now_micros * 1000):016x}"


def _that_fit(rows: pa.RecordBatch, room: int) -> tuple[int, int]:
    """How many of the first rows have at most `room` bytes in Arrow, and how many bytes these have."""
    size = rows.nbytes
    if size <= room:
        return rows.num_rows, size
    fits, fits_not = 0, rows.num_rows
    while fits_not - fits > 1:
        middle = (fits + fits_not) // 2
        if rows.slice(0, middle).nbytes <= room:
            fits = middle
        else:
            fits_not = middle
    return fits, rows.slice(0, fits).nbytes


class _MessageFile:
    """An Arrow IPC file in the making, which notes where each block of it lies, and its checksum, as it is written.

    Also the file object that Arrow writes to: whatever becomes of the bytes behind it, the checksum is of those that
    were meant.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.name = path.name
        self.blocks: list[FileBlock] = []
        self._start = self._offset = self._checksum = 0
        # Arrow writes it together with the first message.
        self._head_bytes = _MAGIC_BYTES + schema.serialize().size
        self._file = path.open("wb")
        self._writer: Any = pa.ipc.new_file(pa.PythonFile(self, mode="w"), schema)

    def append(self, batch: pa.RecordBatch) -> None:
        """Writes a batch as one message."""
        self._writer.write_batch(batch)
        self._end_block()

    def close(self) -> None:
        """Ends the file, durable when this returns."""
        self._writer.close()
        self._end_block()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes it as it is. It may be closed."""
        with suppress(OSError):
            # What is left in its buffer may find no place either; it is closed all the same.
            self._file.close()

    @property
    def closed(self) -> bool:
        """For Arrow: whether it can be written to."""
        return self._file.closed

    def notify(self) -> int:
        """For Arrow: how much was written."""
        return self._offset

    def flush(self) -> None:
        """For Arrow, which does so when it has ended the file."""

    def write(self, data: bytes | pa.Buffer) -> None:
        """For Arrow: appends some bytes, never of two blocks."""
        self._file.write(data)
        self._checksum = google_crc32c.extend(self._checksum, data)
        self._offset += len(data)
        if self._offset == self._head_bytes:
            self._end_block()

    def _end_block(self) -> None:
        self.blocks.append(FileBlock(self._start, self._offset - self._start, self._checksum))
        self._start, self._checksum = self._offset, 0


class _ZoneColumn:
    """The zones of one column in the making."""

    def __init__(self, field: pa.Field) -> None:
        self.field = field
        self._zones: list[dict[str, Any] | None] = []

    def add(self, values: pa.Array) -> None:
        """Notes the zone of the next batch's values."""
        type_ = self.field.type
        nans = False
        # Arrow has no order for half floats; as floats they have the same.
        compared = values.cast(pa.float32()) if pat.is_float16(type_) else values
        bounds = pc.min_max(compared)
        least, greatest = bounds["min"].cast(type_), bounds["max"].cast(type_)
        if pat.is_floating(type_):
            nans = bool(pc.any(pc.is_nan(compared), min_count=0).as_py())
            if nans and pc.is_nan(bounds["min"]).as_py():
                # Nothing but NaN and null.
                least = greatest = pa.scalar(None, type_)
        too_long = least.is_valid and max(_length(least), _length(greatest)) > LONGEST_ZONE_VALUE
        zone = {"least": least, "greatest": greatest, "nulls": values.null_count, "has_nan": nans}
        self._zones.append(None if too_long else zone)

    def values(self) -> pa.StructArray:
        """The zones of all batches."""
        type_ = self.field.type
        fields = [("least", type_), ("greatest", type_), ("nulls", pa.int64()), ("has_nan", pa.bool_())]
        return pa.array(self._zones, pa.struct(fields))


def _length(value: pa.Scalar) -> int:
    """Bytes of a value; those of a fixed width are all short enough."""
    return len(value.as_buffer()) if pat.is_string(value.type) or pat.is_binary(value.type) else 0
