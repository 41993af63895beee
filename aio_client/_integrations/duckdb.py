"""Creates a table in DuckDB from the rows of a scan, by one statement that reads the rows as they arrive."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from aio_client._input.optional import import_optional
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb


class BatchStream(Protocol):
    """An asynchronous stream of record batches."""

    @property
    def schema(self) -> pa.Schema: ...

    async def __anext__(self) -> pa.RecordBatch: ...

    async def aclose(self) -> None: ...


def check_connection(con: object, name: object) -> None:
    """Raises UsageError, before a scan starts, if `con` is not a connection or `name` not a table name."""
    duckdb = import_optional("duckdb")
    if not isinstance(con, duckdb.DuckDBPyConnection):
        raise UsageError(f"con must be a connection from duckdb.connect(), not a {type(con).__name__}")
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of a table in DuckDB must be text, not {name!r}")


def create_table(
    con: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> duckdb.DuckDBPyRelation:
    """Creates a table from some batches, or no table if they end with an error. Blocks.

    Args:
        con: A connection that nothing else uses until the call returns.
        name: The table's name as DuckDB parses it: `flights`, `main.flights`, `"odd name"`.
        schema: The schema of the batches.
        batches: Read one by one, in a thread of DuckDB.

    Raises:
        duckdb.Error: The table exists already, or DuckDB cannot store these rows.
        Exception: The error that `batches` raised, of which DuckDB would keep only the text.
    """
    failures: list[Exception] = []

    def record_failure() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            failures.append(error)
            raise

    try:
        con.from_arrow(pa.RecordBatchReader.from_batches(schema, record_failure())).create(name)
    except Exception as error:
        if failures:
            raise failures[0] from error
        raise
    return con.table(name)


async def create_table_of_stream(
    con: duckdb.DuckDBPyConnection, name: str, stream: BatchStream
) -> duckdb.DuckDBPyRelation:
    """Creates a table from the rows of an asynchronous stream, which is read in this event loop.

    When the call is cancelled, it waits until DuckDB has ended the statement, because the connection is in use until
    then.
    """
    loop = asyncio.get_running_loop()

    def batches() -> Iterator[pa.RecordBatch]:
        while (rows := asyncio.run_coroutine_threadsafe(_next(stream), loop).result()) is not None:
            yield rows

    creating = asyncio.ensure_future(asyncio.to_thread(create_table, con, name, stream.schema, batches()))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        await stream.aclose()  # Makes DuckDB's next read fail, which ends the statement.
        with suppress(Exception):
            await asyncio.shield(creating)
        raise


async def _next(stream: BatchStream) -> pa.RecordBatch | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None
