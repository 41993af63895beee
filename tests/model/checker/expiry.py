"""Operations that make rows expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.checker.definitions import TTL_CHANGES, TTLS
from tests.model.checker.drawing import KEYED, table_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import SLACK_SECONDS

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


def _draw_ttl(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None:
        return None
    times = [column.name for column in table.columns if column.kind == "time"]
    return {
        "table": table.name,
        "seconds": random.choice([None, *TTLS, *TTLS]),
        "column": random.choice([None, *times * 3]),
        "changes": random.choice(TTL_CHANGES),
    }


@define("set_ttl", 1.2, _draw_ttl)
def _set_ttl(world: CheckerWorld, arguments: Arguments) -> None:
    table, seconds = world.tables.get(arguments["table"]), arguments["seconds"]
    time = None if seconds is None else arguments.get("column")
    if table is None or time not in (None, *(column.name for column in table.columns if column.kind == "time")):
        return
    is_silent = arguments.get("changes") == "none"
    if table.expired and is_silent != table.is_silent:
        # With one change, it would not be known which of the rows that have expired are removed in which way.
        _change(world, table, None, None)
    _change(world, table, seconds, time, ttl_changes="none" if is_silent else "delete")
    table.is_silent = is_silent
    world.record("set_ttl", table)
    # Rows that were written before may have expired by the new time to live.
    world.tick()
    world.check(table.name)


def _change(world: CheckerWorld, table: CheckerTable, seconds: int | None, time: str | None, **options: Any) -> None:
    table.plan_ttl(seconds, time)
    while not table.is_certain(SLACK_SECONDS):
        world.let_pass(SLACK_SECONDS)
        table.now = world.now()
    world.client.alter_table(table.name, ttl_seconds=seconds, ttl_column=time, **options)
    visible = {row[KEY] for row in world.table(table.name).scan([KEY]).to_pylist()}
    if table.is_silent and visible & table.expired.keys():
        # No change tells a reader that has begun in between that these rows are back.
        for name, kept in [*world.kept.items()]:
            if kept.table == table.number and kept.kind == "changes":
                del world.kept[name]
            kept.is_lost |= kept.table == table.number and kept.kind == "mirror"
    table.settle_ttl(visible)


def _draw_pass(_world: CheckerWorld, random: Random) -> Arguments:
    return {"seconds": random.choice([1_000, 3_000, 6_000, 25_000])}


@define("let_pass", 1, _draw_pass)
def _let_pass(world: CheckerWorld, arguments: Arguments) -> None:
    world.let_pass(arguments["seconds"])
    world.tick()
    world.record("let_pass")
    check_all(world)
