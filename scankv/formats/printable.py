"""Makes text safe to show on a terminal.

Stored values, column names and messages about them may come from untrusted writers, and an escape sequence in them can
change what a terminal shows, or its settings. Text for people therefore never contains control characters from data.
Output for programs, in a pipe or a file, keeps every byte.
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
# C0 and C1 control characters, line and paragraph separators, and characters that change the writing direction.
_STEERING: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_ANY: Final = re.compile(f"[{_STEERING}]")
_ANY_BUT_LINES: Final = re.compile(f"(?![\n\t])[{_STEERING}]")


def printable(text: str, *, lines: bool = False) -> str:
    """Returns the text with a dot in place of each character that could control a terminal.

    Args:
        text: Any text.
        lines: Whether the result may contain line breaks and tabs.
    """
    return (_ANY_BUT_LINES if lines else _ANY).sub(_SHOWN_AS, text)


def printable_texts(texts: pa.StringArray) -> pa.StringArray:
    """Like `printable`, for an array of texts that are shown in one line each."""
    return pc.replace_substring_regex(texts, f"[{_STEERING}]", _SHOWN_AS)


class PrintableStream(io.BufferedIOBase):
    """Writes UTF-8 text, in pieces of any size, to a terminal as printable text.

    Args:
        terminal: The stream of the terminal; it is not closed.
    """

    def __init__(self, terminal: IO[bytes]) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """Returns True, as `io` requires of a stream that can be written."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # what is written is bytes
        """Writes the next piece of the text."""
        self._terminal.write(printable(self._decoder.decode(data), lines=True).encode())
        return len(data)

    def flush(self) -> None:
        """Flushes the terminal."""
        self._terminal.flush()
