"""Reads JSON lines files (one object per line) in blocks of lines."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.formats.blocks import BadRowError
from scankv.formats.bounds import check_line_length, rows_at_once
from scankv.formats.columns import conform_block
from scankv.formats.json_reasons import reason_of
from scankv.formats.json_text import absent_in_json_lines, read_json_lines
from scankv.model.types.default_values import NO_DEFAULTS, fill_absent

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Mapping

_BLOCK_BYTES: Final = 4 << 20
_NEWLINE: Final = ord("\n")
_ARRAY: Final = (
    "the file is a JSON array, not one object per line: convert it, for example with `jq -c '.[]'`, and load the result"
)


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive complete lines of a file.

    Attributes:
        data: The lines. The last line of a file may lack its newline.
        first_line: The number of the first line, counted from 1.
    """

    data: bytes
    first_line: int


class JsonlBlock:
    """A block of a JSON lines file; see `Block`. Empty lines are not rows."""

    def __init__(self, lines: Lines, schema: pa.Schema, defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS) -> None:
        self._lines = lines
        self._schema = schema
        self._defaults = defaults
        data = np.frombuffer(lines.data, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE) + 1
        if len(ends) == 0 or ends[-1] != len(data):
            ends = np.append(ends, len(data))
        # A slice of rows may contain empty lines; pyarrow skips them.
        starts = np.concatenate([[0], ends[:-1]])
        self._rows = np.flatnonzero(data[starts] != _NEWLINE)
        self._starts = np.append(starts[self._rows], len(data))

    def __len__(self) -> int:
        """Returns the number of lines that are not empty."""
        return len(self._rows)

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """See `Block.convert`."""
        data = self._slice(start, stop)
        if not data.strip():
            return pa.RecordBatch.from_pylist([], self._schema)
        try:
            rows = read_json_lines(data, self._schema)
        except ValueError as error:
            raise BadRowError(reason_of(data, self._schema) if stop - start == 1 else "") from error
        return conform_block(self._with_defaults(rows, data), self._schema)

    def line(self, row: int) -> bytes:
        """Returns one line, unparsed."""
        return self._slice(row, row + 1)

    def _with_defaults(self, rows: pa.RecordBatch, data: bytes) -> pa.RecordBatch:
        """Returns rows with the defaults of fields that their objects do not have."""
        for place, field in enumerate(self._schema):
            if field.name not in self._defaults:
                continue
            values = rows.column(place)
            absent = absent_in_json_lines(data, field, values)
            rows = rows.set_column(place, field.name, fill_absent(values, absent, self._defaults[field.name]))
        return rows

    def _slice(self, start: int, stop: int) -> bytes:
        return self._lines.data[self._starts[start] : self._starts[stop]]

    def where(self, row: int) -> str:
        """See `Block.where`."""
        return f"line {self._lines.first_line + self._rows[row]}"


def read_jsonl(
    stream: io.BufferedReader, schema: pa.Schema, defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS
) -> Iterator[JsonlBlock]:
    """Reads a JSON lines file as blocks of rows of a schema.

    A field that an object lacks has its default, or is null without one.
    """
    most = rows_at_once(schema)
    return (JsonlBlock(each, schema, defaults) for lines in read_lines(stream) for each in _divide(lines, most))


def _divide(lines: Lines, most: int) -> Iterator[Lines]:
    """Yields lines in blocks of at most `most` lines, because even a short line has a cell for every column."""
    data, first_line = lines.data, lines.first_line
    if data.count(b"\n") <= most:
        yield lines
        return
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE) + 1
    starts = [0, *ends[most - 1 :: most].tolist()]
    for number, (start, end) in enumerate(pairwise([*starts, len(data)])):
        if start < end:
            yield Lines(data[start:end], first_line + number * most)


def read_lines(stream: io.BufferedReader) -> Iterator[Lines]:
    """Yields a file in blocks of complete lines, each about 4 MiB, or one line if that line is longer.

    Lines end in a line feed, a carriage return, or both.

    Raises:
        ValueError: The file is one JSON array, or a line is too long.
    """
    pending: list[bytes] = []
    first_line, line_bytes = 1, 0
    # `read` waits for a full block or the end of the file. `read1` could return nothing from a pipe that is slow.
    while data := stream.read(_BLOCK_BYTES):
        if first_line == 1 and not pending and data.lstrip().startswith(b"["):
            raise ValueError(_ARRAY)
        if data.endswith(b"\r"):
            data += stream.read(1)
        # A string in JSON cannot contain a carriage return.
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if not end:
            pending.append(data)
            line_bytes += len(data)
            check_line_length(line_bytes, f"line {first_line:,}")
            continue
        complete = b"".join([*pending, data[:end]])
        pending = [data[end:]] if end < len(data) else []
        line_bytes = len(data) - end
        yield Lines(complete, first_line)
        first_line += complete.count(b"\n")
    if pending:
        yield Lines(b"".join(pending), first_line)
