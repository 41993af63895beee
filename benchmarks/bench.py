"""The input and the result of every benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from benchmarks.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from benchmarks.measure import Spread

    Benchmark: TypeAlias = Callable[["Bench"], "Result"]


class Bench:
    """One run of the harness.

    Attributes:
        directory: A temporary directory, removed at the end.
        rows: The number of rows of T4.
        runs: The number of rounds that count.
    """

    def __init__(self, directory: Path, rows: int, runs: int) -> None:
        self.directory = directory
        self.rows = rows
        self.runs = runs

    @cached_property
    def store(self) -> Store:
        """T4 on disk, built on first use."""
        return Store(self.directory, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity and its bounds.

    Attributes:
        name: A stable name for machines.
        work: What was measured.
        against: What it was compared with, or how it was counted.
        unit: `ratio`, `times`, `rows/s`, `s`, `ms`, `%`, `MiB` or `rows`.
        spread: The measured values of all runs.
        at_least: The least allowed median. None: no bound.
        at_most: The greatest allowed median. None: no bound.
    """

    name: str
    work: str
    against: str
    unit: str
    spread: Spread
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the median is within the bounds; true without bounds."""
        low_enough = self.at_most is None or self.spread.median <= self.at_most
        return low_enough and (self.at_least is None or self.spread.median >= self.at_least)


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Further measurements. The first column says what was measured."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one benchmark.

    Attributes:
        figures: Quantities with bounds, or to which others are compared.
        tables: Details.
        notes: How the benchmark measures, in one or two sentences each.
    """

    figures: Sequence[Figure] = ()
    tables: Sequence[ResultTable] = ()
    notes: Sequence[str] = field(default=())


def rates_table(title: str, rates: Mapping[str, Spread]) -> ResultTable:
    """Returns a table of the rows per second of each contender."""
    rows = [(name, spread.median, spread.least, spread.greatest) for name, spread in rates.items()]
    return ResultTable(title, ("rows/s", "median", "least", "greatest"), rows)
