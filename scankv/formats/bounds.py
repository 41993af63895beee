"""The bounds of files from outside: what is refused before a parser spends memory, time or stack on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from scankv.model.limits import MAX_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_LINE_BYTES: Final = 64 << 20
"""The longest line of a JSON lines file and the longest row of a CSV file. A stored row has up to 16 MiB."""

MAX_JSON_LEVELS: Final = 100
"""How deep lists and objects may be nested in JSON. The deepest type of a column, 32 maps, takes 65 levels."""

MAX_JSON_NAMES: Final = 10_000
"""The most different names of fields in one object at all depths, if columns are inferred from it."""

_CELLS: Final = 8 << 20
_SHORT_BYTES: Final = 64 << 10
_OPENINGS: Final = bytes(set(range(256)) - set(b"[{\n"))
_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}\n'))
_STEP: Final = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_PIECE_BYTES: Final = 1 << 20
# Each match is a whole string, closed or not. A search that began again within a string would take quadratic time.
_STRING: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"(\s*+:)?|\\?\Z)', re.DOTALL)


class BeyondBoundsError(ValueError):
    """A text exceeds a bound. The message may continue a sentence that begins with the text."""


def check_json_levels(data: bytes) -> None:
    """Checks that JSON is not nested too deeply for a parser that uses the stack for each level.

    Args:
        data: JSON values with line ends between them, valid or not.

    Raises:
        BeyondBoundsError: It may be nested too deeply.
    """
    if not _is_shallow(data) and _levels(data) > MAX_JSON_LEVELS:
        raise BeyondBoundsError(f"has more than {MAX_JSON_LEVELS} levels of lists and objects; this is the limit")


def _is_shallow(data: bytes) -> bool:
    """Returns whether JSON is certainly not nested too deeply. That takes less time than to find the depth."""
    text = data.removesuffix(b"\n")
    # Between `}` and `{` without a comma, a parser is at depth 0, or stops with an error.
    if text.count(b"\n") != text.count(b"}\n{"):
        return False
    return max(map(len, text.translate(None, _OPENINGS).split(b"\n"))) <= MAX_JSON_LEVELS


def _levels(data: bytes) -> int:
    """Returns how deep a parser gets in JSON before its end or the first error, or more.

    It stops once a depth is beyond the limit. It looks at 1 MiB at a time, since it needs some 20 bytes for a bracket.
    """
    level = deepest = open_quotes = start = 0
    while start < len(data) and deepest <= MAX_JSON_LEVELS:
        piece = data[start : start + _PIECE_BYTES]
        # A backslash and what it escapes stay together.
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = data[start : start + _PIECE_BYTES + 1]
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        structure = np.frombuffer(piece.translate(None, _STRUCTURE), np.uint8)
        if len(structure) == 0:
            continue
        quotes = open_quotes + np.cumsum(structure == ord('"'), dtype=np.int32)
        # A string that is not closed ends with its line: parsers stop at a line end within a string.
        before_line = np.maximum.accumulate(np.where(structure == ord("\n"), quotes, 0))
        is_in_string = (quotes - before_line) % 2
        levels = level + np.cumsum(np.where(is_in_string, 0, _STEP[structure]), dtype=np.int32)
        level, deepest, open_quotes = int(levels[-1]), max(deepest, int(levels.max())), int(is_in_string[-1])
    return deepest


def check_json_names(data: bytes) -> None:
    """Checks that an object does not have so many fields that a parser, which keeps a column for each, needs gigabytes.

    Raises:
        BeyondBoundsError: It has too many.
    """
    if len(data) <= _SHORT_BYTES:
        return
    names = set()
    for string in _STRING.finditer(data):
        if string[2]:
            names.add(string[1])
            if len(names) > MAX_JSON_NAMES:
                raise BeyondBoundsError(
                    f"has more than {MAX_JSON_NAMES:,} different fields at all depths; this is the limit"
                )


def check_column_count(count: int, what: str) -> None:
    """Checks how many columns a file has.

    Raises:
        BeyondBoundsError: A table cannot have that many.
    """
    if count > MAX_COLUMNS:
        raise BeyondBoundsError(f"{what} has {count:,} columns; the limit is {MAX_COLUMNS:,}: leave some out")


def check_line_length(size: int, where: str) -> None:
    """Checks how long a line is, or as much of it as was read.

    Raises:
        BeyondBoundsError: It is too long.
    """
    if size > MAX_LINE_BYTES:
        raise BeyondBoundsError(
            f"{where} has more than {MAX_LINE_BYTES:,} bytes; this is the limit: end each row with a line break, or "
            "leave out long values"
        )


def rows_at_once(schema: pa.Schema) -> int:
    """Returns how many rows of a schema may be in memory at once, even if most of their values are absent in a file."""
    return max(1, _CELLS // max(1, sum(_leaves(field.type) for field in schema)))


def _leaves(type_: pa.DataType) -> int:
    return sum(_leaves(type_.field(index).type) for index in range(type_.num_fields)) if type_.num_fields else 1


def short_pieces(data: bytes) -> list[bytes]:
    """Divides lines into pieces of at most 64 KiB, or one line if that is longer.

    A parser that makes a column for each name that it sees has a cell for each column and line. The number of cells
    grows with the square of the bytes.
    """
    pieces, start = [], 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + _SHORT_BYTES) + 1 or data.find(b"\n", start) + 1 or len(data)
        pieces.append(data[start:end])
        start = end
    return pieces
