"""The matrix of docs/guides/locking.md: every two concurrent operations on one table end as that page says.

Everything that is read in the meantime is complete, and afterwards the table is what one order of the two makes of it.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pytest

from aio_client import (
    ColumnLocked,
    InvalidRequest,
    PositionExpired,
    SchemaMismatch,
    SnapshotLost,
    StartFrom,
    StopAt,
    TableNotFound,
    TransactionConflict,
    WriteConflict,
    WriterFenced,
    connect,
)
from tests.support.bases import ALL_THE_TIME, await_bases
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aio_client import Client, Scan, ScanKvError, Table

Rows: TypeAlias = dict[int, int]

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])
KEYS = 200
FILLER = 10_000
"""A key that trimming writes; a refused write may leave it."""


def rows_of(rows: Rows) -> pa.Table:
    return pa.table({"k": list(rows), "v": list(rows.values()), "w": list(rows.values())}, schema=SCHEMA)


@dataclass(frozen=True)
class Operation:
    """An operation on a table.

    Attributes:
        run: Does it.
        effect: What it does to the rows.
    """

    run: Callable[[Client, Table], Awaitable[object]]
    effect: Callable[[Rows], Rows] = dict


def check_whole(found: pa.Table) -> None:
    """Checks that each row was written by a single write."""
    assert found["v"].equals(found["w"]), "a row is half of one write"
    assert found.num_rows == len(set(found["k"].to_pylist())), "a key is there twice"


async def lookup(_: Client, table: Table) -> None:
    check_whole(await table.lookup(list(range(KEYS))))


async def scan(_: Client, table: Table) -> None:
    check_whole(await table.scan().to_arrow())


async def pin(_: Client, table: Table) -> None:
    async with table.snapshot() as snapshot:
        first = await table.scan().as_of(snapshot).to_arrow()
        check_whole(first)
        assert (await table.scan().as_of(snapshot).to_arrow()).sort_by("k").equals(first.sort_by("k"))


async def log(_: Client, table: Table) -> None:
    found: Rows = {}
    # Exact since a full start, however much is written or trimmed in the meantime.
    async with aclosing(_changes(table).stream()) as stream:
        async for batch in stream:
            for change in batch.to_pylist():
                assert change["v"] == change["w"]
                if change["_change_type"] in ("-U", "-D"):
                    assert found.pop(change["k"]) == change["v"]
                else:
                    assert change["k"] not in found
                    found[change["k"]] = change["v"]


def _changes(table: Table) -> Scan:
    return table.changes(StartFrom.FULL, StopAt.LATEST)


async def conditional(_: Client, table: Table) -> None:
    read = await table.lookup(list(range(50)), with_version=True)
    await table.upsert(rows_of(found_or_first(read.rows["k"].to_pylist())), if_version=read.log_offsets)


def found_or_first(keys: list[int]) -> Rows:
    return dict.fromkeys(keys or [0], 1000)


async def column_lock(_: Client, table: Table) -> None:
    async with table.lock_columns(["w"], owner="job-1"):
        pass


async def writer(_: Client, table: Table) -> None:
    async with table.writer(id="job-1") as one:
        await one.upsert(rows_of(dict.fromkeys(range(150, 250), 7)))


async def transaction(client: Client, table: Table) -> None:
    async with client.transaction(conflict="abort") as tx:
        await tx.get_for_update(table, list(range(90, 95)))
        await tx.upsert(table, rows_of(dict.fromkeys(range(50, 150), 3)))
        await tx.delete(table, list(range(20)))


def after_transaction(rows: Rows) -> Rows:
    return {key: v for key, v in rows.items() if key >= 20} | dict.fromkeys(range(50, 150), 3)


async def undo(_: Client, table: Table) -> None:
    """Reverts a writer that has written nothing, so that the table stays unchanged."""
    await table.undo("job-2", dict.fromkeys(range(2), 0), any_incarnation=True)


async def trim(_: Client, table: Table) -> None:
    """Waits until the first changes are trimmed; the table keeps almost none."""

    async def is_trimmed() -> bool:
        # So that changes follow them.
        await table.upsert(rows_of({FILLER: 1}))
        await table.delete([FILLER])
        try:
            await table.changes(StartFrom.offsets(dict.fromkeys(range(2), 0)), StopAt.LATEST).to_arrow()
        except PositionExpired:
            return True
        return False

    await await_until(is_trimmed, "old changes were removed", timeout=60)


OPERATIONS = {
    "upsert": Operation(
        lambda _, table: table.upsert(rows_of(dict.fromkeys(range(100, 300), 5))),
        lambda rows: rows | dict.fromkeys(range(100, 300), 5),
    ),
    "delete": Operation(
        lambda _, table: table.delete(range(120)), lambda rows: {key: v for key, v in rows.items() if key >= 120}
    ),
    "lookup": Operation(lookup),
    "scan": Operation(scan),
    "pin": Operation(pin),
    "log": Operation(log),
    "alter": Operation(lambda client, table: client.alter_table(table.name, add_columns=pa.schema([("x", pa.int8())]))),
    "drop": Operation(lambda client, table: client.drop_table(table.name)),
    "index": Operation(lambda client, table: client.alter_table(table.name, add_indexes=["v"])),
    "base": Operation(lambda _, table: await_bases(table)),
    "trim": Operation(trim),
    "column lock": Operation(column_lock),
    "conditional": Operation(conditional, lambda rows: rows | found_or_first([key for key in rows if key < 50])),
    "writer": Operation(writer, lambda rows: rows | dict.fromkeys(range(150, 250), 7)),
    "transaction": Operation(transaction, after_transaction),
    "undo": Operation(undo),
}

WRITES = ("upsert", "delete", "conditional", "writer", "transaction")


def allowed(one: str, other: str) -> tuple[type[ScanKvError], ...]:
    """Returns the allowed outcomes of `one` because of `other`, besides success."""
    errors: set[type[ScanKvError]] = set()
    if other == "drop":
        errors |= {TableNotFound, SnapshotLost}
    if other == "column lock" and one in (*WRITES, "trim", "column lock"):
        errors.add(ColumnLocked)
    if one == "conditional" and other in ("upsert", "delete", "conditional"):
        errors.add(WriteConflict)
    if one == "conditional" and other == "trim":
        errors.add(PositionExpired)
    if one == "transaction" and other in WRITES:
        errors.add(TransactionConflict)
    if one in ("transaction", "undo") and other == "trim":
        errors.add(PositionExpired)
    if one == "conditional" and other == "transaction":
        errors.add(WriteConflict)
    if one == other == "alter":
        errors.add(SchemaMismatch)
    if one == other == "index":
        errors.add(InvalidRequest)
    if one == other == "writer":
        errors.add(WriterFenced)
    return tuple(errors)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server with continuous maintenance."""
    settings = (*ALL_THE_TIME, "--set", "log_maintenance_seconds=0.02")
    with ServerProcess(tmp_path_factory.mktemp("matrix") / "data", *settings) as server:
        yield server


@pytest.mark.asyncio
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(*pair, marks=pytest.mark.breadth if number % 4 else ())
        for number, pair in enumerate(itertools.combinations_with_replacement(OPERATIONS, 2))
    ],
)
async def test_two_operations_at_once(busy: ServerProcess, one: str, other: str, rounds: int) -> None:
    async with connect(busy.url) as client:
        for round_ in range(rounds):
            name = f"matrix.{one}_{other}_{rounds}_{round_}".replace(" ", "_")
            await _both(client, name, one, other)


async def _both(client: Client, name: str, one: str, other: str) -> None:
    options: dict[str, Any] = {"columnar_base": "eager"} if "base" in (one, other) else {}
    if "trim" in (one, other):
        options["log_retention_bytes"] = 1
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, **options)
    before = dict.fromkeys(range(KEYS), 0)
    await table.upsert(rows_of(before))
    done = await asyncio.gather(
        OPERATIONS[one].run(client, table), OPERATIONS[other].run(client, table), return_exceptions=True
    )
    applied = []
    for what, beside, result in ((one, other, done[0]), (other, one, done[1])):
        if isinstance(result, BaseException):
            if not isinstance(result, allowed(what, beside)):
                raise result
        else:
            applied.append(OPERATIONS[what].effect)
    if "drop" in (one, other):
        assert name not in [each.name for each in await client.tables()]
        return
    assert applied or one == other, "each of the two was refused because of the other"
    await _check(client, name, before, applied)
    # A server with continuous maintenance should have few tables.
    await client.drop_table(name)


async def _check(client: Client, name: str, before: Rows, applied: list[Callable[[Rows], Rows]]) -> None:
    """Checks that the table is the result of one order of the effects, key by key, and that it is consistent."""
    table = await client.table(name)
    found = await table.scan().to_arrow()
    check_whole(found)
    rows = dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))
    orders = []
    for order in itertools.permutations(applied):
        made = before
        for effect in order:
            made = effect(made)
        orders.append(made)
    for key in {*rows, *before, *itertools.chain.from_iterable(orders)} - {FILLER}:
        assert rows.get(key) in [made.get(key) for made in orders], f"key {key} is {rows.get(key)}"
    assert all(bucket.is_consistent for bucket in await client.check_table(name))
    await log(client, table)
    assert await client.column_locks(name) == []
