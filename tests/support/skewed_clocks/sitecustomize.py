"""Makes the wall clock of every second process be 300 ms ahead. Python runs this at the start of each process.

The directory `STARTS` has an entry for each process that has started, which forks do as well.
"""

import os
import time
from itertools import count
from pathlib import Path

_real = time.time_ns


def _skew() -> None:
    ahead = 300_000_000 * (_number_of_start() % 2)
    time.time_ns = lambda: _real() + ahead


def _number_of_start() -> int:
    for number in count():
        try:
            (Path(os.environ["STARTS"]) / str(number)).mkdir(parents=True)
        except FileExistsError:
            continue
        return number
    raise AssertionError


_skew()
os.register_at_fork(after_in_child=_skew)
