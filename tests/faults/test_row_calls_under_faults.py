"""Many callers get, look up, write and delete single rows while faults happen; what they see must fit a model."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, DeadlineExceeded, ScanKvError, SchemaMismatch, Unavailable, connect
from aio_client.testing import Fault, FaultProxy
from tests.support.examples import seeds
from tests.support.noted import noted

if TYPE_CHECKING:
    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA: Final = pa.schema(
    [("k", pa.int64()), pa.field("owner", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())]
)
CALLERS: Final = 64
KEYS_EACH: Final = 3
CALLS: Final = 25
UNSURE: Final = (ConnectionFailed, DeadlineExceeded, Unavailable)
"""The errors after which a write may have been applied."""


class FaultyCaller:
    """Makes one call after another on keys of its own, and knows which values each key may have.

    Attributes:
        possible: The values that each key may have. Several: a write was cancelled or ended without an answer.
        calls: The number of calls that it has finished.
    """

    def __init__(self, number: int, seed: int, tables: list[Table], client: Client) -> None:
        self.keys = [number * KEYS_EACH + n for n in range(KEYS_EACH)]
        self.calls = 0
        self.possible: dict[int, set[int | None]] = {key: {None} for key in self.keys}
        self._number = number
        self._random = random.Random(f"{seed} {number}")
        self._tables = tables
        self._client = client
        self._written = 0
        self._unsure: set[int] = set()

    async def run(self) -> None:
        """Makes its calls, some of which are cancelled."""
        for self.calls in range(CALLS):
            chance = self._random.random()
            key = self._random.choice(self.keys)
            if chance < 0.35:
                await self._read(key)
            elif chance < 0.45:
                await self._write_refused(key)
            elif chance < 0.5:
                await self._write_in_transaction(key)
            else:
                await self._write(key)

    @property
    def _table(self) -> Table:
        return self._random.choice(self._tables)

    async def _read(self, key: int) -> None:
        table, form = self._table, self._random.randrange(4)
        try:
            if form < 2:
                row = await table.get(key)
            elif form == 2:
                row = (await table.lookup([key], missing="null")).to_pylist()[0]
                row = row if row["owner"] is not None else None
            else:
                others = self._random.sample(range(CALLERS * KEYS_EACH), 5)
                found = (await table.lookup([*others, key], with_version=True)).rows.to_pylist()
                row = next((row for row in found[::-1] if row["k"] == key), None)
        except UNSURE:
            return
        self.check(key, row)

    def check(self, key: int, row: dict[str, Any] | None) -> None:
        """Compares a row with the model, which learns nothing: a write in doubt may still be on its way."""
        value = None if row is None else row["v"]
        assert value in self.possible[key], f"key {key} is {value}, not one of {self.possible[key]}"
        if row is not None:
            assert row["owner"] == self._number
            assert row["text"] == f"t{value}", "columns of two writes are mixed"

    async def _write_refused(self, key: int) -> None:
        """Makes a write that no server applies, next to those of the other callers."""
        row = {"k": key, "owner": None if self._random.random() < 0.5 else "x", "v": -1, "text": "refused"}
        with pytest.raises((SchemaMismatch, *UNSURE)):
            await self._table.upsert([row])

    async def _write(self, key: int) -> None:
        value = self._next()
        deletes = self._random.random() < 0.3
        call = self._table.delete(key) if deletes else self._table.upsert([self._row(key, value)])
        await self._apply(key, None if deletes else value, asyncio.ensure_future(call))

    async def _write_in_transaction(self, key: int) -> None:
        value, table = self._next(), self._table

        async def commit() -> None:
            async with self._client.transaction() as transaction:
                await transaction.upsert(table, [self._row(key, value)])

        await self._apply(key, value, asyncio.ensure_future(commit()))

    async def _apply(self, key: int, value: int | None, write: asyncio.Future[Any]) -> None:
        before = self.possible[key]
        self.possible[key] = before | {value}
        if self._random.random() < 0.1:
            for _ in range(self._random.randrange(60)):
                await asyncio.sleep(0)
            write.cancel()
        await asyncio.wait([write])
        if write.cancelled():
            self._abandon(key)
            return
        error = write.exception()
        if error is None:
            if key not in self._unsure:
                self.possible[key] = {value}
        elif isinstance(error, UNSURE):
            self._abandon(key)
        else:
            assert isinstance(error, ScanKvError)
            raise error

    def _abandon(self, key: int) -> None:
        """From now on the key may have any of its values: a write without an answer may be applied after later ones."""
        self._unsure.add(key)
        if len(self.keys) > 1:
            self.keys.remove(key)

    def _next(self) -> int:
        self._written += 1
        return self._number * 1_000 + self._written

    def _row(self, key: int, value: int) -> dict[str, Any]:
        return {"k": key, "owner": self._number, "v": value, "text": f"t{value}"}


@seeds(2)
@pytest.mark.breadth
async def test_calls_of_single_rows_fit_a_model_under_kills_cuts_and_added_columns(
    server: ServerProcess, seed: int
) -> None:
    chance = random.Random(seed)
    with noted(f"seed {seed}"):
        async with connect(server.url) as admin:
            await admin.create_table("test.rows", SCHEMA, primary_key=["k"], buckets=chance.choice([1, 4]))
            async with FaultProxy(server.url, seed=seed) as proxy, connect(proxy.address) as client:
                # Several objects, so that a change of the table is found out by some calls later than by others.
                tables = [await client.table("test.rows") for _ in range(2)]
                callers = [FaultyCaller(number, seed, tables, client) for number in range(CALLERS)]
                async with asyncio.TaskGroup() as group:
                    for caller in callers:
                        group.create_task(caller.run())
                    for step, calls in enumerate(range(2, CALLS, 4)):
                        while sum(caller.calls for caller in callers) < calls * CALLERS:
                            with suppress(*UNSURE):
                                await tables[0].get(step)
                        # Some bytes later: the faults follow the calls, not the clock.
                        proxy.apply(Fault(chance.choice(["cut", "reset"]), chance.randrange(5_000)))
                        if step == 1:
                            await admin.alter_table("test.rows", add_columns=pa.schema([("more", pa.int64())]))
                        if step in (2, 4):
                            await asyncio.to_thread(server.kill)
                            await asyncio.to_thread(server.restart)
                            await admin.wait_ready()
            table = await admin.table("test.rows")
            rows = {row["k"]: row for row in await table.scan().to_pylist()}
            for caller in callers:
                for key in caller.possible:
                    caller.check(key, rows.get(key))
                    assert await table.get(key) == rows.get(key)
