"""Checks that a transaction can be committed: no key it depends on has changed, and no write will be refused."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from scankv.model.counts import counted
from scankv.model.errors import InvalidRequest, ScanKvError, TransactionConflict
from streaming_server.engine.merging.step import restate
from streaming_server.engine.transactions.net_rows import MergedTransactionRows
from streaming_server.engine.transactions.staged_rows import read_staged_rows
from streaming_server.engine.writes.changed_keys import changed_keys
from streaming_server.storage.transactions.staging import READ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.staged_rows import StagedRows
    from streaming_server.storage.transactions.staging import StagedRequest, TableFootprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The checks before a transaction is decided, while its commit barrier is raised.

    A transaction that neither finds conflicts, nor depends on keys that it has read, nor merges rows needs no reads.

    Attributes:
        files: The file of each part, and how many of its requests are committed.
        tables: Its tables, by name.
        touched: What it does to each of them.
        since: By table and bucket, the offset after which a change of a key that it writes is a conflict.
    """

    files: Sequence[tuple[Path, int]]
    tables: Mapping[str, LiveTable]
    touched: Mapping[str, TableFootprint]
    since: Mapping[str, Mapping[int, int]]

    async def run(self, executor: StorageExecutor) -> dict[LiveBucket, MergedTransactionRows]:
        """Returns the merged rows of tables whose rows are merged, if the transaction can be committed.

        Memory: the keys to look for among changes, and the merged rows.

        Raises:
            TransactionConflict: A key that it depends on has changed.
            InvalidRequest, PositionExpired, PositionOutOfRange: The changes to check are not available.
            InvalidRequest, RequestTooLarge: A table refuses a write.
            DataLoss: A staged request or a stored row is damaged.
        """
        moved = {name: self._changed_buckets(name) for name in self.since if name in self.tables}
        stale = {name: self._is_stale(name) for name in self.tables}
        reads = {name for name, touched in self.touched.items() if touched.read_from}
        if not (reads or any(moved.values()) or any(stale.values())):
            return {}
        keys: dict[_Since, list[pa.Array]] = {}
        net: dict[LiveBucket, MergedTransactionRows] = {}

        def wanted(request: StagedRequest) -> bool:
            if request.action == READ:
                return True
            return stale[request.table] or not moved.get(request.table, set()).isdisjoint(request.buckets)

        async with read_staged_rows(self.files, self.tables, executor, wanted) as requests:
            async for rows in requests:
                self._collect_keys(rows, keys)
                if rows.request.action != READ and self.touched[rows.request.table].merges:
                    await _merge(rows, net)
        for since, parts in keys.items():
            await _check_unchanged(since, pa.concat_arrays(parts), self.tables[since.live.table])
        return net

    def _changed_buckets(self, name: str) -> set[int]:
        """Returns the buckets of a table with changes that may conflict."""
        live = self.tables[name].buckets
        since = self.since[name]
        states = {number: live[number].state for number in self.touched[name].buckets}
        return {number for number, state in states.items() if state is None or state.log_offset != since[number]}

    def _is_stale(self, name: str) -> bool:
        """Whether writes to a table need another check: its schema or indexes have changed, or its rows are merged.

        Another schema may be unable to hold a row: a date may be beyond the range of its timestamps, or a default may
        make the row too large.
        """
        touched, codec = self.touched[name], self.tables[name].state.codec
        if touched.merges or any(each != tuple(codec.indexes) for each in touched.indexes):
            return True
        return any(schema_id != codec.definition.schema.id for schema_id, _, _ in touched.access)

    def _collect_keys(self, rows: StagedRows, keys: dict[_Since, list[pa.Array]]) -> None:
        request = rows.request
        reads = request.action == READ
        offsets = request.buckets if reads else self.since.get(request.table)
        if offsets is not None:
            for part in rows.parts:
                since = _Since(rows.table.buckets[part.bucket], offsets[part.bucket], reads)
                keys.setdefault(since, []).append(part.key_array)


class _Since(NamedTuple):
    """A position in the changelog of a bucket, after which certain changes are conflicts.

    Attributes:
        live: The bucket.
        offset: The log offset.
        reads: Whether the transaction has read the rows. If it only writes them, the removal of an expired row is not
            a conflict, because the row did not exist for the write.
    """

    live: LiveBucket
    offset: int
    reads: bool


async def _merge(rows: StagedRows, net: dict[LiveBucket, MergedTransactionRows]) -> None:
    # Few rows of all buckets are merged in one thread, because the change of threads takes as long as the merge.
    for parts in [rows.parts] if all(part.are_few for part in rows.parts) else [[part] for part in rows.parts]:
        await _merge_parts(rows.table, parts, net)


async def _merge_parts(
    table: LiveTable, parts: Sequence[BucketRows], net: dict[LiveBucket, MergedTransactionRows]
) -> None:
    async with AsyncExitStack() as mutexes:
        steps: list[tuple[LiveBucket, BucketRows]] = []
        for part in parts:
            live = table.buckets[part.bucket]
            await mutexes.enter_async_context(live.mutex.bypass_barrier())
            if live not in net:
                now_micros = table.state.clock.commit_micros()
                net[live] = MergedTransactionRows(await live.open(), table.state.codec, now_micros)
            net[live].add_keys(part)
            steps.append((live, part))
        merger = table.writes.merger

        def merge() -> None:
            while steps:
                live, part = steps[0]
                net[live].merge(part, merger)
                del steps[0]

        try:
            # A failed step stays the first one, so the error is recorded for its bucket.
            await table.state.executor.run(merge)
        except ScanKvError as error:
            recorded = steps[0][0].record_error(error)
            if isinstance(recorded, InvalidRequest):
                raise restate(recorded, "nothing of the transaction was written") from error
            raise recorded from error.__cause__


async def _check_unchanged(since: _Since, keys: pa.Array, table: LiveTable) -> None:
    live = since.live
    if table.definition.options.changelog == "none":
        # Only a transaction that has selected rows by a predicate comes here; and only if the bucket has changed.
        raise TransactionConflict(
            f"{live.location}: other writers have written to it since the transaction selected rows there, and without "
            "changelog it is unknown which rows they have changed; nothing was written: begin another transaction",
            table=live.table,
            bucket=live.number,
        )
    async with live.mutex.bypass_barrier():
        find = partial(changed_keys, with_removals=since.reads)
        changed = await live.run(find, await live.open(), since.offset, keys, table.state.codec)
    if len(changed):
        raise TransactionConflict(
            f"{live.location}: {counted(len(changed), 'key')} that the transaction depends on changed in the meantime; "
            "nothing was written: begin another transaction, and read again",
            table=live.table,
            bucket=live.number,
            keys=len(changed),
        )
