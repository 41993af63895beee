"""Every answer through an index shows one instant, whatever is written beside it, and all that was acknowledged before.

Rows come in pairs that lie in one bucket and are only written together: of two, one is in league `a` and one in `b`,
their scores add up to the same, and both tell their turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import col, connect
from tests.model.history import noted

if TYPE_CHECKING:
    from aio_client import Table
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [
        pa.field("pair", pa.int32(), nullable=False),
        pa.field("side", pa.int8(), nullable=False),
        ("league", pa.string()),
        ("score", pa.int64()),
        pa.field("turn", pa.int64(), nullable=False),
        ("note", pa.string()),
    ]
)
PAIRS = 120
WRITERS = 4
READERS = 8
SUM = 1001
"""Of the scores of a pair: odd, so that they differ."""
INDEXES = ["score", "league", ("league", "score"), ("turn", "league")]


@dataclass
class Turns:
    """How far each pair is: the turn that is acknowledged, and the one that was begun last."""

    acknowledged: list[int] = field(default_factory=lambda: [0] * PAIRS)
    begun: list[int] = field(default_factory=lambda: [0] * PAIRS)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, table: Table, random: Random, pairs: list[int]) -> None:
        """Gives these pairs their next turn."""
        for pair in pairs:
            self.begun[pair] += 1
        await table.upsert(rows_of(random, pairs, self.begun))
        for pair in pairs:
            self.acknowledged[pair] = self.begun[pair]

    async def write_on(self, table: Table, random: Random, mine: range) -> None:
        """Writes until it is done."""
        while not self.done.is_set():
            await self.write(table, random, random.sample(mine, random.choice([1, 2, len(mine)])))


def rows_of(random: Random, pairs: list[int], turns: list[int]) -> pa.RecordBatch:
    """Both rows of some pairs, for their turns: the leagues change sides, and the scores are others."""
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        score = random.randrange(SUM + 1)
        sides = random.sample(["a", "b"], 2)
        rows += [
            {"pair": pair, "side": 0, "league": sides[0], "score": score, "turn": turns[pair], "note": "x" * 50},
            {"pair": pair, "side": 1, "league": sides[1], "score": SUM - score, "turn": turns[pair], "note": None},
        ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


class IndexReader:
    """Asks in all ways, and looks at each answer."""

    def __init__(self, table: Table, turns: Turns, random: Random, seen: Counter[str]) -> None:
        self._table = table
        self._turns = turns
        self._random = random
        self._seen = seen

    async def read(self, times: int) -> None:
        """Asks so many times."""
        ways = [
            self.league,
            self.leagues,
            self.upper_half,
            self.all_by_score,
            self.league_by_score,
            self.covered,
            self.sums,
        ]
        for _ in range(times):
            way = self._random.choice(ways)
            before = list(self._turns.acknowledged)
            with noted(way.__name__):
                rows = await way()
                self._check_turns(rows, before)
            self._seen[way.__name__] += 1

    def _check_turns(self, rows: pa.Table | None, before: list[int]) -> None:
        """No pair is behind the turn that was acknowledged before, nor before one that has not begun."""
        if rows is None:
            return
        for pair, turn in zip(rows["pair"].to_pylist(), rows["turn"].to_pylist(), strict=True):
            assert before[pair] <= turn <= self._turns.begun[pair]

    async def league(self) -> pa.Table:
        """One row of each pair is in a league."""
        scan = self._table.scan(where=col("league") == self._random.choice("ab"))
        rows = await (scan.ordered() if self._random.random() < 0.5 else scan).to_arrow()
        assert sorted(rows["pair"].to_pylist()) == list(range(PAIRS))
        return rows

    async def leagues(self) -> pa.Table:
        """All rows are in one of two leagues, each once."""
        rows = await self._table.scan(where=col("league").is_in(["a", "b"])).to_arrow()
        check_pairs(rows)
        return rows

    async def upper_half(self) -> pa.Table:
        """Of each pair one row has more than half of the scores."""
        rows = await self._table.scan(where=col("score") > SUM // 2).to_arrow()
        assert sorted(rows["pair"].to_pylist()) == list(range(PAIRS))
        return rows

    async def all_by_score(self) -> pa.Table:
        """The first of all are all, in order."""
        descending = self._random.random() < 0.5
        rows = await self._table.top_n(2 * PAIRS, "score", descending=descending)
        assert rows["score"].to_pylist() == sorted(rows["score"].to_pylist(), reverse=descending)
        check_pairs(rows)
        return rows

    async def league_by_score(self) -> pa.Table:
        """The first of a league are one row of each pair, in order."""
        league = self._random.choice("ab")
        rows = await self._table.top_n(PAIRS + 1, "score", col("league") == league)
        assert set(rows["league"].to_pylist()) == {league}
        assert rows["score"].to_pylist() == sorted(rows["score"].to_pylist(), reverse=True)
        assert sorted(rows["pair"].to_pylist()) == list(range(PAIRS))
        return rows

    async def covered(self) -> pa.Table:
        """What is answered from the entries alone."""
        rows = await self._table.scan(
            ["pair", "side", "turn"], where=(col("turn") >= 0) & (col("league") == "a")
        ).to_arrow()
        assert sorted(rows["pair"].to_pylist()) == list(range(PAIRS))
        return rows

    async def sums(self) -> None:
        """The sums of the leagues together stay the same."""
        sums = await self._table.aggregate(
            {"score": ["sum", "count"]}, col("league").is_in(["a", "b"]), group_by=["league"]
        )
        assert sums["score_count"].to_pylist() == [PAIRS, PAIRS]
        assert sum(sums["score_sum"].to_pylist()) == SUM * PAIRS
        assert await self._table.count(col("league") == "b") == PAIRS


def check_pairs(rows: pa.Table) -> None:
    """Both rows of each pair are there once, in different leagues, of one turn, with the same scores together."""
    found: dict[int, list[dict[str, Any]]] = {pair: [] for pair in range(PAIRS)}
    for row in rows.to_pylist():
        found[row["pair"]].append(row)
    for both in found.values():
        assert sorted(row["side"] for row in both) == [0, 1]
        assert {row["league"] for row in both} == {"a", "b"}
        assert len({row["turn"] for row in both}) == 1
        assert sum(row["score"] for row in both) == SUM


async def uses_an_index(table: Table) -> None:
    """Fails unless the questions of the readers are answered with an index."""
    for where in (
        col("league") == "a",
        col("league").is_in(["a", "b"]),
        col("score") > SUM // 2,
    ):
        assert (await table.scan(where=where).explain()).index, f"no index is used for {where!r}"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "reads"), [(1, 25), *(pytest.param(seed, 400, marks=pytest.mark.soak) for seed in range(2, 6))]
)
async def test_answers_through_indexes_show_one_instant_beside_writers(
    shared_server: ServerProcess, seed: int, reads: int
) -> None:
    random, turns, seen = Random(seed), Turns(), Counter[str]()
    with noted(f"seed {seed}"):
        async with connect(shared_server.url) as client, connect(shared_server.url) as writing:
            name = f"isolation.pairs{seed}"
            table = await client.create_table(
                name, SCHEMA, primary_key=["pair", "side"], bucket_key=["pair"], buckets=3, indexes=INDEXES
            )
            await turns.write(table, random, list(range(PAIRS)))
            await uses_an_index(table)
            share = PAIRS // WRITERS
            target = await writing.table(name)
            async with asyncio.TaskGroup() as group:
                for number in range(WRITERS):
                    mine = range(number * share, (number + 1) * share)
                    group.create_task(turns.write_on(target, Random(f"{seed} {number}"), mine))
                readers = [
                    group.create_task(IndexReader(table, turns, Random(f"{seed} reader {number}"), seen).read(reads))
                    for number in range(READERS)
                ]
                await asyncio.wait(readers)
                turns.done.set()
            assert sum(turns.acknowledged) > 2 * PAIRS, "hardly anything was written meanwhile"
            assert len(seen) == 7
            assert all(check.is_consistent for check in await client.check_table(name))
            await client.drop_table(name)
