"""Prints how costs grow with the work, as ratios within one run: `python -m benchmarks.growth [NAME ...]`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path


def main() -> None:
    """Runs the series that the command line selects, and prints their ratios as one table."""
    # Imported here, since every worker process imports this module again and needs nothing of the series.
    from benchmarks.arguments import positive
    from benchmarks.bench import Bench, Figure
    from benchmarks.growth.series import SERIES
    from benchmarks.measure import progress
    from benchmarks.report import figures_grid

    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SERIES)} (default: all)")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="the scale of all series (default: 1,000,000)")
    parser.add_argument("--runs", type=positive, default=5, help="rounds that count (default: 5)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SERIES):
        parser.error(f"NAME must be {' or '.join(SERIES)}, not {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    for name in arguments.names or SERIES:
        progress(name)
        with tempfile.TemporaryDirectory(prefix="scankv-growth-") as directory:
            figures += SERIES[name](Bench(Path(directory), arguments.rows, arguments.runs)).figures
    print(figures_grid(figures))


if __name__ == "__main__":
    main()
