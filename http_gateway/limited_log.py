"""A log of what any program that reaches the port can cause: up to 100 lines a minute, and how many were left out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

_MOST: Final = 100
_SECONDS: Final = 60.0


class LimitedLog:
    """Logs at the level `info`. Belongs to the event loop."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._began = -_SECONDS
        self._lines = 0

    def info(self, message: str, *values: object) -> None:
        """Logs a line, unless this minute has 100 already."""
        now = time.monotonic()
        if now - self._began >= _SECONDS:
            if self._lines > _MOST:
                self._log.info("%d more malformed requests were refused", self._lines - _MOST)
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines <= _MOST:
            self._log.info(message, *values)
