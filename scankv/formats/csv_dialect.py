"""How a CSV file is written: what separates its fields, given or found out from its first rows, and what is null."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

DELIMITERS: Final = (",", ";", "\t", "|")
"""Those that are found out, the most likely first."""

_NAMES: Final = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """What is said of a CSV file.

    Attributes:
        null_texts: Fields that are null unless quoted, in every column, besides the empty one.
        delimiter: The character between two fields. None: what its first rows suggest.
    """

    null_texts: tuple[str, ...] = ()
    delimiter: str | None = None


def parse_delimiter(text: str | None) -> str | None:
    r"""A delimiter as it is given on the command line: one character, or a name such as `tab` or `\t`.

    Raises:
        UsageError: It cannot separate fields.
    """
    if text is None:
        return None
    found = _NAMES.get(text.lower(), text)
    if len(found) != 1 or not found.isascii() or (found != "\t" and not found.isprintable()) or found == '"':
        raise UsageError(f'--delimiter "{text}": it is one ASCII character but for ", or one of {", ".join(_NAMES)}')
    return found


def sniff_delimiter(header: str, rows: Callable[[], str]) -> str:
    """What separates the fields of a file.

    Of what divides the header, it is what divides most of the rows into as many fields, or else the header into most. A
    comma, if nothing divides it.

    Args:
        header: The first row.
        rows: Gives the beginning of what follows, whose last row may be cut off. Called only where the header leaves a
            choice, since it may have to wait for a pipe.
    """
    candidates = [each for each in DELIMITERS if _fields(header, each) > 1]
    if len(candidates) < 2:
        return candidates[0] if candidates else DELIMITERS[0]
    text = rows()
    lines = text.splitlines(keepends=True)
    if not text.endswith("\n"):
        del lines[-1:]

    def fit(delimiter: str) -> tuple[int, int]:
        divided = _fields(header, delimiter)
        return sum(len(row) == divided for row in csv.reader(lines, delimiter=delimiter)), divided

    return max(candidates, key=fit)


def _fields(line: str, delimiter: str) -> int:
    return len(next(csv.reader([line], delimiter=delimiter), ()))
