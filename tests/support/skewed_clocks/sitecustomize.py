"""Makes the wall clock of every second process be 300 ms ahead. Python runs this at the start of each process.

The directory `STARTS` has an entry for each process that has started.
"""

import os
import time
from itertools import count
from pathlib import Path


def _number_of_start() -> int:
    for number in count():
        try:
            (Path(os.environ["STARTS"]) / str(number)).mkdir(parents=True)
        except FileExistsError:
            continue
        return number
    raise AssertionError


_AHEAD = 300_000_000 * (_number_of_start() % 2)
_real = time.time_ns

time.time_ns = lambda: _real() + _AHEAD
