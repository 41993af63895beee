"""Writes whose answer never came, because the server was killed: done or not in each bucket, and once when repeated."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from aio_client import StartFrom, StopAt, connect
from tests.model.history import noted
from tests.model.model_table import ModelTable
from tests.model.offline_checks import check_stored_table
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from aio_client import Client, Table
    from tests.model.model_table import Row
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [("writer", pa.int64()), ("number", pa.int64()), ("version", pa.int64()), ("again", pa.list_(pa.int64()))]
)
WRITERS = 4
NUMBERS = 2000


class BatchWriter:
    """Upserts and deletes rows of its own, one batch after another.

    Attributes:
        number: The first column of all its keys.
        pending: The rows or keys of the batch that was not acknowledged.
        batches: How many were acknowledged.
    """

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.pending: pa.RecordBatch | list[Row] = []
        self.batches = 0
        self._random = random

    async def run(self, table: Table, model: ModelTable, until: asyncio.Event | None = None) -> None:
        """Writes until that happens, or it is cancelled."""
        while until is None or not until.is_set():
            self.pending = self._random_batch()
            await self.write(table)
            self.book(model)
            self.batches += 1

    async def write(self, table: Table) -> None:
        """Sends the batch, for the first time or again."""
        if isinstance(self.pending, pa.RecordBatch):
            await table.upsert(self.pending)
        else:
            await table.delete(self.pending)

    def book(self, model: ModelTable) -> None:
        """Does to the model what the batch does to the table."""
        if isinstance(self.pending, pa.RecordBatch):
            model.upsert(self.pending)
        else:
            model.delete(self.pending)

    def _random_batch(self) -> pa.RecordBatch | list[Row]:
        numbers = self._random.choices(range(NUMBERS), k=self._random.choice([10, 500, 1500]))
        if self._random.random() < 0.25:
            return [(self.number, number) for number in numbers]
        version = 1_000_000 * self.number + self.batches
        # Every column but the key says which batch the row is of.
        rows: list[dict[str, Any]] = [
            {"writer": self.number, "number": number, "version": version, "again": [version] * (version % 4)}
            for number in numbers
        ]
        return pa.RecordBatch.from_pylist(rows, SCHEMA)


async def killed_while_writing(
    server: ServerProcess, client: Client, table: Table, model: ModelTable, random: Random
) -> list[BatchWriter]:
    """Lets writers write, kills the server at a random moment, and starts it again."""
    writers = [BatchWriter(number, random) for number in range(WRITERS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(writer.run(table, model)) for writer in writers]
        ended, _ = await asyncio.wait(tasks, timeout=random.uniform(0.02, 0.4))
        assert not ended, "a write failed before the server was killed"
        server.kill()
        for task in tasks:
            task.cancel()
    await asyncio.to_thread(server.restart)
    await client.wait_ready()
    return writers


def check_whole_in_each_bucket(
    writer: BatchWriter, model: ModelTable, after: ModelTable, found: dict[Row, Row]
) -> None:
    """The writer's rows of each bucket must be those before its unacknowledged batch or those after it."""
    for bucket in range(model.buckets):
        before, there, then = (
            {key: row for key, row in rows.items() if key[0] == writer.number and model.bucket_of(key) == bucket}
            for rows in (model.rows, found, after.rows)
        )
        assert there in (before, then), f"bucket {bucket} has a part of the last batch of writer {writer.number}"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), *(pytest.param(seed, 20, marks=pytest.mark.soak) for seed in range(2, 8))]
)
async def test_an_unacknowledged_write_is_whole_in_each_bucket_and_done_once_when_repeated(
    server: ServerProcess, seed: int, kills: int
) -> None:
    random = Random(seed)
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            table = await client.create_table("test.retries", SCHEMA, primary_key=["writer", "number"], buckets=4)
            model = ModelTable(table)
            for kill in range(kills):
                with noted(f"kill {kill}"):
                    writers = await killed_while_writing(server, client, table, model, random)
                    await check_and_repeat(table, model, writers)
        assert server.stop() == 0
        check_stored_table(server.data_dir, table.name, model)


async def check_and_repeat(table: Table, model: ModelTable, writers: list[BatchWriter]) -> None:
    """Looks at what became of the unacknowledged batches, and sends each again."""
    found = model.by_key(await table.scan().to_arrow())
    for writer in writers:
        after = ModelTable(table)
        after.rows = dict(model.rows)
        writer.book(after)
        check_whole_in_each_bucket(writer, model, after, found)
        await writer.write(table)
        writer.book(model)
    assert model.by_key(await table.scan().to_arrow()) == model.rows


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), *(pytest.param(seed, 20, marks=pytest.mark.soak) for seed in range(2, 8))]
)
async def test_writes_go_on_over_kills_of_the_server_and_each_is_applied_once(
    server: ServerProcess, seed: int, kills: int
) -> None:
    random = Random(seed)
    with noted(f"seed {seed}"):
        async with connect(server.url, operation_timeout=300) as client:
            # Each application of an upsert is a change, also of a row that is the same already.
            table = await client.create_table(
                "test.once", SCHEMA, primary_key=["writer", "number"], buckets=4, row_deduplicate=False
            )
            model = ModelTable(table)
            writers = [BatchWriter(number, random) for number in range(WRITERS)]
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(writer.run(table, model, enough)) for writer in writers]
                for _ in range(kills):
                    before = [writer.batches for writer in writers]
                    await await_until(partial(_all_went_on, writers, before), "all wrote", timeout=120)
                    await asyncio.wait(tasks, timeout=random.uniform(0, 0.3))
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.restart)
                enough.set()
            assert model.by_key(await table.scan().to_arrow()) == model.rows
            await check_applied_once(table)
        assert server.stop() == 0
        check_stored_table(server.data_dir, table.name, model)


async def check_applied_once(table: Table) -> None:
    """Every upsert has its own version, so no two changes may make the same row of it."""
    changes = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow()
    made = changes.filter(pc.is_in(changes["_change_type"], value_set=pa.array(["+I", "+U"])))
    times = made.group_by(["writer", "number", "version"]).aggregate([([], "count_all")])
    assert pc.max(times["count_all"]).as_py() == 1


async def _all_went_on(writers: list[BatchWriter], before: list[int]) -> bool:
    return all(writer.batches > batches for writer, batches in zip(writers, before, strict=True))
