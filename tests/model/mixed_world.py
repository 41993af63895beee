"""Three tables, the writers that change them, and a model of every state that a reader may see.

- `accounts` has two kinds of rows. Each writer has `FREE` keys that it upserts and deletes one request at a time, and a
  *group* of `GROUP` keys that only its transactions write, all of them with the number of the transaction. So a view in
  which a group has two numbers shows half a transaction.
- `totals` aggregates. A transaction adds an amount to its writer's row, and plain upserts add to another row of the
  writer. So a request that is applied twice, or not at all, leaves a wrong sum.
- `journal` has one row for each transaction.

A request that fails may have been applied or not. The model keeps every value that a key may have, until an
acknowledged write or a quiet read leaves one.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from aio_client import ConnectionFailed, ServerRefused, agg
from tests.support.workers import names_together

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from random import Random

    from aio_client import Client, ScanKvError, Table, Transaction
    from tests.support.table_kinds import TableKind

NAMES: Final = names_together("mixed.accounts", "mixed.totals", "mixed.journal")
WRITERS: Final = 3
FREE: Final = 60
GROUP: Final = 12
_OWNER_STRIDE: Final = 1000
_PLAIN_TOTAL: Final = 100
_FIRST_GROUP_KEY: Final = 500

ACCOUNTS: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("owner", pa.int64()),
        ("stamp", pa.int64()),
        ("score", pa.int64()),
        ("text", pa.string()),
    ]
)
TOTALS: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("amount", pa.int64()), ("latest", pa.int64())])
JOURNAL: Final = pa.schema([pa.field("owner", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])

Account: TypeAlias = tuple[int, int, str]
"""Stamp, score and text of a row of `accounts`."""

Window: TypeAlias = dict[int, set[Account | None]]
"""By key, the values that a reader may see. None stands for no row."""


@dataclass
class Register:
    """The possible values of each key: one after an acknowledged write, several while a write is in doubt.

    One writer at a time changes a key. A window collects all values that a reader may see while it reads.
    """

    possible: Window = field(default_factory=dict)
    _windows: dict[int, Window] = field(default_factory=dict)

    def issue(self, changes: Mapping[int, Account | None]) -> None:
        """Records a request before it is sent."""
        for key, value in changes.items():
            self.possible.setdefault(key, {None}).add(value)
            for window in self._windows.values():
                window.setdefault(key, {None}).add(value)

    def acknowledge(self, changes: Mapping[int, Account | None]) -> None:
        """Records that a request was applied."""
        self.possible |= {key: {value} for key, value in changes.items()}

    def learn(self, found: Mapping[int, Account], keys: Iterable[int]) -> None:
        """Records the values of these keys, which were read while no request was running."""
        for key in keys:
            value = found.get(key)
            assert value in self.possible.get(key, {None}), f"key {key} is {value}, not one of {self.possible.get(key)}"
            self.possible[key] = {value}

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Collects all values that a reader which begins during the block may see, by key."""
        window = {key: set(values) for key, values in self.possible.items()}
        self._windows[id(window)] = window
        try:
            yield window
        finally:
            del self._windows[id(window)]


@dataclass
class World:
    """The tables of one server, and their possible contents.

    Attributes:
        kind: How `accounts` and `totals` are stored.
        accounts: The possible values of each free key of `accounts`.
        transactions: For each writer, the numbers of the last committed and of the last begun transaction.
        amounts: For each writer, the sum of its committed transactions, without and with the last begun one.
        plain_sums: For each writer, the possible sums of its plain upserts.
        healthy: Set while no fault is happening.
        stopping: Set when writers should stop.
        failures: The number of failed requests, by the reason of the error.
        faults: The number of faults that have begun.
    """

    kind: TableKind
    healthy: asyncio.Event
    stopping: asyncio.Event
    accounts: Register = field(default_factory=Register)
    transactions: dict[int, tuple[int, int]] = field(default_factory=dict)
    amounts: dict[int, tuple[int, int]] = field(default_factory=dict)
    plain_sums: dict[int, set[int]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    faults: int = 0

    def count_failure(self, error: ScanKvError) -> None:
        """Counts a failed request."""
        self.failures[error.reason] = self.failures.get(error.reason, 0) + 1

    @asynccontextmanager
    async def forgiving(self) -> AsyncIterator[None]:
        """Suppresses errors that a fault causes in the block, and waits until the fault has passed.

        Raises errors of the server if no fault has happened since the block began.
        """
        faults, began_healthy = self.faults, self.healthy.is_set()
        try:
            yield
        except (ConnectionFailed, ServerRefused) as error:
            # The error may come after the fault has passed, for instance if an abort waited for the server.
            if isinstance(error, ServerRefused) and began_healthy and self.healthy.is_set() and self.faults == faults:
                raise
            self.count_failure(error)
            await self.healthy.wait()


@dataclass(frozen=True)
class WorldTables:
    """The three tables, opened by one client."""

    accounts: Table
    totals: Table
    journal: Table


async def open_tables(client: Client) -> WorldTables:
    """Opens the three tables. Must not run during a fault, since the client does not retry these calls."""
    return WorldTables(*[await client.table(name) for name in NAMES])


async def create_tables(client: Client, kind: TableKind) -> None:
    """Creates the three tables."""
    accounts, totals, journal = NAMES
    await kind.create(client, accounts, ACCOUNTS, buckets=4, columnar_base="eager")
    functions = {"amount": agg.sum(), "latest": agg.max()}
    await kind.create(client, totals, TOTALS, buckets=2, merge_engine="aggregate", aggregators=functions)
    for name, index in ((accounts, "score"), (totals, "amount")):
        await client.alter_table(name, add_indexes=[index])
    await client.create_table(journal, JOURNAL, primary_key=["owner", "n"], buckets=3)


def free_keys(owner: int) -> range:
    """Returns the keys that a writer upserts and deletes."""
    return range(owner * _OWNER_STRIDE, owner * _OWNER_STRIDE + FREE)


def group_keys(owner: int) -> range:
    """Returns the keys that only a writer's transactions write."""
    start = owner * _OWNER_STRIDE + _FIRST_GROUP_KEY
    return range(start, start + GROUP)


def is_group_key(key: int) -> bool:
    """Returns whether only transactions write a key."""
    return key % _OWNER_STRIDE >= _FIRST_GROUP_KEY


def accounts_of(rows: pa.Table | pa.RecordBatch) -> dict[int, Account]:
    """Returns rows of `accounts` by key, after checking that no key occurs twice."""
    columns = [rows.column(name).to_pylist() for name in ("k", "stamp", "score", "text")]
    found = {key: (stamp, score, text) for key, stamp, score, text in zip(*columns, strict=True)}
    assert len(found) == rows.num_rows, "a key occurs twice"
    return found


def group_stamps(found: Mapping[int, Account], owner: int) -> set[int | None]:
    """Returns the transaction numbers in a writer's group in a view."""
    return {found[key][0] if key in found else None for key in group_keys(owner)}


class WorldWriter:
    """A writer with its own connection, keys and sums."""

    def __init__(self, owner: int, world: World, client: Client, tables: WorldTables, random: Random) -> None:
        self.owner = owner
        self._world = world
        self._kind = world.kind
        self._client = client
        self._tables = tables
        self._random = random
        self._number = 0
        world.transactions[owner] = world.amounts[owner] = (0, 0)
        world.plain_sums[owner] = {0}

    async def run(self) -> None:
        """Writes until the world stops. A failed request is in doubt until the next request for its keys."""
        actions = [self._upsert, self._delete, self._transact, self._add]
        while not self._world.stopping.is_set():
            action = self._random.choices(actions, [6, 3, 3, 3])[0]
            async with self._world.forgiving():
                await action()

    async def settle(self) -> None:
        """Resolves all doubts: repeats an unfinished transaction, and reads what failed requests have written."""
        while len(set(self._world.transactions[self.owner])) > 1:
            await self._transact()
        keys = free_keys(self.owner)
        self._world.accounts.learn(accounts_of(await self._tables.accounts.lookup(self._keys(keys))), keys)
        await self._learn_sum()

    async def _upsert(self) -> None:
        self._number += 1
        keys = self._random.sample(free_keys(self.owner), self._random.choice([1, 1, 4, 20]))
        values = {key: (self._number, self._random.randrange(1000), f"{self._number} " * 8) for key in keys}
        self._world.accounts.issue(values)
        await self._tables.accounts.upsert([self._row(key, value) for key, value in values.items()])
        self._world.accounts.acknowledge(values)

    async def _delete(self) -> None:
        gone = dict.fromkeys(self._random.sample(free_keys(self.owner), self._random.choice([1, 3, 10])))
        self._world.accounts.issue(gone)
        await self._tables.accounts.delete(self._keys(gone))
        self._world.accounts.acknowledge(gone)

    async def _add(self) -> None:
        sums = self._world.plain_sums[self.owner]
        if len(sums) > 1:
            await self._learn_sum()
            sums = self._world.plain_sums[self.owner]
        amount = self._random.randrange(1, 50)
        after = {total + amount for total in sums}
        self._world.plain_sums[self.owner] = sums | after
        await self._tables.totals.upsert([self._total(_PLAIN_TOTAL, amount, amount)])
        self._world.plain_sums[self.owner] = after

    async def _learn_sum(self) -> None:
        row = await self._tables.totals.get(self._kind.key(self.owner + _PLAIN_TOTAL))
        total = 0 if row is None else row["amount"]
        assert total in self._world.plain_sums[self.owner], f"{total}: not one of {self._world.plain_sums[self.owner]}"
        self._world.plain_sums[self.owner] = {total}

    async def _transact(self) -> None:
        """Begins the next transaction, or the last one again if its commit was not acknowledged."""
        begun, committed = self._world.transactions[self.owner]
        total, _ = self._world.amounts[self.owner]
        if begun == committed:
            begun += 1
        # The amount depends on the number, so that a repetition stages the same.
        amount = begun % 17 + 1
        self._world.transactions[self.owner] = (begun, committed)
        self._world.amounts[self.owner] = (total, total + amount)
        async with self._client.transaction(id=f"mixed-{self.owner}:{begun}") as tx:
            await self._stage(tx, begun, amount)
            if self._random.random() < 0.1:
                return  # Ends as a killed process would. The next turn begins the same transaction again.
        self._world.transactions[self.owner] = (begun, begun)
        self._world.amounts[self.owner] = (total + amount, total + amount)

    async def _stage(self, tx: Transaction, number: int, amount: int) -> None:
        keys = list(group_keys(self.owner))
        # Writes some rows again in the same transaction, whose changes must be net changes.
        await tx.upsert(self._tables.accounts, [self._row(key, (-1, -1, "discarded")) for key in keys[: GROUP // 2]])
        if number % 3 == 0:
            await tx.delete(self._tables.accounts, self._keys(keys[::2]))
        await tx.upsert(self._tables.totals, [self._total(0, amount, number)])
        await tx.upsert(self._tables.accounts, [self._row(key, (number, key % 7, f"{number}")) for key in keys])
        await tx.upsert(self._tables.journal, [{"owner": self.owner, "n": number}])

    def _row(self, key: int, value: Account) -> dict[str, Any]:
        stamp, score, text = value
        row = {"k": key, "owner": self.owner, "stamp": stamp, "score": score, "text": text}
        return self._kind.row(row)

    def _total(self, place: int, amount: int, latest: int) -> dict[str, Any]:
        return self._kind.row({"k": self.owner + place, "amount": amount, "latest": latest})

    def _keys(self, keys: Iterable[int]) -> list[tuple[int, ...]]:
        return [self._kind.key(key) for key in keys]


async def check_final(world: World, tables: WorldTables) -> None:
    """Compares all three tables with the model. No request may be running."""
    accounts, totals, journal = tables.accounts, tables.totals, tables.journal
    found = accounts_of(await accounts.scan().to_arrow())
    assert found == accounts_of(await accounts.scan().read_path("rocksdb").to_arrow())
    check_view(world.accounts.possible, found)
    sums = {row["k"]: row["amount"] for row in await totals.scan().to_pylist()}
    entries = {(row["owner"], row["n"]) for row in await journal.scan().to_pylist()}
    expected_entries = set()
    for owner, (begun, committed) in world.transactions.items():
        assert begun == committed
        assert group_stamps(found, owner) == {committed or None}
        assert sums.get(owner, 0) == world.amounts[owner][0]
        assert {sums.get(owner + _PLAIN_TOTAL, 0)} == world.plain_sums[owner]
        expected_entries |= {(owner, number) for number in range(1, committed + 1)}
    assert entries == expected_entries
    await _check_indexes(accounts, totals)


def check_view(possible: Window, found: Mapping[int, Account]) -> None:
    """Checks a consistent view of `accounts`: free keys have possible values, and each group has one number."""
    for key in (key for key in possible.keys() | found.keys() if not is_group_key(key)):
        value, allowed = found.get(key), possible.get(key, {None})
        assert value in allowed, f"key {key} is {value}, not one of {allowed}"
    for owner in range(WRITERS):
        stamps = group_stamps(found, owner)
        assert len(stamps) == 1, f"half a transaction of writer {owner}: {stamps}"


async def _check_indexes(accounts: Table, totals: Table) -> None:
    for table, column in ((accounts, "score"), (totals, "amount")):
        rows = await table.scan().to_pylist()
        best = sorted(rows, key=lambda row: (-row[column], row["k"]))[:10]
        assert (await table.top_n(10, order_by=column)).to_pylist() == best
        assert await table.count() == len(rows)
