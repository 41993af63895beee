"""`python -m tests.model.checker --seed 1 --seconds 60`: runs the checker by hand."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.model.checker.pairs import all_effects, coverage_of, write_pairs
from tests.model.checker.run import from_lines, replay, run, shorten


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")


def main() -> int:
    """Runs what the command line says. Returns 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.checker", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--shorten", type=float, default=120.0, help="seconds for making the script shorter")
    parser.add_argument("--profile", choices=("fast", "slow"), default="fast")
    parser.add_argument("--operation", action="append", help="draw only these; repeatable; default: all")
    parser.add_argument("--pairs", type=Path, help="a list in Markdown, to which the covered pairs are added")
    parser.add_argument("--script", type=Path, help="run these steps instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scankv-checker-") as directory:
        if arguments.script:
            failure = replay(Path(directory) / "script", from_lines(arguments.script.read_text()))
            _say(failure or "no failure")
            return int(failure is not None)
        began = time.monotonic()
        first = Path(directory) / "first"
        first.mkdir()
        covered = coverage_of(arguments.pairs) if arguments.pairs else None
        failure, steps, coverage = run(
            first,
            arguments.seed,
            seconds=arguments.seconds,
            operations=arguments.operation,
            profile=arguments.profile,
            coverage=covered,
        )
        _say(
            f"# seed {arguments.seed}: {len(steps)} steps in {time.monotonic() - began:.0f} s, "
            f"{len(coverage.pairs)} of {len(all_effects()) ** 2} pairs"
        )
        if arguments.pairs:
            write_pairs(arguments.pairs, coverage)
        if failure is None:
            return 0
        _say(f"# failed: {type(failure.error).__name__}: {failure.error}\n# shortening ...")
        _say(shorten(Path(directory), failure, arguments.shorten))
        return 1


if __name__ == "__main__":
    sys.exit(main())
