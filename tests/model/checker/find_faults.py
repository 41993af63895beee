"""`python -m tests.model.checker.find_faults`: how soon does the checker find each seeded fault?"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.model.checker.seeded_faults import FAULTS, SCRIPTS, plant, run_checker


def main() -> None:
    """Prints for each fault the seconds that each seed, or its script, took to find it."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.checker.find_faults", description=__doc__)
    parser.add_argument("--only", action="append", help="the name of a fault; repeatable; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    for fault in (each for each in FAULTS if not arguments.only or each.name in arguments.only):
        with tempfile.TemporaryDirectory(prefix="scankv-fault-") as directory:
            plant(fault, Path(directory))
            took = list[float]()
            script = SCRIPTS / f"{fault.name}.txt" if fault.has_script else None
            for seed in range(1, 2 if script else arguments.seeds + 1):
                began = time.monotonic()
                limit = arguments.seconds if script else _limit(took, arguments.seeds, arguments.seconds)
                if not limit:
                    break
                code, output = run_checker(Path(directory), seed, limit, script)
                took.append(time.monotonic() - began if code == 1 else math.inf)
                sys.stdout.write(f"{fault.name}, seed {seed}: {took[-1]:.0f} s\n")
                if code not in (0, 1):
                    sys.stdout.write(output)
        sys.stdout.write(f"{fault.name}: median {statistics.median(took):.0f} s: {fault.breaks}\n")
        sys.stdout.flush()


def _limit(took: list[float], seeds: int, seconds: float) -> float:
    """Returns how long the next seed may search, so that the median is exact. 0: it is known."""
    most = (seeds + 1) // 2
    if len(took) - took.count(math.inf) >= most:
        # A seed that takes longer than the median of those so far does not change it.
        return min(seconds, sorted(took)[most - 1])
    return seconds if took.count(math.inf) < most else 0


if __name__ == "__main__":
    main()
