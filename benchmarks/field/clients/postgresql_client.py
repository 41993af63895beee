"""PostgreSQL: through psycopg in the binary format, and through ADBC as Arrow data."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks import t4
from benchmarks.field.clients.field_client import (
    BELOW,
    LOAD_ROWS,
    PROJECTED,
    TOP,
    FieldClient,
    check_found,
    import_library,
    time_awaited,
    time_callers,
    time_calls,
)
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_FETCHED: Final = 10_000
_CREATE: Final = "CREATE TABLE t4 (id int8 PRIMARY KEY, name text, amount float8, ts timestamp)"
_GET: Final = "SELECT id, name, amount, ts FROM t4 WHERE id = %s"
_WRITE: Final = (
    "INSERT INTO t4 (id, name, amount, ts) VALUES (%(id)s, %(name)s, %(amount)s, %(ts)s) "
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount, ts = excluded.ts"
)
_TOP: Final = f"SELECT id, name, amount, ts FROM t4 ORDER BY amount DESC LIMIT {TOP}"
_NOTIFY: Final = (
    "CREATE OR REPLACE FUNCTION report_change() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_notify('changes', row_to_json(NEW)::text); RETURN NULL; END $$",
    "CREATE OR REPLACE TRIGGER changes AFTER INSERT OR UPDATE ON t4 FOR EACH ROW EXECUTE FUNCTION report_change()",
)


def _select(columns: str = "id, name, amount, ts", where: str = "") -> str:
    return f"SELECT {columns} FROM t4 {where}"


class PsycopgClient(FieldClient):
    """Calls one after the other are blocking; concurrent ones are asynchronous, a connection each.

    Every statement is a transaction of its own. Statements are prepared.
    """

    def open(self) -> None:
        self.psycopg = import_library("psycopg")
        self.connection = self.stack.enter_context(
            self.psycopg.connect(self.address, autocommit=True, prepare_threshold=0)
        )
        self.cursor = self.stack.enter_context(self.connection.cursor(binary=True))

    def load(self) -> Timing:
        self.cursor.execute("DROP TABLE IF EXISTS t4")
        self.cursor.execute(_CREATE)
        timing = self.load_batches(t4.batches(self.rows, LOAD_ROWS), self._copy)
        self.cursor.execute("ANALYZE t4")
        return timing

    def scan(self) -> Timing:
        return self._read(_select()).check_rows(self.rows)

    def project(self) -> Timing:
        return self._read(_select(", ".join(PROJECTED))).check_rows(self.rows)

    def select(self) -> Timing:
        found = self._read(_select(where=f"WHERE amount < {BELOW}")).check_rows(self.expected_selected())
        return Timing(self.rows, found.seconds)

    def count(self, seed: int) -> Timing:
        query = "SELECT count(*) FROM t4 WHERE amount < %s"
        return self.time_count(seed, lambda below: self.cursor.execute(query, [below]).fetchone()[0])

    def call_nothing(self, calls: int) -> Timing:
        return time_calls(range(calls), lambda _: self.cursor.execute("SELECT").fetchall())

    def get(self, calls: int, seed: int) -> Timing:
        return time_calls(
            self.ids(calls, seed), lambda key: check_found(self.cursor.execute(_GET, [key]).fetchone(), key)
        )

    def get_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        async def get(cursor: Any, key: int) -> None:  # noqa: ANN401
            check_found(await (await cursor.execute(_GET, [key])).fetchone(), key)

        return asyncio.run(self._call(self.ids(calls, seed), callers, get))

    def write(self, calls: int, seed: int) -> Timing:
        return time_calls(self.updates(calls, seed), lambda row: self.cursor.execute(_WRITE, row))

    def write_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        async def write(cursor: Any, row: dict[str, Any]) -> None:  # noqa: ANN401
            await cursor.execute(_WRITE, row)

        return asyncio.run(self._call(self.updates(calls, seed), callers, write))

    def index(self) -> None:
        self.cursor.execute("CREATE INDEX ON t4 (amount)")
        self.cursor.execute("VACUUM ANALYZE t4")

    def top_n(self, calls: int) -> Timing:
        def top(_: object) -> None:
            if len(self.cursor.execute(_TOP).fetchall()) != TOP:
                raise RuntimeError(f"the top-{TOP} must have {TOP} rows")

        return time_calls(range(calls), top)

    def change(self, calls: int, seed: int) -> Timing:
        for statement in _NOTIFY:
            self.cursor.execute(statement)
        return asyncio.run(self._change(self.updates(calls, seed)))

    def _copy(self, batch: pa.RecordBatch) -> None:
        with self.cursor.copy("COPY t4 (id, name, amount, ts) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "text", "float8", "timestamp"])
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                copy.write_row(row)

    def _read(self, query: str) -> Timing:
        """Reads through a cursor at the server, since a plain query would keep all rows in memory."""
        started, rows = time.perf_counter(), 0
        with self.connection.transaction(), self.connection.cursor("reader", binary=True) as cursor:
            cursor.execute(query)
            while part := cursor.fetchmany(_FETCHED):
                rows += len(part)
        return Timing(rows, time.perf_counter() - started)

    async def _call(self, arguments: list[Any], callers: int, call: Any) -> Timing:  # noqa: ANN401
        connections = [await self._connect_async() for _ in range(callers)]
        cursors = [connection.cursor(binary=True) for connection in connections]
        for cursor in cursors:
            await cursor.execute("SELECT")
        calls = [lambda argument, cursor=cursor: call(cursor, argument) for cursor in cursors]
        try:
            return await time_callers(arguments, calls)
        finally:
            for connection in connections:
                await connection.close()

    async def _change(self, rows: list[dict[str, Any]]) -> Timing:
        writer, listener = await self._connect_async(), await self._connect_async()

        async def change(row: dict[str, Any]) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(writer.execute(_WRITE, row))
                async for _ in listener.notifies(stop_after=1):
                    pass

        try:
            await listener.execute("LISTEN changes")
            return await time_awaited(rows, change)
        finally:
            await writer.close()
            await listener.close()

    async def _connect_async(self) -> Any:  # noqa: ANN401
        return await self.psycopg.AsyncConnection.connect(self.address, autocommit=True, prepare_threshold=0)


class AdbcClient(FieldClient):
    """Reads and writes Arrow data."""

    CANNOT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("count", "call_nothing", "get", "get_concurrently", "write", "write_concurrently", "top_n", "change"),
        "as PostgreSQL, psycopg",
    )

    def open(self) -> None:
        library = import_library("adbc_driver_postgresql.dbapi")
        self.connection = self.stack.enter_context(library.connect(self.address, autocommit=True))
        self.cursor = self.stack.enter_context(self.connection.cursor())

    def load(self) -> Timing:
        self.cursor.execute("DROP TABLE IF EXISTS t4")
        self.cursor.execute(_CREATE)
        timing = self.load_batches(t4.batches(self.rows, LOAD_ROWS), self._append)
        self.cursor.execute("ANALYZE t4")
        return timing

    def scan(self) -> Timing:
        return self._read(_select()).check_rows(self.rows)

    def project(self) -> Timing:
        return self._read(_select(", ".join(PROJECTED))).check_rows(self.rows)

    def select(self) -> Timing:
        found = self._read(_select(where=f"WHERE amount < {BELOW}")).check_rows(self.expected_selected())
        return Timing(self.rows, found.seconds)

    def _append(self, batch: pa.RecordBatch) -> None:
        self.cursor.adbc_ingest("t4", batch, mode="append")

    def _read(self, query: str) -> Timing:
        started, rows = time.perf_counter(), 0
        self.cursor.execute(query)
        for batch in self.cursor.fetch_record_batch():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
