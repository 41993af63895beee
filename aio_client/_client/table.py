"""One table: what it is, its rows by key, and what is written to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from aio_client._admin.bases import BaseStatistics
from aio_client._admin.disk_use import DiskUse
from aio_client._admin.indexes import index_statuses
from aio_client._input.arguments import names_of, text_of
from aio_client._input.data import rows_of
from aio_client._input.keys import is_one_key, keys_of
from aio_client._input.optional import to_pylist
from aio_client._input.requests import LOOKUP_KEYS, cut, to_ipc
from aio_client._queries.computed import ComputedAnswers
from aio_client._queries.lookup import LookupAnswer, VersionedRows, assemble, oldest_offsets
from aio_client._scan.consumers import ChangesOfTable
from aio_client._scan.scan import Scan
from aio_client._scan.shards import ScannedTable
from aio_client._scan.snapshot import Pinning
from aio_client._transport.repeatable_calls import call_again
from aio_client._write.column_locks import Locking, lock_ids_of
from aio_client._write.merging import MergedTable
from aio_client._write.repeatable_writes import write_until_answered
from aio_client._write.write_requests import (
    TableShape,
    UndoReport,
    WritePieces,
    WriteResult,
    offsets_message,
    only_piece,
)
from aio_client._write.writer import Writer, WriterSettings
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import InvalidKey, RequestTooLarge, SchemaMismatch, UsageError
from scankv.model.expressions import predicate_of
from scankv.model.scans.scan_spec import ScanSpec
from scankv.v1 import lookup_pb2, table_pb2, write_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from aio_client._admin.indexes import IndexStatus
    from aio_client._input.data import Data
    from aio_client._scan.scan_builder import Pinned
    from aio_client._transport.transport import Transport
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names, WriteMode
    from scankv.model.expressions import Predicate, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatistics:
    """The figures of one bucket.

    Attributes:
        bucket: Its number.
        rows: Live rows, exact. None: not counted, because rows were written without reading those that were there, as
            in tables without old rows in their changelog; `count` reads them.
        log_offset: The offset that the next change gets.
        epoch: How many unclean starts of the server the bucket has seen.
        disk_bytes: Bytes of its files on disk, without its columnar base and its snapshots.
        log_bytes: Bytes of the changes that its changelog has, as they were written.
        retention_holder: What has the oldest retention hold: a stream, consumer, transaction, snapshot or undo. None if
            nothing holds the changelog.
        retention_hold_bytes: Bytes of the changes from that hold on, which retention does not remove.
        damage: Why it cannot be read; None when it can.
        base: Its columnar base. None: the table has the option `columnar_base=off`.
    """

    bucket: int
    rows: int | None
    log_offset: int
    epoch: int
    disk_bytes: int
    log_bytes: int
    retention_holder: str | None
    retention_hold_bytes: int
    damage: str | None
    base: BaseStatistics | None


class Table(ComputedAnswers, ChangesOfTable, MergedTable):
    """A table on the server. What it says of itself is as of when it was asked for; its rows are those of now.

    Made by `client.table(name)`, `create_table`, `alter_table` or `tables`. Belongs to the event loop of its client;
    many tasks may use it at once.
    """

    def __init__(self, transport: Transport, description: table_pb2.Table) -> None:
        """Called by the methods of `Client`."""
        self._transport = transport
        self._shape = TableShape.of(description)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._transport.address}>"

    @property
    def _description(self) -> table_pb2.Table:
        return self._shape.description

    @property
    def name(self) -> str:
        """`database.table`."""
        return self._shape.description.name

    @property
    def schema(self) -> pa.Schema:
        """The columns. Key columns are not nullable."""
        return self._shape.schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order."""
        return list(self._shape.description.primary_key)

    @property
    def bucket_key(self) -> list[str]:
        """The key columns whose values choose the bucket."""
        return list(self._shape.description.bucket_key)

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._shape.description.buckets

    @property
    def incarnation(self) -> str:
        """Differs for every creation of a table, also of the same name."""
        return self._shape.description.incarnation

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from their defaults."""
        return dict(self._shape.description.options)

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each index, in the order in which they were made; also of those that are still built."""
        return tuple(tuple(index.columns) for index in self._shape.description.indexes)

    async def upsert(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Inserts rows, and merges them into those whose key is there already, as the table's merge engine says.

        Without one, a row replaces the one that is there, and of several rows of one key the last counts.

        Columns are matched by name. Values are cast where nothing is lost: numbers of other widths, all layouts of text
        and lists, dates to timestamps. NaN in pandas is null, and so is a key that a dictionary does not have.

        Rows in memory are checked whole before the first is sent, so bad ones write nothing. A reader, or another
        object that streams, is checked batch by batch: rows before a bad one may have been written. The rows go out in
        order, in requests of up to 8 MiB; one request is atomic by bucket and 8,192 rows. A request that is not
        answered, because the connection broke or the server was restarted, is repeated for the operation timeout, and
        applied once all the same. One whose answer never came may have been applied in part or in whole, and may yet
        be: but not behind what a task writes after it to the same bucket, if no other tasks write through the client
        at the same time.

        Args:
            data: A RecordBatch, Table or RecordBatchReader, a pandas or Polars DataFrame, a list of dictionaries, or
                anything with `__arrow_c_stream__` or `__arrow_c_array__`. Must not be changed meanwhile. It may have
                one more column, `_change_type`, as streams of changes have it: rows with "-U" and "-D" are taken back
                where the table does so (see `retract`); elsewhere "-U" does nothing, and "-D" deletes, as the table's
                `delete_behavior` says.
            columns: The columns to write, all key columns among them; the data may have more. Others stay as they are,
                and are null in new rows, so all columns beside the key must be nullable. Default: all.
            mode: "overwrite" replaces what is there, whatever the merge engine.
            if_version: Writes only if none of these keys has changed since they were read: the `log_offsets` of a
                scan's stream, of `lookup(with_version=True)`, or of a write, by bucket. Checked in all buckets before
                the first is written, with nothing else written in between. The rows must fit into one request, and
                their buckets be in it. `LogOffsets` know of which table they are, also when they are pickled or
                stored with `to_json`; those in a plain dictionary do not. Default: in any case.
            locks: The column locks of this table, or their ids, that the caller has: what they lock may be written.
                One that has ended is refused, so that a holder that was paused does not write beside its successor.

        Raises:
            SchemaMismatch: A column is missing or unknown, or a value cannot be in its column; names column and row.
                Or `columns` cannot be written alone.
            InvalidRequest: The merge has no result, as a sum that does not fit its column; names column and key.
                Batches before it may have been written. Or the merge engine takes whole rows only, or refuses deletes.
            InvalidKey: A key is over 16 KiB.
            RequestTooLarge: A row is over 16 MiB, also once merged.
            WriteConflict: A key has changed since `if_version`; nothing was written.
            TableRecreated: The table was dropped and created again since `if_version`; nothing was written.
            PositionExpired: The changelog no longer reaches back to `if_version`; read again.
            ColumnLocked: Another writer has locked a column of the table; nothing was written.
            LockLost: A lock of `locks` has ended, or is of another table; nothing was written.
            UsageError: No rows can be taken from `data`, or with `if_version` they take more than one request.
            ConnectionFailed: There was no answer within the operation timeout.
        """
        # In a thread, because data may be a blocking stream: a scan of `scankv.sync`, for one.
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await self._pieces(lambda shape: WritePieces.of_rows(shape, rows, columns, mode))
        return await self._write(pieces, if_version, locks)

    async def retract(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Takes rows back that were written before: sums become less, elements go, by each column's function.

        Of tables with merge engine `aggregate`, and of the sequence groups of `partial_update` with `delete_behavior`
        "retract". The rows stay. A row that never was written is taken back all the same: a sum is below zero then.

        Args:
            data: The rows, as for `upsert`, without `_change_type`.
            columns: As for `upsert`.
            if_version: As for `upsert`.
            locks: As for `upsert`.

        Raises:
            InvalidRequest: The table takes nothing back, or the function of a column does not; nothing was written.
            ScanKvError: As for `upsert`.
        """
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await self._pieces(lambda shape: WritePieces.of_rows(shape, rows, columns, retract=True))
        return await self._write(pieces, if_version, locks)

    async def delete(
        self,
        keys: object,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Deletes the rows with these keys; a key without a row is passed over. Is repeated as `upsert` is.

        Args:
            keys: As for `lookup`.
            columns: Only these columns become null; a row of which nothing beside its key is left goes. All columns
                beside the key must be nullable. Default: the rows go.
            mode: "overwrite" deletes whatever the table's `delete_behavior` says.
            if_version: As for `upsert`.
            locks: As for `upsert`. A delete of rows changes all columns.

        Raises:
            InvalidKey: A key is incomplete, null, over 16 KiB, or not of its columns' types. Nothing was deleted.
            SchemaMismatch: A column does not exist, or takes no null.
            InvalidRequest: The table refuses deletes.
            WriteConflict, TableRecreated, PositionExpired, ColumnLocked, UsageError, ConnectionFailed: As for `upsert`.
        """
        pieces = await self._pieces(lambda shape: WritePieces.of_keys(shape, keys, columns, mode))
        return await self._write(pieces, if_version, locks)

    async def _pieces(self, make: Callable[[TableShape], WritePieces]) -> WritePieces:
        """What a write is made of, for the table as it is; asks for it anew where a column is unknown."""
        try:
            return make(self._shape)
        except SchemaMismatch:
            # The column may have been added since the table was asked for.
            await self._refresh()
            return make(self._shape)

    async def get(self, key: object) -> dict[str, Any] | None:
        """The row with this key as a dictionary, None when there is none.

        Args:
            key: A scalar where the key has one column, a tuple in key order, or a dictionary of all key columns.

        Raises:
            InvalidKey: The key is incomplete, null, or not of its columns' types.
        """
        if not is_one_key(key):
            raise InvalidKey(f"get takes one key, not a {type(key).__name__}; lookup takes many")
        rows = to_pylist(await self.lookup(key))
        return rows[0] if rows else None

    @overload
    async def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: Literal[False] = False
    ) -> pa.Table: ...
    @overload
    async def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: Literal[True]
    ) -> VersionedRows: ...
    @overload
    async def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: bool
    ) -> pa.Table | VersionedRows: ...
    async def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: bool = False
    ) -> pa.Table | VersionedRows:
        """The rows with these keys, in the order asked; a key given twice is there twice.

        What it shows is durable. Keys of one bucket are read at one instant as far as they fit into one request (10,000
        keys); those of several buckets, one after another.

        Args:
            keys: A key as for `get`, an iterable of keys, an Arrow or NumPy array where the key has one column, or
                Arrow data or a DataFrame with the key columns, whose other columns are ignored.
            missing: What becomes of a key without a row: nothing, or a row that is null but for its key. With `null`,
                the result has as many rows as there are keys.
            with_version: Whether to return what the rows are as of, too, for `upsert(if_version=...)` of these keys.

        Raises:
            InvalidKey: A key is incomplete, null, or not of its columns' types.
        """
        if missing not in ("omit", "null"):
            raise UsageError(f'missing is "omit" or "null", not {missing!r}', option="missing")
        batch = await asyncio.to_thread(keys_of, keys, self._shape.key_schema)
        answers = [answer for piece in cut([batch], max_rows=LOOKUP_KEYS) for answer in await self._lookup(piece)]
        rows = assemble(answers, self.schema, fill_missing=missing == "null")
        return VersionedRows(rows, oldest_offsets(answers)) if with_version else rows

    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Scan:
        """A scan of the table, to be refined and started.

        Args:
            columns: The columns to return, in this order. Default: all. Empty: rows without columns.
            where: What is true of the rows to return, as for `Scan.where`. Default: all rows.
            limit: The most rows to return, over all buckets together. Default: no limit.

        Raises:
            UsageError: The limit is negative, a column is named twice, or `where` cannot be read. Columns that do not
                exist are found when the scan starts.
            SchemaMismatch: `where` is text and names a column that does not exist, or compares it with what it cannot
                be; says where in the text.
        """
        chosen = None if columns is None else names_of(columns, "columns")
        spec = ScanSpec(self.name, columns=chosen, where=self._predicate(where), limit=limit)
        return Scan(self._transport, spec, ScannedTable(self._shape.key_schema, self.buckets))

    def snapshot(self, ttl: float = 600, *, same_view_as: Pinned | str | None = None, id: str | None = None) -> Pinning:
        """Pins the table as of now, all buckets at one instant, so that any number of scans read the same rows.

            async with table.snapshot(ttl=600) as snap:
                rows = await table.scan().at(snap).to_arrow()

        In `async with`, the snapshot is renewed every third of its time to live, and released at the end. With
        `snap = await table.snapshot()`, both are the caller's. Pinning a table that has not changed since its last pin
        costs next to nothing. The call is repeated within the operation timeout when its answer is lost, the server
        restarts, or writers would have been held for too long; a snapshot taken by a call that fails in the end expires
        by itself.

        Args:
            ttl: Seconds until the snapshot is lost unless it is renewed, 1 to 604,800.
            same_view_as: A snapshot of this table, or its id, whose view is kept on in place of one as of now.
            id: Names a snapshot that many readers share, which need not know of each other: the first one takes it, and
                whoever gives the same id later gets the same view. Once it has ended, the id is never taken again. The
                end of a block does not release it: it expires when none of them has renewed it for its time to live,
                which no later call makes shorter. Where the server has no place for another snapshot, it ends those
                with an id that were not renewed for a minute. 1 to 64 of `A-Z a-z 0-9 _ -`. Default: a new one.

        Raises:
            TableNotFound: The table was dropped.
            SnapshotLost: That of `same_view_as`, or of `id`, has ended.
            InvalidRequest: `id` is that of a snapshot of another table, or has other characters.
            TooManySnapshots: The server has as many snapshots, or holds as much on disk for them, as it allows.
            SnapshotNotTaken: Writers would have been held for too long, also when it was tried again.
            UsageError: `ttl` is out of its range.
        """
        return Pinning(self._transport, self.name, ttl, same_view_as, id)

    def writer(
        self,
        id: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        lock: bool = False,
        lock_ttl: float = 30.0,
        batch_bytes: int = 4 * 1024 * 1024,
        batch_seconds: float = 0.05,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        in_flight: int = 4,
    ) -> Writer:
        """A writer that collects rows and sends them in the background, several requests at a time.

            async with table.writer(id="job-1") as writer:
                await writer.upsert(rows)
                await writer.flush()

        Writes of one key are applied in the order of the calls, each once, however often the connection breaks or the
        server restarts; writes of several keys in any order.

        Args:
            id: Names the writer: only the last one of this id that was entered may write, those before get
                WriterFenced. 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: a random one.
            columns: The columns that it writes, and that its deletes make null, unless a call names others; the key is
                added to them. Default: all.
            lock: Whether to lock these columns while the writer is entered, so that nobody else writes them. The owner
                of the lock is the id; a lock that an earlier writer of the id has left is taken over.
            lock_ttl: Seconds that the lock outlives a writer that is gone, 1 to 604,800.
            batch_bytes: A request is sent when it has so many bytes of Arrow data, 1 to 8 MiB.
            batch_seconds: It is sent at the latest so many seconds after its first row was written.
            max_buffered_bytes: So many bytes may wait, or be under way, before a call waits for some to be written. One
                call's rows may take up to 8 MiB more, and each of the `in_flight` requests is there twice.
            in_flight: How many requests may be under way at once, 1 to 16.

        Raises:
            UsageError: A number is out of its range, the id is none, or there is `lock` without `columns`.
        """
        settings = WriterSettings(
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
            max_buffered_bytes=max_buffered_bytes,
            in_flight=in_flight,
        )
        names = None if columns is None else names_of(columns, "columns")
        written = None if names is None else tuple(name for name in names if name not in self.primary_key)
        if lock and not written:
            raise UsageError("lock=True locks the writer's columns: name them with columns=[...]", option="columns")
        return Writer(self._transport, self._shape, self._pieces, id, settings, written, lock_ttl if lock else None)

    async def undo(
        self,
        writer_id: str,
        to_offsets: Mapping[int, int],
        *,
        any_incarnation: bool = False,
        locks: Sequence[ColumnLock | str] = (),
    ) -> UndoReport:
        """Takes back what a named writer has done since some offsets, as a job does that goes back to a checkpoint.

            await writer.flush()
            checkpoint = (await table.log_offsets()).to_json()  # kept with the job's own state
            ...
            report = await table.undo("job-1", LogOffsets.from_json(checkpoint))

        Of each key the writer's first change since then decides: a row that it has made goes, one that it has changed
        or deleted gets back what it had, whatever the merge engine; only in the columns that the writer has named in
        its writes. Keys of which others have written these columns since are left as they are, and counted. Repeating
        it changes nothing; the call is repeated until it is answered, for the operation timeout.

        Args:
            writer_id: The id of a writer: `table.writer(id=...)`, `client.transaction(writer=...)`.
            to_offsets: By bucket, the offset behind the last change that stays. Buckets that are not named stay. They
                must be `LogOffsets` that know of which table they are: those of a table that was dropped and created
                again under the same name would take back other changes.
            any_incarnation: Whether offsets are taken, too, that do not know of which table they are.
            locks: The column locks, or their ids, that the caller has, such as `writer.locks`.

        Raises:
            TableRecreated: The table was dropped and created again since the offsets; nothing was changed.
            InvalidRequest: The table's changelog has no rows before changes; or an id or bucket is none; or the writer
                has written a column that cannot be undone exactly, as one with function `avg` or `first_value`, of
                which the changelog does not have everything. Nothing was changed.
            PositionExpired, PositionOutOfRange: The changelog does not reach back so far, or never had the offset.
            UndoConflict: Others write the same keys all the time.
            ColumnLocked: Another writer has locked a column that the undo would change.
            LockLost: A lock of `locks` has ended.
            UsageError: `to_offsets` is no such thing, or does not know of which table it is.
            ConnectionFailed: There was no answer within the operation timeout.
        """
        log_offsets = offsets_message(to_offsets, "to_offsets")
        if not log_offsets.table_incarnation and not any_incarnation:
            raise UsageError(
                "to_offsets do not know of which table they are, so those of a table that was dropped could undo "
                "changes of another one: give LogOffsets, stored with to_json() and read with LogOffsets.from_json(), "
                "or say any_incarnation=True",
                option="to_offsets",
            )
        request = write_pb2.UndoRequest(
            table=self.name,
            writer=text_of(writer_id, "writer_id"),
            log_offsets=log_offsets,
            any_incarnation=any_incarnation,
            column_locks=lock_ids_of(locks),
        )
        response = await call_again(self._transport, lambda: self._transport.services.writes.Undo, request)
        return UndoReport(
            restored=response.restored,
            deleted=response.deleted,
            conflicts=response.conflicts,
            log_offsets=LogOffsets.of(response.log_offsets, response.table_incarnation),
        )

    def lock_columns(
        self, columns: Sequence[str], *, owner: str, ttl: float = 30.0, take_over: bool = False
    ) -> Locking:
        """Locks columns, so that nobody else writes them: several jobs can fill different columns of the same rows.

            async with table.lock_columns(["delay", "gate"], owner="job-1") as lock:
                await table.upsert(rows, locks=[lock])

        In `async with`, the lock is renewed every third of its time to live, and released at the end. With `lock =
        await table.lock_columns(...)`, both are the caller's. While it lives, a write that would change one of the
        columns is refused with ColumnLocked unless it gives the lock: an upsert of whole rows, or a delete. What others
        have under way is applied before this returns.

        Args:
            columns: The columns, none of the key.
            owner: What others are told: 1 to 128 of `A-Z a-z 0-9 . _ : -`.
            ttl: Seconds until the lock ends unless it is renewed, 1 to 604,800.
            take_over: Whether locks that the same owner has on any of the columns end in its place, as an owner does
                that was restarted, and has left one. In one step: no other owner gets in between, and what names an
                ended lock is refused with LockLost from then on.

        Raises:
            ColumnLocked: Somebody else has locked one of them.
            SchemaMismatch: There is no such column.
            InvalidRequest: One is of the key; or the owner's name is not possible.
            TooManyLocks: The table has 100 locks.
            UsageError: `ttl` is out of its range.
        """
        return Locking(self._transport, self.name, columns, owner, ttl, take_over=take_over)

    async def statistics(self) -> list[BucketStatistics]:
        """The figures of every bucket, ascending. Opens all of them."""
        response = await self._described()
        return [
            BucketStatistics(
                bucket=bucket.bucket,
                rows=bucket.rows if bucket.HasField("rows") else None,
                log_offset=bucket.log_offset,
                epoch=bucket.epoch,
                disk_bytes=bucket.disk_bytes,
                log_bytes=bucket.log_bytes,
                retention_holder=bucket.retention_holder or None,
                retention_hold_bytes=bucket.retention_hold_bytes,
                damage=bucket.damage or None,
                base=BaseStatistics.of(bucket.base) if bucket.HasField("base") else None,
            )
            for bucket in response.buckets
        ]

    async def disk_use(self) -> DiskUse:
        """What the table takes on disk now, with its columnar bases and its snapshots. Opens all buckets."""
        return DiskUse.of((await self._described()).disk)

    async def log_offsets(self) -> LogOffsets:
        """Where the changelog of every bucket ends, at one instant; all before is durable. For a job's checkpoint.

        Raises:
            TooManyScans: The server has as many live scans as it allows, still after the operation timeout.
            DataLoss: A bucket is damaged.
        """
        async with self.scan([], limit=0).stream() as stream:
            return stream.log_offsets

    async def index_status(self) -> list[IndexStatus]:
        """How far every index is built now, in the order in which they were made. Opens all buckets."""
        return index_statuses(await self._described())

    async def _described(self) -> table_pb2.GetTableResponse:
        request = table_pb2.GetTableRequest(name=self.name, statistics=True)
        return await self._transport.call(lambda: self._transport.services.tables.GetTable, request)

    def _predicate(self, where: Where | None) -> Predicate | None:
        return None if where is None else predicate_of(where, self.schema)

    async def _refresh(self) -> None:
        request = table_pb2.GetTableRequest(name=self.name)
        response = await self._transport.call(lambda: self._transport.services.tables.GetTable, request)
        self._shape = TableShape.of(response.table)

    async def _write(
        self, pieces: WritePieces, if_version: Mapping[int, int] | None, locks: Sequence[ColumnLock | str]
    ) -> WriteResult:
        """Sends pieces one after another, since only requests that do not overlap in time are applied in order.

        They are made in a thread: converting rows takes its time, and a reader may block.
        """
        unchanged_since = None if if_version is None else offsets_message(if_version, "if_version")
        if unchanged_since is not None:
            pieces = await asyncio.to_thread(only_piece, pieces)
        rows = 0
        log_offsets, held = LogOffsets(), lock_ids_of(locks)
        with self._transport.writers.one() as writer:
            while (request := await asyncio.to_thread(pieces.next_request)) is not None:
                request.writer.CopyFrom(writer.next_identity())
                if unchanged_since is not None:
                    request.unchanged_since.CopyFrom(unchanged_since)
                request.column_locks.extend(held)
                response = await write_until_answered(self._transport, request)
                rows += response.rows
                log_offsets.advance(response.log_offsets, response.table_incarnation)
        return WriteResult(rows=rows, log_offsets=log_offsets)

    async def _lookup(self, keys: pa.RecordBatch) -> list[LookupAnswer]:
        """Reads the rows of some keys, in halves when their rows do not fit into one answer."""
        request = lookup_pb2.LookupRequest(table=self.name, keys=to_ipc(keys))
        try:
            response = await self._transport.call(lambda: self._transport.services.lookups.Lookup, request)
        except RequestTooLarge:
            if keys.num_rows == 1:
                raise
            half = keys.num_rows // 2
            return await self._lookup(keys.slice(0, half)) + await self._lookup(keys.slice(half))
        return [LookupAnswer.read(keys, response)]
