"""An operation of several clients that count in the same rows while something happens to the server.

The values of a counter are the order in which everything took effect: what ended before something else began has the
lesser value. So one order explains what all clients did and saw.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aio_client import (
    ConnectionFailed,
    InvalidRequest,
    LockTimeout,
    ScanKvError,
    ServerRefused,
    StartFrom,
    StopAt,
    TransactionConflict,
    TransactionLost,
    WriteConflict,
)
from aio_client.sync import connect
from tests.model.checker import statements
from tests.model.checker.disk import draw_cut
from tests.model.checker.disturbances import DISTURBANCES
from tests.model.checker.drawing import KEYED, KEYS, table_of
from tests.model.checker.model import KEY, key_values
from tests.model.checker.open_transactions import open_ones
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import by_key, changes_by_key

if TYPE_CHECKING:
    from random import Random

    from aio_client.sync import Client, Table
    from tests.model.checker.model import CheckerTable, Shown
    from tests.model.checker.world import CheckerWorld

_TIMEOUT: Final = 60.0
_MOST_READS: Final = 100

_REFUSALS: Final[tuple[type[Exception], ...]] = (WriteConflict, TransactionConflict, TransactionLost, LockTimeout)
"""The refusals after which nothing was written."""

_Counter: TypeAlias = tuple[str, int]
"""A table and a key of it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The values of some counters that a client has written or read at one instant between two times."""

    values: dict[_Counter, int]
    begun: float
    ended: float
    is_write: bool


@dataclass
class _CountingClient:
    """A client that counts, or one that reads the counters.

    Attributes:
        client: Its connection.
        tables: The tables that it has opened, and the columns that have the counters.
        asked: The arguments of the step. All but the last key are counted together.
        refusals: The errors after which nothing was written.
        seen: What it has written and read.
        error: What ended it.
    """

    client: Client
    tables: dict[str, tuple[Table, str]]
    asked: Arguments
    refusals: tuple[type[Exception], ...]
    seen: list[_Seen] = field(default_factory=list)
    error: BaseException | None = None

    def count(self, ways: list[str]) -> None:
        """Counts in each of some ways, until no other client was faster."""
        try:
            for way in ways:
                written: dict[_Counter, int] | None = None
                until = time.monotonic() + _TIMEOUT
                while written is None:
                    begun = time.monotonic()
                    try:
                        written = self._count_alone() if way == "condition" else self._count_all(way)
                    except self.refusals:
                        if begun > until:
                            raise
                self.seen.append(_Seen(written, begun, time.monotonic(), is_write=True))
        except BaseException as error:  # raised in the thread of the checker
            self.error = error

    def read(self, threads: list[threading.Thread], *, forgives: bool) -> None:
        """Reads the counters while threads run, and once after that: those of each table, or all of them in SQL."""
        is_last = False
        every = [[*self.tables]] if statements.are_asked(self.asked) else [[name] for name in self.tables]
        try:
            while not is_last and len(self.seen) < _MOST_READS:
                is_last = not any(thread.is_alive() for thread in threads)
                for names in every:
                    begun = time.monotonic()
                    try:
                        found = self._counters(names)
                    except (ConnectionFailed, ServerRefused):
                        if not forgives:
                            raise
                        continue
                    values = {(name, key): found[name].get(key) or 0 for name in names for key in self.asked["keys"]}
                    self.seen.append(_Seen(values, begun, time.monotonic(), is_write=False))
        except BaseException as error:  # raised in the thread of the checker
            self.error = error

    def _counters(self, names: list[str]) -> dict[str, dict[int, int | None]]:
        """Returns the counters of some tables by table and key."""
        if statements.are_asked(self.asked):
            return statements.counters(self.client, {name: self.tables[name][1] for name in names})
        found = dict[str, dict[int, int | None]]()
        for name in names:
            table, column = self.tables[name]
            rows = by_key(table.scan().with_chunk(rows=1).to_pylist())
            found[name] = {key: row.get(column) for key, row in rows.items()}
        return found

    def _count_all(self, way: str) -> dict[_Counter, int] | None:
        """Counts in all tables at one instant. Returns the values, None if another client was faster."""
        lock: Any = {"lock": "keys", "lock_timeout": 5} if way == "lock" else {}
        written: dict[_Counter, int] = {}
        transaction = self.client.transaction(**lock)
        try:
            for name, (table, column) in self.tables.items():
                keys = self.asked["keys"][:-1]
                found = by_key(transaction.get_for_update(table, _keys(table, keys)).to_pylist())
                values = {key: (found.get(key, {}).get(column) or 0) + 1 for key in keys}
                transaction.upsert(table, [_row(table, key, column, value) for key, value in values.items()])
                written |= {(name, key): value for key, value in values.items()}
        except ScanKvError as error:
            transaction.abort()
            if isinstance(error, ConnectionFailed):
                return None
            raise
        try:
            transaction.commit()
        except ScanKvError:
            # It may still be open, and hold its locks.
            with suppress(ScanKvError):
                transaction.abort()
            raise
        return written

    def _count_alone(self) -> dict[_Counter, int] | None:
        """Counts in one row. Returns its value, None if another client was faster."""
        (name, (table, column)), key = next(iter(self.tables.items())), self.asked["keys"][-1]
        try:
            found = table.lookup(_keys(table, [key]), with_version=True)
        except ConnectionFailed:
            return None
        value = (by_key(found.rows.to_pylist()).get(key, {}).get(column) or 0) + 1
        table.upsert([_row(table, key, column, value)], if_version=found.log_offsets)
        return {(name, key): value}


def _keys(table: Table, keys: list[int]) -> list[Any]:
    return [tuple(key_values(tuple(table.primary_key), key).values()) for key in keys]


def _row(table: Table, key: int, column: str, value: int) -> Shown:
    return dict.fromkeys(table.schema.names) | key_values(tuple(table.primary_key), key) | {column: value}


def _draw(world: CheckerWorld, random: Random) -> Arguments | None:
    chosen = [table for _ in range(2) if (table := table_of(world, random, KEYED)) is not None]
    names = sorted({table.name for table in chosen if _counter_of(table) is not None})
    if not names:
        return None
    fitting = [name for name, each in DISTURBANCES.items() if each.fits(world) and not each.refuses]
    ways = random.choice([["condition"], ["transaction", "lock", "condition"]])
    return {
        "tables": names,
        "keys": random.sample(range(KEYS), 3),
        "clients": [random.choices(ways, k=random.choice([2, 5])) for _ in range(random.choice([2, 4]))],
        "disturbance": random.choice(["none", *fitting]),
        "after": round(random.random() * 0.05, 4),
        "chance": round(random.random(), 3),
        "cut": draw_cut(world, random),
    }


def _counter_of(table: CheckerTable | None) -> str | None:
    """Returns a column of a table in whose rows clients can count."""
    # With other engines, some of the rows change nothing. The changes show what was written.
    if table is None or table.engine not in ("last_row", "partial_update") or table.changelog != "full":
        return None
    return next((each.name for each in table.columns if each.kind in ("int", "int32") and table.ttl is None), None)


@define("count_together", 1.5, _draw)
def _count_together(world: CheckerWorld, arguments: Arguments) -> None:
    found = {name: _counter_of(world.tables.get(name)) for name in arguments["tables"]}
    columns = {name: column for name, column in found.items() if column is not None}
    disturbance = DISTURBANCES[arguments["disturbance"]]
    if len(columns) < len(found) or not disturbance.fits(world) or len(arguments["keys"]) < 2:
        return
    tables = {name: world.tables[name] for name in columns}
    counters = {(table.number, key) for table in tables.values() for key in arguments["keys"]}
    if any(open_.locked & counters for open_ in open_ones(world).values()):
        return  # Clients that lock them would wait for a later step.
    before = {name: world.table(name).log_offsets() for name in tables}
    positions = {name: table.position() for name, table in tables.items()}
    clients = [connect(world.server.url, operation_timeout=_TIMEOUT) for _ in (*arguments["clients"], "reader")]
    # A power cut may take what was staged last.
    refusals = _REFUSALS if arguments["cut"] is None else (*_REFUSALS, InvalidRequest)
    counting = [
        _CountingClient(
            client, {name: (client.table(name), each) for name, each in columns.items()}, arguments, refusals
        )
        for client in clients
    ]
    threads = [
        threading.Thread(target=each.count, args=[ways])
        for each, ways in zip(counting[1:], arguments["clients"], strict=True)
    ]
    reading = threading.Thread(target=counting[0].read, args=[threads], kwargs={"forgives": disturbance.forgives})
    for thread in (*threads, reading):
        thread.start()
    time.sleep(arguments["after"])  # the moment of the disturbance is what the step tries
    disturbance.run(world, arguments, threads, lambda: None)
    for thread in (*threads, reading):
        thread.join()
    for client in clients:
        client.close()
    for each in counting:
        if each.error is not None:
            raise each.error
    seen = [one for each in counting for one in each.seen]
    _check_order(seen)
    _apply(tables, columns, arguments["keys"], seen)
    for name, table in tables.items():
        changes = world.table(name).changes(StartFrom.offsets(before[name]), StopAt.LATEST).to_pylist()
        wrong = table.wrong_changes(positions[name], changes_by_key(changes))
        assert not wrong, f"the changes of {name} are {changes}, not {wrong}"
    world.record("count_together", *tables.values())
    check_all(world)


def _check_order(seen: list[_Seen]) -> None:
    """Checks that an order explains what was written and read, each at one instant."""
    for one, other in permutations(seen, 2):
        pairs = [(one.values[each], other.values[each]) for each in one.values.keys() & other.values.keys()]
        if one.ended < other.begun:
            assert all(a + other.is_write <= b for a, b in pairs), f"{other} comes before {one}"
        is_crossed = any(a < b for a, b in pairs) and any(a > b for a, b in pairs)
        is_torn = one.is_write and len({a <= b for a, b in pairs}) > 1
        assert not is_crossed, f"no order has {one} and {other}"
        assert not is_torn, f"{other} has a part of {one}"


def _apply(tables: dict[str, CheckerTable], columns: dict[str, str], keys: list[int], seen: list[_Seen]) -> None:
    """Applies to the models what was written: of each counter, the values one after another."""
    for name, table in tables.items():
        for key in keys:
            written = sorted(one.values[name, key] for one in seen if one.is_write and (name, key) in one.values)
            first = (table.view().shown().get(key, {}).get(columns[name]) or 0) + 1
            assert written == [*range(first, first + len(written))], f"{key} of {name}: {written} begin at {first}"
            for value in written:
                row = {column.name: None for column in table.columns} | {KEY: key, columns[name]: value}
                table.upsert([row])
