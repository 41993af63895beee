"""Operations of the machine that the server runs on."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from copy import deepcopy
from typing import TYPE_CHECKING

from aio_client import StartFrom, StopAt
from aio_client.sync import connect
from tests.model.checker.disk import crash, draw_cut
from tests.model.checker.drawing import EVERY_KIND, rows_of, table_of
from tests.model.checker.model import KEY, Shown, part_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import changes_by_key, write_rows
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable
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
    table = table_of(world, random, EVERY_KIND)
    return (
        None
        if table is None
        else {
            "table": table.name,
            "requests": [rows_of(table, random) for _ in range(5)],
            "after": round(random.random() * 0.02, 4),
            "cut": draw_cut(world, random),
            "repeats": random.random() < 0.5,
        }
    )


@define("kill_during_writes", 0.8, _draw_kill_during)
def _kill_during_writes(world: CheckerWorld, arguments: Arguments) -> None:
    table, requests = world.tables.get(arguments["table"]), arguments["requests"]
    if table is None or table.changelog != "full" or not all(fits(table, rows, complete=True) for rows in requests):
        return
    if not arguments["repeats"] and table.ttl is not None:
        return  # A request without changes decides when rows expire, and nothing shows whether it was applied.
    before, answered, failures = world.table(table.name).log_offsets(), list[None](), list[BaseException]()
    with connect(world.server.url, operation_timeout=60) as client:
        opened = client.table(table.name)

        def write() -> None:
            try:
                for rows in requests:
                    write_rows(opened, rows)
                    answered.append(None)
            except BaseException as error:  # raised below, in the thread of the checker
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(arguments["after"])  # the moment of the kill is what the step tries
        world.server.kill()
        if not arguments["repeats"]:
            client.close()
            writer.join()
        crash(world, arguments["cut"])
        writer.join()
    # The client repeats a request that got no answer; the server applies it once.
    if arguments["repeats"] and failures:
        raise failures[0]
    changes = world.table(table.name).changes(StartFrom.offsets(before), StopAt.LATEST).to_pylist()
    _settle(table, requests, len(answered), changes)
    world.record("kill_during_writes" if arguments["cut"] is None else "cut_power_during_writes")
    check_all(world)


def _settle(table: CheckerTable, requests: list[list[Shown]], answered: int, found: list[Shown]) -> None:
    """Applies to the model what a server has applied of requests, the last of which may have got no answer.

    Args:
        table: The table.
        requests: The rows of each request. They were sent one after another.
        answered: How many were answered.
        found: The changes since. Each bucket must have all changes of one request more than were answered, or of none.
    """
    position, after = table.position(), table
    for number, rows in enumerate(requests, 1):
        if number <= answered:
            table.upsert(rows)
        elif number == answered + 1:
            after = deepcopy(table)
            after.upsert(rows)
            table.possible |= {part_of(row[KEY]) for row in rows}
    buckets = defaultdict[int, list[Shown]](list)
    for row in found:
        buckets[row["_bucket"]].append(row)
    for changes in buckets.values():
        keys = {row[KEY] for row in changes}
        by_key = changes_by_key(changes)
        wrong = [each.wrong_changes(position, by_key).keys() & keys for each in (table, after)]
        assert not all(wrong), f"a bucket has a part of a request: {sorted(keys)}"
        if wrong[0]:
            table.take_over(after, [key for key in after.rows if key in keys])
    expected = table.wrong_changes(position, changes_by_key(found))
    assert not expected, f"the changes of {sorted(expected)} are missing, or there are others"
