"""What is loaded: a file or standard input, its format and compression found out from its first bytes."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Final, cast

from scankv.model.errors import SchemaMismatch, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STDIN: Final = "-"
"""The argument that stands for standard input."""

_BUFFER_BYTES: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK\x03\x04"


class Format(StrEnum):
    """How rows are written in a file."""

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
# An Arrow file begins with a name, an Arrow stream with the continuation marker of its schema message.
_OF_MAGIC: Final = {b"PAR1": Format.PARQUET, b"ARRO": Format.ARROW, b"\xff\xff\xff\xff": Format.ARROW}
_READ_FROM_THE_END: Final = (b"PAR1", b"ARRO", _ZIP)


class BadFile(UsageError):
    """A file cannot be read, or its rows are not those of the table."""


class Input:
    """A file to read rows from, once or several times. Made by `open_input`; not thread-safe.

    Attributes:
        name: What messages call it.
        size_bytes: Its size as stored, None when that is not known before its end.
        bytes_read: How far its last reader is, in bytes as stored.
    """

    def __init__(
        self, name: str, source: Callable[[], IO[bytes]], size_bytes: int | None, format_: Format | None
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.bytes_read: int = 0
        self._source = source
        self._opened = ExitStack()
        self._format = format_
        self._unread: io.BufferedReader | None = None

    @property
    def format(self) -> Format:
        """How its rows are written; unless it was said, found out from the beginning."""
        if self._format is None:
            # Kept for the first reader: standard input has only one beginning.
            self._unread = self._open()
            self._format = _detect_format(self.name, self._unread.peek(4)[:4])
        return self._format

    def open(self) -> io.BufferedReader:
        """Opens it at its beginning, decompressed; closed with the input."""
        stream, self._unread = self._unread or self._open(), None
        return stream

    def close(self) -> None:
        """Closes every stream that was opened from it."""
        self._opened.close()

    def _open(self) -> io.BufferedReader:
        self.bytes_read = 0
        stream: io.BufferedReader = io.BufferedReader(_CountingReader(self._source(), self), _BUFFER_BYTES)
        self._opened.callback(stream.close)
        start = stream.peek(4)
        if start.startswith(_GZIP):
            return io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=stream)), _BUFFER_BYTES)
        if start.startswith(_ZIP):
            return io.BufferedReader(cast("io.RawIOBase", _only_member(stream)), _BUFFER_BYTES)
        return stream


class _CountingReader(io.RawIOBase):
    """Reads a stream and tells its input how far."""

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
        # One read of what is there: a pipe must not wait for a full buffer.
        data = cast("io.BufferedReader", self._stream).read1(len(buffer))
        buffer[: len(data)] = data
        self._input.bytes_read += len(data)
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


@contextmanager
def open_input(argument: str, format_: Format | None = None, *, again: bool = False) -> Iterator[Input]:
    """Opens what is to be loaded.

    Standard input is read as it comes, unless it is read twice or its format is read from the end: then it is copied
    to a temporary file first.

    Args:
        argument: A path, or `-` for standard input.
        format_: How the rows are written. Default: what the first bytes say, then the name's ending, then CSV.
        again: Whether it will be opened more than once.

    Raises:
        BadFile: It cannot be opened or decompressed.
    """
    name = "standard input" if argument == STDIN else argument
    with ExitStack() as stack:
        with name_file_in_errors(name):
            source, size_bytes = _standard_input(stack, again) if argument == STDIN else _file(argument)
            input_ = Input(name, source, size_bytes, format_)
            stack.callback(input_.close)
            assert input_.format
        yield input_


@contextmanager
def open_inputs(argument: str, format_: Format | None = None, *, again: bool = False) -> Iterator[list[Input]]:
    """The same, and for a directory all Parquet and Arrow files in it, by name; at least one.

    Names that begin with `.` or `_` are passed over, as others do who read such directories.

    Raises:
        BadFile: One cannot be opened; the directory has others, or none.
    """
    with ExitStack() as stack:
        if not os.path.isdir(argument):
            yield [stack.enter_context(open_input(argument, format_, again=again))]
            return
        with name_file_in_errors(argument):
            names = sorted(name for name in os.listdir(argument) if not name.startswith((".", "_")))
            others = [name for name in names if format_of_name(name) not in (Format.PARQUET, Format.ARROW)]
            if others or not names:
                found = f"{others[0]} is none" if others else "there is none"
                raise ValueError(f"a directory is loaded when it has Parquet or Arrow files and no others; {found}")
        yield [stack.enter_context(open_input(os.path.join(argument, name), format_)) for name in names]


@contextmanager
def name_file_in_errors(name: str) -> Iterator[None]:
    """Turns what reading a damaged or foreign file raises into `BadFile` with the file's name."""
    try:
        yield
    except SchemaMismatch as error:
        raise BadFile(f"{name}: {error.message}") from error
    except OSError as error:
        raise BadFile(f"{name}: {error.strerror or error}") from error
    except (EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise BadFile(f"{name}: {error}") from error


def format_of_name(name: str) -> Format | None:
    """The format that a file's name ends in, before `.gz` or `.zip`; None when it says nothing."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes if suffix.lower() not in (".gz", ".zip")]
    return _OF_SUFFIX.get(suffixes[-1]) if suffixes else None


def _detect_format(name: str, start: bytes) -> Format:
    by_content = Format.JSONL if start.lstrip().startswith(b"{") else Format.CSV
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
    if len(names) != 1:
        raise ValueError(f"the archive holds {len(names)} files; load one file at a time")
    return archive.open(names[0])
