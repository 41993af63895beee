"""Stages requests in open transactions: checks each as its table would, and appends it to a part."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError, Unavailable
from scankv.model.names import tablet_number
from streaming_server.current_call import count_waiting
from streaming_server.engine.merging.preparing import OVERWRITE, current_kind
from streaming_server.engine.transactions.delete_all import (
    ALL_ROWS,
    DeleteAll,
    check_is_range,
    depends_on_rows,
    open_held,
    range_of,
)
from streaming_server.engine.transactions.open_transaction import check_written_to, transaction_lost
from streaming_server.engine.transactions.staged_lookup import with_staged
from streaming_server.engine.transactions.staged_rows import request_check
from streaming_server.storage.transactions.staging import DELETE, READ, UPSERT, StagedRequest, read_staged_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.detached_tasks import DetachedTasks
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.key_locks import KeyLocks
    from streaming_server.engine.transactions.open_transaction import OpenTransaction
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.storage.transactions.staging import PartFile

_RETRY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRequestId:
    """Identifies a staged request: number `sequence` of `part` of the transaction `token`.

    Attributes:
        token: The token of the transaction.
        part: The part.
        sequence: The number of the request in its part.
        fragment: As in `StagedRequest`.
    """

    token: str
    part: str
    sequence: int
    fragment: str = ""


class RequestStaging:
    """Stages the requests of all open transactions. Bound to the event loop.

    Args:
        executor: Runs blocking work.
        max_bytes: How many bytes each transaction may stage.
        renew: Returns the open transaction of a token with its time to live renewed, or raises TransactionLost or
            TransactionCommitted.
        tasks: Runs deletions of all rows, which continue when their caller is cancelled.
        key_locks: The locks on keys.
    """

    def __init__(
        self,
        executor: StorageExecutor,
        max_bytes: int,
        renew: Callable[[str], OpenTransaction],
        tasks: DetachedTasks,
        key_locks: KeyLocks,
    ) -> None:
        self._executor = executor
        self._max_bytes = max_bytes
        self._renew = renew
        self._tasks = tasks
        self._key_locks = key_locks

    async def stage(
        self,
        request_id: StagedRequestId,
        table: LiveTable,
        action: str,
        data: bytes,
        *,
        schema_id: int = 0,
        kind: WriteKind,
        column_locks: Sequence[str] = (),
    ) -> int:
        """Checks a write as the table would, stages it, and returns its number of rows or keys.

        Args:
            request_id: Which request of a transaction it is.
            table: The table.
            action: UPSERT or DELETE.
            data: Its rows or keys, an Arrow IPC stream.
            schema_id: The version of the table's schema that the rows have. 0: the current one.
            kind: How the rows are written.
            column_locks: The ids of the column locks that the writer holds.

        Raises:
            TransactionLost, TransactionCommitted: The transaction is no longer open.
            RequestTooLarge: The request, or the transaction with it, exceeds its limit.
            DiskFull: An upsert, while less than the reserve of disk space is free.
            LockTimeout, DeadlockDetected, TooManyLocks: Other transactions have locked the keys.
            ScanKvError: The table refuses the write.
        """
        transaction = self._renew(request_id.token)
        if action == UPSERT:
            table.state.reserve.check(len(data))
        _check_records_changes(table)
        definition, indexes = table.definition, tuple(table.state.codec.indexes)
        rows, parts = await self._executor.run(request_check(table, action, data, schema_id, kind))
        await self._lock_keys(transaction, table, parts)
        current = current_kind(definition, schema_id, kind)
        with table.writes.locks.admit(current.columns or None, column_locks):
            pass
        request = StagedRequest(
            part=request_id.part,
            table=definition.name,
            incarnation=definition.incarnation,
            action=action,
            rows=rows,
            buckets=dict.fromkeys((part.bucket for part in parts), 1),
            schema_id=schema_id or definition.schema.id,
            indexes=indexes,
            columns=kind.columns,
            overwrite=kind.overwrite,
            merges=any(part.merges for part in parts),
            column_locks=tuple(sorted(set(column_locks))),
        )
        await self._append(transaction, request_id, request, data, table)
        return rows

    async def stage_delete_all(
        self,
        request_id: StagedRequestId,
        table: LiveTable,
        kind: WriteKind,
        column_locks: Sequence[str],
        wait: float,
        plan: ReadPlan = ALL_ROWS,
        *,
        alone: bool = False,
        continues: bool = False,
    ) -> int | None:
        """Stages the deletion of all current rows of a table that a plan selects.

        The work continues when the caller cancels. A repeated call waits for it, or returns its result.

        Args:
            request_id: Which request of a transaction it is.
            table: The table.
            kind: How the rows are deleted.
            column_locks: The ids of the column locks that the writer holds.
            wait: How many seconds to wait for the result.
            plan: Selects the rows.
            alone: Whether this is the only write of the transaction to the table, and the data directory can have
                staged deletions of key ranges.
            continues: Whether the rows must have been selected by an earlier call.

        Returns:
            How many rows are deleted. None while it is still running.

        Raises:
            InvalidRequest: Changes are not tracked, and the plan selects other rows than one range of keys.
            SchemaMismatch: The predicate of the plan does not fit the table.
            Unavailable: The rows were selected by an earlier call, and the selection is lost.
            TransactionLost, TransactionCommitted, RequestTooLarge, ScanKvError: As for `stage`.
        """
        transaction = self._renew(request_id.token)
        if transaction.options.lock_wait is not None:
            raise InvalidRequest(
                "a transaction that locks keys cannot delete all rows of a table, or those that match a predicate: "
                "begin it without locks, or delete the rows by their keys"
            )
        key = (table.definition.name, request_id)
        task = transaction.deleting.get(key)
        if task is None and continues and part_of(transaction, request_id, table) is not None:
            raise Unavailable("the selection of the rows to delete is lost: try again", retry_after=_RETRY_SECONDS)
        if task is None:
            held = await open_held(plan, table)
            work = self._delete_selected(transaction, request_id, table, kind, column_locks, plan, held, alone=alone)
            task = transaction.deleting[key] = self._tasks.start(work)
            task.add_done_callback(lambda _: transaction.deleting.pop(key))
            if held is not None:
                source = held.source
                task.add_done_callback(lambda _: source.close())
        await asyncio.wait([task], timeout=wait)
        if not task.done():
            return None
        if task.cancelled():
            raise Unavailable("the server is being stopped")
        error = task.exception()
        if isinstance(error, ScanKvError):
            raise copy(error) from error.__cause__
        return task.result()

    async def _delete_selected(
        self,
        transaction: OpenTransaction,
        request_id: StagedRequestId,
        table: LiveTable,
        kind: WriteKind,
        column_locks: Sequence[str],
        plan: ReadPlan,
        held: OpenedScan | None,
        *,
        alone: bool,
    ) -> int:
        def check(more: int) -> None:
            # A commit waits for the lock, and so for this deletion. Only an abort or an expiry can end the transaction.
            if transaction.has_ended:
                raise transaction_lost(transaction.token)
            transaction.renew()
            self._check_room(transaction, more)

        async with transaction.lock:
            transaction.check_open()
            part = part_of(transaction, request_id, table)
            if part is None:
                return (await self.staged(transaction, request_id, table)).rows
            if not kind.tracks_changes:
                _check_can_leave_out(table)
            table.definition.require_key("its rows are not deleted")
            definition, indexes = table.definition, tuple(table.state.codec.indexes)
            with table.writes.locks.admit(kind.columns or None, column_locks):
                pass
            keys = None
            if not kind.tracks_changes or (alone and definition.options.changelog == "none"):
                keys = await self._executor.run(range_of, plan, table)
            if not kind.tracks_changes:
                check_is_range(keys, table)
            if keys is None:
                # Before the rows are read: a change after this offset is a conflict.
                since = None if held is None else held.source.view.log_offsets
                await self._find_conflicts(transaction, table, since, selects_rows=depends_on_rows(plan, table))
            request = StagedRequest(
                part=request_id.part,
                table=definition.name,
                incarnation=definition.incarnation,
                action=DELETE,
                rows=0,
                buckets={},
                schema_id=definition.schema.id,
                indexes=indexes,
                columns=kind.columns,
                overwrite=kind.overwrite,
                column_locks=tuple(sorted(set(column_locks))),
            )
            deleting = DeleteAll(
                table=table, part=part, kind=kind, executor=self._executor, check=check, plan=plan, keys=keys, held=held
            )
            request, data = await deleting.stage(request)
            check(request.piece_bytes)
            request = _numbered(request, request_id, transaction)
            await self._executor.run(part.append, request, data)
            transaction.parts[request_id.part] = part
            return request.rows

    async def get_for_update(
        self, request_id: StagedRequestId, table: LiveTable, keys: bytes
    ) -> tuple[pa.RecordBatch, bytes, int]:
        """Looks keys up as `TableReads.lookup`, and makes the commit depend on them. May lock them first.

        Returns:
            The rows found; a byte for each key, 1 if it was found, else 0; and the id of the schema of the rows.

        Raises:
            LockTimeout, DeadlockDetected, TooManyLocks: As for `stage`.
            TransactionLost, TransactionCommitted, RequestTooLarge: As for `stage`.
            ScanKvError: As for the lookup.
        """
        transaction = self._renew(request_id.token)
        _check_has_changes(table)
        if transaction.options.lock_wait is not None:
            _, parts = await self._executor.run(request_check(table, READ, keys, 0, OVERWRITE))
            await self._lock_keys(transaction, table, parts)
        rows, found, offsets = await table.reads.lookup(keys, None)
        schema_id = table.definition.schema.id
        request = StagedRequest(
            part=request_id.part,
            table=table.definition.name,
            incarnation=table.definition.incarnation,
            action=READ,
            rows=len(found),
            buckets=offsets,
        )
        await self._append(transaction, request_id, request, keys, table)
        return rows, found, schema_id

    async def lookup(
        self, request_id: StagedRequestId, table: LiveTable, keys: bytes
    ) -> tuple[pa.RecordBatch, bytes, int]:
        """Looks keys up as `TableReads.lookup`, with the rows that a part has staged so far merged in.

        Args:
            request_id: The part, and how many requests it has staged; the lookup sees these.
            table: The table.
            keys: An Arrow IPC stream.

        Returns:
            As `get_for_update`.

        Raises:
            TransactionLost, TransactionCommitted: The transaction is no longer open.
            InvalidRequest: The part has another number of requests, or they cannot be merged.
            ScanKvError: As for the lookup.
        """
        transaction = self._renew(request_id.token)
        async with transaction.lock:
            transaction.check_open()
            parts = transaction.select_parts([(request_id.part, request_id.sequence)], is_share=transaction.is_divided)
            check_written_to(parts, table.definition)
            files = [(part.path, part.count_before(request_id.sequence)) for part in parts]
            rows, found, _ = await table.reads.lookup(keys, None, partial(with_staged, table, files, self._executor))
            return rows, found, table.definition.schema.id

    async def staged(
        self, transaction: OpenTransaction, request_id: StagedRequestId, table: LiveTable
    ) -> StagedRequest:
        """Returns the head of a request that is staged."""
        part = transaction.parts[request_id.part]
        place = part.find(request_id.sequence, table.definition.name, request_id.fragment)
        assert place is not None
        return await self._executor.run(read_staged_request, part.path, place)

    async def discard(self, request_id: StagedRequestId) -> None:
        """Removes the fragments of the last request of a part, unless its summary is staged here.

        Raises:
            TransactionLost, TransactionCommitted: The transaction is no longer open.
        """
        transaction = self._renew(request_id.token)
        async with transaction.lock:
            transaction.check_open()
            part = transaction.parts.get(request_id.part)
            if part is None:
                return
            rest = await self._executor.run(part.without_fragments, request_id.sequence)
            if rest is None:
                del transaction.parts[request_id.part]
            else:
                transaction.parts[request_id.part] = rest

    async def _lock_keys(self, transaction: OpenTransaction, table: LiveTable, parts: Sequence[BucketRows]) -> None:
        """Locks the keys of a request, if the transaction locks keys."""
        wait, incarnation = transaction.options.lock_wait, table.definition.incarnation
        if wait is not None:
            keys = [(incarnation, key) for part in parts for key in part.key_array.to_pylist()]
            with count_waiting():
                await self._key_locks.acquire(transaction.token, table.definition.name, keys, wait)
            transaction.renew()

    async def _append(
        self,
        transaction: OpenTransaction,
        request_id: StagedRequestId,
        request: StagedRequest,
        data: bytes,
        table: LiveTable,
    ) -> None:
        async with transaction.lock:
            transaction.check_open()
            part = part_of(transaction, request_id, table)
            if part is None:
                return
            self._check_room(transaction, len(data))
            if request.action != READ:
                await self._find_conflicts(transaction, table)
            await self._executor.run(part.append, _numbered(request, request_id, transaction), data)
            transaction.parts[request_id.part] = part
            if request.action == READ:
                self._hold_log(transaction, table)

    def _check_room(self, transaction: OpenTransaction, more: int) -> None:
        """Raises RequestTooLarge unless `more` bytes fit into the transaction."""
        if transaction.size + more > self._max_bytes:
            raise RequestTooLarge(
                f"the transaction would stage over {self._max_bytes:,} bytes: commit it in several, or raise "
                "max_transaction_bytes"
            )

    async def _find_conflicts(
        self,
        transaction: OpenTransaction,
        table: LiveTable,
        offsets: Mapping[int, int] | None = None,
        *,
        selects_rows: bool = False,
    ) -> None:
        """Records, before the first write to a table, the offsets after which a change is a conflict. Hold the lock.

        A write that selects rows by their values depends on them, whether the transaction finds conflicts or not.
        `offsets` are the offsets of the view in which the write selects them. None: the write opens its view later.
        """
        name = table.definition.name
        if not table.definition.has_key:
            return  # Rows are only appended, and no other write can change them.
        if (transaction.options.finds_conflicts or selects_rows) and name not in transaction.since:
            if transaction.options.finds_conflicts:
                _check_has_changes(table)
            now = (await table.reads.view_now(None)).log_offsets if offsets is None else offsets
            transaction.since[name] = dict(now)
            self._hold_log(transaction, table)
            await self._executor.run(transaction.directory.write_metadata, transaction.content())

    def _hold_log(self, transaction: OpenTransaction, table: LiveTable) -> None:
        """Retains the changes in which the commit looks for conflicts."""
        offsets = transaction.retention_holds.get(table.definition.name, {})
        # A table that was dropped and recreated may have fewer buckets.
        for live in table.buckets:
            if live.number in offsets and not transaction.has_ended:
                live.retain_log(transaction.log_owner, offsets[live.number])


def part_of(transaction: OpenTransaction, request_id: StagedRequestId, table: LiveTable) -> PartFile | None:
    """Returns the part of a request, or None if it is staged already. Raises the errors of `OpenTransaction.part`."""
    if bool(request_id.fragment) != (tablet_number(table.definition.name) is not None):
        raise InvalidRequest("fragment is for the worker processes of a server: leave it out")
    return transaction.part(request_id.part, request_id.sequence, table.definition.name, request_id.fragment)


def _numbered(request: StagedRequest, request_id: StagedRequestId, transaction: OpenTransaction) -> StagedRequest:
    """Stores the number of a request with it, if its place in the part does not say it."""
    is_counted = not (transaction.is_divided or request_id.fragment)
    number = None if is_counted else request_id.sequence
    return replace(request, sequence=number, fragment=request_id.fragment)


def _check_records_changes(table: LiveTable) -> None:
    """Raises InvalidRequest if the changelog records what is written. A transaction writes what its rows lead to."""
    if table.definition.options.changelog == "input":
        raise InvalidRequest(
            f'table {table.definition.name} has changelog="input", which records what is written; transactions merge '
            "their rows before they write them, so they cannot upsert rows of this table or delete its rows by their "
            "keys: write outside of a transaction, or delete the rows that match a predicate",
            table=table.definition.name,
        )


def _check_can_leave_out(table: LiveTable) -> None:
    """Raises InvalidRequest if the changelog records what is written, because it would lack the deletions."""
    if table.definition.options.changelog == "input":
        raise InvalidRequest(
            f'table {table.definition.name} has changelog="input", which records every write, and so refuses deletions '
            "without tracking of changes (track_changes=False): track the changes",
            table=table.definition.name,
        )


def _check_has_changes(table: LiveTable) -> None:
    """Raises InvalidRequest unless the table has a changelog, which conflict checks read."""
    if table.definition.options.changelog == "none":
        raise InvalidRequest(
            f"table {table.definition.name} has no changelog, which finds out whether a key has changed: set "
            'changelog="full" or "upsert"'
        )
