"""After repeated kills during writes, every acknowledged write exists and the rows agree with the changelog."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import Table, connect
from tests.support.offline import check_bucket, offline_table

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
WRITERS = 6
KEYS_EACH = 400


@dataclass
class KeyWriter:
    """A writer with its own keys, and their expected values.

    Attributes:
        acknowledged: The value of each key after the last acknowledged write; None if it was deleted.
        in_doubt: The values that keys have if the unacknowledged write was applied.
    """

    number: int
    rng: random.Random
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    in_doubt: dict[int, int | None] = field(default_factory=dict)
    writes: int = 0

    async def write_until_cancelled(self, table: Table) -> None:
        """Writes without pause until cancelled. The cancelled write is in doubt."""
        while True:
            size = self.rng.choice([1, 1, 5, 50, KEYS_EACH])
            keys = [self.number + WRITERS * self.rng.randrange(KEYS_EACH) for _ in range(size)]
            self.writes += 1
            deletes = self.rng.random() < 0.25
            self.in_doubt = dict.fromkeys(keys, None if deletes else self.writes)
            if deletes:
                await table.delete(keys)
            else:
                rows = {"k": keys, "v": [self.writes] * size, "text": [f"{self.writes}" * 20] * size}
                await table.upsert(pa.table(rows, schema=SCHEMA))
            self.acknowledged |= self.in_doubt
            self.in_doubt = {}

    def check(self, found: dict[int, int]) -> None:
        """Compares the server's state with the acknowledged one, and continues with the server's state."""
        mine = {key: value for key, value in found.items() if key % WRITERS == self.number}
        for key in self.acknowledged.keys() | self.in_doubt.keys() | mine.keys():
            allowed = {self.acknowledged.get(key), self.in_doubt.get(key, self.acknowledged.get(key))}
            assert mine.get(key) in allowed, f"key {key} is {mine.get(key)}, acknowledged was one of {allowed}"
        self.acknowledged = dict.fromkeys(self.acknowledged.keys() | self.in_doubt.keys()) | dict(mine)
        self.in_doubt = {}


@pytest.mark.parametrize("kills", [3, pytest.param(80, marks=pytest.mark.soak)])
async def test_every_acknowledged_write_survives_kills_during_writes(server: ServerProcess, kills: int) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    writers = [KeyWriter(number, random.Random(f"{seed} {number}")) for number in range(WRITERS)]
    try:
        async with connect(server.url) as client:
            await client.create_table("test.killed", SCHEMA, primary_key=["k"], buckets=3)
        for round_ in range(kills):
            async with connect(server.url) as client:
                table = await client.table("test.killed")
                found = (await table.scan().to_arrow()).to_pydict()
                rows = dict(zip(found["k"], found["v"], strict=True))
                assert len(rows) == len(found["k"]) == await table.count()
                for writer in writers:
                    writer.check(rows)
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(writer.write_until_cancelled(table)) for writer in writers]
                    await asyncio.sleep(rng.uniform(0.02, 0.6))
                    await asyncio.to_thread(server.kill)
                    for task in tasks:
                        task.cancel()
            if round_ % 3 == 2:
                check_all_buckets(server)
            server.restart()
        async with connect(server.url) as client:
            found = (await (await client.table("test.killed")).scan().to_arrow()).to_pydict()
            for writer in writers:
                writer.check(dict(zip(found["k"], found["v"], strict=True)))
        assert server.stop() == 0
        check_all_buckets(server)
        assert min(writer.writes for writer in writers) > kills
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def check_all_buckets(server: ServerProcess) -> None:
    """Checks that rows and changelog agree in every bucket of the stopped server."""
    with offline_table(server.data_dir, "test.killed") as buckets:
        for bucket in buckets:
            check_bucket(bucket)
