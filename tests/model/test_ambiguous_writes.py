"""Writes without a response because of a kill are applied or not in each bucket, and once after a repetition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
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
from tests.support.evolved import create_evolved_table
from tests.support.table_kinds import TableKind
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from aio_client import Client, Table
    from tests.model.model_table import Row
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [
        pa.field("writer", pa.int64(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        ("version", pa.int64()),
        ("again", pa.list_(pa.int64())),
    ]
)
WRITERS = 4
NUMBERS = 2000


@dataclass(frozen=True)
class Case:
    """A history: its random seed, how often the server is killed, and the kind of its table."""

    seed: int
    kills: int
    kind: TableKind

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.seed}-{self.kills}"

    async def create(self, client: Client, name: str, **options: Any) -> Table:
        """Creates the table. A partition is the rows of one writer."""
        options |= {"primary_key": ["writer", "number"], "buckets": 4}
        match self.kind:
            case TableKind.EVOLVED:
                return await create_evolved_table(client, name, SCHEMA, **options)
            case TableKind.PARTITIONED:
                options |= {"partition_by": ["writer"], "ttl_seconds": 2_000_000_000}
        return await client.create_table(name, SCHEMA, **options)


_SHORT = [Case(1, 1, TableKind.PLAIN), Case(8, 1, TableKind.EVOLVED), Case(9, 1, TableKind.PARTITIONED)]
_LONG = [
    *(Case(seed, 20, TableKind.PLAIN) for seed in range(2, 8)),
    *(Case(10, 20, kind) for kind in (TableKind.EVOLVED, TableKind.PARTITIONED)),
]
every_case = pytest.mark.parametrize(
    "case", [*_SHORT, *(pytest.param(case, marks=pytest.mark.soak) for case in _LONG)], ids=str
)


class BatchWriter:
    """Upserts and deletes its own rows, one batch after another.

    Attributes:
        number: The first column of all its keys.
        pending: The rows or keys of the unacknowledged batch.
        batches: The number of acknowledged batches.
    """

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.pending: pa.RecordBatch | list[Row] = []
        self.batches = 0
        self._random = random

    async def run(self, table: Table, model: ModelTable, until: asyncio.Event | None = None) -> None:
        """Writes until an event is set, or cancelled."""
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
        """Applies the batch to the model."""
        if isinstance(self.pending, pa.RecordBatch):
            model.upsert(self.pending)
        else:
            model.delete(self.pending)

    def _random_batch(self) -> pa.RecordBatch | list[Row]:
        numbers = self._random.choices(range(NUMBERS), k=self._random.choice([10, 500, 1500]))
        if self._random.random() < 0.25:
            return [(self.number, number) for number in numbers]
        version = 1_000_000 * self.number + self.batches
        # Every column but the key identifies the batch.
        rows: list[dict[str, Any]] = [
            {"writer": self.number, "number": number, "version": version, "again": [version] * (version % 4)}
            for number in numbers
        ]
        return pa.RecordBatch.from_pylist(rows, SCHEMA)


async def killed_while_writing(
    server: ServerProcess, client: Client, table: Table, model: ModelTable, random: Random
) -> list[BatchWriter]:
    """Runs writers, kills the server at a random moment, and starts it again."""
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
    """Checks that the writer's rows in each bucket are those before or those after its unacknowledged batch."""
    for bucket in range(model.buckets):
        before, there, then = (
            {key: row for key, row in rows.items() if key[0] == writer.number and model.bucket_of(key) == bucket}
            for rows in (model.rows, found, after.rows)
        )
        assert there in (before, then), f"bucket {bucket} has a part of the last batch of writer {writer.number}"


@pytest.mark.asyncio
@every_case
async def test_an_unacknowledged_write_is_complete_or_absent_in_each_bucket_and_applied_once_when_repeated(
    server: ServerProcess, case: Case
) -> None:
    random = Random(case.seed)
    with noted(str(case)):
        async with connect(server.url) as client:
            table = await case.create(client, "test.retries")
            model = ModelTable(table)
            for kill in range(case.kills):
                with noted(f"kill {kill}"):
                    writers = await killed_while_writing(server, client, table, model, random)
                    await check_and_repeat(table, model, writers)
        assert server.stop() == 0
        check_stored_table(server.data_dir, table.name, model)


async def check_and_repeat(table: Table, model: ModelTable, writers: list[BatchWriter]) -> None:
    """Checks the effect of the unacknowledged batches, and sends each again."""
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
@every_case
async def test_writes_continue_over_kills_of_the_server_and_each_is_applied_once(
    server: ServerProcess, case: Case
) -> None:
    random = Random(case.seed)
    with noted(str(case)):
        async with connect(server.url, operation_timeout=300) as client:
            # Each application of an upsert is a change, even if the row stays the same.
            table = await case.create(client, "test.once", row_deduplicate=False)
            model = ModelTable(table)
            writers = [BatchWriter(number, random) for number in range(WRITERS)]
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(writer.run(table, model, enough)) for writer in writers]
                for _ in range(case.kills):
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
    """Checks that no two changes produce the same row. Every upsert has its own version."""
    changes = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow()
    made = changes.filter(pc.is_in(changes["_change_type"], value_set=pa.array(["+I", "+U"])))
    times = made.group_by(["writer", "number", "version"]).aggregate([([], "count_all")])
    assert pc.max(times["count_all"]).as_py() == 1


async def _all_went_on(writers: list[BatchWriter], before: list[int]) -> bool:
    return all(writer.batches > batches for writer, batches in zip(writers, before, strict=True))
