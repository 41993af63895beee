"""Reads and prepares the staged requests of a transaction, one request ahead of the consumer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from streaming_server.engine.merging.preparing import OVERWRITE, WriteKind
from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
from streaming_server.storage.transactions.staging import DELETE_RANGE, READ, UPSERT, read_staged_requests

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.transactions.staging import StagedRequest, TableFootprint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A staged request with its table, and its rows or keys by bucket, ascending."""

    request: StagedRequest
    table: LiveTable
    parts: Sequence[BucketRows]


def request_check(
    table: LiveTable, action: str, data: bytes, schema_id: int, kind: WriteKind
) -> Callable[[], tuple[int, Sequence[BucketRows]]]:
    """Returns a function that checks a request in a thread, and gives its size and its rows or keys by bucket.

    Raises:
        InvalidRequest: The table has no such schema.
    """
    writes = table.writes
    if action == UPSERT:
        return writes.check_upsert(data, schema_id, kind)
    # Keys that are read count for tables, too, that ignore or refuse deletes.
    return writes.check_delete(data, OVERWRITE if action == READ else kind, schema_id)


@asynccontextmanager
async def read_staged_rows(
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    executor: StorageExecutor,
    wanted: Callable[[StagedRequest], bool],
    shape: Callable[[int, LiveTable, BucketRows], BucketRows] = lambda _, __, part: part,
) -> AsyncIterator[AsyncIterator[StagedRows]]:
    """Yields the staged requests that `wanted` selects, in order.

    Skips tables that are not in `tables`, and requests that delete a range.

    The caller keeps the tables from being altered. Memory: two requests.

    Args:
        files: The file of each part, and how many of its requests belong to the transaction.
        tables: The tables, by name.
        executor: Runs blocking work.
        wanted: Selects requests.
        shape: Transforms the rows of each bucket; gets the number of their request among all in the files, and the
            table.

    Raises:
        DataLoss: Staged requests are missing, or damaged.
        ScanKvError: A request is refused, as when it was staged.
    """

    def read() -> Iterator[StagedRows]:
        for number, request, data in _requests(files):
            if request.table in tables and request.action != DELETE_RANGE and wanted(request):
                kind = WriteKind(columns=request.columns, overwrite=request.overwrite)
                table = tables[request.table]
                _, parts = request_check(table, request.action, data, request.schema_id, kind)()
                yield StagedRows(request, table, [shape(number, table, part) for part in parts])

    async with aclosing(_prefetch(read(), executor)) as rows:
        yield rows


async def find_repeated_keys(
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    touched: Mapping[str, TableFootprint],
    executor: StorageExecutor,
) -> dict[LiveBucket, RepeatedKeys]:
    """Finds the keys that several requests of a transaction write, by bucket; see `RepeatedKeys`.

    Skips tables whose rows are merged. Memory: as `RepeatedKeys`, and two requests.

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
            if request.has_rows and not shared.get(request.table, set()).isdisjoint(request.buckets):
                table = tables[request.table]
                # The server has built the only request from pieces of one view, which has each key once.
                is_distinct = touched[request.table].writes == 1
                if is_distinct and len(request.buckets) == 1:
                    (bucket,) = request.buckets
                    found[table.buckets[bucket]].add_rows(request.rows)
                    continue
                if not table.definition.has_key:
                    kind = WriteKind(columns=request.columns, overwrite=request.overwrite)
                    for part in request_check(table, request.action, data, request.schema_id, kind)()[1]:
                        if part.bucket in shared[request.table]:
                            found[table.buckets[part.bucket]].add_rows(len(part.keys))
                    continue
                upsert = request.action == UPSERT
                for bucket, keys in table.writes.request_keys(data, request.schema_id, upsert=upsert):
                    if bucket not in shared[request.table]:
                        continue
                    if is_distinct:
                        found[table.buckets[bucket]].add_rows(len(keys))
                    else:
                        found[table.buckets[bucket]].add(number, keys)
            yield True
        for repeated in found.values():
            repeated.close()
            yield True

    async with aclosing(_prefetch(read(), executor)) as steps:
        async for _ in steps:
            pass
    return found


def _requests(files: Sequence[tuple[Path, int]]) -> Iterator[tuple[int, StagedRequest, bytes]]:
    """Yields the requests of some files, numbered, with their rows or keys. Raises DataLoss."""
    requests = (request for path, count in files for request in read_staged_requests(path, count))
    for number, (request, data) in enumerate(requests):
        yield number, request, data


async def _prefetch(reading: Iterator[T], executor: StorageExecutor) -> AsyncGenerator[T]:
    """Yields the items of a blocking iterator, and reads one item ahead."""
    following = asyncio.ensure_future(executor.run(_next, reading))
    try:
        while (rows := await following) is not None:
            following = asyncio.ensure_future(executor.run(_next, reading))
            yield rows
    finally:
        # A thread may still run the iterator, and an iterator cannot be closed while it runs: wait for the thread.
        await asyncio.wait([following])
        if not following.cancelled():
            following.exception()


def _next(rows: Iterator[T]) -> T | None:
    return next(rows, None)
