"""Commits a transaction and kills the process at each step on disk in turn, then checks what is left.

Run as `python -m tests.support.dying_transaction DIRECTORY STRIDE`. Each death happens in its own process. It is forked
from this one while that has only one thread, so that nothing has to be imported again. Prints the number of deaths.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pathlib
import shutil
import signal
import sys
import traceback
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import streaming_server.engine.transactions.delete_all
import streaming_server.engine.transactions.net_rows
import streaming_server.engine.transactions.roll_forward
import streaming_server.storage.transactions.staging
import streaming_server.storage.transactions.transaction_log
from scankv.cli.without_pandas import keep_pandas_out
from scankv.model.tables.merge_functions import ColumnAggregate
from scankv.model.tables.merge_spec import MergeSpec
from streaming_server.config import ServerConfig
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.transactions.staging import DELETE, UPSERT, PartFile, StagingDirectory
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.offline import records_of
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from streaming_server.clock import MachineClocks

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
PLAIN, SUMS = "test.plain", "test.sums"
BEFORE = {PLAIN: dict.fromkeys(range(20), 0), SUMS: dict.fromkeys(range(4), 100)}
AFTER = {PLAIN: {**dict.fromkeys(range(30), 1), **dict.fromkeys(range(25, 35), 2)}, SUMS: dict.fromkeys(range(4), 110)}
for _key in range(5):
    del AFTER[PLAIN][_key]
ID = "job:7"
_STEP_ROWS = 5


def rows(keys: range, value: int) -> bytes:
    # In the reverse of the key order, in which a commit applies them.
    columns = [pa.array(keys[::-1], pa.int64()), pa.repeat(pa.scalar(value, pa.int64()), len(keys))]
    return ipc_stream(SCHEMA, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def keys_of(keys: range) -> bytes:
    schema = pa.schema([SCHEMA.field("k")])
    return ipc_stream(schema, pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], schema=schema))


class Death:
    """Kills the process at a given step, or counts the steps."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> bool:
        """Counts a step, and returns whether it is the one to die at."""
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Wraps writes, syncs and removals, so that each of them is a step."""
        for owner, name in (
            (RocksStore, "write"),
            (RocksStore, "sync"),
            (TransactionLog, "append"),
            (TransactionLog, "rewrite"),
            (PartFile, "sync"),
            (StagingDirectory, "create"),
            (StagingDirectory, "sync"),
            (StagingDirectory, "remove"),
            (pathlib.Path, "unlink"),
            (pathlib.Path, "rename"),
            (shutil, "rmtree"),
            (os, "fsync"),
        ):
            self.wrap(owner, name)
        for module in (
            streaming_server.storage.transactions.staging,
            streaming_server.storage.transactions.transaction_log,
        ):
            self._tear(module)

    def wrap(self, owner: Any, name: str) -> None:
        """Makes each call of a method a step."""
        original = getattr(owner, name)

        def stepping(*args: Any, **options: Any) -> Any:
            if self.step():
                self.die()
            return original(*args, **options)

        setattr(owner, name, stepping)

    def _tear(self, module: Any) -> None:
        original = module.write_at

        def stepping(path: Path, data: bytes, offset: int, *, sync: bool) -> None:
            if data and self.step():
                original(path, data[: len(data) // 2], offset, sync=False)
                self.die()
            original(path, data, offset, sync=sync)

        module.write_at = stepping


DEATH = Death()


@asynccontextmanager
async def opened(data: Path, clocks: MachineClocks | None = None) -> AsyncIterator[Tables]:
    config = ServerConfig(data=data, block_cache_bytes=1 << 20, storage_threads=2, sweep_seconds=3600)
    tables = Tables(config, clocks=clocks)
    try:
        await tables.recover()
        yield tables
    finally:
        DEATH.left = None
        await tables.close()


async def make(data: Path) -> None:
    async with opened(data) as tables:
        sums = MergeSpec(aggregates=(ColumnAggregate("v", "sum"),))
        for name, options, merging, indexes in (
            (PLAIN, {"row_deduplicate": "false"}, None, [["v"]]),
            (SUMS, {"merge_engine": "aggregate"}, sums, []),
        ):
            await tables.create(
                name,
                SCHEMA,
                primary_key=["k"],
                bucket_key=[],
                buckets=2 if name == PLAIN else 1,
                options=options,
                indexes=indexes,
                merging=merging,
            )
            value = BEFORE[name][0]
            await tables.table(name).writes.upsert(rows(range(len(BEFORE[name])), value), 0)


async def begin_and_commit(tables: Tables) -> None:
    """Runs a complete transaction; does nothing if its id is committed."""
    transactions = tables.transactions
    begun = await transactions.begin(
        TransactionOptions(id=ID, attempt=os.urandom(8).hex(), finds_conflicts=False, ttl=60)
    )
    if not isinstance(begun, OpenTransaction):
        return
    plain, sums = tables.table(PLAIN), tables.table(SUMS)
    # Rows that are staged already are written or deleted again, which leaves the net changes the same.
    first = StagedRequestId(token=begun.token, part="main", sequence=0)
    assert await transactions.staging.stage_delete_all(first, plain, MERGE, (), 60) == len(BEFORE[PLAIN])
    for number, (table, action, data) in enumerate(
        (
            (plain, UPSERT, rows(range(30), 1)),
            (sums, UPSERT, rows(range(4), 3)),
            (plain, DELETE, keys_of(range(5))),
            (sums, UPSERT, rows(range(4), 7)),
            (plain, UPSERT, rows(range(25, 35), 2)),
        ),
        start=1,
    ):
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        await transactions.staging.stage(place, table, action, data, kind=MERGE)
    place = StagedRequestId(token=begun.token, part="failed attempt", sequence=0)
    await transactions.staging.stage(place, plain, UPSERT, rows(range(50), 666), kind=MERGE)
    await transactions.commit(begun.token, ID, [("main", 6)])


async def commit_and_die(data: Path, steps: int) -> None:
    async with opened(data) as tables:
        DEATH.left = steps
        await begin_and_commit(tables)
        data.with_suffix(".acknowledged").touch()
        # The rest is applied in the background.
        await tables.transactions._tasks.join()


async def recover_and_die(data: Path, steps: int) -> None:
    DEATH.left = steps
    async with opened(data):
        pass


async def check(data: Path) -> None:
    """Checks that all or nothing is applied, all if it was acknowledged, and all exactly once after a repetition."""
    async with opened(data) as tables:
        found = {name: await contents(tables, name) for name in BEFORE}
        assert found == AFTER or (found == BEFORE and not data.with_suffix(".acknowledged").exists()), found
        await begin_and_commit(tables)
        assert {name: await contents(tables, name) for name in BEFORE} == AFTER
        assert not tables.transactions.open
    # Only the transaction log is left of it.
    left = sorted(path.name for path in (data / "transactions").iterdir())
    assert len(left) == 2, left


async def contents(tables: Tables, name: str) -> dict[int, int]:
    """Returns the rows, after checking that changelog and index agree with them and have each change once."""
    table = tables.table(name)
    replayed: dict[int, int] = {}
    changes = 0
    for live in table.buckets:
        bucket = await live.open()
        for record in records_of(bucket, table.definition):
            for kind, row in zip(record.changes.kinds.tolist(), record.changes.rows.to_pylist(), strict=True):
                if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
                    assert replayed.pop(row["k"]) == row["v"]
                else:
                    assert replayed.setdefault(row["k"], row["v"]) == row["v"]
            changes += len(record.changes)
        findings = await (await table.open_check(live.number)).run()
        assert not findings.problem, findings
        assert not any(index.problem for index in findings.indexes), findings
    batch, is_there, _ = await table.reads.lookup(keys_of(range(60)), None)
    found = {row["k"]: row["v"] for row in batch.to_pylist()}
    assert sum(is_there) == len(found)
    assert replayed == found
    assert changes == CHANGES[name][found == AFTER[name]], changes
    return found


CHANGES = {
    # 20 inserted; then, net, 5 deleted, 15 changed, and 15 inserted.
    PLAIN: {False: 20, True: 20 + 5 + 2 * 15 + 15},
    SUMS: {False: 4, True: 4 + 2 * 4},
}


def import_what_arrow_needs() -> None:
    """Imports what Arrow needs for conversions. Otherwise each forked child would import it again, with pandas."""
    keep_pandas_out()
    for module in ("numpy.ma", "dateutil.relativedelta"):
        importlib.import_module(module)


def in_child(work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> bool:
    """Runs a function in a forked process. Returns whether it finished without being killed."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work(*args))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    if os.WEXITSTATUS(status):
        raise SystemExit(f"{work.__name__}{args} has failed")
    return True


def main(directory: Path, stride: int) -> None:
    """Kills the commit at every step that the stride meets, and the recovery at some."""
    import_what_arrow_needs()
    DEATH.install()
    for limit, value in (("_STEP_ROWS", 5), ("_PIECE_ROWS", 7)):
        setattr(streaming_server.engine.transactions.delete_all, limit, value)
    for module in (streaming_server.engine.transactions.roll_forward, streaming_server.engine.transactions.net_rows):
        setattr(module, "step_rows", lambda *_: _STEP_ROWS)  # noqa: B010 (it is no export)
    in_child(make, directory / "made")
    deaths, ended = 0, False
    for number, steps in enumerate(range(0, 1000, stride)):
        data = directory / f"commit-{steps}"
        shutil.copytree(directory / "made", data)
        ended = in_child(commit_and_die, data, steps)
        if number % 5 == 0 and not ended:
            deaths += die_recovering(data, directory / f"again-{steps}", steps, stride)
        in_child(check, data)
        shutil.rmtree(data)
        deaths += not ended
        if ended:
            break
    assert ended
    print(deaths)  # noqa: T201


def die_recovering(killed: Path, data: Path, first: int, stride: int) -> int:
    """Kills the recovery of a killed server at some of its steps, too. Returns the number of deaths."""
    for deaths, steps in enumerate(range(first % 4, 1000, 4 * stride)):
        shutil.copytree(killed, data)
        if killed.with_suffix(".acknowledged").exists():
            data.with_suffix(".acknowledged").touch()
        ended = in_child(recover_and_die, data, steps)
        in_child(check, data)
        shutil.rmtree(data)
        if ended:
            return deaths
    raise AssertionError("a recovery does not end")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
