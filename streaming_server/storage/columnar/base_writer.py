"""Writes a columnar base: rows in key order become batches, files with checksums, and finally a directory."""

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
    TIMED_KEYS_SCHEMA,
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
"""The most rows of a batch."""

BATCH_BYTES: Final = 2 << 20
"""The approximate size of the Arrow body of a batch. A longer row is a batch of its own."""

LONGEST_ZONE_VALUE: Final = 64
"""The most bytes of a string or binary value in a zone map. A batch with a longer bound has no zone."""

_HELD_BYTES: Final = 4 * BATCH_BYTES
_BYTES_OF_A_PART: Final = 4096
_MAGIC_BYTES: Final = 8


class BaseWriter:
    """Writes one base of a bucket. Use it from one thread at a time, and end it with `finish` or `discard`.

    Memory: the rows of one batch, and up to 8 MiB of the buffers of which these rows are slices.

    Args:
        directory: The directory of the bucket's bases; created if missing. Only one writer at a time may use it.
        definition: The definition of the table. The rows have its current schema, and after its columns, if they have
            it, the time of the last write.
        bucket: The number of the bucket.
        now_micros: The current commit time.
        zone_columns: The columns other than the key columns that get zone maps. None: all columns of integers, floats,
            decimals, booleans, dates, times, strings and binary values.

    Raises:
        OSError: The base cannot be created. No file is left.
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
        self._write_time = definition.write_time(definition.schema)
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
        if self._write_time is not None:
            self._zones.append(_ZoneColumn(pa.field(self._write_time.name, self._write_time.type)))
        self._files: list[_MessageFile] = []
        self._path.mkdir()
        try:
            self._rows = self._file(ROWS_FILE, self._schema)
            self._keys = self._file(KEYS_FILE, KEYS_SCHEMA if self._write_time is None else TIMED_KEYS_SCHEMA)
        except BaseException:
            self.discard()
            raise

    def write(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> None:
        """Appends rows. Blocks.

        Args:
            rows: Any number of rows.
            keys: The encoded keys of the rows, ascending, all greater than the keys written before.

        Raises:
            OSError: The write failed, for example because the disk is full. Discard the base.
        """
        assert len(keys) == rows.num_rows
        start = 0
        while start < rows.num_rows:
            left = rows.slice(start, BATCH_ROWS - self._pending_rows)
            count, size = _rows_that_fit(left, BATCH_BYTES - self._pending_bytes)
            if count == 0 and not self._pending:
                count, size = 1, left.slice(0, 1).nbytes
            if count:
                self._keep(left.slice(0, count), keys.slice(start, count), size)
                start += count
            if count < left.num_rows or self._pending_rows == BATCH_ROWS:
                self._write_batch()

    def finish(self, log_offset: int, time_restarts: int = 0) -> Path:
        """Completes the base durably. Blocks.

        Args:
            log_offset: The offset of the first change that is not in the base.
            time_restarts: The bucket's number at that offset: see `BaseInfo`.

        Returns:
            The directory of the base.

        Raises:
            OSError: The write failed, for example because the disk is full. The base was discarded.
        """
        try:
            if self._pending:
                self._write_batch()
            self._write_zones()
            for file in self._files:
                file.close()
            write_checked_json(self._path / MANIFEST_FILE, self._manifest(log_offset, time_restarts).to_json())
            path = self._directory / self._name
            self._path.rename(path)
            sync_directory(self._directory)
        except BaseException:
            self.discard()
            raise
        return path

    def discard(self) -> None:
        """Removes an unfinished base. Idempotent."""
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
            self._pending = [self._join_pending()]
            # The concatenated rows have buffers of their own, which `_pending_bytes` counts.
            self._held_bytes = 0

    def _join_pending(self) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """Returns all pending rows as one batch."""
        if len(self._pending) == 1:
            return self._pending[0]
        rows, keys = zip(*self._pending, strict=True)
        return pa.concat_batches(rows), pa.concat_arrays(keys)

    def _write_batch(self) -> None:
        rows, keys = self._join_pending()
        entry = BatchEntry(rows.num_rows, keys[0].as_py(), keys[-1].as_py())
        assert not self._batches or self._batches[-1].last_key < entry.first_key, "rows do not ascend by key"
        if self._write_time is None:
            self._rows.append(rows)
            self._keys.append(pa.RecordBatch.from_arrays([keys], schema=KEYS_SCHEMA))
        else:
            *columns, times = rows.columns
            self._rows.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            self._keys.append(pa.RecordBatch.from_arrays([keys, times], schema=TIMED_KEYS_SCHEMA))
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

    def _manifest(self, log_offset: int, time_restarts: int) -> BaseManifest:
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
            time_restarts=None if self._write_time is None else time_restarts,
        )


def _next_name(directory: Path, now_micros: int) -> str:
    newest = max((int(name[:16], 16) for name in list_base_names(directory)), default=0)
    # Based on the time, so that the name of a removed base, which a reader may still know, is never used again.
    return f"{max(newest + 1, now_micros * 1000):016x}"


def _rows_that_fit(rows: pa.RecordBatch, budget: int) -> tuple[int, int]:
    """Returns how many of the first rows fit into `budget` bytes of Arrow buffers, and how many bytes they take."""
    size = rows.nbytes
    if size <= budget:
        return rows.num_rows, size
    fits, too_many = 0, rows.num_rows
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if rows.slice(0, middle).nbytes <= budget:
            fits = middle
        else:
            too_many = middle
    return fits, rows.slice(0, fits).nbytes


class _MessageFile:
    """An Arrow IPC file that is being written, with the offset and checksum of each block.

    It is also the file object to which Arrow writes, so the checksums are of the bytes that Arrow meant to write, even
    if the system or the disk alters them later.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.name = path.name
        self.blocks: list[FileBlock] = []
        self._start = self._offset = self._checksum = 0
        # Arrow writes the head together with the first message.
        self._head_bytes = _MAGIC_BYTES + schema.serialize().size
        self._file = path.open("wb")
        self._writer: Any = pa.ipc.new_file(pa.PythonFile(self, mode="w"), schema)

    def append(self, batch: pa.RecordBatch) -> None:
        """Writes a batch as one message."""
        self._writer.write_batch(batch)
        self._end_block()

    def close(self) -> None:
        """Completes the file durably."""
        self._writer.close()
        self._end_block()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes the file as it is. Idempotent."""
        with suppress(OSError):
            # Flushing the buffer may fail as well, but the file gets closed.
            self._file.close()

    @property
    def closed(self) -> bool:
        """For Arrow: whether the file is closed."""
        return self._file.closed

    def notify(self) -> int:
        """For Arrow: how many bytes were written."""
        return self._offset

    def flush(self) -> None:
        """For Arrow, which calls it at the end of the file."""

    def write(self, data: bytes | pa.Buffer) -> None:
        """For Arrow: appends bytes, never of two blocks at once."""
        self._file.write(data)
        self._checksum = google_crc32c.extend(self._checksum, data)
        self._offset += len(data)
        if self._offset == self._head_bytes:
            self._end_block()

    def _end_block(self) -> None:
        self.blocks.append(FileBlock(self._start, self._offset - self._start, self._checksum))
        self._start, self._checksum = self._offset, 0


class _ZoneColumn:
    """Collects the zone map of one column."""

    def __init__(self, field: pa.Field) -> None:
        self.field = field
        self._zones: list[dict[str, Any] | None] = []

    def add(self, values: pa.Array) -> None:
        """Adds the zone of the values of the next batch."""
        type_ = self.field.type
        nans = False
        # Arrow cannot compare half floats. As floats they have the same order.
        compared = values.cast(pa.float32()) if pat.is_float16(type_) else values
        bounds = pc.min_max(compared)
        least, greatest = bounds["min"].cast(type_), bounds["max"].cast(type_)
        if pat.is_floating(type_):
            nans = bool(pc.any(pc.is_nan(compared), min_count=0).as_py())
            if nans and pc.is_nan(bounds["min"]).as_py():
                # All values are NaN or null.
                least = greatest = pa.scalar(None, type_)
        too_long = least.is_valid and max(_length(least), _length(greatest)) > LONGEST_ZONE_VALUE
        zone = {"least": least, "greatest": greatest, "nulls": values.null_count, "has_nan": nans}
        self._zones.append(None if too_long else zone)

    def values(self) -> pa.StructArray:
        """Returns the zones of all batches."""
        type_ = self.field.type
        fields = [("least", type_), ("greatest", type_), ("nulls", pa.int64()), ("has_nan", pa.bool_())]
        return pa.array(self._zones, pa.struct(fields))


def _length(value: pa.Scalar) -> int:
    """Returns the bytes of a string or binary value; 0 for fixed-width values, which are all short."""
    return len(value.as_buffer()) if pat.is_string(value.type) or pat.is_binary(value.type) else 0
