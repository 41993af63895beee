"""What the worker processes of Spark, which it uses again and again, are spared."""

from __future__ import annotations

import gc

_frozen = False


def freeze_worker() -> None:
    """Has the garbage collector leave alone what a worker process has loaded. Does so once in a process.

    Spark collects whenever a worker has answered, and has no other answer of it before: some 40 ms of a core each time.
    Not for the user's own process.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
