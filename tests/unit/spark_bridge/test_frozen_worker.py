"""The garbage collector ignores what a worker process has loaded, but not what comes later."""

from __future__ import annotations

import gc

from spark_bridge.frozen_worker import freeze_worker


def test_what_is_loaded_is_frozen_once() -> None:
    freeze_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    later: list[list[object]] = [[] for _ in range(100)]
    freeze_worker()
    # Frozen objects may be freed, but none are added.
    assert gc.get_freeze_count() <= frozen
    assert any(each is later[0] for each in gc.get_objects())
