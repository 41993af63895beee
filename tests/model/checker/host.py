"""Operations of the machine that the server runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.checker.disk import crash, draw_cut
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_nothing(_world: CheckerWorld, _random: Random) -> Arguments:
    return {}


def _draw_kill(world: CheckerWorld, random: Random) -> Arguments:
    return {"cut": draw_cut(world, random)}


@define("kill", 0.8, _draw_kill, effects=("kill", "cut_power"))
def _kill(world: CheckerWorld, arguments: Arguments) -> None:
    crash(world, arguments["cut"])
    world.client.wait_ready()
    world.record("kill" if arguments["cut"] is None else "cut_power")
    check_all(world)


@define("stop", 0.4, _draw_nothing)
def _stop(world: CheckerWorld, _arguments: Arguments) -> None:
    code = world.server.stop()
    assert code == 0, f"the server ended with code {code}"
    world.server.restart()
    world.client.wait_ready()
    world.record("stop")
    check_all(world)


def _draw_workers(world: CheckerWorld, random: Random) -> Arguments:
    return {"workers": random.choice([1, 1, 2, 2, 3]), "kill": random.random() < 0.5}


@define("change_workers", 0.2, _draw_workers)
def _change_workers(world: CheckerWorld, arguments: Arguments) -> None:
    if arguments["kill"]:
        world.server.kill()
    else:
        assert (code := world.server.stop()) == 0, f"the server ended with code {code}"
    world.workers = arguments["workers"]
    world.serve_again()
    world.record("change_workers")
    check_all(world)
