"""Opens files and standard input for loading, and detects format and compression from the first bytes."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import os
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Final, cast

import pyarrow as pa

from scankv.formats.file_memory import TOO_LARGE, limit_memory
from scankv.model.errors import SchemaMismatch, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STDIN: Final = "-"
"""The argument that stands for standard input."""

_BUFFER_BYTES: Final = 1 << 20
_OF_TABLES: Final = frozenset({"_delta_log", "_scankv"})
"""What the directories of Delta tables and of tables that were published as Parquet have."""
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK\x03\x04"
_OLD_WORKBOOK: Final = b"\xd0\xcf\x11\xe0"
_WORKBOOK: Final = "this is a workbook or document of an office program: save the sheet as CSV, and load that"


class Format(StrEnum):
    """A file format."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


_OF_SUFFIX: Final = {
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}
# An Arrow file begins with the name of the format, an Arrow stream with the continuation marker of its schema message.
_OF_MAGIC: Final = {b"PAR1": Format.PARQUET, b"ARRO": Format.ARROW, b"\xff\xff\xff\xff": Format.ARROW}
_READ_FROM_THE_END: Final = (b"PAR1", b"ARRO", _ZIP)
# zipfile raises RuntimeError for encrypted members and for methods that it does not know, and lets errors of the
# decompressors and of `struct` through.
_DECOMPRESSION_ERRORS: Final = (zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError, struct.error)


class BadFile(UsageError):
    """A file cannot be read, or its rows do not fit the table."""


class Input:
    """A file to read rows from, once or several times. Made by `open_input`; not thread-safe.

    Attributes:
        name: The name of the file in messages.
        size_bytes: The stored (compressed) size. None if it is unknown until the file has been read.
        bytes_read: How many stored (compressed) bytes the latest reader has read.
        on_read: Called with the number of stored bytes whenever some have been read. None: nothing is.
    """

    def __init__(
        self, name: str, source: Callable[[], IO[bytes]], size_bytes: int | None, format_: Format | None
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.bytes_read: int = 0
        self.on_read: Callable[[int], None] | None = None
        self._source = source
        self._opened = ExitStack()
        self._format = format_
        self._unread: io.BufferedReader | None = None

    @property
    def format(self) -> Format:
        """The format of the file: the one given, or the one detected from the first bytes."""
        if self._format is None:
            # The stream is kept for the first reader, because standard input cannot be opened again.
            self._unread = self._open()
            self._format = _detect_format(self.name, self._unread.peek(4)[:4])
        return self._format

    def open(self) -> io.BufferedReader:
        """Opens the file at its start, decompressed. The stream is closed with the input."""
        stream, self._unread = self._unread or self._open(), None
        return stream

    def close(self) -> None:
        """Closes every stream that was opened from the input."""
        self._opened.close()

    def _open(self) -> io.BufferedReader:
        self.bytes_read = 0
        reader = io.BufferedReader if self.size_bytes is not None else _StepwiseReader
        stream: io.BufferedReader = reader(_CountingReader(self._source(), self), _BUFFER_BYTES)
        self._opened.callback(stream.close)
        start = stream.peek(4)
        if start.startswith(_GZIP):
            return reader(cast("io.RawIOBase", gzip.GzipFile(fileobj=stream)), _BUFFER_BYTES)
        if start.startswith(_OLD_WORKBOOK):
            raise ValueError(_WORKBOOK)
        if start.startswith(_ZIP):
            return reader(cast("io.RawIOBase", _only_member(stream)), _BUFFER_BYTES)
        return stream


class _StepwiseReader(io.BufferedReader):
    """Takes memory for what it reads as it reads it: the limit may rise with what has been read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size <= _BUFFER_BYTES:
            return super().read(size)
        found = bytearray()
        while len(found) < size and (part := super().read(min(size - len(found), _BUFFER_BYTES))):
            found += part
        return bytes(found)


class _CountingReader(io.RawIOBase):
    """Reads a stream and counts the bytes for its input."""

    def __init__(self, stream: IO[bytes], input_: Input) -> None:
        self._stream = stream
        self._input = input_

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        # A single read, because a reader of a pipe must not wait for a full buffer.
        data = cast("io.BufferedReader", self._stream).read1(len(buffer))
        buffer[: len(data)] = data
        self._input.bytes_read += len(data)
        if self._input.on_read is not None:
            self._input.on_read(len(data))
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


@contextmanager
def open_input(argument: str, format_: Format | None = None, *, again: bool = False) -> Iterator[Input]:
    """Opens a file, or standard input, for loading.

    Standard input is read as it arrives. If it will be read twice, or has a format that is read from the end, it is
    copied to a temporary file first.

    Args:
        argument: A path, or `-` for standard input.
        format_: The format of the file. Default: detected from the first bytes, else from the suffix, else CSV.
        again: Whether the input will be opened more than once.

    Raises:
        BadFile: The input cannot be opened or decompressed.
    """
    name = "standard input" if argument == STDIN else argument
    with ExitStack() as stack:
        with convert_errors(name):
            source, size_bytes = _standard_input(stack, again) if argument == STDIN else _file(argument)
            input_ = Input(name, source, size_bytes, format_)
            stack.callback(input_.close)
            assert input_.format
        yield input_


@contextmanager
def open_inputs(argument: str, format_: Format | None = None, *, again: bool = False) -> Iterator[list[Input]]:
    """Opens a file, standard input, or all Parquet and Arrow files of a directory in the order of their names.

    Names in a directory that begin with `.` or `_` are skipped, as other programs do that read such directories.

    Raises:
        BadFile: A file cannot be opened, or the directory is empty, has files of other formats, or is a Delta table or
            a published table.
    """
    with ExitStack() as stack:
        if not os.path.isdir(argument):
            yield [stack.enter_context(open_input(argument, format_, again=again))]
            return
        with convert_errors(argument):
            found_names = os.listdir(argument)
            if of_tables := sorted(_OF_TABLES.intersection(found_names)):
                raise ValueError(
                    f"the directory has {of_tables[0]}, so it is a table, some of whose files may have rows that the "
                    "table no longer has: load it with --bootstrap, or give single files"
                )
            names = sorted(name for name in found_names if not name.startswith((".", "_")))
            others = [name for name in names if format_of_name(name) not in (Format.PARQUET, Format.ARROW)]
            if others or not names:
                found = f"has the file {others[0]}" if others else "has no files"
                raise ValueError(f"the directory {found}: a directory to load must have only Parquet or Arrow files")
        yield [stack.enter_context(open_input(os.path.join(argument, name), format_)) for name in names]


@contextmanager
def limit_memory_for(name: str, stored_bytes: int) -> Iterator[Callable[[int], None]]:
    """Limits what the process may take for a file, as `limit_memory` does. Raises BadFile if it needs more."""
    with limit_memory(stored_bytes) as raise_limit:
        try:
            yield raise_limit
        except MemoryError as error:
            raise BadFile(f"{name}: {TOO_LARGE}") from error


@contextmanager
def limit_memory_of_inputs(name: str, sources: Sequence[Input]) -> Iterator[None]:
    """Limits what the process may take for files that are open.

    Where the size of one is not known, the limit rises as it is read.

    Raises:
        BadFile: They need more.
    """
    known = sum(source.bytes_read if source.size_bytes is None else source.size_bytes for source in sources)
    unknown = [source for source in sources if source.size_bytes is None]
    with limit_memory_for(name, known) as raise_limit:
        for source in unknown:
            source.on_read = raise_limit
        try:
            yield
        finally:
            for source in unknown:
                source.on_read = None


@contextmanager
def convert_errors(name: str) -> Iterator[None]:
    """Converts the errors of reading a damaged or foreign file to `BadFile` with the file's name."""
    try:
        yield
    except SchemaMismatch as error:
        raise BadFile(f"{name}: {error.message}") from error
    except OSError as error:
        raise BadFile(f"{name}: {error.strerror or error}") from error
    except MemoryError as error:
        # The most frequent cause is a damaged length.
        raise BadFile(f"{name}: {TOO_LARGE}") from error
    except (EOFError, ValueError, csv.Error, pa.ArrowException, *_DECOMPRESSION_ERRORS) as error:
        raise BadFile(f"{name}: {error}") from error


def format_of_name(name: str) -> Format | None:
    """Returns the format for a name's suffix, ignoring `.gz` and `.zip`; None if the suffix is unknown."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes if suffix.lower() not in (".gz", ".zip")]
    return _OF_SUFFIX.get(suffixes[-1]) if suffixes else None


def _detect_format(name: str, start: bytes) -> Format:
    # A JSON array cannot be loaded, but the message about it helps more than one about a header.
    shown = start.split()
    by_content = Format.JSONL if b"".join(shown).startswith((b"{", b"[{")) or shown == [b"["] else Format.CSV
    return _OF_MAGIC.get(start) or format_of_name(name) or by_content


def _file(path: str) -> tuple[Callable[[], IO[bytes]], int | None]:
    with open(path, "rb") as file:
        size_bytes = file.seek(0, io.SEEK_END) if file.seekable() else None
    return lambda: open(path, "rb"), size_bytes


def _standard_input(stack: ExitStack, again: bool) -> tuple[Callable[[], IO[bytes]], int | None]:
    stdin = cast("io.BufferedReader", sys.stdin.buffer)
    if not again and stdin.peek(4)[:4] not in _READ_FROM_THE_END:
        return lambda: stdin, None
    copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="scankv-"))
    shutil.copyfileobj(stdin, copy)
    copy.flush()
    return lambda: open(copy.name, "rb"), copy.tell()


def _only_member(stream: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(stream)
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if "[Content_Types].xml" in names or names[:1] == ["mimetype"]:
        raise ValueError(_WORKBOOK)
    if len(names) != 1:
        raise ValueError(f"the archive must have one file, not {len(names)}: load one file at a time")
    return archive.open(names[0])
