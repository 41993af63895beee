"""Finds where CSV rows end, so that a file can be read in blocks of complete rows."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from scankv.formats.bounds import check_column_count, check_line_length
from scankv.formats.csv_dialect import sniff_delimiter

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

_BLOCK_BYTES: Final = 4 << 20
_SAMPLE_BYTES: Final = 16 << 10
_QUOTE: Final = ord('"')
_LINE_END: Final = re.compile(rb"[\r\n]")


def read_header(stream: io.BufferedReader, delimiter: str | None = None) -> tuple[list[str], str]:
    """Reads the first row that is not empty, and returns the column names and the delimiter.

    Args:
        stream: The file, positioned at its start.
        delimiter: The character between two fields. None: detected.

    Raises:
        ValueError: The file has no header, a quote in the header is not closed, a column name occurs twice, or there
            are too many columns.
    """
    header, quotes, is_blank = bytearray(), 0, True
    # A quoted name may hold a line break. Only the new line is looked at: there may be a million of them.
    while len(header) < _BLOCK_BYTES and (line := _read_line(stream)):
        header += line
        quotes += line.count(b'"')
        is_blank = is_blank and not line.strip()
        if not is_blank and quotes % 2 == 0:
            break
    else:
        if not is_blank:
            raise ValueError("a quote in the header is not closed")
    text = header.decode("utf-8-sig").strip(" \r\n")
    found = delimiter or sniff_delimiter(text, lambda: _peek(stream))
    names = [name.strip() for name in next(csv.reader([text], delimiter=found), [])]
    check_column_count(len(names), "the header")
    if not any(names):
        raise ValueError("there is no header row with the names of the columns")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'the header has the column "{name}" twice')
    return names, found


def _read_line(stream: io.BufferedReader) -> bytes:
    """Reads a line that ends in a line feed, a carriage return, or both; at most 4 MiB."""
    line = bytearray()
    while len(line) < _BLOCK_BYTES and (data := stream.peek(1)):
        found = _LINE_END.search(data)
        line += stream.read(found.end() if found else len(data))
        if found:
            # More bytes follow a carriage return, unless it is the last byte of the file.
            if line.endswith(b"\r") and stream.peek(1)[:1] == b"\n":
                line += stream.read(1)
            break
    return bytes(line)


def _peek(stream: io.BufferedReader) -> str:
    """Returns the next bytes that can be read without blocking."""
    return stream.peek(1)[:_SAMPLE_BYTES].decode(errors="replace")


def read_rows(stream: io.BufferedReader, delimiter: str = ",") -> Iterator[bytes]:
    """Yields the rest of a file in blocks of complete rows, each about 4 MiB, or one row if that row is longer.

    pyarrow's own reader would read in another thread, where Ctrl-C could not interrupt the wait for a slow pipe.

    Raises:
        ValueError: A row is too long.
    """
    pending = b""
    while data := stream.read(_BLOCK_BYTES):
        pending += data
        if pending.endswith(b"\r"):
            # A line feed may follow, which belongs to the same row end.
            pending += stream.read(1)
        end = length_of_complete_rows(pending, delimiter)
        if end:
            yield pending[:end]
            pending = pending[end:]
        check_line_length(len(pending), "a row, perhaps with a quote that is not closed,")
    if pending.strip():
        yield pending


def length_of_complete_rows(data: bytes, delimiter: str = ",") -> int:
    """Returns how many bytes at the start of the data are complete rows. Rows may contain quoted line breaks.

    A row ends in a line feed, a carriage return, or both; the data does not end between the two.
    """
    if b'"' not in data:
        return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    bytes_ = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(bytes_ == _QUOTE)
    openings = quotes[::2]
    # The bytes that may precede an odd-numbered quote: it opens a field, or is the second of an escaped pair.
    before = np.frombuffer(f'{delimiter}\n\r"'.encode(), np.uint8)
    if not np.isin(bytes_[openings[openings > 0] - 1], before).all():
        return _length_by_lines(data, delimiter)
    ends = np.flatnonzero((bytes_ == ord("\n")) | (bytes_ == ord("\r")))
    outside_quotes = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside_quotes[-1]) + 1 if len(outside_quotes) else 0


def _length_by_lines(data: bytes, delimiter: str) -> int:
    """Like `length_of_complete_rows`, for data with literal quotes in the middle of fields, as in `5" nails`."""
    lines = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1].splitlines(keepends=True)
    # In latin-1 every byte is one character.
    reader = csv.reader((line.decode("latin-1") for line in lines), delimiter=delimiter)
    whole = before = 0
    for _ in reader:
        whole, before = before, reader.line_num
    # The last row may have ended only because the lines did.
    return sum(len(line) for line in lines[:whole])
