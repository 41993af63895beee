"""Makes garbage collection cheap in Spark's worker processes, which run many tasks one after another."""

from __future__ import annotations

import gc

_frozen = False


def freeze_worker() -> None:
    """Exempts all objects that the process has loaded from garbage collection. Does so once in a process.

    After each task, a Spark worker runs a full collection before it reports the result, which costs some 40 ms of a
    core. Do not call this in the user's own process.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
