"""Runs the benchmarks, prints the results as Markdown, and writes Markdown and JSON files on request."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import machine
from benchmarks.arguments import positive
from benchmarks.bench import Bench
from benchmarks.experiments import EXPERIMENTS
from benchmarks.measure import progress
from benchmarks.report import to_json, to_markdown
from benchmarks.workloads import ON_REQUEST, WORKLOADS


def main() -> None:
    """Runs the benchmarks that the command line selects."""
    arguments = _parser().parse_args()
    benchmarks = EXPERIMENTS if arguments.experiments else WORKLOADS
    names = arguments.only or [name for name in benchmarks if name not in ON_REQUEST]
    if unknown := set(names) - set(benchmarks):
        _parser().error(f"--only must be {' or '.join(benchmarks)}, not {', '.join(sorted(unknown))}")
    settings = {"rows": f"{arguments.rows:,}", "runs": str(arguments.runs)}
    description = machine.describe()
    with tempfile.TemporaryDirectory(prefix="scankv-bench-") as directory:
        bench = Bench(Path(directory), arguments.rows, arguments.runs)
        results = {}
        for name in names:
            progress(name)
            results[name] = benchmarks[name](bench)
    markdown = to_markdown(settings, description, results)
    print(markdown, end="")
    if arguments.markdown:
        arguments.markdown.write_text(markdown)
    if arguments.json:
        arguments.json.write_text(to_json(settings, description, results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=positive, default=2_000_000, help="rows of T4 (default: 2,000,000)")
    parser.add_argument("--runs", type=positive, default=5, help="rounds that count (default: 5)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"run only this benchmark; repeatable; {', '.join(sorted(ON_REQUEST))} do not run unless named",
    )
    parser.add_argument("--experiments", action="store_true", help="run the experiments behind docs/decisions instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the results to this file as Markdown")
    return parser
