"""Runs side by side, and what is quoted of them: medians of paired ratios, with the least and the greatest."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: so many rows in so many seconds."""

    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    def checked(self, expected: int) -> Self:
        """Itself, when it has exactly the rows expected."""
        if self.rows != expected:
            raise RuntimeError(f"{self.rows:,} rows came where {expected:,} were expected")
        return self


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several runs, and their least and greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """The spread of at least one value."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1])


def interleaved(
    runs: int, contenders: Mapping[str, Callable[[], Timing]], *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Runs the contenders in turn (A B C A B C ...), so that what disturbs the machine disturbs all of them.

    Args:
        runs: Rounds that count.
        contenders: What is run, by name.
        warm_up: Whether one round goes before that does not count.

    Returns:
        The rows per second of each contender, round by round.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-int(warm_up), runs):
        for name, run in contenders.items():
            rate = run().rate
            if number >= 0:
                rates[name].append(rate)
                progress(f"  run {number + 1} of {runs}: {name:<28} {rate:>14,.0f} rows/s")
    return rates


def paired_ratios(measured: Sequence[float], reference: Sequence[float]) -> Spread:
    """The ratios of the runs of the same round."""
    return Spread.of(one / other for one, other in zip(measured, reference, strict=True))


def progress(line: str) -> None:
    """Tells the one who waits, on stderr: stdout is for the result."""
    print(line, file=sys.stderr, flush=True)
