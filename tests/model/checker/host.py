"""Operations of the machine that the server runs on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tests.model.checker.drawing import EVERY_KIND, rows_of, table_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import write_rows
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_nothing(_world: CheckerWorld, _random: Random) -> Arguments:
    return {}


@define("kill", 0.6, _draw_nothing)
def _kill(world: CheckerWorld, _arguments: Arguments) -> None:
    world.server.kill()
    world.server.restart()
    world.client.wait_ready()
    world.record("kill")
    check_all(world)


@define("stop", 0.4, _draw_nothing)
def _stop(world: CheckerWorld, _arguments: Arguments) -> None:
    code = world.server.stop()
    assert code == 0, f"the server ended with code {code}"
    world.server.restart()
    world.client.wait_ready()
    world.record("stop")
    check_all(world)


def _draw_kill_during(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return (
        None
        if table is None
        else {
            "table": table.name,
            "requests": [rows_of(table, random) for _ in range(5)],
            "after": round(random.random() * 0.02, 4),
        }
    )


@define("kill_during_writes", 0.6, _draw_kill_during)
def _kill_during_writes(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or not all(fits(table, rows, complete=True) for rows in arguments["requests"]):
        return
    opened, failures = world.table(table.name), list[BaseException]()

    def write(requests: list[list[dict[str, Any]]]) -> None:
        try:
            for rows in requests:
                write_rows(opened, rows)
        except BaseException as error:  # raised below, in the thread of the checker
            failures.append(error)

    writer = threading.Thread(target=write, args=(arguments["requests"],))
    writer.start()
    time.sleep(arguments["after"])  # the moment of the kill is what the step tries
    world.server.kill()
    world.server.restart()
    writer.join()
    # The client repeats a request that got no answer; the server applies it once.
    if failures:
        raise failures[0]
    for rows in arguments["requests"]:
        table.upsert(rows)
    world.record("kill_during_writes")
    check_all(world)
