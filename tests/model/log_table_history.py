"""A random history of a table without a primary key, to compare its scans and changes with plain lists."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from aio_client import ConnectionFailed, SchemaMismatch, StartFrom, StopAt
from scankv.v1 import write_pb2
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aio_client import Client, Scan, Table

_T = TypeVar("_T")

BUCKETS: Final = 3
SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string()), ("v", pa.int32())])
DISTRIBUTIONS: Final[dict[str, list[str]]] = {"by_turns": [], "by_bucket_key": ["who", "v"]}
"""The bucket keys of both ways to distribute rows."""


@dataclass
class LogTableHistory:
    """Appends rows with ascending ids to a table that nothing else writes.

    Attributes:
        client: The client.
        table: The table, as of its last alteration.
        random: Decides everything.
        rows: All rows that were appended, by id.
    """

    client: Client
    table: Table
    random: Random
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    _added: int = 0
    _sequence: int = 0

    async def until_done(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats a call that changes nothing until it succeeds."""
        while True:
            try:
                return await call()
            except ConnectionFailed:
                await self.client.wait_ready()

    async def step(self) -> None:
        """Does something at random."""
        appends = [
            self._append,
            self._append_at_once,
            self._write,
            self._commit,
            self._abort,
            self._repeat,
            self._alter,
        ]
        await self.random.choices(appends, [4, 3, 2, 3, 1, 3, 1 if self._added < 3 else 0])[0]()

    def _new_rows(self, most: int = 60) -> list[dict[str, Any]]:
        count = self.random.choice([1, 1, 2, 7, most])
        rows = []
        for number in range(len(self.rows), len(self.rows) + count):
            row: dict[str, Any] = {"id": number, "who": self.random.choice(["ann", "bob", None]), "v": number % 5}
            row |= {f"extra{each}": number for each in range(self._added)}
            rows.append(row)
        return rows

    def _record(self, rows: list[dict[str, Any]]) -> None:
        self.rows |= {row["id"]: row for row in rows}

    async def _append(self) -> None:
        rows = self._new_rows(most=self.random.choice([60, 9000]))
        await self.table.append(rows)
        self._record(rows)

    async def _append_at_once(self) -> None:
        """Appends rows by concurrent calls, which share requests, next to calls that are refused."""
        rows = self._new_rows()
        refused = {**rows[0], "id": None}
        calls = [self.table.append([each]) for row in rows for each in (row, refused)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert not [each for each in results[::2] if isinstance(each, BaseException)]
        assert all(isinstance(each, SchemaMismatch) for each in results[1::2])
        self._record(rows)

    async def _write(self) -> None:
        async with self.table.writer(id="w", batch_delay=0) as writer:
            for _ in range(3):
                rows = self._new_rows()
                await writer.append(rows)
                self._record(rows)

    async def _commit(self) -> None:
        first, second = self._new_rows(), []
        async with self.client.transaction() as transaction:
            await transaction.append(self.table, first)
            self._record(first)
            second = self._new_rows()
            await transaction.append(self.table, second)
            self._record(second)

    async def _abort(self) -> None:
        transaction = await self.client.transaction()
        await transaction.append(self.table, self._new_rows())
        await transaction.abort()

    async def _repeat(self) -> None:
        """Sends one request of an anonymous writer several times, as after lost answers."""
        rows = self._new_rows()
        request = write_pb2.UpsertRequest(table=self.table.name)
        if self.random.random() < 0.5:
            request.encoded_rows.extend(self.table._handle.python_rows.encode_rows(rows) or [])
            request.table_incarnation = self.table._handle.shape.description.incarnation
            request.independent = self.random.random() < 0.5
        else:
            request.rows = ipc_stream(self.table.schema, pa.RecordBatch.from_pylist(rows, self.table.schema))
        request.writer.id, request.writer.sequence = "repeating", self._sequence
        self._sequence += 1
        transport = self.table._handle.transport
        for _ in range(self.random.choice([2, 3])):
            await self.until_done(lambda: transport.call(lambda: transport.services.writes.Upsert, request))
        self._record(rows)

    async def _alter(self) -> None:
        name = f"extra{self._added}"
        added = pa.schema([(name, pa.int64())])
        self.table = await self.until_done(lambda: self._alter_once(name, added))
        self._added += 1
        for row in self.rows.values():
            row[name] = -1

    async def _alter_once(self, name: str, added: pa.Schema) -> Table:
        table = await self.client.table(self.table.name)
        if name in table.schema.names:
            return table
        return await self.client.alter_table(self.table.name, add_columns=added, column_defaults={name: -1})

    async def check(self) -> None:
        """Compares everything that reads the table with the rows that were appended."""
        table, random = self.table, self.random
        by_bucket = await self.changes()
        found = [row for rows in by_bucket.values() for row in rows]
        assert_same(found, self.rows.values())
        assert await self.until_done(table.count) == len(self.rows)
        assert_same(await self.read(table.scan()), found, ordered=True)
        backwards = [row for number in sorted(by_bucket) for row in reversed(by_bucket[number])]
        assert_same(
            await self.read(table.scan().reverse().with_chunk(rows=random.choice([3, 700]))), backwards, ordered=True
        )
        for number, rows in by_bucket.items():
            newest = await self.read(table.scan().with_buckets(number).reverse().limit(5))
            assert_same(newest, rows[::-1][:5], ordered=True)
        matching = [row for row in found if row["v"] is not None and row["v"] > 2 and row["who"] == "ann"]
        where = "v > 2 AND who = 'ann'"
        assert_same(await self.read(table.scan(where=where)), matching, ordered=True)
        assert await self.until_done(lambda: table.count(where=where)) == len(matching)
        top = await self.until_done(lambda: table.top_n(20, order_by="v"))
        assert top.to_pylist() == sorted(found, key=lambda row: -row["v"])[:20]
        assert_same(await self.changes_where("v > 2 AND who = 'ann'"), matching)

    async def read(self, scan: Scan) -> list[dict[str, Any]]:
        """Returns the rows of a scan."""
        rows: list[dict[str, Any]] = (await self.until_done(scan.to_arrow)).to_pylist()
        return rows

    async def changes(self) -> dict[int, list[dict[str, Any]]]:
        """Returns the rows of each bucket, as its changes have them."""
        changes = await self.read(self.table.changes(StartFrom.EARLIEST, StopAt.LATEST))
        assert all(change["_change_type"] == "+I" for change in changes)
        return rows_by_bucket(changes)

    async def changes_where(self, where: str) -> list[dict[str, Any]]:
        """Returns the rows of all changes that match."""
        changes = await self.read(self.table.changes(StartFrom.FULL, StopAt.LATEST, where=where))
        return [row for rows in rows_by_bucket(changes).values() for row in rows]

    async def check_pinned(self) -> None:
        """Reads a snapshot in pieces, while rows are appended, and in splits."""
        snapshot = await self.until_done(self.table.snapshot)
        expected = list(self.rows.values())
        scan = self.table.scan().as_of(snapshot).with_chunk(rows=self.random.choice([2, 50, 5000]))
        pieces: list[dict[str, Any]] = []
        token = None
        while True:
            resumed = scan if token is None else scan.resume_from(token)
            async with resumed.stream() as stream:
                rows = await anext(aiter(stream), None)
                if rows is None:
                    break
                pieces += rows.to_pylist()
                token = stream.resume_token
                assert token is not None
            if self.random.random() < 0.3:
                await self._append()
            if len(pieces) > 3000:
                pieces += (await scan.resume_from(token).to_arrow()).to_pylist()
                break
        assert_same(pieces, expected)
        splits = await self.table.scan().as_of(snapshot).splits(4)
        found = [row for split in splits for row in (await split.to_arrow()).to_pylist()]
        assert_same(found, expected)
        await snapshot.release()


def rows_by_bucket(changes: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Returns the rows of changes by bucket, without the columns of the change; the offsets of a bucket ascend."""
    found: dict[int, list[dict[str, Any]]] = {}
    last: dict[int, int] = {}
    for change in changes:
        bucket, offset = change["_bucket"], change["_log_offset"]
        assert offset > last.get(bucket, -1)
        last[bucket] = offset
        found.setdefault(bucket, []).append({name: each for name, each in change.items() if name[0] != "_"})
    return found


def assert_same(found: list[dict[str, Any]], expected: Any, *, ordered: bool = False) -> None:
    """Asserts that two lists have the same rows, each as often, and in the same order if that is asked."""
    ids, wanted = [row["id"] for row in found], [row["id"] for row in expected]
    if ordered:
        assert ids == wanted
    assert Counter(ids) == Counter(wanted)
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
