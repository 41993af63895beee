"""A histogram of durations that costs less than a microsecond for each observation."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LATENCY_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""The upper bounds of the classes of a histogram of latencies, in seconds. The last class has no bound."""


class Distribution(NamedTuple):
    """What a histogram has counted.

    Attributes:
        bounds: The upper bound of each class but the last, which has none. A class includes its bound.
        counts: The number of observations in each class.
        total: The sum of all observations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts durations by class. Thread-safe.

    Args:
        bounds: The upper bounds of the classes, ascending.
    """

    __slots__ = ("_bounds", "_counts", "_lock", "_total")

    def __init__(self, bounds: Sequence[float] = LATENCY_SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0
        # Increments of list items in several threads would lose some.
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        number = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[number] += 1
            self._total += seconds

    def read(self) -> Distribution:
        """Returns the counts so far."""
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._total)
