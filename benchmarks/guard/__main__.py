"""Compares ratios of processor time with the committed values, or commits new values: `python -m benchmarks.guard`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Spread, progress
from benchmarks.memory import UnusedMemory

if TYPE_CHECKING:
    from collections.abc import Collection

    from benchmarks.guard.bounds import GuardedRatio

VALUES: Final = Path(__file__).with_name("ratios.toml")
_UPDATES: Final = 3
_TRIES: Final = 4
"""How often at most a ratio is measured until it is allowed. Beside other load, work on much memory may be slow."""
_SLOWDOWN_WITHOUT_MEMORY: Final = 6
"""How much longer work may take while memory is taken away: `lookup_1000` took up to seven times as long then."""


def main() -> None:
    """Compares, or with `--update` writes, the ratios that the command line selects."""
    # Imported here, since every worker process imports this module again and needs nothing of the guard.
    from benchmarks.guard.bounds import RatioCheck, advice, read_values, write_values
    from benchmarks.guard.measurements import GROUPS

    ratios = [ratio for group in GROUPS for ratio in group.ratios]
    arguments = _parser(ratios).parse_args()
    names = arguments.only or [ratio.name for ratio in ratios]
    if arguments.update or arguments.repeat:
        spreads = _measure_repeatedly(names, arguments.repeat or _UPDATES)
        if arguments.update:
            write_values(VALUES, ratios, {name: spread.median for name, spread in spreads.items()})
        return
    try:
        committed = read_values(VALUES, ratios)
    except ValueError as error:
        sys.exit(f"{error}")

    def compare(chosen: Collection[str]) -> dict[str, RatioCheck]:
        memory = UnusedMemory()
        measured = _measure(chosen)
        slowdown = 1
        if memory.is_taken_away():
            slowdown = _SLOWDOWN_WITHOUT_MEMORY
            print(f"the host takes away memory that is not used: work may take {slowdown} times as long as elsewhere")
        by_name = {ratio.name: ratio for ratio in ratios}
        checks = {
            name: RatioCheck(by_name[name], spread.median, committed[name], slowdown)
            for name, spread in measured.items()
        }
        for check in checks.values():
            print(check, flush=True)
        return checks

    checks = compare(names)
    for _ in range(_TRIES - 1):
        if again := [name for name, check in checks.items() if check.is_regression]:
            print(f"measuring again what may have been slowed down by other load: {', '.join(again)}")
            checks |= compare(again)
    for line in advice(checks.values()):
        print(line)
    if any(check.is_regression for check in checks.values()):
        sys.exit(1)


def _measure(names: Collection[str]) -> dict[str, Spread]:
    """Measures the ratios of the given names, and returns the spread over the rounds of each."""
    from benchmarks.guard.measurements import GROUPS

    found: dict[str, Spread] = {}
    for group in GROUPS:
        if any(ratio.name in names for ratio in group.ratios):
            progress(f"measuring {', '.join(ratio.name for ratio in group.ratios)}")
            with tempfile.TemporaryDirectory(prefix="scankv-guard-") as directory:
                found |= group.measure(Path(directory))
    return {name: spread for name, spread in found.items() if name in names}


def _measure_repeatedly(names: Collection[str], times: int) -> dict[str, Spread]:
    """Measures several times, prints the medians, and returns the spread of the medians."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(times):
        for name, spread in _measure(names).items():
            found[name].append(spread.median)
            print(f"{number + 1}: {name} {spread.median:.3g} ({spread.least:.3g} to {spread.greatest:.3g})", flush=True)
    spreads = {name: Spread.of(medians) for name, medians in found.items()}
    for name, spread in spreads.items():
        print(f"{name}: {spread.median:.3g} ({spread.least:.3g} to {spread.greatest:.3g} in {times} measurements)")
    return spreads


def _parser(ratios: Collection[GuardedRatio]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=[ratio.name for ratio in ratios],
        help="measure only this ratio; repeatable",
    )
    parser.add_argument("--update", action="store_true", help="write the measured ratios into ratios.toml")
    parser.add_argument("--repeat", type=int, metavar="N", help="measure N times and print the spread; do not compare")
    return parser


if __name__ == "__main__":
    main()
