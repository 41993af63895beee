"""The staged requests of a transaction on their way into its tables: read, and made ready, one ahead of their taker."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.storage.staging import UPSERT, payloads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.live_table import LiveTable
    from streaming_server.engine.prepare import PreparedRows
    from streaming_server.storage.staging import StagedRequest


@dataclass(frozen=True, slots=True)
class StagedRows:
    """One request: its rows or keys by bucket, ascending, of its table."""

    request: StagedRequest
    table: LiveTable
    parts: Sequence[PreparedRows]


def check_of(
    table: LiveTable, action: str, data: bytes, schema_id: int, kind: WriteKind
) -> Callable[[], tuple[int, list[PreparedRows]]]:
    """What checks a request in a thread: how many rows or keys it has, and these by bucket. Raises InvalidRequest."""
    return table.upsert_check(data, schema_id, kind) if action == UPSERT else table.delete_check(data, kind)


@asynccontextmanager
async def staged_rows(
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    executor: StorageExecutor,
    wanted: Callable[[StagedRequest], bool],
    *,
    by_key: bool = False,
) -> AsyncIterator[AsyncIterator[StagedRows]]:
    """The wanted ones of the requests staged in some files, in order; of tables that are not given there are none.

    They are not altered meanwhile. Memory: two requests.

    Args:
        files: The file of each part, and how many of its requests count.
        tables: The tables, by name.
        executor: Runs what blocks.
        wanted: Which of the requests are.
        by_key: Whether the rows of each request are to be in the order in which a bucket takes them best.

    Raises:
        DataLoss: Staged requests are missing, or damaged.
        ScanKvError: A request is refused, as when it was staged.
    """

    def read() -> Iterator[StagedRows]:
        for path, count in files:
            for request, data in payloads(path, count):
                if request.table in tables and wanted(request):
                    kind = WriteKind(columns=request.columns, overwrite=request.overwrite)
                    table = tables[request.table]
                    _, parts = check_of(table, request.action, data, request.schema_id, kind)()
                    yield StagedRows(request, table, [part.by_key() for part in parts] if by_key else parts)

    async def ahead() -> AsyncGenerator[StagedRows]:
        reading = read()
        following = asyncio.ensure_future(executor.run(_next, reading))
        try:
            while (rows := await following) is not None:
                following = asyncio.ensure_future(executor.run(_next, reading))
                yield rows
        finally:
            # A thread may be at work in the generator, which can only be closed by nobody else.
            await asyncio.wait([following])
            if not following.cancelled():
                following.exception()

    async with aclosing(ahead()) as rows:
        yield rows


def _next(rows: Iterator[StagedRows]) -> StagedRows | None:
    return next(rows, None)
