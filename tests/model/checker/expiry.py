"""Operations that make rows expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.model.checker.drawing import table_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld

# Longer than a run takes, so that nothing expires by itself.
_TTLS: Final = (5_000, 20_000)


def _draw_ttl(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    return None if table is None else {"table": table.name, "seconds": random.choice([None, *_TTLS, *_TTLS])}


@define("set_ttl", 1.2, _draw_ttl)
def _set_ttl(world: CheckerWorld, arguments: Arguments) -> None:
    table, seconds = world.tables.get(arguments["table"]), arguments["seconds"]
    if table is None:
        return
    world.client.alter_table(table.name, ttl_seconds=seconds)
    table.set_ttl(seconds, [row[KEY] for row in world.table(table.name).scan([KEY]).to_pylist()])
    world.tick()
    world.record("set_ttl", table)
    world.check(table.name)


def _draw_pass(_world: CheckerWorld, random: Random) -> Arguments:
    return {"seconds": random.choice([1_000, 3_000, 6_000, 25_000])}


@define("let_pass", 1, _draw_pass)
def _let_pass(world: CheckerWorld, arguments: Arguments) -> None:
    world.let_pass(arguments["seconds"])
    world.tick()
    world.record("let_pass")
    check_all(world)
