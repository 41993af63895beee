"""In random histories of transactions, writes and kills, each transaction is applied once in all tables, or never."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, agg, connect
from tests.model.history import noted
from tests.support.offline import check_bucket, offline_table
from tests.support.table_kinds import TableKind
from tests.support.workers import names_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
WRITERS, KEYS = 3, 400


@dataclass
class NumberedWriter:
    """Writes its keys in one table, all with the number of the transaction, and adds one to its key in another table.

    Attributes:
        kind: The kind of both tables.
        begun: The number of the last begun transaction.
        done: The number of the last committed transaction.
    """

    number: int
    rng: random.Random
    kind: TableKind
    begun: int = 0
    done: int = 0

    async def write(self, client: Client, rows: Table, counts: Table, until: asyncio.Event) -> None:
        """Writes transactions during restarts of the server until an event is set."""
        while not until.is_set():
            if self.begun == self.done:
                self.begun += 1
            keys = range(self.number, WRITERS * KEYS, WRITERS)
            batch = [self.kind.row({"k": key, "v": self.begun}) for key in keys]
            # Nothing else writes these keys.
            async with client.transaction(id=f"writer {self.number}:{self.begun}", conflict="abort") as tx:
                cut = self.rng.randrange(1, KEYS)
                await tx.upsert(rows, batch[:cut])
                await tx.upsert(counts, [self.kind.row({"k": self.number, "v": 1})])
                if self.rng.random() < 0.2:
                    await tx.delete(rows, [self.kind.key(key) for key in keys])
                    cut = 0
                await tx.upsert(rows, batch[cut:])
                if self.rng.random() < 0.2:
                    # Begins again as a restarted process would.
                    continue
            self.done = self.begun

    def values(self, rows: Mapping[int, int]) -> set[int]:
        """Returns the numbers that its keys have."""
        return {value for key, value in rows.items() if key >= 0 and key % WRITERS == self.number}


async def contents(table: Table) -> dict[int, int]:
    found = (await table.scan().to_arrow()).to_pydict()
    return dict(zip(found["k"], found["v"], strict=True))


async def write_plainly(kind: TableKind, rows: Table, counts: Table, until: asyncio.Event) -> int:
    """Writes other keys of the same buckets. Returns the number of writes."""
    number = 0
    while not until.is_set():
        number += 1
        await rows.upsert([kind.row({"k": -key, "v": number}) for key in range(1, 30)])
        await counts.upsert([kind.row({"k": -1, "v": 1})])
    return number


async def watch(kind: TableKind, rows: Table, writers: Sequence[NumberedWriter], until: asyncio.Event) -> None:
    """Checks that each writer's keys always have the same number, which never decreases."""
    seen = dict.fromkeys(range(WRITERS), 0)
    while not until.is_set():
        # Reads fail while the server is restarting; later reads check again.
        with suppress(ConnectionFailed):
            looked = (await rows.lookup([kind.key(key) for key in range(0, WRITERS * KEYS, 7)])).to_pydict()
            for found in (dict(zip(looked["k"], looked["v"], strict=True)), await contents(rows)):
                for writer in writers:
                    values = writer.values(found)
                    assert len(values) <= 1, f"writer {writer.number} has {values}"
                    value = max(values, default=0)
                    assert value >= seen[writer.number]
                    seen[writer.number] = value


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        (TableKind.PLAIN, 1),
        (TableKind.EVOLVED, 1),
        (TableKind.PARTITIONED, 1),
        *(pytest.param(kind, 60, marks=pytest.mark.soak) for kind in TableKind),
    ],
)
async def test_transactions_are_applied_completely_and_once_over_kills_at_any_moment(
    server: ServerProcess, kind: TableKind, kills: int
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    writers = [NumberedWriter(number, random.Random(f"{seed} {number}"), kind) for number in range(WRITERS)]
    names, sums = names_together("test.rows", "test.counts"), {"v": agg.sum()}
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            rows = await kind.create(client, names[0], SCHEMA, buckets=3)
            counts = await kind.create(client, names[1], SCHEMA, buckets=2, merge_engine="aggregate", aggregators=sums)
            until = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.write(client, rows, counts, until))
                plain = group.create_task(write_plainly(kind, rows, counts, until))
                group.create_task(watch(kind, rows, writers, until))
                for _ in range(kills):
                    await asyncio.sleep(rng.uniform(0.2, 1.2))
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.restart)
                until.set()
            found, counted = await contents(rows), await contents(counts)
            for writer in writers:
                value = max(writer.values(found), default=0)
                # A transaction that was begun again may or may not be committed.
                assert value in (writer.done, writer.begun)
                assert counted.get(writer.number, 0) == value
            assert counted[-1] == plain.result() == found[-1]
        assert server.stop() == 0
        with offline_table(server.data_dir, names[0]) as buckets:
            for bucket in buckets:
                check_bucket(bucket)
        assert "DATA_LOSS" not in server.log
        assert "incident" not in server.log
