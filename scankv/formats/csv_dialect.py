"""The dialect of a CSV file: its delimiter, given by the user or detected, and the texts that mean null."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

DELIMITERS: Final = (",", ";", "\t", "|")
"""The delimiters that are detected, the most likely first."""

_NAMES: Final = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """What the user specifies about a CSV file.

    Attributes:
        null_texts: Texts that mean null in every column unless they are quoted. An empty field is always null.
        delimiter: The character between two fields. None: detected from the first rows.
    """

    null_texts: tuple[str, ...] = ()
    delimiter: str | None = None


def parse_delimiter(text: str | None) -> str | None:
    r"""Parses a delimiter given on the command line: one character, or a name such as `tab` or `\t`.

    Raises:
        UsageError: The text is not a character that can separate fields.
    """
    if text is None:
        return None
    found = _NAMES.get(text.lower(), text)
    if len(found) != 1 or not found.isascii() or (found != "\t" and not found.isprintable()) or found == '"':
        raise UsageError(
            f'--delimiter must be one ASCII character other than a quote, or one of {", ".join(_NAMES)}, not "{text}"'
        )
    return found


def sniff_delimiter(header: str, rows: Callable[[], str]) -> str:
    """Detects the delimiter of a file.

    The candidates are the delimiters that occur in the header; without any, the delimiter is a comma. The candidate
    wins that splits most rows into as many fields as the header. On a tie, it is the one with the most header fields.

    Args:
        header: The first row.
        rows: Returns the beginning of the text after the header; its last row may be incomplete. Called only if there
            are several candidates, because reading ahead may block on a pipe.
    """
    candidates = [each for each in DELIMITERS if _fields(header, each) > 1]
    if len(candidates) < 2:
        return candidates[0] if candidates else DELIMITERS[0]
    text = rows()
    lines = text.splitlines(keepends=True)
    if not text.endswith(("\n", "\r")):
        del lines[-1:]

    def fit(delimiter: str) -> tuple[int, int]:
        divided = _fields(header, delimiter)
        return sum(len(row) == divided for row in csv.reader(lines, delimiter=delimiter)), divided

    return max(candidates, key=fit)


def _fields(line: str, delimiter: str) -> int:
    # The reader refuses long fields, and a long header is one field for a delimiter that it does not contain.
    return len(next(csv.reader([line], delimiter=delimiter), ())) if delimiter in line else 1
