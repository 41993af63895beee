"""Runs the comparison, prints it as Markdown, and writes Markdown, JSON and plots on request."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import machine
from benchmarks.arguments import positive
from benchmarks.field.comparison import compare
from benchmarks.field.competitors import COMPETITORS
from benchmarks.field.operations import BY_BUCKETS, Scale
from benchmarks.field.plots import write_plots
from benchmarks.field.results import NOT_MEASURED, to_result
from benchmarks.measure import progress
from benchmarks.report import to_json, to_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.field.comparison import FieldComparison
    from benchmarks.field.competitors.competitor import Competitor

_TERMINATED: Final = 143


def main() -> None:
    """Runs the comparison that the command line selects."""
    # The servers are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    arguments = _parser().parse_args()
    names = arguments.only or list(COMPETITORS)
    if unknown := set(names) - set(COMPETITORS):
        _parser().error(f"--only must be {' or '.join(COMPETITORS)}, not {', '.join(sorted(unknown))}")
    chosen = [system for name, system in COMPETITORS.items() if name in names]
    missing = {system.NAME: reason for system in chosen if (reason := system.missing()) is not None}
    for name, reason in missing.items():
        progress(f"{name}: not installed: {reason}")
    systems = [system for system in chosen if system.NAME not in missing]
    description = machine.describe()
    with tempfile.TemporaryDirectory(prefix="scankv-field-") as directory:
        found = _measure(arguments, Path(directory), systems)
    settings = {
        "rows": ", ".join(f"{rows:,}" for rows in arguments.rows),
        "buckets": ", ".join(map(str, arguments.buckets)),
        "callers": ", ".join(map(str, arguments.callers)),
        "calls per round": f"{arguments.calls:,}",
        "runs": str(arguments.runs),
    }
    results = {"field": to_result(found, chosen, missing)}
    markdown = to_markdown(settings, description, results, NOT_MEASURED)
    print(markdown, end="")
    if arguments.markdown:
        arguments.markdown.write_text(markdown)
    if arguments.json:
        arguments.json.write_text(to_json(settings, description, results, NOT_MEASURED))
    if arguments.plots:
        write_plots(arguments.plots, found)


def _measure(
    arguments: argparse.Namespace, directory: Path, systems: Sequence[type[Competitor]]
) -> list[FieldComparison]:
    """Returns the main comparison first, then those with other numbers of rows, then those with other buckets."""
    first = Scale(
        rows=arguments.rows[0],
        calls=arguments.calls,
        callers=arguments.callers[0],
        runs=arguments.runs,
        buckets=arguments.buckets[0],
    )
    with_buckets = [system for system in systems if system.HAS_BUCKETS]
    found = [compare(directory, systems, first, caller_counts=arguments.callers[1:])]
    found += [compare(directory, systems, replace(first, rows=rows)) for rows in arguments.rows[1:]]
    if with_buckets:
        found += [
            compare(directory, with_buckets, replace(first, buckets=buckets), methods=BY_BUCKETS)
            for buckets in arguments.buckets[1:]
        ]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"measure only this system; repeatable: {', '.join(COMPETITORS)}",
    )
    parser.add_argument(
        "--rows",
        type=_numbers,
        default=(200_000,),
        metavar="N,...",
        help="rows of T4; all operations are measured with each number (default: 200,000)",
    )
    parser.add_argument(
        "--buckets",
        type=_numbers,
        default=(1,),
        metavar="N,...",
        help="buckets; with further numbers, a part of the operations is measured again (default: 1)",
    )
    parser.add_argument(
        "--callers",
        type=_numbers,
        default=(64, 1, 4, 16),
        metavar="N,...",
        help="concurrent callers; with further numbers, the concurrent operations run again (default: 64,1,4,16)",
    )
    parser.add_argument("--calls", type=positive, default=500, help="sequential calls of one round (default: 500)")
    parser.add_argument("--runs", type=positive, default=3, help="rounds that count (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the results to this file as Markdown")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write plots to this folder as SVG")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(positive(part.replace("_", "")) for part in text.split(","))
