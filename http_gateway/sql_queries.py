"""Runs queries in SQL for callers: each in a database of its own, and few at once, within bounds of memory and time."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from aio_client._sql.engine import Engine, SqlStream, connect_locked
from aio_client._sql.query import SqlQuery, limit_time
from http_gateway.bound import Bound
from http_gateway.problems import HttpRefusal
from scankv.model.installing import command_to_install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    import pyarrow as pa

    from aio_client import Client
    from http_gateway.settings import GatewaySettings

_MOST_THREADS: Final = 4
_OTHER_BYTES: Final = 2**30
"""How much memory the gateway may take for everything but queries in SQL, beyond what it has at the start."""


class SqlRunner:
    """The queries in SQL of all callers. Belongs to the event loop.

    No connection to DuckDB is used for two queries, since it might know something of the first one.

    Args:
        client: Reads the tables with the token of the caller.
        settings: The bounds.
    """

    def __init__(self, client: Client, settings: GatewaySettings) -> None:
        self._client = client
        self._settings = settings
        self._running = Bound("queries in SQL", settings.max_sql_queries)
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        self._engine = Engine(partial(connect_locked, settings.sql_memory_bytes, threads), most_kept=0)

    async def __aenter__(self) -> Self:
        if find_spec("duckdb") is not None:
            _bound_memory(self._settings.max_sql_queries * self._settings.sql_memory_bytes + _OTHER_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._engine.aclose()

    def query(self, text: str, parameters: Any) -> SqlQuery:  # noqa: ANN401
        """Returns a query; may be called in any thread.

        Raises:
            HttpRefusal: DuckDB is not installed.
            UsageError: The query cannot be parsed, is several statements, or would change something.
        """
        if find_spec("duckdb") is None:
            raise HttpRefusal(
                501,
                "NOT_INSTALLED",
                f"the gateway has no DuckDB, which runs queries in SQL; {command_to_install('http,sql')}",
            )
        return SqlQuery(self._client, self._engine, text, parameters, {})

    @asynccontextmanager
    async def run(self, query: SqlQuery) -> AsyncIterator[SqlStream]:
        """Runs a query for the length of the block.

        Raises:
            HttpRefusal: Too many queries run.
            DeadlineExceeded: It takes too long; also while the rows are read.
            UsageError, ScanKvError: As for `SqlQuery.to_arrow`.
        """
        seconds = self._settings.sql_seconds
        end = asyncio.get_running_loop().time() + seconds
        with self._running.take():
            async with AsyncExitStack() as stack:
                async with limit_time(seconds, end):
                    stream = await stack.enter_async_context(query._stream())

                async def read() -> pa.RecordBatch | None:
                    async with limit_time(seconds, end):
                        return await stream.read()

                yield SqlStream(stream.schema, read)


def _bound_memory(more_bytes: int) -> None:
    """Lets this process take at most so much more memory.

    DuckDB does not count the values that a function computes, such as `repeat('x', 4_000_000_000)`: beyond the bound,
    they fail, and the machine has memory left for the server.
    """
    if sys.platform != "linux":
        return
    taken = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData:")
    )
    least, most = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = [taken + more_bytes, *(limit for limit in (least, most) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(allowed), most))
