"""What every benchmark is given, and what it gives back."""

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
        rows: The rows of T4.
        runs: Rounds that count.
    """

    def __init__(self, directory: Path, rows: int, runs: int) -> None:
        self.directory = directory
        self.rows = rows
        self.runs = runs

    @cached_property
    def store(self) -> Store:
        """T4 on disk: built once, when first needed."""
        return Store(self.directory, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity, and what it has to be.

    Attributes:
        name: For machines.
        work: What was measured.
        against: What it was compared with, or how it was counted.
        unit: `ratio`, `times`, `rows/s`, `ms` or `MiB`.
        spread: Over the runs.
        at_least: The median has to reach it.
        at_most: The median must not exceed it.
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
        """Whether the median is within its bounds; true when it has none."""
        low_enough = self.at_most is None or self.spread.median <= self.at_most
        return low_enough and (self.at_least is None or self.spread.median >= self.at_least)


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Further measurements; the first column names what was measured."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one benchmark found.

    Attributes:
        figures: Quantities that have a bound, or that others are compared with.
        tables: Details.
        notes: How it was measured, one sentence or two each.
    """

    figures: Sequence[Figure] = ()
    tables: Sequence[ResultTable] = ()
    notes: Sequence[str] = field(default=())


def rates_table(title: str, rates: Mapping[str, Spread]) -> ResultTable:
    """A table of rows per second by contender."""
    rows = [(name, spread.median, spread.least, spread.greatest) for name, spread in rates.items()]
    return ResultTable(title, ("rows/s", "median", "least", "greatest"), rows)
