"""Writes rows as CSV, JSON lines, Parquet or Arrow, batch by batch, to files that appear only when complete."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from scankv.formats.csv_text import csv_header, csv_lines
from scankv.formats.files import Format
from scankv.formats.json_text import json_lines
from scankv.formats.parquet_types import parquet_schema
from scankv.model.errors import UsageError
from scankv.model.types.required import fill_hidden_nulls
from scankv.model.types.seconds import check_fits_milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A chunk of a scan is too small to be a row group of its own: small row groups are slow to read.
_ROW_GROUP_ROWS: Final = 131_072
_ROW_GROUP_BYTES: Final = 64 << 20


class RowWriter(Protocol):
    """Writes batches of one schema to a stream, which it does not close."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Appends rows."""

    def close(self) -> None:
        """Writes the end of the format, without which the output is incomplete."""


@contextmanager
def row_writer(format_: Format, stream: IO[bytes], schema: pa.Schema, *, seekable: bool = False) -> Iterator[RowWriter]:
    """Yields a writer of a format, and writes the end of the format when the block ends without an error.

    After an error, nothing more is written, so that readers of Parquet and of Arrow files recognize that rows are
    missing.

    Args:
        format_: The file format.
        stream: The stream to write to.
        schema: The schema of the batches.
        seekable: Whether Arrow is written as an IPC file, which readers open from the end, rather than an IPC stream.
    """
    guarded = _GuardedStream(stream)
    try:
        writer = _writer_of(format_, guarded, schema, as_file=seekable)
        yield writer
        writer.close()
    finally:
        guarded.is_open = False


def _writer_of(format_: Format, stream: _GuardedStream, schema: pa.Schema, *, as_file: bool) -> RowWriter:
    match format_:
        case Format.CSV:
            return _CsvWriter(stream, schema)
        case Format.JSONL:
            return _JsonlWriter(stream)
        case Format.PARQUET:
            return _ParquetWriter(stream, schema)
        case Format.ARROW:
            return _ArrowWriter(stream, schema, as_file=as_file)


class _GuardedStream:
    """Passes on what is written while `is_open`, and drops the rest.

    A Parquet writer of pyarrow that is abandoned writes the end of the format when it is garbage-collected.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.is_open = True
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.is_open:
            self._stream.write(data)

    def flush(self) -> None:
        """Does nothing: the stream belongs to the caller."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file that gets its name when the block ends without an error; after an error the old file remains.

    A pipe or a device is written directly. A file that is replaced keeps its permissions. Until the new file has them,
    only its owner can read it.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    part = _beside(path)
    try:
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if path.exists() else 0o666)
        with os.fdopen(opened, "wb") as stream:
            yield stream
            _sync(stream)
        _keep_permissions(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Makes a directory that gets its name when the block ends without an error; after an error the old one remains.

    The old directory is removed at the end. Permissions are kept as in `atomic_file`.
    """
    part, old = _beside(path), _beside(path).with_suffix(".old")
    part.mkdir(mode=0o700 if path.exists() else 0o777)
    try:
        yield part
        if path.exists():
            _keep_permissions(path, part)
            path.rename(old)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _keep_permissions(replaced: Path, by: Path) -> None:
    # The new rows of a table are as confidential as the old ones.
    if replaced.exists():
        by.chmod(stat.S_IMODE(replaced.stat().st_mode))


def _sync(stream: IO[bytes]) -> None:
    # Otherwise a power failure after the rename could leave an incomplete file under the final name.
    stream.flush()
    os.fsync(stream.fileno())


class _CsvWriter:
    def __init__(self, stream: _GuardedStream, schema: pa.Schema) -> None:
        self._stream = stream
        stream.write(csv_header(schema.names))

    def write(self, rows: pa.RecordBatch) -> None:
        self._stream.write(csv_lines(rows))

    def close(self) -> None:
        pass


class _JsonlWriter:
    def __init__(self, stream: _GuardedStream) -> None:
        self._stream = stream

    def write(self, rows: pa.RecordBatch) -> None:
        self._stream.write(json_lines(rows))

    def close(self) -> None:
        pass


class _ParquetWriter:
    """Collects chunks into row groups of up to 131,072 rows or 64 MiB."""

    def __init__(self, stream: _GuardedStream, schema: pa.Schema) -> None:
        from pyarrow import parquet  # imported on use: takes 20 ms, which commands that do not write Parquet save

        try:
            self._writer = parquet.ParquetWriter(stream, schema)
        except OSError as error:
            # An OSError without errno is not from the operating system: Parquet has no decimals with a negative scale.
            if error.errno is not None:
                raise
            parquet_schema(schema)  # names the column
            raise
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            try:
                check_fits_milliseconds(column)
            except ValueError as error:
                raise UsageError(
                    f'column "{name}": Parquet has no such value: {error}; choose the format arrow, or other columns',
                    column=name,
                ) from error
        self._pending.append(
            pa.RecordBatch.from_arrays([fill_hidden_nulls(column) for column in rows.columns], schema=rows.schema)
        )
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._pending:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._pending))
        self._pending.clear()
        self._rows = self._bytes = 0


class _ArrowWriter:
    def __init__(self, stream: _GuardedStream, schema: pa.Schema, *, as_file: bool) -> None:
        self._writer = pa.ipc.new_file(stream, schema) if as_file else pa.ipc.new_stream(stream, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)

    def close(self) -> None:
        self._writer.close()
