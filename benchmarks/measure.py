"""Runs contenders in turn and summarizes the runs: medians of paired ratios, with the least and the greatest."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.proc import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Timing:
    """The number of rows and the seconds of one run."""

    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        """The rows per second."""
        return self.rows / self.seconds

    def check_rows(self, expected: int) -> Self:
        """Returns itself. Raises RuntimeError if it does not have exactly the expected number of rows."""
        if self.rows != expected:
            raise RuntimeError(f"the run must have {expected:,} rows, not {self.rows:,}")
        return self


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several runs, and their least and greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Returns the spread of one or more values."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1])


def run_interleaved(
    runs: int, contenders: Mapping[str, Callable[[], Timing]], *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Runs the contenders in turn (A B C A B C ...), so that other load on the machine affects all of them.

    Args:
        runs: The number of rounds that count.
        contenders: The function to run for each name.
        warm_up: Whether to run one round first that does not count.

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
    """Returns the spread of the ratios between runs of the same round."""
    return Spread.of(one / other for one, other in zip(measured, reference, strict=True))


class CpuRounds:
    """Runs contenders in turn and records the processor time of each run.

    Args:
        rounds: The number of rounds that count, after one that does not.
        contenders: For each name, the ids of the processes whose time counts, and the function to run. The function
            returns the number of units of work, such as rows.
    """

    def __init__(self, rounds: int, contenders: Mapping[str, tuple[Sequence[int], Callable[[], float]]]) -> None:
        self._seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(-1, rounds):
            for name, (processes, run) in contenders.items():
                before = sum(map(cpu_seconds, processes))
                units = run()
                seconds = sum(map(cpu_seconds, processes)) - before
                if number >= 0:
                    self._seconds[name].append(seconds / units)

    def ratios(self, name: str, reference: str) -> Spread:
        """Returns the spread of the ratios between two contenders, each per unit of work, round by round."""
        return paired_ratios(self._seconds[name], self._seconds[reference])


def progress(line: str) -> None:
    """Prints a line to stderr. Stdout is for the result."""
    print(line, file=sys.stderr, flush=True)
