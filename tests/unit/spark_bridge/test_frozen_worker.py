"""What a worker process has loaded is left alone by the garbage collector, and what comes later is not."""

from __future__ import annotations

import gc

from spark_bridge.frozen_worker import freeze_worker


def test_what_is_loaded_is_frozen_once() -> None:
    freeze_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    later: list[list[object]] = [[] for _ in range(100)]
    freeze_worker()
    # Objects that are frozen may go, and none comes.
    assert gc.get_freeze_count() <= frozen
    assert any(each is later[0] for each in gc.get_objects())
