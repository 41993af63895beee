"""Reads JSON lines files (one object per line) in blocks of lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.formats.blocks import BadRowError
from scankv.formats.columns import check_no_others, conform_block
from scankv.formats.exact_floats import InexactNumberError
from scankv.formats.json_text import infer_json_lines, read_json_lines
from scankv.model.errors import SchemaMismatch
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

_BLOCK_BYTES: Final = 4 << 20
_NEWLINE: Final = ord("\n")


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

    def __init__(self, lines: Lines, schema: pa.Schema) -> None:
        self._lines = lines
        self._schema = schema
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
            raise BadRowError(self._reason(data) if stop - start == 1 else "") from error
        return conform_block(rows, self._schema)

    def line(self, row: int) -> bytes:
        """Returns one line, unparsed."""
        return self._slice(row, row + 1)

    def _reason(self, line: bytes) -> str:
        """Returns why one line cannot be read."""
        try:
            found = infer_json_lines(line).schema
            check_no_others(found.names, self._schema)
        except ValueError as error:
            return str(error)
        except SchemaMismatch as error:
            return error.message
        for field in self._schema:
            try:
                read_json_lines(line, pa.schema([field]), other_fields="ignore")
            except InexactNumberError as error:
                return f'column "{field.name}": {error}'
            except ValueError:
                return f'column "{field.name}" is {found.field(field.name).type}, not {format_type(field.type)}'
        return "not a row of this table"

    def _slice(self, start: int, stop: int) -> bytes:
        return self._lines.data[self._starts[start] : self._starts[stop]]

    def where(self, row: int) -> str:
        """See `Block.where`."""
        return f"line {self._lines.first_line + self._rows[row]}"


def read_jsonl(stream: io.BufferedReader, schema: pa.Schema) -> Iterator[JsonlBlock]:
    """Reads a JSON lines file as blocks of rows of a schema. A field that an object does not have is null."""
    return (JsonlBlock(lines, schema) for lines in read_lines(stream))


def read_lines(stream: io.BufferedReader) -> Iterator[Lines]:
    """Yields a file in blocks of complete lines, each about 4 MiB, or one line if that line is longer."""
    first_line = 1
    # `read` waits for a full block or the end of the file. `read1` could return nothing from a pipe that is slow.
    while data := stream.read(_BLOCK_BYTES):
        data += stream.readline()
        yield Lines(data, first_line)
        first_line += data.count(b"\n")
