"""Scans and top-N of random tables, with and without indexes, equal what plain Python computes from all rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import col, connect
from scankv.model.expressions.wire import to_proto
from scankv.v1 import lookup_pb2
from tests.model.index_oracle import order_of, plain_scalar
from tests.model.random_predicates import RandomPredicates
from tests.model.random_tables import RandomTable
from tests.support.noted import noted
from tests.support.tables import exact_rows
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Predicate, Scan, Snapshot, Table
    from tests.model.index_oracle import Answers, Row
    from tests.model.random_predicates import PredicateCase
    from tests.support.server_process import ServerProcess

QUESTIONS = 15


class Twins:
    """Two tables with the same rows, one with indexes and one without, each live and pinned; and all their answers.

    Attributes:
        seen: How many questions of each kind were asked.
    """

    def __init__(
        self, random: Random, made: RandomTable, tables: list[Table], pins: list[Snapshot], wire: Wire
    ) -> None:
        self.answers: Answers = made.answers()
        self.indexed = tables[0]
        self.seen: Counter[str] = Counter()
        self._wire = wire
        self._random = random
        self._made = made
        self._all_sources: list[tuple[Table, Snapshot | None]] = [
            *((table, None) for table in tables),
            *zip(tables, pins, strict=True),
        ]
        self._predicates = RandomPredicates(random, made.schema, made.values)
        self._buckets: dict[Any, int] = {}

    async def check_whole(self) -> None:
        """Reads all rows of each source, bucket by bucket, and compares them with the model.

        Records the bucket of each row.
        """
        for table, pin in self._all_sources:
            found: dict[Any, int] = {}
            for bucket in range(self._made.buckets):
                scan = table.scan().with_buckets(bucket)
                rows = exact_rows(await (scan if pin is None else scan.as_of(pin)).to_arrow())
                found |= {self.answers.order_of_key(row): bucket for row in rows}
            assert len(found) == len(self.answers.rows)
            self._buckets = found
            whole = await (table.scan() if pin is None else table.scan().as_of(pin)).ordered().to_arrow()
            assert exact_rows(whole) == self.answers.rows

    def question(self) -> PredicateCase:
        """Returns a predicate, mostly one for which an index is useful."""
        if self._random.random() < 0.85:
            return self._predicates.for_index(self._random.choice(self._made.indexes))
        return self._predicates.any()

    def columns(self, index: tuple[str, ...]) -> list[str] | None:
        """Returns all columns, some, or only columns of an index's entries; always with the key."""
        names = self._random.choice([None, self.answers.schema.names, list(index), []])
        if names is None:
            return None
        others = [name for name in names if name not in self._made.key]
        return [*self._made.key, *self._random.sample(others, self._random.randint(0, len(others)))]

    async def scan(self) -> None:
        """Reads the rows of one predicate in a random way."""
        sources = self._sources()
        question, columns = self.question(), self.columns(self._random.choice(self._made.indexes))
        limit = self._random.choice([None, None, None, 0, 1, 3, 20])
        ordered, reverse = self._random.random() < 0.4, self._random.random() < 0.3
        chunk, cut = self._random.choice([None, 1, 3]), self._random.random() < 0.15
        wanted = self._random.choice([None, None, [self._random.randrange(self._made.buckets)]])
        truth = question.truth
        start = self._random.choice(self._made.values[self._made.key[0]]) if self._random.random() < 0.2 else None
        expected = [row for row in self.answers.where(truth) if self._is_in(row, wanted, start)]
        with noted(
            f"scan where {question.predicate!r}, {columns=} {limit=} {ordered=} {reverse=} {chunk=} {wanted=} {start=}"
        ):
            for table, pin in sources:
                scan = table.scan(columns, where=question.predicate, limit=limit)
                scan = scan if pin is None else scan.as_of(pin)
                scan = scan.ordered() if ordered else scan
                scan = scan.reverse() if reverse else scan
                scan = scan if chunk is None else scan.with_chunk(rows=chunk)
                scan = scan if wanted is None else scan.with_buckets(wanted)
                scan = scan if start is None else scan.key_range(start=start)
                if table is self.indexed:
                    explained = (await scan.explain()).index
                    self.seen["scans with an index" if explained else "scans without one"] += 1
                with noted(f"{table.name}, {pin=}"):
                    self._check_rows(await rows_of(scan, cut=cut), expected, columns, limit, ordered, reverse)

    async def top_n(self) -> None:
        """Reads the first rows by a column."""
        sources = self._sources()
        index = self._random.choice(self._made.indexes)
        if self._random.random() < 0.8:
            by, question = index[-1], self._predicates.for_order(index)
        else:
            by, question = self._random.choice(list(self._made.values)), self.question()
        truth, asked = (None, None) if question is None else (question.truth, question.predicate)
        descending = self._random.random() < 0.6
        ties: Any = self._random.choice(["key", "all"])
        columns = self.columns(index)
        available = len(self.answers.where(truth))
        for n in {1, self._random.randint(1, 9), max(1, available + self._random.randint(-2, 2)), 10_000, 100_000}:
            expected = self.answers.projected(
                self.answers.first(n, by, truth, descending=descending, with_ties=ties == "all"), columns
            )
            with noted(f"top {n} by {by!r} where {asked!r}, {columns=} {descending=} {ties=}"):
                for table, pin in sources:
                    found = await table.top_n(
                        n,
                        by,
                        asked,
                        columns=columns,
                        descending=descending,
                        ties=ties,
                        as_of=pin,
                    )
                    with noted(f"{table.name}, {pin=}"):
                        assert exact_rows(found) == expected
        used = await asyncio.to_thread(self._index_of_top_n, by, asked)
        assert not used or used in self._made.indexes
        self.seen["top-N with an index" if used else "top-N without one"] += 1

    def _index_of_top_n(self, by: str, where: Predicate | None) -> tuple[str, ...]:
        """Returns the index that the server reads for the first rows. Blocks."""
        message = None if where is None else to_proto(where)
        request = lookup_pb2.TopNRequest(table=self.indexed.name, by=by, n=2, where=message)
        return tuple(self._wire.lookups.TopN(request, timeout=60).index)

    async def count(self) -> None:
        """Counts rows with a predicate."""
        sources, question = self._sources(), self.question()
        expected = len(self.answers.where(question.truth))
        with noted(f"count where {question.predicate!r}"):
            for table, pin in sources:
                assert await table.count(question.predicate, as_of=pin) == expected

    def _sources(self) -> list[tuple[Table, Snapshot | None]]:
        """Returns the table with indexes, and one of the other three sources."""
        return [self._all_sources[0], self._random.choice(self._all_sources[1:])]

    def _is_in(self, row: Row, buckets: list[int] | None, start: pa.Scalar | None) -> bool:
        order = self.answers.order_of_key(row)
        within: bool = start is None or order[0] >= order_of(plain_scalar(start))
        return within and (buckets is None or self._buckets[order] in buckets)

    def _check_rows(
        self,
        found: list[Row],
        rows: list[Row],
        columns: list[str] | None,
        limit: int | None,
        ordered: bool,
        reverse: bool,
    ) -> None:
        expected = rows[::-1] if reverse else rows
        count = len(rows) if limit is None else min(limit, len(rows))
        assert len(found) == count
        if ordered:
            assert found == self.answers.projected(expected[:count], columns)
            return
        # One bucket after another, with the first rows of each.
        by_bucket: dict[int, list[Row]] = {}
        for row in expected:
            by_bucket.setdefault(self._buckets[self.answers.order_of_key(row)], []).append(row)
        if limit is None:
            in_order = [row for bucket in sorted(by_bucket) for row in by_bucket[bucket]]
            assert found == self.answers.projected(in_order, columns)
            return
        shares = {bucket: self.answers.projected(share, columns) for bucket, share in by_bucket.items()}
        places = {row: bucket for bucket, share in shares.items() for row in map(_hashable, share)}
        for bucket, share in shares.items():
            shown = [row for row in found if places.get(_hashable(row)) == bucket]
            assert shown == share[: len(shown)]
        assert {_hashable(row) for row in found} <= places.keys()


def _hashable(row: Row) -> str:
    return repr(row)


async def rows_of(scan: Scan, *, cut: bool) -> list[Row]:
    """Returns all rows of a scan; with an interruption, those of its first chunk and then those of the resumed scan."""
    if not cut:
        return exact_rows(await scan.to_arrow())
    async with scan.stream() as stream:
        first = await anext(stream, None)
        if first is None:
            return []
        token = stream.resume_token
    assert token is not None
    return exact_rows(first) + exact_rows(await scan.resume_from(token).to_arrow())


async def make_twins(client: Client, wire: Wire, random: Random, seed: int, rows: int) -> Twins:
    """Makes two tables with the same history; some of the indexes are created before the rows and some after."""
    made = RandomTable.random(random, rows)
    early = random.randint(0, len(made.indexes))
    tables = []
    for kind, indexes in (("indexed", made.indexes[:early]), ("plain", [])):
        table = await client.create_table(
            f"oracle.{kind}{seed}",
            made.schema,
            primary_key=made.key,
            bucket_key=made.bucket_key,
            buckets=made.buckets,
            indexes=indexes,
        )
        for what, batch in made.steps:
            await (table.upsert(batch) if what == "upsert" else table.delete(made.keys_of(batch)))
        tables.append(table)
    if early < len(made.indexes):
        tables[0] = await client.alter_table(tables[0].name, add_indexes=made.indexes[early:])
    assert tables[0].indexes == tuple(made.indexes)
    assert all(status.ready for status in await tables[0].index_status())
    pins = await asyncio.gather(*(table.snapshot(ttl=300) for table in tables))
    return Twins(random, made, tables, list(pins), wire)


async def check_seed(server: ServerProcess, seed: int, *, rows: int, questions: int) -> Counter[str]:
    """Makes the tables of a seed and compares random queries."""
    random = Random(seed)
    with noted(f"seed {seed}"), Wire(server.url) as wire:
        async with connect(server.url) as client:
            twins = await make_twins(client, wire, random, seed, rows)
            await twins.check_whole()
            for number in range(questions):
                with noted(f"question {number}"):
                    await random.choice([twins.scan, twins.scan, twins.scan, twins.top_n, twins.count])()
            for bucket in await client.check_table(twins.indexed.name):
                assert (bucket.problem, [index.problem for index in bucket.indexes]) == (
                    None,
                    [None] * len(bucket.indexes),
                )
            for table in (f"oracle.indexed{seed}", f"oracle.plain{seed}"):
                await client.drop_table(table)
    return twins.seen


@pytest.mark.asyncio
@pytest.mark.timeout(180)  # compares many answers in three tables
@pytest.mark.soak
async def test_answers_with_and_without_indexes_are_those_of_the_whole_table(shared_server: ServerProcess) -> None:
    seen: Counter[str] = Counter()
    for seed, rows in enumerate([0, 1, 40, 80, 80, 150]):
        seen += await check_seed(shared_server, seed, rows=rows, questions=QUESTIONS)
    assert seen["scans with an index"] > 20, seen
    assert seen["top-N with an index"] > 5, seen
    assert min(seen["scans without one"], seen["top-N without one"]) > 3, seen


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(100, 112))
async def test_answers_of_larger_tables_are_those_of_the_whole_table(shared_server: ServerProcess, seed: int) -> None:
    await check_seed(shared_server, seed, rows=600, questions=500)


SCORES = pa.schema([pa.field("id", pa.int32(), nullable=False), ("score", pa.int32()), ("note", pa.string())])


def scored(rows: int, scores: Callable[[int], int | None]) -> pa.Table:
    """Returns rows with ascending ids."""
    columns = [range(rows), [scores(number) for number in range(rows)], [f"note {number}" for number in range(rows)]]
    return pa.table(
        [pa.array(values, type_) for values, type_ in zip(columns, SCORES.types, strict=True)], schema=SCORES
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.represented_by("False-False")
async def test_a_scan_goes_on_when_its_index_is_dropped_and_when_one_is_added(
    client: Client, name: str, ordered: bool, reverse: bool
) -> None:
    table = await client.create_table(name, SCORES, primary_key=["id"], buckets=3, indexes=["score"])
    await table.upsert(scored(600, lambda number: number % 3))
    scan = table.scan(["id"], where=col("score") == 1).with_chunk(rows=30)
    scan = scan.ordered() if ordered else scan
    scan = scan.reverse() if reverse else scan
    whole = (await scan.to_arrow())["id"].to_pylist()
    assert sorted(whole) == list(range(1, 600, 3))

    for change in ({"drop_indexes": ["score"]}, {"add_indexes": ["score"]}, {"add_indexes": [("score", "id")]}):
        assert (await scan.explain()).index or "add_indexes" in change
        async with scan.stream() as stream:
            begun = [*(await anext(stream))["id"].to_pylist(), *(await anext(stream))["id"].to_pylist()]
            token = stream.resume_token
            assert token is not None
            await client.alter_table(name, **change)
        rest = (await scan.resume_from(token).to_arrow())["id"].to_pylist()
        assert begun + rest == whole


@pytest.mark.asyncio
async def test_more_rows_than_an_index_tells_are_all_found(client: Client, name: str) -> None:
    """Around 10,000 rows, the limit for keys that are looked up through an index, and for a top-N from an index."""
    sizes = {1: 9_999, 2: 10_000, 3: 10_001}
    scores = [score for score, size in sizes.items() for _ in range(size)]
    Random(1).shuffle(scores)
    table = await client.create_table(name, SCORES, primary_key=["id"], buckets=3, indexes=["score"])
    await table.upsert(scored(len(scores), lambda number: scores[number]))
    for score in sizes:
        expected = [number for number, each in enumerate(scores) if each == score]
        scan = table.scan(["id"], where=col("score") == score)
        assert (await scan.explain()).index == ("score",)
        assert sorted((await scan.to_arrow())["id"].to_pylist()) == expected
        assert (await scan.ordered().limit(7).to_arrow())["id"].to_pylist() == expected[:7]
        assert await table.count(col("score") == score) == len(expected)
    by_score = sorted(range(len(scores)), key=lambda number: -scores[number])
    for n in (9_999, 10_000, 10_001, len(scores), len(scores) + 1):
        assert (await table.top_n(n, "score", columns=["id"]))["id"].to_pylist() == by_score[:n]
    tied = await table.top_n(1, "score", columns=["id"], ties="all")
    assert tied["id"].to_pylist() == by_score[: sizes[3]]
