"""The rows of a scan as a table in DuckDB: made by one statement of DuckDB's, which reads them as they come."""

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
    """Raises UsageError where they are not a connection and the name of a table; before a scan starts."""
    duckdb = import_optional("duckdb")
    if not isinstance(con, duckdb.DuckDBPyConnection):
        raise UsageError(f"con is a connection as duckdb.connect() makes one, not a {type(con).__name__}")
    if not isinstance(name, str) or not name:
        raise UsageError(f"a table in DuckDB is named by text, not {name!r}")


def create_table(
    con: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> duckdb.DuckDBPyRelation:
    """Creates a table of some batches, or none when they end in an error. Blocks.

    Args:
        con: A connection that nothing else uses meanwhile.
        name: As DuckDB reads it: `flights`, `main.flights`, `"odd name"`.
        schema: Of the batches.
        batches: Pulled one by one, in a thread of DuckDB's.

    Raises:
        duckdb.Error: There is such a table, or DuckDB cannot store these rows.
        Exception: What `batches` raised, of which DuckDB would keep the text only.
    """
    failures: list[Exception] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            failures.append(error)
            raise

    try:
        con.from_arrow(pa.RecordBatchReader.from_batches(schema, watched())).create(name)
    except Exception as error:
        if failures:
            raise failures[0] from error
        raise
    return con.table(name)


async def create_table_of_stream(
    con: duckdb.DuckDBPyConnection, name: str, stream: BatchStream
) -> duckdb.DuckDBPyRelation:
    """Does so with the rows of a stream of this event loop, which goes on meanwhile.

    When it is cancelled, it waits until DuckDB has given the statement up, since the connection is in use until then.
    """
    loop = asyncio.get_running_loop()

    def batches() -> Iterator[pa.RecordBatch]:
        while (rows := asyncio.run_coroutine_threadsafe(_next(stream), loop).result()) is not None:
            yield rows

    creating = asyncio.ensure_future(asyncio.to_thread(create_table, con, name, stream.schema, batches()))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        await stream.aclose()  # so that DuckDB's next read fails, and its statement with it
        with suppress(Exception):
            await asyncio.shield(creating)
        raise


async def _next(stream: BatchStream) -> pa.RecordBatch | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None
