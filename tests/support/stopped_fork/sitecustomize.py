"""Has the second fork of a process stop itself as soon as it begins, which is worker 0 of a new data directory.

Python runs this at the start of the process.
"""

import os
import signal

_forks = 0


def _count() -> None:
    global _forks
    _forks += 1


def _stop() -> None:
    if _forks == 2:  # after the one that divides the directory
        os.kill(os.getpid(), signal.SIGSTOP)


os.register_at_fork(before=_count, after_in_child=_stop)
