"""What one request may ask for, and how much of everything the gateway takes at once."""

from __future__ import annotations

from typing import Final

MAX_HEAD_BYTES: Final = 32 * 1024
"""The most bytes of a request line and its headers. A token has up to 12 KiB."""

MAX_BODY_BYTES: Final = 32 * 1024
"""The most bytes of a body. Only forms of the console and queries in SQL have one."""

MAX_TARGET_BYTES: Final = 16 * 1024
"""The most bytes of a path with its query."""

MAX_TEXT: Final = 8 * 1024
"""The most characters of one parameter."""

MAX_KEYS: Final = 1000
MAX_WATCHED_KEYS: Final = 100
MAX_TOP: Final = 10_000
MAX_SCAN_ROWS: Final = 10_000_000
DEFAULT_SCAN_ROWS: Final = 100_000

MAX_DOWNLOADS: Final = 32

PIECE_BYTES: Final = 64 * 1024
"""The most bytes that are handed to a connection at once."""
