"""Indexes are built during writes and kills of the server, and no index is used before it is complete."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ScanKvError, col, connect
from tests.model.index_oracle import Answers
from tests.support.noted import noted
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from aio_client import Client, Predicate, Table
    from tests.model.index_oracle import Truth
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("score", pa.float64()),
        ("league", pa.string()),
        ("day", pa.int32()),
        ("note", pa.string()),
    ]
)
INDEXES: list[tuple[str, ...]] = [("score",), ("league", "score"), ("day",), ("day", "league", "id")]
SCORES = [None, float("nan"), -0.0, 0.0, float("inf")]
LEAGUES = [None, "", "a", "a\x00", "b", "ä"]


def random_rows(random: Random, ids: list[int]) -> pa.RecordBatch:
    """Returns rows with these ids. Most scores occur in many rows, and most days in few."""
    rows: list[dict[str, Any]] = [
        {
            "id": number,
            "score": random.choice(SCORES) if random.random() < 0.1 else float(random.randrange(500)),
            "league": random.choice(LEAGUES),
            "day": random.choice([None, random.randrange(2000), random.randrange(2000)]),
            "note": "note " * random.randrange(4),
        }
        for number in ids
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


class Builds:
    """Adds and drops indexes of a table during writes, and sometimes kills the server.

    Attributes:
        seen: The numbers of queries before and after an index was ready, and of kills.
    """

    def __init__(self, server: ServerProcess, client: Client, table: Table, random: Random, rows: int) -> None:
        self.seen: Counter[str] = Counter()
        self._server = server
        self._client = client
        self._table = table
        self._random = random
        self._rows = rows
        self._writing = True

    async def run(self, rounds: int) -> None:
        """Builds one index in each round, and drops it again unless it is one of the first two."""
        await self._table.upsert(random_rows(self._random, list(range(self._rows))))
        for number in range(rounds):
            index = INDEXES[number % len(INDEXES)]
            with noted(f"round {number}, index {index}"):
                if index in self._table.indexes:
                    self._table = await self._client.alter_table(self._table.name, drop_indexes=[index])
                    await self.check_all()
                await self._build(index)
                await self.check_all()

    async def _build(self, index: tuple[str, ...]) -> None:
        """Adds an index. Until it is ready, another task writes, and the server is killed or drained once or twice."""
        self._writing = True
        writer = asyncio.create_task(self._write())
        self._table = await self._client.alter_table(self._table.name, add_indexes=[index], wait=False)
        await self._ask(index)
        await self._restart()
        again = self._random.random() < 0.3
        while not await self._ask(index):
            if again:
                again = False
                await self._restart()
        self._writing = False
        await writer

    async def _write(self) -> None:
        """Upserts and deletes rows. A request that runs during a kill may or may not be applied."""
        while self._writing:
            ids = self._random.sample(range(self._rows + 500), self._random.choice([1, 20, 300]))
            try:
                if self._random.random() < 0.3:
                    await self._table.delete(ids)
                else:
                    await self._table.upsert(random_rows(self._random, ids))
            except ScanKvError:
                self.seen["writes cut off"] += 1
                await self._client.wait_ready()

    async def _restart(self) -> None:
        if self._random.random() < 0.3:
            assert await asyncio.to_thread(self._server.stop) == 0
        else:
            self._server.kill()
        self.seen["restarts"] += 1
        await asyncio.to_thread(self._server.restart)
        await self._client.wait_ready()

    async def _ask(self, index: tuple[str, ...]) -> bool:
        """Runs a query and returns whether the index is ready. Checks that only a ready index is used."""
        where = _points(self._random, _without_key(index))[0]
        before = await self._is_ready(index)
        used = (await self._table.scan(where=where).explain()).index
        rows = await self._table.scan(where=where).to_arrow()
        after = await self._is_ready(index)
        if used == index:
            assert after, "an incomplete index is used"
        if before:
            assert used, "a complete index is not used"
        assert len(set(rows["id"].to_pylist())) == rows.num_rows
        self.seen["asked when it was ready" if before else "asked before it was ready"] += 1
        return before

    async def _is_ready(self, index: tuple[str, ...]) -> bool:
        (status,) = [status for status in await self._table.index_status() if status.columns == index]
        assert status.failure is None
        assert 0 <= status.rows_done
        return status.ready

    async def check_all(self) -> None:
        """Checks the table, and compares queries by its indexes with its rows."""
        whole = await self._table.scan().to_arrow()
        answers = Answers(SCHEMA, ["id"], exact_rows(whole))
        checks = await self._client.check_table(self._table.name)
        assert all(check.is_consistent for check in checks), checks
        assert sum(check.rows for check in checks) == len(answers.rows)
        for index in self._table.indexes:
            where, truth = _points(self._random, _without_key(index))
            scan = self._table.scan(where=where).ordered()
            assert tuple((await scan.explain()).index), "no index is used"
            assert exact_rows(await scan.to_arrow()) == answers.where(truth)
            for descending in (False, True):
                await self._check_first(answers, index, descending=descending)
        self.seen["compared"] += 1

    async def _check_first(self, answers: Answers, index: tuple[str, ...], *, descending: bool) -> None:
        leading, by = index[:-1], index[-1]
        where, truth = _points(self._random, leading) if leading else (None, None)
        for n in (1, 10, self._random.choice([700, 10_000, 10_001])):
            rows = await self._table.top_n(n, by, where, descending=descending)
            assert exact_rows(rows) == answers.first(n, by, truth, descending=descending)
        tied = await self._table.top_n(3, by, where, descending=descending, ties="all")
        assert exact_rows(tied) == answers.first(3, by, truth, descending=descending, with_ties=True)


def _without_key(index: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the columns of an index without the key, by which a row would be looked up directly."""
    return tuple(name for name in index if name != "id")


def _points(random: Random, columns: tuple[str, ...]) -> tuple[Predicate, Truth]:
    """Returns equality in these columns, as predicate and in plain Python."""
    values: dict[str, Any] = {
        "score": float(random.randrange(500)),
        "league": random.choice(LEAGUES[1:]),
        "day": random.randrange(2000),
        "id": random.randrange(1000),
    }
    predicate = col(columns[0]) == values[columns[0]]
    for name in columns[1:]:
        predicate &= col(name) == values[name]
    compared = {name: values[name].encode() if name == "league" else values[name] for name in columns}
    return predicate, lambda row: all(row[name] == value for name, value in compared.items())


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "rounds", "rows"),
    [(1, 2, 20_000), *(pytest.param(seed, 8, 60_000, marks=pytest.mark.soak) for seed in range(2, 8))],
)
async def test_an_index_is_used_when_it_is_complete_and_not_before(
    server: ServerProcess, seed: int, rounds: int, rows: int
) -> None:
    with noted(f"seed {seed}"):
        async with connect(server.url) as client:
            table = await client.create_table("test.builds", SCHEMA, primary_key=["id"], buckets=2)
            builds = Builds(server, client, table, Random(seed), rows)
            await builds.run(rounds)
            if rounds > 2:  # every query of a short test may run after the builds
                assert builds.seen["asked before it was ready"] > 0, builds.seen
            assert builds.seen["restarts"] > 1, builds.seen
            async with connect(server.url) as other:
                stats = await other.stats()
                assert (stats.live_scans, stats.open_cursors) == (0, 0)
        assert server.stop() == 0
