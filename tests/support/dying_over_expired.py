"""Commits a transaction over rows that expire at several times, and kills the process at each step on disk in turn.

Run as `python -m tests.support.dying_over_expired DIRECTORY [STRIDE]`; see `dying_transaction`. Prints the number of
deaths. A stride is for the tests that have little time: they skip some of the steps.

The time line, in seconds; rows live for a minute:

    0, 40, 70   rows are written
    80          the transaction writes to the same keys; the rows of 0 have expired
    105         it commits; the rows of 40 have expired, too
    150         the server starts again after its death; the rows of 70 have expired, too
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import streaming_server.engine.transactions.net_rows
import streaming_server.engine.transactions.roll_forward
from scankv.model.tables.merge_functions import ColumnAggregate
from scankv.model.tables.merge_spec import MergeSpec
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.transactions.staging import DELETE, UPSERT
from tests.support.clocks import START, FakeClocks
from tests.support.dying_transaction import DEATH, import_what_arrow_needs, in_child, keys_of, opened
from tests.support.offline import records_of
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streaming_server.engine.tables.tables import Tables

PLAIN, PARTS, SUMS = TABLES = "test.plain", "test.parts", "test.sums"
TTL: Final = 60
WRITTEN: Final = {0: range(6), 40: range(6, 12), 70: range(12, 18)}
"""The keys of the rows before the transaction, by the time at which they are written, and from which they live."""
STAGED, COMMITTED, RESTARTED, EXPIRED = 80, 105, 150, 170
"""At `EXPIRED`, rows that are written at the commit have expired, but not rows that are written after the restart."""
KEYS: Final = range(22)
DELETED: Final = (0, 6, 12, 21)
LATER: Final = 4_000_000_000
"""When the rows of the transaction in `PARTS` begin to expire, in seconds since 1970."""
SCHEMA: Final = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("at", pa.timestamp("s", "UTC")), ("v", pa.int64()), ("w", pa.int64())]
)
ID: Final = "job:9"

Rows = dict[int, tuple[int, int | None]]


def merged(alive: range) -> dict[str, Rows]:
    """Returns the values of both tables after the transaction, if it is merged with some of the rows before it."""
    keys = [key for key in KEYS if key not in DELETED]
    return {
        PLAIN: dict.fromkeys(keys, (1, None)),
        PARTS: {key: (1, 100 if key in alive else None) for key in keys},
        SUMS: {key: (101 if key in alive else 1, 100 if key in alive else None) for key in keys},
    }


BEFORE: Final[Rows] = {key: (100, 100) for keys in WRITTEN.values() for key in keys}
AFTER: Final = merged(WRITTEN[70])
AFTER_RESTART: Final = merged(range(0))
"""After a transaction that begins only after the restart."""


def rows(keys: range, at: int, v: int, w: int | None) -> bytes:
    columns = {"k": keys[::-1], "at": [at] * len(keys), "v": [v] * len(keys), "w": [w] * len(keys)}
    return ipc_stream(SCHEMA, pa.RecordBatch.from_pydict(columns, schema=SCHEMA))


@asynccontextmanager
async def opened_at(data: Path, seconds: float) -> AsyncIterator[tuple[Tables, FakeClocks]]:
    """Opens the tables at a time of the time line."""
    clocks = FakeClocks()
    clocks.pass_time(seconds)
    async with opened(data, clocks) as tables:
        yield tables, clocks


async def make(data: Path) -> None:
    async with opened_at(data, 0) as (tables, clocks):
        sums = MergeSpec(aggregates=(ColumnAggregate("v", "sum"),))
        for name, options, merging, buckets in (
            (PLAIN, {"ttl_column": "at"}, None, 1),
            (PARTS, {"merge_engine": "partial_update", "ttl_column": "at"}, None, 2),
            (SUMS, {"merge_engine": "aggregate"}, sums, 1),
        ):
            options |= {"ttl_seconds": str(TTL), "delete_behavior": "allow"}
            indexes: Any = [["v"]]
            keys: Any = {"primary_key": ["k"], "bucket_key": [], "buckets": buckets, "indexes": indexes}
            await tables.create(name, SCHEMA, options=options, merging=merging, **keys)
        passed = 0
        for seconds, written in WRITTEN.items():
            clocks.pass_time(seconds - passed)
            passed = seconds
            for name in TABLES:
                await tables.table(name).writes.upsert(rows(written, START // 10**9 + seconds, 100, 100), 0)


async def begin_and_commit(tables: Tables, clocks: FakeClocks) -> None:
    """Runs a complete transaction; does nothing if its id is committed."""
    transactions = tables.transactions
    options = TransactionOptions(id=ID, attempt=os.urandom(8).hex(), finds_conflicts=False, ttl=TTL)
    begun = await transactions.begin(options)
    if not isinstance(begun, OpenTransaction):
        return
    requests = [(tables.table(name), UPSERT, rows(KEYS, LATER, 1, None)) for name in TABLES]
    requests += [(tables.table(name), DELETE, keys_of_all(DELETED)) for name in TABLES]
    for number, (table, action, data) in enumerate(requests):
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        await transactions.staging.stage(place, table, action, data, kind=MERGE)
    clocks.pass_time(COMMITTED - STAGED)
    await transactions.commit(begun.token, ID, [("main", len(requests))])


def keys_of_all(keys: tuple[int, ...]) -> bytes:
    schema = pa.schema([SCHEMA.field("k")])
    return ipc_stream(schema, pa.RecordBatch.from_pydict({"k": keys}, schema=schema))


async def commit_and_die(data: Path, steps: int) -> None:
    async with opened_at(data, STAGED) as (tables, clocks):
        DEATH.left = steps
        await begin_and_commit(tables, clocks)
        data.with_suffix(".acknowledged").touch()
        await tables.transactions._tasks.join()


async def recover_and_die(data: Path, steps: int) -> None:
    DEATH.left = steps
    async with opened_at(data, RESTARTED):
        pass


async def check(data: Path) -> None:
    """Checks that all or nothing is applied, with the rows that had not expired at the commit."""
    async with opened_at(data, RESTARTED) as (tables, clocks):
        found = {name: await contents(tables, name) for name in TABLES}
        nothing: dict[str, Rows] = {name: {} for name in TABLES}
        assert found == AFTER or (found == nothing and not data.with_suffix(".acknowledged").exists()), found
        # All rows before the transaction have expired, but they are still stored.
        for name in TABLES if found == nothing else ():
            assert await replayed(tables, name) == (BEFORE, 0)
        await begin_and_commit(tables, clocks)
        after = AFTER if found == AFTER else AFTER_RESTART
        assert {name: await contents(tables, name) for name in found} == after
        # A change of a row that had expired is a removal and an insert.
        updates = len({*WRITTEN[70]} - {*DELETED}) if found == AFTER else 0
        for name in TABLES:
            assert await replayed(tables, name) == (after[name], updates)
        if found == AFTER:
            # Rows that were written after the restart live from the commit, too.
            clocks.pass_time(EXPIRED - RESTARTED)
            assert {name: await contents(tables, name) for name in found} == {**AFTER, SUMS: {}}


async def contents(tables: Tables, name: str) -> Rows:
    """Returns the rows that readers see, after checking the buckets."""
    table = tables.table(name)
    for live in table.buckets:
        findings = await (await table.open_check(live.number)).run()
        assert not findings.problem, findings
        assert not any(index.problem for index in findings.indexes), findings
    batch, _, _ = await table.reads.lookup(keys_of(range(len(KEYS) + 5)), None)
    return {row["k"]: (row["v"], row["w"]) for row in batch.to_pylist()}


async def replayed(tables: Tables, name: str) -> tuple[Rows, int]:
    """Returns the rows of a strict reader of the changelog, which gets each change once, and the number of updates."""
    table, found, updates = tables.table(name), Rows(), 0
    for live in table.buckets:
        for record in records_of(await live.open(), table.definition):
            for kind, row in zip(record.changes.kinds.tolist(), record.changes.rows.to_pylist(), strict=True):
                value = row["v"], row["w"]
                if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
                    assert found.pop(row["k"]) == value
                else:
                    assert row["k"] not in found
                    found[row["k"]] = value
                updates += kind == RowKind.UPDATE_AFTER
    return found, updates


def main(directory: Path, stride: int) -> None:
    """Kills the commit at every step, or at those that a stride meets, and the recovery at some."""
    import_what_arrow_needs()
    DEATH.install()
    for module in (streaming_server.engine.transactions.roll_forward, streaming_server.engine.transactions.net_rows):
        setattr(module, "step_rows", lambda *_: 6)  # noqa: B010 (it is no export)
    assert in_child(make, directory / "made")
    deaths = 0
    for number in range(1000):
        steps = number * stride
        data = directory / f"commit-{steps}"
        shutil.copytree(directory / "made", data)
        ended = in_child(commit_and_die, data, steps)
        if not ended and number % 5 == 0:
            # The recovery dies, too, and the next one continues.
            deaths += not in_child(recover_and_die, data, steps // 2)
        in_child(check, data)
        shutil.rmtree(data)
        deaths += not ended
        if ended:
            print(deaths)  # noqa: T201
            return
    raise AssertionError("it never ends")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
