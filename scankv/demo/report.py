"""Prints the output of the demo: one line per step, a bar chart, and the result of each check."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.table import Table

from scankv.model.counts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from scankv.demo.flights import Figures
    from scankv.demo.session import Outcome

_LABEL_WIDTH: Final = 9
_BAR_WIDTH: Final = 40
_BARS: Final = 8
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        what: What was compared, in words.
        found: What ScanKV returned.
        expected: What it should have been.
    """

    what: str
    found: object
    expected: object

    @property
    def passed(self) -> bool:
        """Whether both are the same."""
        return self.found == self.expected


def checks_of(outcome: Outcome, truth: Figures) -> list[Check]:
    """Returns all comparisons of the session's outcome with the source."""
    streamed, afterwards = outcome.streamed, outcome.afterwards
    return [
        Check("rows streamed", streamed.rows, truth.rows),
        Check("sum of distance", streamed.distance, truth.distance),
        Check("flights and miles of each carrier", streamed.carriers, truth.carriers),
        Check("updates seen by the stream that was open", outcome.zeros_streamed, 0),
        Check("updates acknowledged while it was open", outcome.concurrent_updates > 0, True),
        Check("updates found by their keys", outcome.zeros_looked_up, outcome.updated),
        Check("updates seen by the next stream", outcome.zeros_afterwards, outcome.updated),
        Check("rows in the next stream", afterwards.rows, truth.rows),
        Check("sum of distance in the next stream", afterwards.distance, truth.distance - outcome.updated_miles),
    ]


class Report:
    """Prints to a console. On a terminal, a spinner shows the running step."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def print_title(self) -> None:
        """Prints what the demo does."""
        self._console.print("[bold]ScanKV[/]: the flights that left New York in 2013, stored, changed and streamed\n")

    def print_line(self, label: str, text: str) -> None:
        """Prints one line of text with a label."""
        self._console.print(f"  [dim]{label:<{_LABEL_WIDTH}}[/]{text}")

    @contextmanager
    def step(self, label: str) -> Iterator[Callable[[str], None]]:
        """Shows a spinner during a step; yields the function that prints the result of the step."""
        with self._console.status(f"{label} ..."):
            yield lambda text: self.print_line(label, text)

    def print_verdict(self, checks: Sequence[Check], figures: Figures) -> bool:
        """Prints the chart and every check; returns whether all passed."""
        self._chart(figures)
        for check in checks:
            self._console.print(_line_of(check))
        failed = sum(not check.passed for check in checks)
        self._console.print()
        if failed:
            self._console.print(f"[bold red]{failed} of {len(checks)} checks failed[/]")
        else:
            self._console.print(f"[bold green]all {len(checks)} checks are true[/]")
        return not failed

    def _chart(self, figures: Figures) -> None:
        largest = sorted(figures.carriers.items(), key=lambda item: -item[1][0])
        most = largest[0][1][0]
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column()
        grid.add_column(justify="right")
        for carrier, (flights, _) in largest[:_BARS]:
            grid.add_row(f"  {carrier}", f"[cyan]{bar(flights / most, _BAR_WIDTH)}[/]", f"{flights:,}")
        others = largest[_BARS:]
        if others:
            flights = sum(count for _, (count, _) in others)
            grid.add_row(f"  [dim]{len(others)} more[/]", f"[cyan]{bar(flights / most, _BAR_WIDTH)}[/]", f"{flights:,}")
        self._console.print()
        self._console.print(grid)
        self._console.print()


def bar(share: float, width: int) -> str:
    """Returns a horizontal bar that fills a share (0 to 1) of a width in cells, in steps of an eighth of a cell."""
    eighths = round(min(share, 1.0) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _line_of(check: Check) -> str:
    if not check.passed:
        return f"  [red]✗[/] {check.what}: {_format_value(check.found)}, and not {_format_value(check.expected)}"
    return f"  [green]✓[/] {check.what}: {_format_value(check.found)}"


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "none"
    if isinstance(value, int):
        return f"{value:,}"
    return counted(len(value), "carrier") if isinstance(value, dict) else str(value)
