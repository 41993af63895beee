"""Clients that write or read in threads of their own, and what each must see.

Each writer has keys of its own, so what a reader may see of them follows from how many of its requests were answered
before, and how many had begun at the end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from aio_client import ConnectionFailed, InvalidRequest, ServerRefused, TransactionLost
from tests.model.checker.model import KEY, Shown, exact, key_values
from tests.model.checker.world import by_key, compare, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Thread

    from aio_client import LogOffsets
    from aio_client.sync import Client, Table
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.operation import Arguments

_MOST_VIEWS: Final = 20
"""How many views are compared with the changes up to them."""


@dataclass
class ClientOfRequests:
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
                apply_request(branches, request)
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
            allowed = {(name, key): exact((rows[name][key], after[name][key])) for name in seen for key in seen[name]}
            if all(exact(row) in allowed[name, key] for name in seen for key, row in seen[name].items()):
                return number
        raise AssertionError(f"no state after {low} to {high} requests of {self.name} has {seen}")


@dataclass
class ClientOfReads:
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
    writers: Sequence[ClientOfRequests]
    others: dict[str, dict[int, Shown]]
    forgives: bool
    views: list[tuple[str, LogOffsets, dict[int, Shown]]] = field(default_factory=list)
    error: BaseException | None = None
    _seen: dict[str, int] = field(default_factory=dict)

    def run(self, threads: Sequence[Thread]) -> None:
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
        compare(others, self.others[name])

    def _rows(self, name: str, table: Table, way: str) -> dict[int, Shown]:
        scan = table.scan()
        if way == "lookup" and table.primary_key:
            keys = [*self.others[name], *(key for writer in self.writers for key in writer.states[0].get(name, ()))]
            return by_key(table.lookup(_keys(table, keys)).to_pylist())
        if way == "pinned":
            with table.snapshot(ttl=600) as snapshot:
                first, again = (by_key(scan.as_of(snapshot).with_chunk(rows=n).to_pylist()) for n in (3, 1000))
            compare(first, again)
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


def apply_request(tables: dict[str, CheckerTable], request: Arguments) -> None:
    for part in request["parts"]:
        table = tables[part["table"]]
        table.delete(part["keys"])
        table.upsert(part["rows"])
