"""A random history of a table with changing indexes. After each step, queries check indexes and versions."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from tests.model.history import History, noted
from tests.model.index_oracle import Answers
from tests.model.random_predicates import RandomPredicates
from tests.model.random_rows import SCHEMA, Layout, random_row
from tests.model.version_model import VersionModel
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from random import Random

    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

_MAX_INDEXES = 5


class IndexHistory(History):
    """A history that also adds and drops indexes. See `History`.

    Attributes:
        seen: How many queries used an index and how many did not, and how versions changed.
    """

    def __init__(self, server: ServerProcess, client: Client, table: Table, random: Random) -> None:
        super().__init__(server, client, table, random)
        self.seen: Counter[str] = Counter()
        # The last pinned snapshot. Later changes of the table and its indexes do not affect it.
        self._pinned: tuple[str, Answers, bytes] | None = None
        self._versions = VersionModel(self.model, random, self.seen)

    @classmethod
    async def begin(
        cls,
        server: ServerProcess,
        client: Client,
        random: Random,
        changelog: str = "full",
        columnar_base: str = "off",
        *,
        evolved: bool = False,
        partitioned: bool = False,
    ) -> IndexHistory:
        """Creates a random table without rows, with or without indexes.

        With `partitioned`, it is partitioned by the first column of its key. Its rows do not expire, because that
        changes versions without a write.
        """
        assert not evolved, "the indexes are of columns that the table has had from the beginning"
        layout = Layout.random(random)
        indexes: list[tuple[str, ...]] = []
        for _ in range(random.randrange(3)):
            indexes.append(_new_index(random, SCHEMA, indexes))
        table = await client.create_table(
            "test.indexes",
            SCHEMA,
            primary_key=layout.primary_key,
            bucket_key=layout.bucket_key,
            buckets=layout.buckets,
            indexes=indexes,
            changelog=changelog,
            columnar_base=columnar_base,
            partition_by=layout.primary_key[:1] if partitioned else [],
            **layout.options,
        )
        return cls(server, client, table, random)

    async def run(self, operations: int) -> None:
        """Runs random operations, among them drains, kills and alterations, and checks everything after each."""
        moments = self._random.sample(range(1, operations), 5)
        rare = dict(zip(moments, [self.drain, self.kill, self.kill, self.alter, self.alter], strict=True))
        frequent = {
            self.upsert: 8,
            self.upsert_the_same: 3,
            self.upsert_together: 2,
            self.upsert_as_before_the_last_column: 2,
            self.delete: 4,
            self.add_index: 2,
            self.add_index_while_writing: 2,
            self.drop_index: 2,
            self.pin: 1,
        }
        for number in range(operations):
            chosen = self._random.choices(list(frequent), list(frequent.values()))[0]
            operation = rare.get(number, chosen)
            with noted(f"operation {number}: {operation.__name__}"):
                await operation()
                if number not in rare:  # these operations check by themselves
                    await self.look()

    async def upsert_the_same(self) -> None:
        """Upserts unchanged rows and deletes absent keys, which changes nothing."""
        rows = self._random.sample(self._written, min(len(self._written), 5))
        present = [self._random.choice(list(self.model.rows))] if self.model.rows else []
        again = await self.table.lookup(present)
        for batch in again.to_batches():
            await self.table.upsert(batch)
            self.model.upsert(batch)
        absent = [key for key in self._random_keys() if key not in self.model.rows]
        await self.table.delete(absent)
        if rows and self._random.random() < 0.3:
            await self._upsert(self.table, [{name: row.get(name) for name in self.table.schema.names} for row in rows])

    async def add_index(self) -> None:
        """Adds an index and waits until it is built."""
        if len(self.table.indexes) < _MAX_INDEXES:
            new = _new_index(self._random, self.table.schema, self.table.indexes)
            self.table = await self._client.alter_table(self.table.name, add_indexes=[new])
            assert new in self.table.indexes

    async def add_index_while_writing(self) -> None:
        """Adds an index, and writes at least once before checking it."""
        if len(self.table.indexes) < _MAX_INDEXES:
            new = _new_index(self._random, self.table.schema, self.table.indexes)
            adding = asyncio.create_task(self._client.alter_table(self.table.name, add_indexes=[new]))
            while True:
                await self._random.choice([self.upsert, self.upsert, self.delete])()
                if adding.done():
                    break
            self.table = await adding

    async def drop_index(self) -> None:
        """Drops an index. Sometimes adds it again at the same time or right after."""
        if self.table.indexes:
            dropped = self._random.choice(self.table.indexes)
            self.table = await self._client.alter_table(self.table.name, drop_indexes=[dropped])
            assert dropped not in self.table.indexes
            if self._random.random() < 0.3:
                self.table = await self._client.alter_table(self.table.name, add_indexes=[dropped])

    async def pin(self) -> None:
        """Pins the table instead of the previous snapshot, also while an index is being built."""
        if self._pinned is not None:
            await next(each for each in await self._client.snapshots() if each.id == self._pinned[0]).release()
        if len(self.table.indexes) < _MAX_INDEXES and self._random.random() < 0.5:
            new = _new_index(self._random, self.table.schema, self.table.indexes)
            self.table = await self._client.alter_table(self.table.name, add_indexes=[new], wait=False)
        snapshot = await self.table.snapshot(ttl=600)
        counted = await self.table.count_if_changed(None)
        assert counted is not None
        self._pinned = (snapshot.id, self._answers(), counted.version)

    async def check(self) -> None:
        """Reads everything, and runs all queries."""
        await super().check()
        await self.look()

    async def look(self) -> None:
        """Compares the stored data, queries by index, and versions with the model."""
        checks = await self._client.check_table(self.table.name)
        for check in checks:
            rows = len(self.model.rows_in(check.bucket))
            assert check.is_consistent, check
            assert check.rows == rows
            assert [index.columns for index in check.indexes] == list(self.table.indexes)
            assert all(index.entries == rows for index in check.indexes if index.ready)
        for status in await self.table.index_status():
            assert status.failure is None
        answers = self._answers()
        for _ in range(2):
            await self.ask(answers)
        await self._versions.check(self.table, answers)
        if self._pinned is not None:
            at, pinned, version = self._pinned
            with noted("pinned"):
                await self.ask(pinned, at)
                async with self.table.scan().as_of(at).if_changed_since(version).stream() as stream:
                    assert [batch async for batch in stream] == []
                    assert (stream.version, stream.unchanged) == (version, True)

    def _answers(self) -> Answers:
        return Answers(self.model.schema, self.model.key, self.model.rows.values())

    async def ask(self, answers: Answers, at: str | None = None) -> None:
        """Runs a query that suits an index, if one exists; on a pinned snapshot, if one is given."""
        schema = answers.schema
        samples = pa.RecordBatch.from_pylist([random_row(self._random, schema) for _ in range(6)], schema)
        values = {name: [value for value in samples.column(name) if value.is_valid] for name in _orderable(schema)}
        asked = RandomPredicates(self._random, schema, {name: found for name, found in values.items() if found})
        index = self._random.choice(self.table.indexes or [("score",)])
        if not all(values.get(name) for name in index):
            return
        question = asked.for_index(index)
        with noted(f"index {index}, where {question.predicate!r}"):
            scan = self.table.scan(where=question.predicate).ordered()
            scan = scan if at is None else scan.as_of(at)
            used = (await scan.explain()).index
            if at is None:
                assert not used or used in self.table.indexes, "a query used an index that does not exist"
            self.seen["scans with an index" if used else "scans without one"] += 1
            assert exact_rows(await scan.to_arrow()) == answers.where(question.truth)
            await self._ask_first(answers, index, asked, at)

    async def _ask_first(
        self, answers: Answers, index: tuple[str, ...], asked: RandomPredicates, at: str | None
    ) -> None:
        question = asked.for_order(index)
        for descending in (False, True):
            n = self._random.choice([1, 2, 5, 20, 1000])
            ties: Any = self._random.choice(["key", "all"])
            where = None if question is None else question.predicate
            with noted(f"top {n} where {where!r}, {descending=}, {ties=}"):
                found = await self.table.top_n(n, index[-1], where, descending=descending, ties=ties, as_of=at)
                truth = None if question is None else question.truth
                expected = answers.first(n, index[-1], truth, descending=descending, with_ties=ties == "all")
                assert exact_rows(found) == expected


def _orderable(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if not pat.is_nested(field.type)]


def _new_index(random: Random, schema: pa.Schema, there: Any) -> tuple[str, ...]:
    while True:
        index = tuple(random.sample(_orderable(schema), random.choice([1, 1, 2, 2, 3])))
        if index not in there:
            return index
