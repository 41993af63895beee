"""Measures how long the event loop is busy at a time."""

from __future__ import annotations

import selectors
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BOUNDS_SECONDS: Final = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
"""The upper bounds of the classes of a histogram of turns. The last class has no bound."""


class LoopTurns(selectors.DefaultSelector):
    """The selector of an event loop, which measures each turn of the loop: `asyncio.SelectorEventLoop(LoopTurns())`.

    A turn runs all callbacks that are ready. It is the time for which an event that arrives may have to wait.

    Args:
        clock: Returns seconds. The default includes the time that the loop waits for the interpreter lock, or for a
            core.

    Attributes:
        counts: The number of turns in each class of `BOUNDS_SECONDS`, and of the turns that took longer.
        longest: The seconds of the longest turn.
        total: The seconds of all turns.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.longest = self.total = 0.0
        self._turns_with_events = 0
        self._clock = clock
        self._began: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits for events, as every selector does."""
        if self._began is not None:
            seconds = self._clock() - self._began
            self.counts[bisect_right(BOUNDS_SECONDS, seconds)] += 1
            self.total += seconds
            if seconds > self.longest:
                self.longest = seconds
        ready = super().select(timeout)
        self._turns_with_events += bool(ready)
        self._began = self._clock()
        return ready

    def count_turns_with_events(self) -> int:
        """Returns the number of turns before which an event had arrived."""
        return self._turns_with_events
