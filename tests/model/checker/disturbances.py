"""What may happen to a server while clients write and read?"""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from aio_client import DiskFailed, DiskFull
from streaming_server.engine.backups.restore_plan import plan_backup, plan_instant
from streaming_server.storage.backup.backup_manifest import read_manifest
from tests.model.checker.backups import reaches
from tests.model.checker.disk import crash
from tests.support.failing_disk import BROKEN, FULL
from tests.support.waiting import wait_until
from tests.support.workers import freeze, is_running, kill_worker, processes_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Thread

    from streaming_server.engine.backups.restore_plan import RestorePlan
    from tests.model.checker.operation import Arguments
    from tests.model.checker.world import CheckerWorld
    from tests.support.failing_disk import DiskFault

_CutOff: TypeAlias = "Callable[[], None]"
_Plan: TypeAlias = "Callable[[], RestorePlan]"
_MOST_CALLS: Final = 40
_PAUSE_SECONDS: Final = 0.3
_HANGING: Final = 0.3
"""The share of killed workers that hang before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Something that happens while clients write and read, and has passed when `run` returns.

    Attributes:
        run: Makes it happen. Gets the world, the arguments of the step, the threads of the writers, and what closes the
            clients of the writers if they shall not repeat their requests. May return how to restore the tables as of
            some instant while it ran.
        fits: Whether it can happen now.
        forgives: Whether a read may fail.
        refuses: The errors that writes may get.
    """

    run: Callable[[CheckerWorld, Arguments, Sequence[Thread], _CutOff], _Plan | None]
    fits: Callable[[CheckerWorld], bool] = lambda _: True
    forgives: bool = True
    refuses: tuple[type[Exception], ...] = ()


def _do_nothing(*_: object) -> None:
    pass


def _kill(world: CheckerWorld, arguments: Arguments, _: Sequence[Thread], cut_off: _CutOff) -> None:
    world.server.kill()
    cut_off()
    crash(world, arguments["cut"])


def _stop(world: CheckerWorld, *_: object) -> None:
    assert (code := world.server.stop()) == 0, f"the server ended with code {code}"
    world.server.restart()


def _kill_worker(world: CheckerWorld, arguments: Arguments, *_: object) -> None:
    worker = int(arguments["chance"] * world.workers)
    # The supervisor kills a worker that hangs.
    hangs = arguments["chance"] * world.workers % 1 < _HANGING
    with freeze(processes_of(world.server)[worker]) if hangs else nullcontext():
        kill_worker(world.server, worker)
    wait_for_worker(world.server, worker)


def _kill_supervisor(world: CheckerWorld, *_: object) -> None:
    """Kills the supervisor alone, whose workers end with it."""
    workers = processes_of(world.server).values()
    os.kill(world.server.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, workers)), "the workers have ended")
    world.server.restart()


def _pause(world: CheckerWorld, arguments: Arguments, *_: object) -> None:
    """Stops a process of the server for a while: the only one, a worker, or the one that supervises them."""
    workers = sorted(processes_of(world.server).values()) if world.workers > 1 else []
    processes = [world.server.process.pid, *workers]
    with freeze(processes[int(arguments["chance"] * len(processes))]):
        time.sleep(_PAUSE_SECONDS)


def _fail_disk(
    fault: DiskFault, world: CheckerWorld, arguments: Arguments, threads: Sequence[Thread], _: _CutOff
) -> None:
    """Lets the disk fail after some calls, until the writers have ended."""
    world.failing_disk.fail(fault, int(arguments["chance"] * _MOST_CALLS))
    try:
        for thread in threads:
            thread.join()
        world.server.kill()
    finally:
        world.failing_disk.heal()
    world.serve_again()


def _back_up(world: CheckerWorld, *_: object) -> _Plan:
    done = world.client.create_backup()
    return lambda: plan_backup(read_manifest(world.store, done.backup_id))


def _keep_instant(world: CheckerWorld, *_: object) -> _Plan:
    micros = world.now_micros()

    def plan() -> RestorePlan:
        wait_until(lambda: reaches(world, micros), "the instant is archived")
        return plan_instant(world.store, micros)

    return plan


def _archives(world: CheckerWorld) -> bool:
    return world.archives


def _can_kill_worker(world: CheckerWorld) -> bool:
    return world.workers > 1 and world.disk is None  # as in `draw_cut`


def _can_fail(world: CheckerWorld) -> bool:
    return world.disk is None


DISTURBANCES: Final[dict[str, Disturbance]] = {
    "none": Disturbance(run=_do_nothing, forgives=False),
    "kill": Disturbance(run=_kill),
    "stop": Disturbance(run=_stop),
    "kill_worker": Disturbance(run=_kill_worker, fits=_can_kill_worker),
    "kill_supervisor": Disturbance(run=_kill_supervisor, fits=_can_kill_worker),
    "pause": Disturbance(run=_pause, forgives=False),
    "backup": Disturbance(run=_back_up, forgives=False),
    "keep_instant": Disturbance(run=_keep_instant, fits=_archives, forgives=False),
    "full_disk": Disturbance(run=partial(_fail_disk, FULL), fits=_can_fail, refuses=(DiskFull, DiskFailed)),
    "broken_disk": Disturbance(run=partial(_fail_disk, BROKEN), fits=_can_fail, refuses=(DiskFull, DiskFailed)),
}
"""Each, by its name."""
