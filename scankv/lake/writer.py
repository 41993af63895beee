"""Writes rows of a table to Parquet files: sorted, cut by bucket, partition and key range."""

from __future__ import annotations

import re
import uuid
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import parquet

from scankv.lake.lake_table import DataFile
from scankv.model.errors import LakeError, UsageError
from scankv.model.types.required import fill_hidden_nulls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scankv.lake.location import LakeLocation

FILE_ROWS: Final = 65_536
"""How many rows a complete file has. Smaller files are read less when few rows change, larger ones list faster."""
DATA_FILE: Final = re.compile(r"scankv-\d{5}-[0-9a-f]{32}\.parquet")
"""The names of data files. Files with other names are not ours."""

_FILE_BYTES: Final = 128 << 20
_ROW_GROUP_BYTES: Final = 16 << 20


def file_name(bucket: int) -> str:
    """Returns the name of a new data file."""
    return f"scankv-{bucket:05}-{uuid.uuid4().hex}.parquet"


class LakeWriter:
    """Writes the files of one commit. Its methods block; one thread at a time may call them.

    Memory: one row group, up to 16 MiB of rows beyond the batch given.

    Args:
        location: Where the files are written.
        schema: The columns of the files.
        schema_id: The schema version of the table.
        partition_by: The partition columns.
        primary_key: The key columns; none if the rows have no order of keys.
        key_at: Returns the encoded key of a row of a batch by its index.
        file_rows: How many rows a complete file has.

    Attributes:
        files: The complete files so far.
        rows: How many rows they have.
    """

    def __init__(
        self,
        location: LakeLocation,
        schema: pa.Schema,
        *,
        schema_id: int,
        partition_by: Sequence[str],
        primary_key: Sequence[str],
        key_at: Callable[[pa.RecordBatch, int], bytes],
        file_rows: int = FILE_ROWS,
    ) -> None:
        self.files: list[DataFile] = []
        self.rows: int = 0
        self._location = location
        self._schema = schema
        self._schema_id = schema_id
        self._partition_by = list(partition_by)
        self._key_at = key_at
        self._file_rows = file_rows
        self._encodings = _encodings(schema, primary_key)
        self._open: _OpenFile | None = None

    def write(self, bucket: int, rows: pa.RecordBatch, ends: tuple[bytes, bytes] | None = None) -> None:
        """Writes rows of a bucket, which come after all rows that were written since `end_range`.

        Args:
            bucket: The bucket.
            rows: The rows, with at least the columns of the files.
            ends: The keys of the first and the last row of the file. None: they are those of the rows.

        Raises:
            UsageError: A value does not fit into the column of the format.
            LakeUnavailable: The location cannot be written.
        """
        for part in _partitions_of(rows, self._partition_by):
            while part.num_rows:
                partition = tuple(self._cast(part, name)[0].as_py() for name in self._partition_by)
                if self._open is not None and not self._open.takes(bucket, partition):
                    self.end_range()
                if self._open is None:
                    path = file_name(bucket)
                    self._open = _OpenFile(self._location, path, self._schema, bucket, partition, self._file_rows)
                    self._open.start(self._encodings)
                taken = part.slice(0, self._open.rows_left)
                part = part.slice(taken.num_rows)
                columns = [self._cast(taken, name) for name in self._schema.names]
                keys = ends or (self._key_at(taken, 0), self._key_at(taken, taken.num_rows - 1))
                self._open.add(pa.RecordBatch.from_arrays(columns, schema=self._schema), keys)

    def end_range(self) -> None:
        """Completes the current file: the next rows belong to another range of keys."""
        if self._open is not None:
            file = self._open.close(self._schema_id)
            self._open = None
            self.files.append(file)
            self.rows += file.rows

    def abandon(self) -> None:
        """Deletes all files, which were not committed."""
        paths = [file.path for file in self.files]
        if self._open is not None:
            paths.append(self._open.path)
            self._open.abandon()
            self._open = None
        for path in paths:
            with suppress(LakeError):  # `expire` deletes it later
                self._location.delete(path)

    def _cast(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        type_ = self._schema.field(name).type
        try:
            return fill_hidden_nulls(rows.column(name)).cast(type_)
        except pa.ArrowInvalid as error:
            raise UsageError(
                f'column "{name}" has a value that does not fit into {type_}, which the published column has: {error}',
                column=name,
            ) from error


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self,
        location: LakeLocation,
        path: str,
        schema: pa.Schema,
        bucket: int,
        partition: tuple[object, ...],
        file_rows: int,
    ) -> None:
        self.path = path
        self._bucket = bucket
        self._partition = partition
        self._file_rows = file_rows
        self._rows = 0
        self._bytes = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._first_key = self._last_key = b""
        self._nan_columns: set[str] = set()
        self._schema = schema
        self._location = location
        self._exit = ExitStack()
        self._footers: list[parquet.FileMetaData] = []
        self._stream: pa.NativeFile = None
        self._writer: parquet.ParquetWriter = None

    def start(self, encodings: Mapping[str, Any]) -> None:
        """Creates the file."""
        self._stream = self._exit.enter_context(self._location.create(self.path))
        with self._location.translate_errors("written"):
            self._writer = parquet.ParquetWriter(
                self._stream,
                self._schema,
                compression="zstd",
                store_schema=False,
                write_page_checksum=True,
                metadata_collector=self._footers,
                **encodings,
            )

    @property
    def rows_left(self) -> int:
        return self._file_rows - self._rows

    def takes(self, bucket: int, partition: tuple[object, ...]) -> bool:
        """Returns whether the next rows, which have this bucket and partition, belong to this file."""
        is_complete = not self.rows_left or self._bytes >= _FILE_BYTES
        return not is_complete and (bucket, partition) == (self._bucket, self._partition)

    def add(self, rows: pa.RecordBatch, ends: tuple[bytes, bytes]) -> None:
        if not self._rows:
            self._first_key = ends[0]
        self._last_key = ends[1]
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        for field, column in zip(self._schema, rows.columns, strict=True):
            if pat.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
                self._nan_columns.add(field.name)
        if self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self, schema_id: int) -> DataFile:
        """Completes the file durably, and returns it."""
        self._flush()
        with self._location.translate_errors("written"):
            self._writer.close()
            size = self._stream.tell()
            self._exit.close()
        return DataFile(
            path=self.path,
            bucket=self._bucket,
            rows=self._rows,
            size_bytes=size,
            first_key=self._first_key,
            last_key=self._last_key,
            schema_id=schema_id,
            partition_id=", ".join(map(str, self._partition)),
            partition=self._partition,
            footer=self._footers[0],
            nan_columns=frozenset(self._nan_columns),
        )

    def abandon(self) -> None:
        """Closes the incomplete file."""
        for part in (self._writer, self._exit):
            with suppress(LakeError, OSError):  # why it is abandoned may be that nothing can be written
                if part is not None:
                    part.close()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending, self._schema)
            with self._location.translate_errors("written"):
                self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._pending.clear()
        self._pending_bytes = 0


def _partitions_of(rows: pa.RecordBatch, partition_by: Sequence[str]) -> list[pa.RecordBatch]:
    """Cuts rows, which are in key order, where the value of a partition column changes."""
    cuts = np.zeros(max(rows.num_rows - 1, 0), np.bool_)
    for name in partition_by:
        column = rows.column(name)
        changes = pc.not_equal(column.slice(1), column.slice(0, max(len(column) - 1, 0)))
        cuts |= changes.to_numpy(zero_copy_only=False)
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), rows.num_rows]
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


def _encodings(schema: pa.Schema, primary_key: Sequence[str]) -> dict[str, Any]:
    """Returns the options of the Parquet writer that say how columns are encoded.

    Integers of the key ascend and hardly repeat. As differences, they take next to no space. A dictionary, which is the
    default, would contain all of them. All other columns have the default.
    """
    differences = {name: "DELTA_BINARY_PACKED" for name in primary_key if pat.is_integer(schema.field(name).type)}
    if not differences:
        return {}
    with pa.BufferOutputStream() as empty:
        parquet.write_table(schema.empty_table(), empty)
        columns = parquet.ParquetFile(empty.getvalue()).schema  # also those within lists, maps and structs
    others = [column.path for column in columns if column.path not in differences]
    return {"use_dictionary": others, "column_encoding": differences}
