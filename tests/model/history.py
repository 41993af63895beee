"""A random history: applies operations to a table through the client and to its model, which must always agree."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from aio_client import InvalidRequest
from scankv.model.scans.isolation import ISOLATIONS
from streaming_server.storage.changelog.offsets import count_of
from tests.model.model_table import ModelTable
from tests.model.random_rows import ADDED, SCHEMA, Layout, random_key, random_row
from tests.support.evolved import create_evolved_table
from tests.support.tables import exact_rows
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from random import Random

    from aio_client import Client, Scan, Table
    from scankv.model.scans.isolation import Isolation
    from tests.support.server_process import ServerProcess

    ReadPath: TypeAlias = Literal["auto", "rocksdb", "columnar"]

_BATCH_ROWS = [0, 1, 1, 2, 5, 20, 100]


class History:
    """One table and its model. All random choices come from `random`, so that a seed determines the complete history.

    Attributes:
        table: The table, opened after the last change of its columns.
        earlier: The table objects that were opened before each change of the columns.
        model: What the table must be.
        also: Operations that `run` runs once each.
    """

    def __init__(self, server: ServerProcess, client: Client, table: Table, random: Random) -> None:
        self.table = table
        self.earlier: list[Table] = []
        self.model = ModelTable(table)
        self.also: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._server = server
        self._client = client
        self._random = random
        self._written: list[dict[str, Any]] = []

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
    ) -> History:
        """Creates a random table without rows, which has had other columns before if `evolved` is set.

        With `partitioned`, it is partitioned by the first column of its key, and its rows expire decades later.
        """
        layout = Layout.random(random)
        create = partial(create_evolved_table, client) if evolved else client.create_table
        table = await create(
            "test.history",
            SCHEMA,
            primary_key=layout.primary_key,
            bucket_key=layout.bucket_key,
            buckets=layout.buckets,
            indexes=(),
            changelog=changelog,
            columnar_base=columnar_base,
            **layout.options,
            **(layout.partitioned if partitioned else {}),
        )
        return cls(server, client, table, random)

    async def run(self, operations: int) -> None:
        """Runs random operations, among them a drain of the server, two kills, two alterations, and those of `also`."""
        once = [self.drain, self.kill, self.kill, self.alter, self.alter, *self.also]
        rare = dict(zip(self._random.sample(range(1, operations), len(once)), once, strict=True))
        frequent = {
            self.upsert: 8,
            self.upsert_together: 2,
            self.upsert_as_before_the_last_column: 1,
            self.delete: 3,
            self.lookup: 3,
            self.get: 1,
            self.count: 2,
            self.scan: 4,
        }
        for number in range(operations):
            chosen = self._random.choices(list(frequent), list(frequent.values()))[0]
            operation = rare.get(number, chosen)
            with noted(f"operation {number}: {operation.__name__}"):
                await operation()

    async def upsert(self) -> None:
        """Upserts rows, as dictionaries or as Arrow data."""
        await self._upsert(self.table, self._random_rows(self.table.schema))

    async def upsert_as_before_the_last_column(self) -> None:
        """Upserts rows through a table object that does not know the columns added since."""
        table = self._random.choice([self.table, *self.earlier])
        await self._upsert(table, self._random_rows(table.schema))

    async def upsert_together(self) -> None:
        """Upserts several batches concurrently, which have no key in common."""
        rows = self._random_rows(self.table.schema)
        shares = [[row for row in rows if row["number"] % 3 == share] for share in range(3)]
        async with asyncio.TaskGroup() as group:
            for share in shares:
                group.create_task(self._upsert(self.table, share))

    async def delete(self) -> None:
        """Deletes keys, among them absent and repeated ones."""
        keys = self._random_keys()
        given = self._random.choice([keys, [self._named(key) for key in keys], self._key_batch(keys)])
        result = await self.table.delete(given)
        assert result.rows == len(keys)
        self.model.delete(keys)

    async def lookup(self) -> None:
        """Reads rows by key in the requested order. Absent rows are left out or null."""
        keys = self._random_keys()
        found = exact_rows(await self.table.lookup(keys, isolation=self._isolation()))
        assert found == [self.model.rows[key] for key in keys if key in self.model.rows]
        filled = exact_rows(await self.table.lookup(self._key_batch(keys), missing="null"))
        assert filled == [self.model.rows.get(key, self._null_row(key)) for key in keys]

    async def get(self) -> None:
        """Reads one row."""
        key = random_key(self._random, self.model.key)
        row = await self.table.get(key, isolation=self._isolation())
        assert (None if row is None else self._exact(row)) == self.model.rows.get(key)

    async def count(self) -> None:
        """Counts all rows and the rows of each bucket."""
        assert await self.table.count(isolation=self._isolation()) == len(self.model.rows)
        statistics = await self.table.stats()
        for bucket in statistics:
            # A table that does not read old rows knows its count only until a row is overwritten.
            known = self.model.changelog == "full" or not count_of(bucket.log_offset)
            assert bucket.rows == (len(self.model.rows_in(bucket.bucket)) if known else None)

    async def scan(self) -> None:
        """Reads all rows or some buckets, all columns or some, to the end or up to a limit."""
        names, buckets = self.model.schema.names, range(self.model.buckets)
        some = self._random.sample(names, self._random.randint(0, len(names)))
        wanted = self._random.sample(buckets, self._random.randint(1, len(buckets)))
        columns = self._random.choice([None, [*self.model.key, *(name for name in some if name not in self.model.key)]])
        limit = self._random.choice([None, None, 0, 1, 20])
        chunk = self._random.choice([1, 7, 1000])
        scan = self.table.scan(columns, limit=limit).with_buckets(wanted).with_chunk(rows=chunk)
        scan = scan.isolation(self._isolation())
        batches = await self._batches_of(scan)
        assert all(0 < batch.num_rows <= chunk for batch in batches)
        found = {key: row for batch in batches for key, row in self.model.by_key(batch).items()}
        available = 0
        for bucket in wanted:
            expected = self._projected(self.model.rows_in(bucket), columns)
            shown = [(key, row) for key, row in found.items() if self.model.bucket_of(key) == bucket]
            assert shown == list(expected.items())[: len(shown)]
            available += len(expected)
        returned = sum(batch.num_rows for batch in batches)
        assert len(found) == returned == min(available, available if limit is None else limit)

    def _isolation(self) -> Isolation:
        """Returns either isolation: with a single writer, whose writes are acknowledged, both show the same."""
        return self._random.choice(ISOLATIONS)

    async def _batches_of(self, scan: Scan) -> list[pa.RecordBatch]:
        if self.table.options.get("columnar_base", "off") == "off":
            return [batch async for batch in scan.stream()]
        read_path: ReadPath = self._random.choice(["auto", "rocksdb", "columnar", "columnar"])
        if self._random.random() < 0.3:
            scan = scan.ordered()
        async with AsyncExitStack() as stack:
            if self._random.random() < 0.3:
                # Scans the live table, or a snapshot with the current bases.
                snapshot = await stack.enter_async_context(self.table.snapshot())
                scan = scan.isolation("read_committed").as_of(snapshot)
            try:
                return [batch async for batch in scan.read_path(read_path).stream()]
            except InvalidRequest:
                # A bucket may not have a base yet.
                return [batch async for batch in scan.stream()]

    async def check(self) -> None:
        """Reads everything."""
        rows = await self.table.scan().to_arrow()
        assert rows.schema == self.model.schema
        assert self.model.by_key(rows) == self.model.rows
        await self.count()

    async def check_bases(self) -> None:
        """Waits until each bucket with rows has a base, and reads everything from the bases."""

        async def read() -> list[pa.Table]:
            try:
                return [await self.table.scan().read_path("columnar").to_arrow()]
            except InvalidRequest:
                return []

        (rows,) = await await_until(read, "a base of each bucket")
        assert rows.schema == self.model.schema
        assert self.model.by_key(rows) == self.model.rows

    async def alter(self) -> None:
        """Adds columns, which are null in all rows."""
        columns = ADDED[len(self.earlier)]
        self.earlier.append(self.table)
        self.table = await self._client.alter_table(self.table.name, add_columns=columns)
        self.model.add_columns(columns)
        await self.check()

    async def drain(self) -> None:
        """Stops the server with SIGTERM and starts it again."""
        assert await asyncio.to_thread(self._server.stop) == 0
        await self._restart()

    async def kill(self) -> None:
        """Kills the server with SIGKILL and starts it again."""
        await asyncio.to_thread(self._server.kill)
        await self._restart()

    async def _restart(self) -> None:
        await asyncio.to_thread(self._server.restart)
        await self._client.wait_ready()
        await self.check()

    async def _upsert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        batch = pa.RecordBatch.from_pylist(rows, table.schema)
        # Before the first await, so that concurrent tasks do not change the order of random choices.
        given = self._random.choice([rows, batch, pa.Table.from_batches([batch])])
        self._written = (self._written + rows)[-100:]
        result = await table.upsert(given)
        assert result.rows == len(rows)
        self.model.upsert(batch)

    def _random_rows(self, schema: pa.Schema) -> list[dict[str, Any]]:
        """Returns new rows, and some that were written recently, which may change nothing."""
        rows = []
        for _ in range(self._random.choice(_BATCH_ROWS)):
            again = self._written and self._random.random() < 0.2
            row = self._random.choice(self._written) if again else random_row(self._random, schema)
            rows.append({name: row.get(name) for name in schema.names})
        return rows

    def _random_keys(self) -> list[tuple[Any, ...]]:
        return [random_key(self._random, self.model.key) for _ in range(self._random.choice(_BATCH_ROWS))]

    def _named(self, key: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.model.key, key, strict=True))

    def _key_batch(self, keys: list[tuple[Any, ...]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([self._named(key) for key in keys], self.model.key_schema)

    def _null_row(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        named = self._named(key)
        return tuple(named.get(name) for name in self.model.schema.names)

    def _exact(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return exact_rows(pa.RecordBatch.from_pylist([row], self.model.schema))[0]

    def _projected(self, rows: dict[Any, Any], columns: list[str] | None) -> dict[Any, Any]:
        if columns is None:
            return rows
        places = [self.model.schema.get_field_index(name) for name in columns]
        return {key: tuple(row[place] for place in places) for key, row in rows.items()}


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Adds a note to every error of the block that says where it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise
