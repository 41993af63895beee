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

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from random import Random

    from aio_client import Client, ScanKvError, Table, Transaction

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
"""By key, the values that a reader may see; None for no row."""


@dataclass
class Register:
    """Which values each key may have: one when its last write is acknowledged, several while that is in doubt.

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
        """Records what these keys were found to have while no request was under way."""
        for key in keys:
            value = found.get(key)
            assert value in self.possible.get(key, {None}), f"key {key} is {value}, not one of {self.possible.get(key)}"
            self.possible[key] = {value}

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Collects, for the block, every value that a key may show to a reader that begins within it."""
        window = {key: set(values) for key, values in self.possible.items()}
        self._windows[id(window)] = window
        try:
            yield window
        finally:
            del self._windows[id(window)]


@dataclass
class World:
    """The tables of one server, and what they may hold.

    Attributes:
        accounts: What each free key of `accounts` may hold.
        transactions: For each writer, the number of its last transaction that was committed, and of the last begun.
        amounts: For each writer, the sum that its committed transactions have added, and with the last begun.
        plain_sums: For each writer, the sums that its plain upserts may have left.
        healthy: Set while no fault is under way.
        stopping: Set when writers are to stop.
        failures: How many requests failed, by the reason of the error.
        faults: How many faults have begun.
    """

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
        """Swallows what a fault has caused in the block, and waits until the fault has passed.

        What the server refuses although there was no fault since the block began is raised.
        """
        faults, began_healthy = self.faults, self.healthy.is_set()
        try:
            yield
        except (ConnectionFailed, ServerRefused) as error:
            # An error of a fault may come late, when the fault has passed: an abort may have waited for the server.
            if isinstance(error, ServerRefused) and began_healthy and self.healthy.is_set() and self.faults == faults:
                raise
            self.count_failure(error)
            await self.healthy.wait()


@dataclass(frozen=True)
class WorldTables:
    """The three tables, as one client has them."""

    accounts: Table
    totals: Table
    journal: Table


async def open_tables(client: Client) -> WorldTables:
    """Opens the three tables; not repeated by a client, so there must be no fault."""
    return WorldTables(*[await client.table(f"mixed.{name}") for name in ("accounts", "totals", "journal")])


async def create_tables(client: Client) -> None:
    """Creates the three tables."""
    await client.create_table(
        "mixed.accounts", ACCOUNTS, primary_key=["k"], buckets=4, indexes=["score"], columnar_base="eager"
    )
    functions = {"amount": agg.sum(), "latest": agg.max()}
    await client.create_table(
        "mixed.totals",
        TOTALS,
        primary_key=["k"],
        buckets=2,
        indexes=["amount"],
        merge_engine="aggregate",
        aggregates=functions,
    )
    await client.create_table("mixed.journal", JOURNAL, primary_key=["owner", "n"], buckets=3)


def free_keys(owner: int) -> range:
    """The keys that a writer upserts and deletes."""
    return range(owner * _OWNER_STRIDE, owner * _OWNER_STRIDE + FREE)


def group_keys(owner: int) -> range:
    """The keys that only a writer's transactions write."""
    start = owner * _OWNER_STRIDE + _FIRST_GROUP_KEY
    return range(start, start + GROUP)


def is_group_key(key: int) -> bool:
    """Whether transactions alone write a key."""
    return key % _OWNER_STRIDE >= _FIRST_GROUP_KEY


def accounts_of(rows: pa.Table | pa.RecordBatch) -> dict[int, Account]:
    """Rows of `accounts` by key; each key may occur once."""
    columns = [rows.column(name).to_pylist() for name in ("k", "stamp", "score", "text")]
    found = {key: (stamp, score, text) for key, stamp, score, text in zip(*columns, strict=True)}
    assert len(found) == rows.num_rows, "a key occurs twice"
    return found


def group_stamps(found: Mapping[int, Account], owner: int) -> set[int | None]:
    """The transaction numbers that a writer's group shows in a view."""
    return {found[key][0] if key in found else None for key in group_keys(owner)}


class WorldWriter:
    """One writer with a connection, keys and sums of its own."""

    def __init__(self, owner: int, world: World, client: Client, tables: WorldTables, random: Random) -> None:
        self.owner = owner
        self._world = world
        self._client = client
        self._tables = tables
        self._random = random
        self._number = 0
        world.transactions[owner] = world.amounts[owner] = (0, 0)
        world.plain_sums[owner] = {0}

    async def run(self) -> None:
        """Writes until the world stops. Every request that fails is in doubt until the next one to its keys."""
        actions = [self._upsert, self._delete, self._transact, self._add]
        while not self._world.stopping.is_set():
            action = self._random.choices(actions, [6, 3, 3, 3])[0]
            async with self._world.forgiving():
                await action()

    async def settle(self) -> None:
        """Ends what is in doubt: repeats an unfinished transaction, and reads what failed requests have left."""
        while len(set(self._world.transactions[self.owner])) > 1:
            await self._transact()
        keys = free_keys(self.owner)
        self._world.accounts.learn(accounts_of(await self._tables.accounts.lookup(list(keys))), keys)
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
        await self._tables.accounts.delete(list(gone))
        self._world.accounts.acknowledge(gone)

    async def _add(self) -> None:
        sums = self._world.plain_sums[self.owner]
        if len(sums) > 1:
            await self._learn_sum()
            sums = self._world.plain_sums[self.owner]
        amount = self._random.randrange(1, 50)
        after = {total + amount for total in sums}
        self._world.plain_sums[self.owner] = sums | after
        await self._tables.totals.upsert([{"k": self.owner + _PLAIN_TOTAL, "amount": amount, "latest": amount}])
        self._world.plain_sums[self.owner] = after

    async def _learn_sum(self) -> None:
        row = await self._tables.totals.get(self.owner + _PLAIN_TOTAL)
        total = 0 if row is None else row["amount"]
        assert total in self._world.plain_sums[self.owner], f"{total}: not one of {self._world.plain_sums[self.owner]}"
        self._world.plain_sums[self.owner] = {total}

    async def _transact(self) -> None:
        """Begins the next transaction, or the last one again when its commit was not acknowledged."""
        begun, committed = self._world.transactions[self.owner]
        total, _ = self._world.amounts[self.owner]
        if begun == committed:
            begun += 1
        # The amount follows from the number, so that a repetition stages the same.
        amount = begun % 17 + 1
        self._world.transactions[self.owner] = (begun, committed)
        self._world.amounts[self.owner] = (total, total + amount)
        async with self._client.transaction(id=f"mixed-{self.owner}:{begun}") as tx:
            await self._stage(tx, begun, amount)
            if self._random.random() < 0.1:
                return  # As a process that was killed; the next turn begins the same transaction again.
        self._world.transactions[self.owner] = (begun, begun)
        self._world.amounts[self.owner] = (total + amount, total + amount)

    async def _stage(self, tx: Transaction, number: int, amount: int) -> None:
        keys = list(group_keys(self.owner))
        # Rows that are written again in the same transaction: its changes must be net.
        await tx.upsert(self._tables.accounts, [self._row(key, (-1, -1, "discarded")) for key in keys[: GROUP // 2]])
        if number % 3 == 0:
            await tx.delete(self._tables.accounts, keys[::2])
        await tx.upsert(self._tables.totals, [{"k": self.owner, "amount": amount, "latest": number}])
        await tx.upsert(self._tables.accounts, [self._row(key, (number, key % 7, f"{number}")) for key in keys])
        await tx.upsert(self._tables.journal, [{"owner": self.owner, "n": number}])

    def _row(self, key: int, value: Account) -> dict[str, Any]:
        stamp, score, text = value
        return {"k": key, "owner": self.owner, "stamp": stamp, "score": score, "text": text}


async def check_final(world: World, tables: WorldTables) -> None:
    """Compares all three tables with the model, when no request is under way."""
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
    """Checks one consistent view of `accounts`: every free key has a value that it may have, every group one number."""
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
        assert (await table.top_n(10, by=column)).to_pylist() == best
        assert await table.count() == len(rows)
