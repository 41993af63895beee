"""Transaction logs are divided among worker processes completely, or not at all."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss
from streaming_server.clock import ServerClock
from streaming_server.engine.transactions.worker_logs import divide_log
from streaming_server.storage.tables.data_directory import DataDirectory
from streaming_server.storage.tables.placement import Placement
from streaming_server.storage.transactions.decisions import Decision, Decisions
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 2
NAMES = [name for (name,) in names_of_workers(WORKERS)]
DECIDED = Decision(
    number=0, token="t0", id="job:1", micros=5, served_micros=4, rows=7, tables={NAMES[1]: "i"}, files=((0, 3),)
)


def test_a_log_with_a_decision_that_is_not_applied_is_not_divided(tmp_path: Path) -> None:
    """No worker would know of the decision, and the bucket that lacks its rows would be served."""
    with closing(DataDirectory(tmp_path / "data")) as directory:
        with closing(Decisions(directory.transactions, ServerClock())) as log:
            log.decide(DECIDED)
        with pytest.raises(DataLoss, match="t0"):
            divide_log(directory, WORKERS, ServerClock())
        assert directory.workers == 1
        with closing(Decisions(directory.transactions, ServerClock())) as log:
            assert list(log.unfinished) == ["t0"]


def test_commits_are_remembered_by_the_owner_and_what_is_staged_is_removed(tmp_path: Path) -> None:
    clock = ServerClock()
    with closing(DataDirectory(tmp_path / "data")) as directory:
        committed = [
            replace(DECIDED, number=number, token=f"t{number}", id=f"job:{number}", tables={name: "i"}).to_committed(
                {name: {0: 5}}
            )
            for number, name in enumerate(NAMES)
        ]
        empty = replace(DECIDED, number=WORKERS, token="empty", id="job:empty", tables={}).to_committed({})
        with closing(Decisions(directory.transactions, clock)) as log:
            log.rewrite([*committed, empty])
        (directory.transactions / "staged").mkdir()
        divide_log(directory, WORKERS, clock)
        assert directory.workers == WORKERS
        # A later server of one process must not find a transaction again that its writer knows to be lost.
        assert not (directory.transactions / "staged").exists()
        for number in range(WORKERS):
            own = DataDirectory(directory.path, placement=Placement(number, WORKERS), lock=directory.lock)
            with closing(Decisions(own.transactions, clock)) as log:
                assert log.take_finished() == [committed[number], *([] if number else [empty])]
