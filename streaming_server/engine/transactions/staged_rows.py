"""The staged requests of a transaction on their way into its tables: read, and made ready, one ahead of their taker."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
from streaming_server.storage.transactions.staging import READ, UPSERT, read_staged_requests

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.transactions.staging import StagedRequest, TableFootprint

T = TypeVar("T")


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
    writes = table.writes
    return writes.check_upsert(data, schema_id, kind) if action == UPSERT else writes.check_delete(data, kind)


@asynccontextmanager
async def staged_rows(
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    executor: StorageExecutor,
    wanted: Callable[[StagedRequest], bool],
    shape: Callable[[int, LiveTable, PreparedRows], PreparedRows] = lambda _, __, part: part,
) -> AsyncIterator[AsyncIterator[StagedRows]]:
    """The wanted ones of the requests staged in some files, in order; of tables that are not given there are none.

    They are not altered meanwhile. Memory: two requests.

    Args:
        files: The file of each part, and how many of its requests count.
        tables: The tables, by name.
        executor: Runs what blocks.
        wanted: Which of the requests are.
        shape: What is made of the rows of each bucket, given the number of their request among all in the files, and
            the table.

    Raises:
        DataLoss: Staged requests are missing, or damaged.
        ScanKvError: A request is refused, as when it was staged.
    """

    def read() -> Iterator[StagedRows]:
        for number, request, data in _requests(files):
            if request.table in tables and wanted(request):
                kind = WriteKind(columns=request.columns, overwrite=request.overwrite)
                table = tables[request.table]
                _, parts = check_of(table, request.action, data, request.schema_id, kind)()
                yield StagedRows(request, table, [shape(number, table, part) for part in parts])

    async with aclosing(_ahead(read(), executor)) as rows:
        yield rows


async def repeated_keys(
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    touched: Mapping[str, TableFootprint],
    executor: StorageExecutor,
) -> dict[LiveBucket, RepeatedKeys]:
    """Which request of a transaction is the last of each key, in the buckets that several write; see `RepeatedKeys`.

    Not of tables whose rows are merged. Memory: as `RepeatedKeys`, and two requests.

    Raises:
        DataLoss: Staged requests are missing, or damaged.
        ScanKvError: A request is refused, as when it was staged.
    """
    shared = {
        name: {number for number, requests in touched[name].buckets.items() if requests > 1}
        for name in tables
        if not touched[name].merges
    }
    if not any(shared.values()):
        return {}
    found = {tables[name].buckets[number]: RepeatedKeys() for name, numbers in shared.items() for number in numbers}

    def read() -> Iterator[bool]:
        for number, request, data in _requests(files):
            if request.action != READ and not shared.get(request.table, set()).isdisjoint(request.buckets):
                table = tables[request.table]
                upsert = request.action == UPSERT
                for bucket, keys in table.writes.request_keys(data, request.schema_id, upsert=upsert):
                    if bucket in shared[request.table]:
                        found[table.buckets[bucket]].add(number, keys)
            yield True
        for repeated in found.values():
            repeated.close()
            yield True

    async with aclosing(_ahead(read(), executor)) as steps:
        async for _ in steps:
            pass
    return found


def _requests(files: Sequence[tuple[Path, int]]) -> Iterator[tuple[int, StagedRequest, bytes]]:
    """The requests in some files, numbered, with their rows or keys. Raises DataLoss."""
    requests = (request for path, count in files for request in read_staged_requests(path, count))
    for number, (request, data) in enumerate(requests):
        yield number, request, data


async def _ahead(reading: Iterator[T], executor: StorageExecutor) -> AsyncGenerator[T]:
    """What an iterator that blocks gives, one ahead of its taker."""
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


def _next(rows: Iterator[T]) -> T | None:
    return next(rows, None)
