"""Formats the results as Markdown for people and as JSON for machines."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.bench import Figure, Result, ResultTable

NOT_MEASURED = (
    "A network: everything runs on one machine over loopback, and client and server share its cores.",
    "Disk reads: the table files are in the page cache when the first run that counts begins.",
    "Other shapes of data: T4 has four narrow columns without nulls, keys that were written in order, and one bucket. "
    "Figures differ for wide rows, long strings, nested types and many buckets.",
    "A table that changes: no writes run concurrently with the scans, and the store has no overwritten rows, no "
    "tombstones and no unfinished compaction.",
    "Many concurrent clients, and the fairness between them.",
    "Encryption and authentication, which are off except in the benchmark `tls`.",
    "A quiet machine: others may have used it at the same time. Trust ratios rather than rows/s, and only ratios with "
    "a narrow range.",
)


def to_markdown(
    settings: Mapping[str, str],
    machine: Mapping[str, str],
    results: Mapping[str, Result],
    not_measured: Sequence[str] = NOT_MEASURED,
) -> str:
    """Returns the report as Markdown."""
    found = results.values()
    parts = [f"# Benchmarks\n\n{_inline(settings)}", f"Machine: {_inline(machine)}"]
    if figures := [figure for result in found for figure in result.figures]:
        parts.append(f"## Figures\n\n{figures_grid(figures)}")
    parts += [_table(table) for result in found for table in result.tables]
    parts.append(f"## How it was measured\n\n{_items(note for result in found for note in result.notes)}")
    parts.append(f"## What this does not measure\n\n{_items(not_measured)}")
    return "\n\n".join(parts) + "\n"


def figures_grid(figures: Iterable[Figure]) -> str:
    """Returns figures with their targets as a Markdown table."""
    header = ("work", "against", "measured", "range over the runs", "target", "")
    return _grid(header, map(_figure_row, figures))


def to_json(
    settings: Mapping[str, str],
    machine: Mapping[str, str],
    results: Mapping[str, Result],
    not_measured: Sequence[str] = NOT_MEASURED,
) -> str:
    """Returns the report as JSON: figures, tables and notes by benchmark."""
    report = {
        "settings": dict(settings),
        "machine": dict(machine),
        "results": {name: _result_to_dict(result) for name, result in results.items()},
        "not_measured": list(not_measured),
    }
    return json.dumps(report, indent=2) + "\n"


def _result_to_dict(result: Result) -> dict[str, object]:
    plain = asdict(result)
    plain["figures"] = [{**asdict(figure), "met": figure.is_met} for figure in result.figures]
    return plain


def _figure_row(figure: Figure) -> Sequence[str]:
    least, greatest = _number(figure.spread.least), _number(figure.spread.greatest)
    bounds = [
        *([] if figure.at_least is None else [f"at least {_number(figure.at_least)}"]),
        *([] if figure.at_most is None else [f"at most {_number(figure.at_most)}"]),
    ]
    unit = "" if figure.unit == "ratio" else f" {figure.unit}"
    met = ("reached" if figure.is_met else "**not reached**") if bounds else ""
    measured = f"**{_number(figure.spread.median)}**{unit}"
    return figure.work, figure.against, measured, f"{least} to {greatest}", ", ".join(bounds), met


def _table(table: ResultTable) -> str:
    rows = ([cell if isinstance(cell, str) else _number(cell) for cell in row] for row in table.rows)
    return f"## {table.title}\n\n{_grid(table.columns, rows)}"


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _inline(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _number(value: float) -> str:
    """Formats a number with three significant digits, or with all digits before the point: 0.643, 12.4, 336,776."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
