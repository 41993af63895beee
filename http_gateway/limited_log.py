"""A log of what any program that reaches the port can cause: up to 100 lines a minute, and how many were left out."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_MOST: Final = 100
_SECONDS: Final = 60.0


class LimitedLog:
    """Logs at the level `info`. Belongs to the event loop.

    How many lines were left out is logged before the first line of a later minute.

    Args:
        log: Gets the lines.
        clock: A monotonic clock in seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._began = -math.inf
        self._lines = 0

    def info(self, message: str, *values: object) -> None:
        """Logs a line, unless this minute has 100 already."""
        now = self._clock()
        if now - self._began >= _SECONDS:
            if self._lines > _MOST:
                self._log.info("%d more malformed requests were refused", self._lines - _MOST)
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines <= _MOST:
            self._log.info(message, *values)
