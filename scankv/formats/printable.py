"""Text that cannot steer the terminal that shows it.

Rule: what people are shown has no control character of anybody's data in it. Stored values, names of columns and
messages about them may come from strangers; an escape sequence among them can change what a terminal shows, or is.
What programs read, a pipe or a file, keeps every byte.
"""

from __future__ import annotations

import codecs
import io
import re
from typing import IO, TYPE_CHECKING, Final

from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_AS: Final = "·"
# C0 and C1 control characters, line and paragraph separators, and what changes the direction of writing.
_STEERING: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_ANY: Final = re.compile(f"[{_STEERING}]")
_ANY_BUT_LINES: Final = re.compile(f"(?![\n\t])[{_STEERING}]")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with a dot in place of each character that could steer a terminal.

    Args:
        text: Any text.
        lines: Whether it may have several lines, and tabs.
    """
    return (_ANY_BUT_LINES if lines else _ANY).sub(_SHOWN_AS, text)


def printable_texts(texts: pa.StringArray) -> pa.StringArray:
    """The same for each text of an array, each of one line."""
    return pc.replace_substring_regex(texts, f"[{_STEERING}]", _SHOWN_AS)


class PrintableStream(io.BufferedIOBase):
    """A stream of UTF-8 text, in pieces of any size, that a terminal shows.

    Args:
        terminal: Where the text goes; it is not closed.
    """

    def __init__(self, terminal: IO[bytes]) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """Whether it takes text: always."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # what is written is bytes
        """Shows the next piece."""
        self._terminal.write(printable(self._decoder.decode(data), lines=True).encode())
        return len(data)

    def flush(self) -> None:
        """Has the terminal show what it was given."""
        self._terminal.flush()
