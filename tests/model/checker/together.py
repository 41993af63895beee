"""An operation of several clients at once: they write and read while something happens to the server."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aio_client import StartFrom, StopAt
from aio_client.sync import connect
from streaming_server.engine.backups.restore import restore_all
from tests.model.checker.clients import ClientOfReads, ClientOfRequests
from tests.model.checker.disk import draw_cut
from tests.model.checker.disturbances import DISTURBANCES
from tests.model.checker.drawing import EVERY_KIND, LOG, rows_of, table_of
from tests.model.checker.model import KEY, Shown
from tests.model.checker.operation import Arguments, define
from tests.model.checker.passing_time import passing
from tests.model.checker.reads import check_all
from tests.model.checker.settling import settle
from tests.model.checker.world import by_key, changes_by_key, compare
from tests.model.checker.writes import DELETING, fits
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from aio_client import LogOffsets
    from streaming_server.engine.backups.restore_plan import RestorePlan
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld

_TIMEOUT: Final = 60.0
_MOST_REQUESTS: Final = 5


@dataclass(frozen=True)
class _Restorable:
    """A backup or an instant in the archive, taken while the writers wrote.

    Attributes:
        plan: Returns how to restore it.
        low: How many requests of each writer it must have.
        high: How many it may have.
    """

    plan: Callable[[], RestorePlan]
    low: list[int]
    high: list[int]


def _draw(world: CheckerWorld, random: Random) -> Arguments | None:
    chosen = [table for _ in range(2) if (table := table_of(world, random, EVERY_KIND)) is not None]
    tables = {table.name: table for table in chosen}
    if not tables:
        return None
    # Only one writer, if the order of its rows matters.
    writers = 1 if LOG in tables else random.choice([1, 2, 3])
    fitting = [name for name, each in DISTURBANCES.items() if each.fits(world)]
    return {
        "writers": [_draw_requests(list(tables.values()), writers, each, random) for each in range(writers)],
        "disturbance": random.choice([*fitting, "kill", "kill"]),
        "after": round(random.random() * 0.02, 4),
        "chance": round(random.random(), 3),
        "cut": draw_cut(world, random),
        "repeats": random.random() < 0.5,
        "as": f"t{world.next_number()}",
    }


def _draw_requests(tables: list[CheckerTable], writers: int, writer: int, random: Random) -> list[Arguments]:
    """Draws the requests of a writer, with every so many-th key."""

    def part(table: CheckerTable, *, is_transaction: bool) -> Arguments:
        rows: list[Shown] = []
        while not rows:
            rows = [row for row in rows_of(table, random) if row[KEY] % writers == writer or not table.has_key]
        deleted = 0
        if table.engine in DELETING and random.random() < 0.3:
            deleted = random.randrange(len(rows) + 1) if is_transaction else len(rows)
        return {"table": table.name, "keys": [row[KEY] for row in rows[:deleted]], "rows": rows[deleted:]}

    requests = []
    for _ in range(random.randrange(1, _MOST_REQUESTS + 1)):
        is_transaction = random.random() < 0.5
        written = random.sample(tables, len(tables) if is_transaction else 1)
        parts = [part(table, is_transaction=is_transaction) for table in written]
        requests.append({"transaction": is_transaction, "twice": random.random() < 0.2, "parts": parts})
    return requests


@define("write_together", 2, _draw)
def _write_together(world: CheckerWorld, arguments: Arguments) -> None:
    tables, disturbance = _tables_of(world, arguments), DISTURBANCES[arguments["disturbance"]]
    if tables is None or not disturbance.fits(world):
        return
    is_certain = arguments["repeats"] and not disturbance.refuses
    if not is_certain and any(table.ttl is not None and table.time is None for table in tables.values()):
        return  # A request without changes decides when rows expire, and nothing shows whether it was applied.
    before = {name: world.table(name).log_offsets() for name in tables}
    positions, rows = ({name: table.position() for name, table in tables.items()}, _shown(tables))
    writers, views, restorable = _run(world, tables, arguments)
    for writer in writers:
        if writer.error is not None and (is_certain or not isinstance(writer.error, _endings(arguments))):
            raise writer.error
    found = {name: _changes(world, name, before[name], StopAt.LATEST) for name in tables}
    settle(tables, positions, writers, found)
    for name, offsets, view in views:
        changes = _changes(world, name, before[name], StopAt.offsets(offsets))
        after = {key: row for key, row in _replay(rows[name], changes).items() if not tables[name].has_expired(row)}
        compare(after, view)
    if restorable is not None:
        _judge_restored(world, tables, restorable, writers)
    world.record("write_together", *tables.values())
    check_all(world)


def _tables_of(world: CheckerWorld, arguments: Arguments) -> dict[str, CheckerTable] | None:
    """Returns the tables that are written; None if one does not exist, or not in that form."""
    parts = [part for writer in arguments["writers"] for request in writer for part in request["parts"]]
    known = {part["table"]: world.tables.get(part["table"]) for part in parts}
    tables = {name: table for name, table in known.items() if table is not None}
    is_possible = len(tables) == len(known) and all(
        fits(tables[part["table"]], part["rows"], complete=True)
        and (not part["keys"] or tables[part["table"]].engine in DELETING)
        and tables[part["table"]].changelog == "full"  # the changes show what was written
        for part in parts
    )
    return tables if is_possible and (len(arguments["writers"]) == 1 or LOG not in tables) else None


def _endings(arguments: Arguments) -> tuple[type[BaseException], ...]:
    """Returns what may end a writer."""
    is_cut_off = arguments["disturbance"] == "kill" and not arguments["repeats"]
    # The client of a writer that is cut off is closed.
    return (BaseException,) if is_cut_off else DISTURBANCES[arguments["disturbance"]].refuses


def _run(
    world: CheckerWorld, tables: dict[str, CheckerTable], arguments: Arguments
) -> tuple[list[ClientOfRequests], list[tuple[str, LogOffsets, dict[int, Shown]]], _Restorable | None]:
    """Runs writers and a reader during a disturbance. Returns the writers, some views, and what can be restored."""
    disturbance = DISTURBANCES[arguments["disturbance"]]
    clients = [connect(world.server.url, operation_timeout=_TIMEOUT) for _ in (*arguments["writers"], "reader")]
    writers = [
        ClientOfRequests(
            f"{arguments['as']}-{number}",
            requests,
            client,
            {name: client.table(name) for name in tables},
            arguments["cut"] is not None,
        )
        for number, (requests, client) in enumerate(zip(arguments["writers"], clients[1:], strict=True))
    ]
    for writer in writers:
        writer.requests *= arguments.get("rounds", 1)  # of scripts
        writer.foresee(tables)
    own = {name: {key for writer in writers for key in writer.states[0].get(name, ())} for name in tables}
    others = {
        name: {key: row for key, row in rows.items() if key not in own[name]} for name, rows in _shown(tables).items()
    }
    reader = ClientOfReads({name: clients[0].table(name) for name in tables}, writers, others, disturbance.forgives)
    threads = [threading.Thread(target=writer.run) for writer in writers]
    reading = threading.Thread(target=reader.run, args=[threads])

    def cut_off() -> None:
        if not arguments["repeats"]:
            for client in clients[1:]:
                client.close()
            for thread in threads:
                thread.join()

    for thread in (*threads, reading):
        thread.start()
    time.sleep(arguments["after"])  # the moment of the disturbance is what the step tries
    low = [writer.answered for writer in writers]
    plan = disturbance.run(world, arguments, threads, cut_off)
    restorable = None if plan is None else _Restorable(plan, low, [writer.begun for writer in writers])
    for thread in (*threads, reading):
        thread.join()
    for client in clients:
        client.close()
    if reader.error is not None:
        raise reader.error
    return writers, reader.views, restorable


def _judge_restored(
    world: CheckerWorld, tables: dict[str, CheckerTable], kept: _Restorable, writers: Sequence[ClientOfRequests]
) -> None:
    """Restores a backup or an instant elsewhere. All tables must be there as of one instant, with their changes."""
    data = world.new_directory()
    result = restore_all(world.store, kept.plan(), data)
    assert not result.left_out
    with ServerProcess(data, wrapper=passing(world.ahead_file)) as server, connect(server.url) as client:
        found = {name: by_key(client.table(name).scan().to_pylist()) for name in tables}
    shutil.rmtree(data)
    for writer, low, high in zip(writers, kept.low, kept.high, strict=True):
        writer.least(found, low, high)


def _shown(tables: dict[str, CheckerTable]) -> dict[str, dict[int, Shown]]:
    return {name: table.view().shown() for name, table in tables.items()}


def _changes(world: CheckerWorld, name: str, after: LogOffsets, until: StopAt) -> list[Shown]:
    return world.table(name).changes(StartFrom.offsets(after), until).to_pylist()


def _replay(rows: dict[int, Shown], changes: list[Shown]) -> dict[int, Shown]:
    """Returns what changes make of rows."""
    after = dict(rows)
    for key, each in changes_by_key(changes).items():
        kind, row = each[-1]
        after.pop(key, None)
        if kind in ("+I", "+U"):
            after[key] = row
    return after
