"""An operation of several clients at once: they write and read while something happens to the server.

Each writer has keys of its own, so what a reader may see of them follows from how many of its requests were answered
before, and how many had begun at the end.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from aio_client import ConnectionFailed, InvalidRequest, ServerRefused, StartFrom, StopAt, TransactionLost
from aio_client.sync import connect
from streaming_server.engine.backups.restore import restore_all
from tests.model.checker.disk import draw_cut
from tests.model.checker.disturbances import DISTURBANCES
from tests.model.checker.drawing import EVERY_KIND, LOG, rows_of, table_of
from tests.model.checker.model import KEY, Shown, key_values, part_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import by_key, changes_by_key, differences, write_rows
from tests.model.checker.writes import DELETING, fits
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from aio_client import LogOffsets
    from aio_client.sync import Client, Table
    from streaming_server.engine.backups.restore_plan import RestorePlan
    from tests.model.checker.model import CheckerTable, Position
    from tests.model.checker.world import CheckerWorld

_TIMEOUT: Final = 60.0
_MOST_REQUESTS: Final = 5
_MOST_VIEWS: Final = 4
"""How many views are compared with the changes up to them."""


@dataclass
class _Writer:
    """A client that sends one request after another.

    Attributes:
        name: Begins the ids of its transactions.
        requests: The requests. Each writes to some tables; a transaction writes to them at one instant.
        client: Its connection.
        tables: The tables, opened by it.
        may_lose: Whether the server may lose an open transaction: a power cut may take what it has staged.
        states: The rows of its keys in each table, after each number of requests.
        begun: How many requests it has sent.
        answered: How many of them were answered.
        error: What ended it.
    """

    name: str
    requests: list[Arguments]
    client: Client
    tables: dict[str, Table]
    may_lose: bool
    states: list[dict[str, dict[int, Shown | None]]] = field(default_factory=list)
    begun: int = 0
    answered: int = 0
    error: BaseException | None = None

    def run(self) -> None:
        """Sends the requests."""
        try:
            for number, request in enumerate(self.requests):
                self.begun += 1
                _send(self.client, self.tables, request, f"{self.name}:{number}", may_be_lost=self.may_lose)
                self.answered += 1
        except BaseException as error:  # raised in the thread of the checker
            self.error = error

    def foresee(self, tables: dict[str, CheckerTable]) -> None:
        """Fills `states`, from what the tables have now."""
        branches = {name: table.branch() for name, table in tables.items()}
        keys = defaultdict[str, set[int]](set)
        for part in (part for request in self.requests for part in request["parts"]):
            keys[part["table"]] |= {*part["keys"], *(row[KEY] for row in part["rows"])}
        for request in (None, *self.requests):
            if request is not None:
                _apply(branches, request)
            shown = {name: branch.view().shown() for name, branch in branches.items()}
            self.states.append({name: {key: shown[name].get(key) for key in own} for name, own in keys.items()})

    def least(self, found: dict[str, dict[int, Shown]], low: int, high: int, *, is_cut: bool = False) -> int:
        """Returns the least number of requests that explains what a reader has found in some tables at one instant.

        Args:
            found: The rows of each table.
            low: How many requests it must have seen.
            high: How many it may have seen.
            is_cut: Whether it may have seen a part of a transaction.
        """
        seen = {name: {key: found[name].get(key) for key in self.states[0].get(name, ())} for name in found}
        for number in range(low, high + 1):
            # The buckets of a request are not written at one instant.
            is_partial = number < high and (is_cut or not self.requests[number]["transaction"])
            rows, after = self.states[number], self.states[number + is_partial]
            if all(row in (rows[name][key], after[name][key]) for name in seen for key, row in seen[name].items()):
                return number
        raise AssertionError(f"no state after {low} to {high} requests of {self.name} has {seen}")


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


@dataclass
class _Reader:
    """A client that reads the tables until the writers have ended.

    Attributes:
        tables: The tables, opened by it.
        writers: The writers.
        others: The rows of each table that nothing writes.
        forgives: Whether a read may fail.
        views: The tables, log offsets and rows of some views.
        error: What was wrong.
    """

    tables: dict[str, Table]
    writers: Sequence[_Writer]
    others: dict[str, dict[int, Shown]]
    forgives: bool
    views: list[tuple[str, LogOffsets, dict[int, Shown]]] = field(default_factory=list)
    error: BaseException | None = None
    _seen: dict[str, int] = field(default_factory=dict)

    def run(self, threads: Sequence[threading.Thread]) -> None:
        """Reads while threads run, and once after that."""
        try:
            for way in cycle(_WAYS):
                is_last = not any(thread.is_alive() for thread in threads)
                for name, table in self.tables.items():
                    try:
                        self._read(name, table, way)
                    except (ConnectionFailed, ServerRefused):
                        if not self.forgives:
                            raise
                if is_last:
                    return
        except BaseException as error:  # raised in the thread of the checker
            self.error = error

    def _read(self, name: str, table: Table, way: str) -> None:
        low = {writer.name: max(writer.answered, self._seen.get(writer.name, 0)) for writer in self.writers}
        found = self._rows(name, table, way)
        for writer in self.writers:
            seen = writer.least({name: found}, low[writer.name], writer.begun, is_cut=way == "read_latest")
            # A view with half a transaction says nothing about the next one.
            self._seen[writer.name] = low[writer.name] if way == "read_latest" else seen
        others = {
            key: row for key, row in found.items() if not any(key in w.states[0].get(name, ()) for w in self.writers)
        }
        assert others == self.others[name], differences(others, self.others[name])

    def _rows(self, name: str, table: Table, way: str) -> dict[int, Shown]:
        scan = table.scan()
        if way == "lookup" and table.primary_key:
            keys = [*self.others[name], *(key for writer in self.writers for key in writer.states[0].get(name, ()))]
            return by_key(table.lookup(_keys(table, keys)).to_pylist())
        if way == "pinned":
            with table.snapshot(ttl=600) as snapshot:
                first, again = (by_key(scan.as_of(snapshot).with_chunk(rows=n).to_pylist()) for n in (3, 1000))
            assert first == again, differences(again, first)
            return first
        if way == "rocksdb":
            scan = scan.read_path("rocksdb")
        elif way == "read_latest":
            scan = scan.isolation("read_latest")
        with scan.with_chunk(rows=7).stream() as stream:
            found = by_key([row for batch in stream for row in batch.to_pylist()])
            # A kill may take what a reader of the latest rows has seen.
            if len(self.views) < _MOST_VIEWS and not (self.forgives and way == "read_latest"):
                self.views.append((name, stream.log_offsets, found))
        return found


_WAYS: Final = ("read_committed", "pinned", "lookup", "read_latest", "rocksdb")


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
    if not is_certain and any(table.ttl is not None for table in tables.values()):
        return  # A request without changes decides when rows expire, and nothing shows whether it was applied.
    before = {name: world.table(name).log_offsets() for name in tables}
    positions, rows = ({name: table.position() for name, table in tables.items()}, _shown(tables))
    writers, views, restorable = _run(world, tables, arguments)
    for writer in writers:
        if writer.error is not None and (is_certain or not isinstance(writer.error, _endings(arguments))):
            raise writer.error
    found = {name: _changes(world, name, before[name], StopAt.LATEST) for name in tables}
    _settle(tables, positions, writers, found)
    for name, offsets, view in views:
        changes = _changes(world, name, before[name], StopAt.offsets(offsets))
        assert (after := _replay(rows[name], changes)) == view, differences(view, after)
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
) -> tuple[list[_Writer], list[tuple[str, LogOffsets, dict[int, Shown]]], _Restorable | None]:
    """Runs writers and a reader during a disturbance. Returns the writers, some views, and what can be restored."""
    disturbance = DISTURBANCES[arguments["disturbance"]]
    clients = [connect(world.server.url, operation_timeout=_TIMEOUT) for _ in (*arguments["writers"], "reader")]
    writers = [
        _Writer(
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
    reader = _Reader({name: clients[0].table(name) for name in tables}, writers, others, disturbance.forgives)
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
    world: CheckerWorld, tables: dict[str, CheckerTable], kept: _Restorable, writers: Sequence[_Writer]
) -> None:
    """Restores a backup or an instant elsewhere. All tables must be there as of one instant, with their changes."""
    data = world.new_directory()
    result = restore_all(world.store, kept.plan(), data)
    assert not result.left_out
    with ServerProcess(data) as server, connect(server.url) as client:
        found = {name: by_key(client.table(name).scan().to_pylist()) for name in tables}
    shutil.rmtree(data)
    for writer, low, high in zip(writers, kept.low, kept.high, strict=True):
        writer.least(found, low, high)


def _send(client: Client, tables: dict[str, Table], request: Arguments, id_: str, *, may_be_lost: bool) -> None:
    if not request["transaction"]:
        (part,) = request["parts"]
        opened = tables[part["table"]]
        if part["rows"]:
            write_rows(opened, part["rows"])
        if part["keys"]:
            opened.delete(_keys(opened, part["keys"]))
        return
    # Who begins a committed id again stages nothing.
    for _ in range(1 + request["twice"]):
        try:
            _transact(client, tables, request, id_)
        except (TransactionLost, InvalidRequest):
            if not may_be_lost:
                raise
            _transact(client, tables, request, id_)


def _transact(client: Client, tables: dict[str, Table], request: Arguments, id_: str) -> None:
    with client.transaction(id_) as transaction:
        for part in request["parts"]:
            opened = tables[part["table"]]
            if part["keys"]:
                transaction.delete(opened, _keys(opened, part["keys"]))
            if part["rows"]:
                (transaction.upsert if opened.primary_key else transaction.append)(opened, part["rows"])


def _keys(opened: Table, keys: list[int]) -> list[Any]:
    return [tuple(key_values(tuple(opened.primary_key), key).values()) for key in keys]


def _apply(tables: dict[str, CheckerTable], request: Arguments) -> None:
    for part in request["parts"]:
        table = tables[part["table"]]
        table.delete(part["keys"])
        table.upsert(part["rows"])


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


def _settle(
    tables: dict[str, CheckerTable],
    positions: dict[str, Position],
    writers: Sequence[_Writer],
    found: dict[str, list[Shown]],
) -> None:
    """Applies to the models what the server has applied. Of a request without an answer, the changes show it.

    Args:
        tables: The tables.
        positions: The position in each before the writers began.
        writers: The writers, which have ended.
        found: The changes of each table since then.
    """
    last = list[set[tuple[str, int, int]]]()
    for request in (request for writer in writers for request in writer.requests[: writer.answered]):
        before = _counts(tables)
        _apply(tables, request)
        if request["transaction"]:
            last.append(_counts(tables) - before)
    for writer in writers:
        if writer.begun > writer.answered:
            _settle_last(tables, positions, writer.requests[writer.answered], found)
    assert not (wrong := _wrong(tables, positions, found)), f"the changes of {sorted(wrong)} are others, or missing"
    times = {(name, key): each for name, rows in found.items() for key, each in _times_by_key(rows).items()}
    for changes in last:
        committed = {times[name, key][count - positions[name].get(key, (0, 0))[1] - 1] for name, key, count in changes}
        assert len(committed) <= 1, f"one transaction was committed at {sorted(committed)}"


def _counts(tables: dict[str, CheckerTable]) -> set[tuple[str, int, int]]:
    """Returns how many changes each key of each table has."""
    return {(name, key, len(each)) for name, table in tables.items() for key, each in table.changes.items() if each}


def _times_by_key(rows: list[Shown]) -> dict[int, list[Any]]:
    times = defaultdict[int, list[Any]](list)
    for row in rows:
        times[row[KEY]].append(row["_commit_timestamp"])
    return times


def _wrong(
    tables: dict[str, CheckerTable], positions: dict[str, Position], found: dict[str, list[Shown]]
) -> set[tuple[str, int]]:
    """Returns the tables and keys whose changes are not those of the models."""
    return {
        (name, key)
        for name, table in tables.items()
        for key in table.wrong_changes(positions[name], changes_by_key(found[name]))
    }


def _settle_last(
    tables: dict[str, CheckerTable], positions: dict[str, Position], request: Arguments, found: dict[str, list[Shown]]
) -> None:
    """Applies a request without an answer as far as the server has: each bucket of it, or a transaction, or nothing."""
    after = {name: deepcopy(table) for name, table in tables.items()}
    _apply(after, request)
    units = defaultdict[int, set[tuple[str, int]]](set)
    for part in request["parts"]:
        name, keys = part["table"], {*part["keys"], *(row[KEY] for row in part["rows"])}
        tables[name].possible |= {part_of(key) for key in keys}
        if request["transaction"]:
            units[0] |= {(name, key) for key in keys}
        for row in found[name] if not request["transaction"] else ():
            if row[KEY] in keys:
                units[row["_bucket"]].add((name, row[KEY]))
    wrong, wrong_after = _wrong(tables, positions, found), _wrong(after, positions, found)
    for unit in units.values():
        assert not (unit & wrong and unit & wrong_after), f"a part of a request is there: {sorted(unit)}"
        for name, key in unit if unit & wrong else ():
            tables[name].take_over(after[name], key)
