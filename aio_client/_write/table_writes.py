"""Writes to a table: upserts, retractions, deletes, writers, undo and column locks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aio_client._input.arguments import names_of, text_of
from aio_client._input.data import rows_of
from aio_client._table.handle import TableMethods
from aio_client._transport.repeatable_calls import call_again
from aio_client._write.column_locks import ColumnLockOpener, lock_ids_of
from aio_client._write.divided_writes import write_rows
from aio_client._write.row_writes import EncodedRows, NeedsArrowError, RowWrites
from aio_client._write.write_requests import (
    UndoReport,
    WritePieces,
    WriteResult,
    add_offsets,
    offsets_message,
    require_one_piece,
    require_same_table,
)
from aio_client._write.writer import Writer, WriterSettings
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import TableRecreated, UsageError
from scankv.model.short_tracebacks import SHORT_TRACEBACK
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import pyarrow as pa

    from aio_client._input.data import Data
    from aio_client._table.handle import TableHandle
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names, WriteMode
    from aio_client._write.repeatable_writes import Request


class WriteMethods(TableMethods):
    """Writes rows of a table. When a write returns, its rows are durable."""

    def __init__(self, handle: TableHandle) -> None:
        super().__init__(handle)
        self._row_writes = RowWrites(handle)

    async def upsert(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
        track_changes: bool = True,
    ) -> WriteResult:
        """Inserts rows, and merges them into the rows that have their keys, as the table's merge engine says.

        By default, a new row replaces the row with its key, and the last of several rows with one key counts.

        Concurrent calls on one `Table` share requests if each has a list of one dictionary and no other argument: calls
        that are made while a request is in flight go out with the next one. They are applied in the order in which they
        were made, and each has its own result and error. A call gets a request of its own if its row is longer than
        4 KiB or a value needs a conversion. So does every call if the table has columns of other types than numbers,
        booleans, text, bytes, dates and timestamps in microseconds, or floats or decimals in its key.

        Columns are matched by name. Values are cast if nothing is lost: numbers of other widths, all layouts of text
        and lists, dates to timestamps. NaN in pandas is null. A column that the data lacks gets its default. Without
        one, it is null if the data are dictionaries, and an error otherwise.

        Rows in memory are all checked before the first is sent, so invalid rows write nothing. A reader, or another
        object that streams, is checked batch by batch: rows before an invalid one may have been written. The rows are
        sent in order, in requests of up to 8 MiB. The server applies a request in steps of up to 8,192 rows of one
        bucket, each of which is atomic. A request that gets no answer, because the connection broke or the server
        restarted, is repeated for the operation timeout, but is applied only once. If no answer ever comes, the request
        may have been applied in part or completely, or may still be applied; but not after a later write to the same
        bucket by the same task, provided that no other task writes through the client at the same time.

        Args:
            data: A RecordBatch, Table or RecordBatchReader, a pandas or Polars DataFrame, a list of dictionaries, or
                anything with `__arrow_c_stream__` or `__arrow_c_array__`. Must not be changed until the call returns.
                It may have an additional column `_change_type`, as streams of changes have it: rows with "-U" and "-D"
                are retracted if the table supports it (see `retract`); in other tables "-U" does nothing, and "-D"
                deletes, as the table's `delete_behavior` says.
            columns: The columns to write, including all key columns; the data may have more. Other columns keep their
                values, and are null in new rows even if they have defaults, so all columns outside the key must be
                nullable. Default: all.
            mode: "merge" merges as the merge engine says, "overwrite" replaces existing rows in any table.
            if_version: Write only if none of these keys has changed since they were read: the `log_offsets` of a
                scan's stream, of `lookup(with_version=True)`, or of a write, by bucket. The server checks all buckets
                before it writes the first one, with no other write in between. The rows must fit into one request, and
                `if_version` must have all their buckets. `LogOffsets` contain their table incarnation, even
                after pickling and `to_json`; a plain dictionary does not. Default: write in any case.
            locks: The column locks of this table that the caller holds, or their ids: the write may change the columns
                that they lock. A write that names a lock that has ended is refused, so that a holder that was paused
                does not write concurrently with its successor.
            track_changes: False leaves the changes of the rows out of the changelog, which then has only the range of
                their keys. This makes backfills faster. A stream of changes, a consumer or an undo that reaches such a
                range fails with `RangeNotTracked`, and conditional writes and transactions take it for a change of
                every key in it. The data cannot have a column `_change_type`.

        Returns:
            The number of rows given, and the log offsets after the write.

        Raises:
            SchemaMismatch: A column is missing or unknown, or its type cannot hold a value; the message names column
                and row. Or `columns` cannot be written alone.
            InvalidRequest: The merge has no result, such as a sum that does not fit its column; the message names
                column and key, and batches before it may have been written. Or the merge engine takes complete rows
                only, or refuses deletes.
            InvalidKey: A key is longer than 16 KiB.
            NoPrimaryKey: The table has no primary key; use `append`.
            RequestTooLarge: A row is larger than 16 MiB, before or after the merge.
            WriteConflict: A key has changed since `if_version`; nothing was written.
            TableRecreated: The table was restored, or dropped and created again since `if_version`, or may have been;
                nothing was written. Or this happened between two requests, so that the table lacks the first rows.
            PositionExpired: The changelog no longer reaches back to `if_version`; read again.
            ColumnLocked: Another writer has locked a column of the table; nothing was written.
            LockLost: A lock of `locks` has ended, or belongs to another table; nothing was written.
            UpgradeNotConfirmed: With `track_changes=False`, the data directory has a format of an earlier version;
                nothing was written.
            UsageError: `data` has no known form; or, with `if_version`, it is empty or does not fit into one request.
            ConnectionFailed: No answer came within the operation timeout.
        """
        is_plain = columns is None and mode == "merge" and if_version is None and not locks and track_changes
        if is_plain and self._handle.shape.has_key and (written := await self._write_few_rows(data)) is not None:
            return written
        # In a thread, because `data` may be a blocking stream, such as a scan of `scankv.sync`.
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await self._handle.build_for_shape(
            lambda shape: WritePieces.of_rows(shape, rows, columns, mode, track_changes=track_changes)
        )
        return await self._write(pieces, if_version, locks)

    async def append(self, data: Data, *, locks: Sequence[ColumnLock | str] = ()) -> WriteResult:
        """Appends rows to a table without a primary key.

        The rows of one request to a bucket stay together and in their order. A table with `bucket_key` puts equal
        values into one bucket; otherwise requests go to the buckets by turns, and large ones to several in contiguous
        pieces. Rows that one task appends after each other are in this order within a bucket.

        Concurrent calls with one row share requests, as for `upsert`, and stay in the order in which they were made.
        Values are cast and checked, requests are cut, and a request without an answer is repeated but applied only
        once, as for `upsert`. A call that is repeated by its caller appends its rows again: a `Writer` with an id, or a
        transaction with an id, makes that safe.

        Args:
            data: As for `upsert`. If it has a column `_change_type`, all of its values must be "+I".
            locks: As for `upsert`.

        Returns:
            The number of rows given, and the log offsets after the write.

        Raises:
            InvalidRequest: The table has a primary key.
            SchemaMismatch: A column is missing or unknown, or its type cannot hold a value; the message names column
                and row.
            InvalidKey: A value of the bucket key is longer than 16 KiB.
            RequestTooLarge: A row is larger than 16 MiB.
            ColumnLocked, LockLost, UsageError, ConnectionFailed: As for `upsert`.
        """
        if not locks and not self._handle.shape.has_key and (written := await self._write_few_rows(data)) is not None:
            return written
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await self._handle.build_for_shape(lambda shape: WritePieces.of_rows(shape, rows, append=True))
        return await self._write(pieces, None, locks)

    async def retract(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Retracts rows that were written before: subtracts from sums, removes elements, by each column's function.

        For tables with the merge engine `aggregate`, and for the sequence groups of `partial_update` tables with
        `delete_behavior` "retract". The rows with these keys stay. The server does not check that a retracted row was
        ever written: a sum may become negative.

        Args:
            data: The rows, as for `upsert`, without `_change_type`.
            columns: As for `upsert`.
            if_version: As for `upsert`.
            locks: As for `upsert`.

        Returns:
            As for `upsert`.

        Raises:
            InvalidRequest: The table, or the function of a column, does not support retraction; nothing was written.
            ScanKvError: As for `upsert`.
        """
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await self._handle.build_for_shape(
            lambda shape: WritePieces.of_rows(shape, rows, columns, retract=True)
        )
        return await self._write(pieces, if_version, locks)

    async def _delete_keys(
        self,
        keys: object,
        columns: Names | None,
        mode: WriteMode,
        if_version: Mapping[int, int] | None,
        locks: Sequence[ColumnLock | str],
    ) -> WriteResult:
        """Deletes the rows with some keys. See `Table.delete`."""
        if self._takes_few and columns is None and mode == "merge" and if_version is None and not locks:
            python_rows = self._handle.python_rows
            encoded = python_rows.encode_keys(keys) if python_rows.can_delete else None
            if encoded is not None:
                written = await self._write_few(self._row_writes.delete, encoded)
                if written is not None:
                    return written
        pieces = await self._handle.build_for_shape(lambda shape: WritePieces.of_keys(shape, keys, columns, mode))
        return await self._write(pieces, if_version, locks)

    def writer(
        self,
        id: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        lock: bool = False,
        lock_ttl: float = 30.0,
        batch_bytes: int = 4 * 1024 * 1024,
        batch_delay: float = 0.05,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        in_flight: int = 4,
        principal: str | None = None,
    ) -> Writer:
        """Returns a writer, which collects rows and sends them in the background, several requests at a time.

            async with table.writer(id="job-1") as writer:
                await writer.upsert(rows)
                await writer.flush()

        Writes of one key are applied in the order of the calls, each once, however often the connection breaks or the
        server restarts. Writes of different keys are applied in any order.

        Args:
            id: The writer's id. Only the writer of this id that was entered last may write: earlier ones get
                WriterFenced. 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: a random id.
            columns: The columns that the writer writes, and that its deletes set to null, unless a call names others.
                The key columns are added. Default: all.
            lock: Whether to lock these columns while the writer is entered, so that no other writer changes them. The
                owner of the lock is the writer's id; a lock that an earlier writer of the same id left is taken over.
            lock_ttl: Seconds that the lock remains if the writer disappears, 1 to 604,800.
            batch_bytes: The bytes of Arrow data that fill a request, 1 to 8 MiB.
            batch_delay: The longest that a row waits for its request to fill, in seconds, 0 to 3,600.
            max_buffered_bytes: How many bytes may wait or be in flight before a call waits for some of them to be
                written. One call's rows may exceed the limit by 8 MiB, and each of the `in_flight` requests is in
                memory twice.
            in_flight: How many requests may be in flight at once, 1 to 16.
            principal: With an id: the principal to whom a new writer, and its lock, belong. Only an admin of the table
                may name another principal than that of its token; others get PermissionDenied when they enter it. A
                writer that was opened before keeps its owner. Default: the principal of the token.

        Raises:
            UsageError: A number is out of range, `id` is not an id, `lock` is set without `columns`, or `principal`
                without `id`.
        """
        settings = WriterSettings(
            batch_bytes=batch_bytes,
            batch_delay=batch_delay,
            max_buffered_bytes=max_buffered_bytes,
            in_flight=in_flight,
        )
        names = None if columns is None else names_of(columns, "columns")
        key = self._handle.shape.key_schema.names
        values = None if names is None else tuple(name for name in names if name not in key)
        if lock and not values:
            raise UsageError("lock=True locks the writer's columns: name them with columns=[...]", option="columns")
        if principal is not None and id is None:
            raise UsageError("principal is for a writer with an id: also give id", option="principal")
        return Writer(self._handle, id, settings, values, lock_ttl if lock else None, principal)

    async def undo(
        self,
        writer_id: str,
        to_offsets: Mapping[int, int],
        *,
        any_incarnation: bool = False,
        locks: Sequence[ColumnLock | str] = (),
    ) -> UndoReport:
        """Reverts what one writer has written since some log offsets, for a job that restarts from a checkpoint.

            await writer.flush()
            checkpoint = (await table.log_offsets()).to_json()  # kept with the job's own state
            ...
            report = await table.undo("job-1", LogOffsets.from_json(checkpoint))

        The first change of the writer to a key since then decides what becomes of the key: a row that the writer
        inserted is deleted, and a row that the writer changed or deleted gets its earlier values back, whatever the
        merge engine. Only the columns that the writer has named in its writes are reverted. A key whose columns another
        writer has changed since is a conflict: it is counted and left as it is. Repeating an undo changes nothing, so
        the call is repeated until it is answered, for the operation timeout.

        Args:
            writer_id: The id of a writer: `table.writer(id=...)`, `client.transaction(writer=...)`.
            to_offsets: By bucket, the offset after the last change to keep. Buckets that are not named are not changed.
                They must be `LogOffsets` with a table incarnation, because offsets of a table that was dropped and
                created again under the same name would revert other changes.
            any_incarnation: Whether to accept offsets without a table incarnation.
            locks: The column locks of this table that the caller holds, or their ids, such as `writer.locks`.

        Returns:
            How many keys were restored, deleted and left alone, and the log offsets after the undo.

        Raises:
            TableRecreated: The table was restored, or dropped and created again since the offsets; nothing was changed.
            NoPrimaryKey: The table has no primary key.
            InvalidRequest: The table's changelog does not have the rows before each change; or an id or a bucket is
                invalid; or the writer has written a column that cannot be reverted exactly, such as one with the
                function `avg` or `first_value`, whose state is not in the changelog. Nothing was changed.
            PositionExpired, PositionOutOfRange: The changelog no longer has the offset, or never had it.
            UndoConflict: Other writers keep changing the same keys.
            ColumnLocked: Another writer has locked a column to revert.
            LockLost: A lock of `locks` has ended.
            UsageError: `to_offsets` are not log offsets, or have no table incarnation.
            ConnectionFailed: No answer came within the operation timeout.
        """
        self._handle.shape.require_key("rows are only appended, so nothing can be undone")
        log_offsets = offsets_message(to_offsets, "to_offsets")
        if not log_offsets.table_incarnation and not any_incarnation:
            raise UsageError(
                "to_offsets do not have a table incarnation, so those of a dropped table could revert changes of a new "
                "one: give LogOffsets, stored with to_json() and read with LogOffsets.from_json(), or set "
                "any_incarnation=True",
                option="to_offsets",
            )
        request = write_pb2.UndoRequest(
            table=self._handle.name,
            writer=text_of(writer_id, "writer_id"),
            log_offsets=log_offsets,
            any_incarnation=any_incarnation,
            column_locks=lock_ids_of(locks),
        )
        transport = self._handle.transport
        response = await call_again(transport, lambda: transport.services.writes.Undo, request)
        return UndoReport.of(response)

    def lock_columns(
        self,
        columns: Sequence[str],
        *,
        owner: str,
        ttl: float = 30.0,
        take_over: bool = False,
        principal: str | None = None,
    ) -> ColumnLockOpener:
        """Locks columns, so that no other writer changes them, and several jobs can fill columns of the same rows.

            async with table.lock_columns(["delay", "gate"], owner="job-1") as lock:
                await table.upsert(rows, locks=[lock])

        `async with` renews the lock after every third of its time to live, and releases it at the end. After `lock =
        await table.lock_columns(...)`, the caller renews and releases it. While the lock lives, every write that would
        change one of the columns without naming the lock is refused with ColumnLocked: an upsert of complete rows, too,
        and a delete. Writes that other clients have in flight are applied before this call returns.

        Args:
            columns: The columns to lock, none of the key.
            owner: The name that other writers see in their errors: 1 to 128 of `A-Z a-z 0-9 . _ : -`.
            ttl: Seconds after which the lock ends unless it is renewed, 1 to 604,800.
            take_over: Whether to end the locks that the same owner holds on any of the columns, for an owner that was
                restarted and left a lock. Ending and locking are one step, so no other owner gets in between. Writes
                that name an ended lock are refused with LockLost.
            principal: The principal to whom the lock belongs. Only an admin of the table may name another principal
                than that of its token. `owner` is only a label. Default: the principal of the token.

        Returns:
            An object for `async with` or `await`, which takes a `ColumnLock` each time.

        Raises:
            ColumnLocked: Another owner has locked one of the columns.
            SchemaMismatch: A column does not exist.
            InvalidRequest: A column is part of the key, or the owner's name is invalid.
            TooManyLocks: The table has 100 locks.
            PermissionDenied: `principal` is another one than that of the token, which has no role admin for the table;
                or a lock to take over belongs to another principal.
            UsageError: `ttl` is out of range.
        """
        return ColumnLockOpener(
            self._handle.transport, self._handle.name, columns, owner, ttl, take_over=take_over, principal=principal
        )

    @property
    def _takes_few(self) -> bool:
        """Whether the server may take encoded rows."""
        return self._row_writes.are_usable and not self._handle.is_outdated

    async def _write_few_rows(self, data: Data) -> WriteResult | None:
        """Upserts or appends few rows. None: they must be sent as Arrow data."""
        encoded = self._handle.python_rows.encode_rows(data) if self._takes_few else None
        return None if encoded is None else await self._write_few(self._row_writes.upsert, encoded)

    async def _write_few(
        self, write: Callable[[EncodedRows], Awaitable[WriteResult]], encoded: Sequence[bytes]
    ) -> WriteResult | None:
        """Writes encoded rows, or deletes the rows of encoded keys. None: Arrow data must be sent instead."""
        try:
            return await write(EncodedRows(encoded, self._handle.shape.description.incarnation))
        except TableRecreated:
            await self._handle.refresh()
        except NeedsArrowError:
            await self._handle.follow()
        return None

    async def _write(
        self, pieces: WritePieces, if_version: Mapping[int, int] | None, locks: Sequence[ColumnLock | str]
    ) -> WriteResult:
        """Sends pieces one after another, because only requests that do not overlap in time are applied in order."""
        unchanged_since = None if if_version is None else offsets_message(if_version, "if_version")
        # Pieces are made in a thread, because converting rows takes long and a reader may block.
        if unchanged_since is not None:
            pieces = await asyncio.to_thread(require_one_piece, pieces)
        rows = 0
        log_offsets, lock_ids = LogOffsets(), lock_ids_of(locks)
        transport = self._handle.transport
        with transport.writers.one() as writer:
            while (batch := await _next_piece(pieces)) is not None:
                identity = writer.next_identity()

                def complete(request: Request, identity: write_pb2.WriterIdentity = identity) -> None:
                    request.writer.CopyFrom(identity)
                    require_same_table(request, self._handle.shape, log_offsets)
                    if unchanged_since is not None:
                        request.unchanged_since.CopyFrom(unchanged_since)
                    request.column_locks.extend(lock_ids)

                response = await write_rows(
                    transport,
                    self._handle.shape,
                    pieces.kind,
                    batch,
                    complete,
                    is_indivisible=unchanged_since is not None,
                )
                rows += response.rows
                add_offsets(log_offsets, response, self._handle.name)
        return WriteResult(rows=rows, log_offsets=log_offsets)


async def _next_piece(pieces: WritePieces) -> pa.RecordBatch | None:
    with SHORT_TRACEBACK:
        return await asyncio.to_thread(next, pieces.batches, None)
