"""Operations of the machine that the server runs on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tests.model.checker.disk import crash, draw_cut
from tests.model.checker.drawing import rows_of, table_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_nothing(_world: CheckerWorld, _random: Random) -> Arguments:
    return {}


def _draw_kill(world: CheckerWorld, random: Random) -> Arguments:
    return {"cut": draw_cut(world, random)}


@define("kill", 0.8, _draw_kill)
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


def _draw_kill_during(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    return (
        None
        if table is None
        else {
            "table": table.name,
            "requests": [rows_of(table, random) for _ in range(5)],
            "after": round(random.random() * 0.02, 4),
            "cut": draw_cut(world, random),
        }
    )


@define("kill_during_writes", 0.6, _draw_kill_during)
def _kill_during_writes(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    columns = {"k", *(column.name for column in table.columns)} if table else set()
    if table is None or not all(row.keys() == columns for rows in arguments["requests"] for row in rows):
        return
    opened, failures = world.table(table.name), list[BaseException]()

    def write(requests: list[list[dict[str, Any]]]) -> None:
        try:
            for rows in requests:
                opened.upsert(rows)
        except BaseException as error:  # raised below, in the thread of the checker
            failures.append(error)

    writer = threading.Thread(target=write, args=(arguments["requests"],))
    writer.start()
    time.sleep(arguments["after"])  # the moment of the kill is what the step tries
    crash(world, arguments["cut"])
    writer.join()
    # The client repeats a request that got no answer; the server applies it once.
    if failures:
        raise failures[0]
    for rows in arguments["requests"]:
        table.upsert(rows)
    world.record("kill_during_writes" if arguments["cut"] is None else "cut_power_during_writes")
    check_all(world)
