"""The connection to a server: opened, closed, and the tables behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyarrow as pa

from aio_client._admin.admin import LiveScan, ServerStats
from aio_client._admin.check import check_table
from aio_client._admin.damaged_table import DamagedTable
from aio_client._admin.indexes import index_messages, wait_until_built
from aio_client._client.table import Table
from aio_client._client.transaction import (
    TransactionOpener,
    TransactionPart,
    abort_transaction,
    give_up_transaction,
    list_transactions,
)
from aio_client._input.arguments import names_of, text_of, timeout_of
from aio_client._input.awaitable import Opener
from aio_client._scan.scan import Scan
from aio_client._scan.snapshot import adopt_snapshot, list_snapshots
from aio_client._transport.config import ClientConfig, default_url
from aio_client._transport.transport import Transport
from aio_client._write.column_locks import list_locks, release_lock
from aio_client._write.merging import column_aggregates, merge_spec
from scankv.model.errors import UsageError
from scankv.model.scans.scan_spec import ScanSpec
from scankv.model.tables.merge_wire import aggregates_to_proto, merging_to_proto
from scankv.v1 import admin_pb2, table_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType

    from aio_client._admin.check import BucketCheck
    from aio_client._admin.indexes import Indexes, IndexStatus
    from aio_client._client.transaction import ConflictMode, LostWrites, TransactionInfo
    from aio_client._scan.snapshot import Snapshot
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names
    from scankv.model.tables.agg import Aggregator


class Client:
    """A connection to one server. It connects with the first call, and again when the server was away.

    Belongs to the event loop it was opened in, where many tasks may use it at once; not to be used in a forked process.
    Made by `connect`.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Called by `connect`, in the event loop that the client will belong to."""
        self._config = config
        self._transport = Transport(config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._config.address}>"

    @property
    def config(self) -> ClientConfig:
        """What the client was opened with; picklable."""
        return self._config

    async def aclose(self) -> None:
        """Ends all scans of this client and closes the connection. Idempotent."""
        await self._transport.close()

    async def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str],
        bucket_key: Sequence[str] = (),
        buckets: int | None = None,
        indexes: Indexes = (),
        version_column: str | None = None,
        sequence_column: Names | None = None,
        sequence_groups: Mapping[Names, Names] | None = None,
        aggregates: Mapping[str, Aggregator] | None = None,
        **options: str | bool | int,
    ) -> Table:
        """Creates a table; it is durable when this returns.

        Args:
            name: `database.table`; each part 1 to 128 of `A-Z a-z 0-9 _ -`, beginning with a letter or `_`.
            schema: The columns. Types that differ in layout only are stored as one, so `large_string` as `string`.
            primary_key: The key columns, in key order; they become NOT NULL.
            bucket_key: The key columns whose values choose the bucket. Default: the whole primary key.
            buckets: How many buckets the table has, 1 to 1024. Default: the server's, 4.
            indexes: Of each index its column, or its columns, the first one first: `["score", ("league", "score")]`.
                An index makes top-N by its first column, and predicates on its first columns, read what they return
                instead of all rows; it makes every write read the old row.
            version_column: Of `merge_engine="versioned"`: of two rows that with the greater version stays. Null is
                least, and of equal ones the later row stays.
            sequence_column: Of `merge_engine="last_row"`: the same by one column or several, so that rows that come
                late lose.
            sequence_groups: Of `merge_engine="partial_update"`: columns that change together, by the column, or the
                columns in a tuple, that say how new they are: `{"seq": ["a", "b"]}`. They change by rows that are not
                older, then also to null.
            aggregates: What becomes of columns: `{"total": agg.sum(), "worst": agg.max()}`. Of
                `merge_engine="aggregate"`, where the others keep the last value that is not null, and of columns in
                sequence groups.
            **options: Table options by name: `merge_engine` ("last_row", "first_row", "versioned", "partial_update" or
                "aggregate"), `delete_behavior` ("allow", "ignore", "disable" or "retract"), `changelog`,
                `row_deduplicate`, `compression`, and what else the server knows. `changelog` is what those who follow
                the table get: "full" the rows before and after every change; "upsert" the rows after it, and the keys
                of deleted ones; "none" nothing, as nobody can follow it. Without "full", without an index and with
                whole rows, writes of a `last_row` table are faster, as they do not read the rows that they replace.
                Then a row written again as it is, and the deletion of a key that is not there, are changes like others;
                and the number of rows is not kept, so that `count` reads them.

        Raises:
            TableExists: There is a table of that name.
            InvalidRequest: The name, the key, the number of buckets, an index or an aggregate is not possible;
                InvalidOption for an option, SchemaMismatch for a column.
        """
        if not isinstance(schema, pa.Schema):
            raise UsageError(f"schema is a pyarrow.Schema, not a {type(schema).__name__}", option="schema")
        if buckets is not None and (type(buckets) is not int or buckets < 1):
            raise UsageError(f"buckets is a number of at least 1, not {buckets!r}", option="buckets")
        merging = merge_spec(version_column, sequence_column, sequence_groups, aggregates)
        request = table_pb2.CreateTableRequest(
            name=text_of(name, "name"),
            arrow_schema=_schema_bytes(schema),
            primary_key=names_of(primary_key, "primary_key"),
            bucket_key=names_of(bucket_key, "bucket_key"),
            buckets=buckets or 0,
            options={option: _option_text(value) for option, value in options.items()},
            indexes=index_messages(indexes, "indexes"),
            merging=merging_to_proto(merging),
        )
        response = await self._transport.call(
            lambda: self._transport.services.tables.CreateTable, request, repeatable=False
        )
        return Table(self._transport, response.table)

    async def drop_table(self, name: str) -> None:
        """Drops a table with its rows and changelog; scans of it that are running end with TableNotFound.

        Raises:
            TableNotFound: There is none of that name.
        """
        request = table_pb2.DropTableRequest(name=text_of(name, "name"))
        await self._transport.call(lambda: self._transport.services.tables.DropTable, request, repeatable=False)

    async def alter_table(
        self,
        name: str,
        *,
        add_columns: pa.Schema | None = None,
        add_indexes: Indexes = (),
        drop_indexes: Indexes = (),
        add_aggregates: Mapping[str, Aggregator] | None = None,
        wait: bool = True,
        on_progress: Callable[[list[IndexStatus]], None] | None = None,
    ) -> Table:
        """Adds columns at the end of a table, and adds and drops indexes: all of it, durably, or nothing.

        Rows written before are null in a new column, and scans that are running keep theirs. An index is built by the
        server while the table is read and written, and is used once it is whole.

        Args:
            name: `database.table`.
            add_columns: The columns, all nullable.
            add_indexes: The columns of each, as in `create_table`. They may be columns that are added.
            drop_indexes: The columns of each, exactly.
            add_aggregates: What becomes of columns that are added, as `aggregates` of `create_table`.
            wait: Whether to return only when the added indexes are ready, for as long as that takes. To give up waiting
                ends nothing: the server goes on building. Default: yes.
            on_progress: Called with the states of the added indexes, whenever the server was asked while waiting; at
                least once.

        Raises:
            TableNotFound: There is no such table, or it was dropped meanwhile.
            SchemaMismatch: A name is taken, a type cannot be stored or not in an index, or a column is NOT NULL.
            InvalidRequest: There is such an index already, or none to drop; or an index cannot be built: the message
                says why. Then it is there, is not used, and is to be dropped.
            ConnectionFailed: There was no answer; while waiting, for the operation timeout.
        """
        if add_columns is not None and not isinstance(add_columns, pa.Schema):
            raise UsageError(
                f"add_columns is a pyarrow.Schema, not a {type(add_columns).__name__}", option="add_columns"
            )
        added = index_messages(add_indexes, "add_indexes")
        dropped = index_messages(drop_indexes, "drop_indexes")
        if add_columns is None and not added and not dropped:
            raise UsageError("there is nothing to alter: give add_columns, add_indexes or drop_indexes")
        request = table_pb2.AlterTableRequest(
            name=text_of(name, "name"),
            add_columns=b"" if add_columns is None else _schema_bytes(add_columns),
            add_indexes=added,
            drop_indexes=dropped,
            add_aggregates=aggregates_to_proto(column_aggregates(add_aggregates)),
        )
        response = await self._transport.call(
            lambda: self._transport.services.tables.AlterTable, request, repeatable=False
        )
        if wait and added:
            wanted = {tuple(index.columns) for index in added}
            await wait_until_built(self._transport, response.table, wanted, on_progress)
        return Table(self._transport, response.table)

    async def check_table(
        self, name: str, *, on_bucket: Callable[[BucketCheck], None] | None = None
    ) -> list[BucketCheck]:
        """Has the server read a whole table, and says whether all that is stored of it agrees.

        Each row can be decoded and has its key, there are as many as are counted, and every index has exactly the
        entries of the rows. Each bucket is checked as of one instant; writes go on meanwhile. No rows travel. It takes
        about as long as a scan of all columns, and has no timeout.

        Args:
            name: `database.table`.
            on_bucket: Called with each bucket as soon as it is done.

        Returns:
            What was found, by bucket, ascending. Damage is no error here, but told: see `BucketCheck.is_consistent`.

        Raises:
            TableNotFound: There is no such table, or it was dropped meanwhile.
            TooManyScans, ScanTooLong, ScanCancelled, ServerDraining, Unavailable: As for a scan, of which it is one.
        """
        return await check_table(self._transport, text_of(name, "name"), on_bucket)

    async def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            TableNotFound: There is none; the message has the near ones.
        """
        request = table_pb2.GetTableRequest(name=text_of(name, "name"))
        response = await self._transport.call(lambda: self._transport.services.tables.GetTable, request)
        return Table(self._transport, response.table)

    async def tables(self) -> list[Table]:
        """All tables that can be used, by name, ascending. `damaged_tables` has the others."""
        response = await self._list_tables()
        return [Table(self._transport, description) for description in response.tables]

    async def damaged_tables(self) -> list[DamagedTable]:
        """The tables that cannot be used, or of which some buckets cannot, with the reasons; by name, ascending.

        Of buckets, as far as the server knows: it finds damage when it opens or reads them. `check_table` reads all.
        """
        response = await self._list_tables()
        usable = {table.name for table in response.tables}
        return [
            DamagedTable(name=each.name, reason=each.reason, partial=each.name in usable) for each in response.damaged
        ]

    async def _list_tables(self) -> table_pb2.ListTablesResponse:
        return await self._transport.call(
            lambda: self._transport.services.tables.ListTables, table_pb2.ListTablesRequest()
        )

    def scan(self, spec: ScanSpec) -> Scan:
        """Makes a scan of a `Scan.spec`, which may come from another process.

        Raises:
            UsageError: It is none.
        """
        if not isinstance(spec, ScanSpec):
            raise UsageError(f"scan takes a ScanSpec, as scan.spec gives it, not {spec!r:.80}")
        return Scan(self._transport, spec)

    async def server_stats(self) -> ServerStats:
        """The figures of the whole server; nothing is opened for them."""
        response = await self._transport.call(lambda: self._transport.services.admin.Stats, admin_pb2.StatsRequest())
        return ServerStats.of(response)

    async def live_scans(self) -> list[LiveScan]:
        """The scans of all clients that hold iterators now, the oldest first."""
        response = await self._transport.call(
            lambda: self._transport.services.admin.ListScans, admin_pb2.ListScansRequest()
        )
        return [LiveScan.of(scan) for scan in response.scans]

    async def cancel_scan(self, scan_id: str) -> None:
        """Ends a scan, also of another client: what it holds is free when this returns; its reader gets ScanCancelled.

        Of a scan that is just being opened it is free as soon as that is done, which takes milliseconds.

        Args:
            scan_id: As `live_scans` and `stream.scan_id` have it.

        Raises:
            ScanNotFound: There is no such live scan; it may have ended by itself.
        """
        request = admin_pb2.CancelScanRequest(scan_id=text_of(scan_id, "scan_id"))
        await self._transport.call(lambda: self._transport.services.admin.CancelScan, request, repeatable=False)

    async def snapshots(self, table: str | None = None) -> list[Snapshot]:
        """The pinned snapshots of all clients, the oldest view first. None of them is renewed by being listed.

        Args:
            table: Only those of this table, as `database.table`. Default: of all tables.

        Raises:
            TableNotFound: There is no such table.
        """
        return await list_snapshots(self._transport, None if table is None else text_of(table, "table"))

    async def column_locks(self, table: str | None = None) -> list[ColumnLock]:
        """The column locks of all clients, by table and id. None of them is renewed by being listed.

        Args:
            table: Only those of this table, as `database.table`. Default: of all tables.

        Raises:
            TableNotFound: There is no such table.
        """
        return await list_locks(self._transport, None if table is None else text_of(table, "table"))

    async def release_column_lock(self, lock_id: str) -> None:
        """Ends a column lock, also of another client, whose writes then are as those of any other.

        Raises:
            LockLost: There is none of that id.
        """
        await release_lock(self._transport, lock_id)

    def transaction(
        self,
        id: str | None = None,
        *,
        conflict: ConflictMode = "last_wins",
        ttl: float | None = None,
        writer: str | None = None,
        attempt: str | None = None,
    ) -> TransactionOpener:
        """Begins a transaction: writes to any tables of the server that are seen all at once, or never.

            async with client.transaction(id="job-1:7") as tx:
                await tx.upsert(flights, rows)
                await tx.delete(queue, keys)

        In `async with`, it is committed at the end of the block, and aborted when that is left by an error. With `tx =
        await client.transaction(...)`, both are the caller's. Writes are checked and kept on the server's disk until
        the commit, also over a restart of the server. Readers, and those who follow changes, see all of it or nothing.

        Args:
            id: What the transaction is, so that it is committed once however often it is repeated, also by another
                process after a crash: 1 to 128 characters, as "job:sequence". Beginning it again aborts the one that
                was begun before, or tells that that was committed: see `Transaction.result`. Ids are remembered for 7
                days, and the last one of all that begin equally, up to the last `:`, for good. Default: none.
            conflict: What becomes of it when others have changed keys that it writes since it has first written to
                their table: "last_wins" replaces what they have written, with "abort" the commit raises
                TransactionConflict.
            ttl: Seconds after which it is aborted when nothing is heard of it, 1 to 604,800. Default: the server's, an
                hour.
            writer: The id of the writer whose changes those of the transaction are, so that `Table.undo` takes them
                back with what it has written itself. It need not be open, nor does this fence it. Default: nobody's.
            attempt: With an id: whoever begins it with the same attempt, in whatever process, gets the transaction that
                is open, in place of aborting it; each then stages by `transaction_part`. 1 to 64 of `A-Z a-z 0-9 _ -`.
                Default: each beginning is one of its own.

        Raises:
            TooManyTransactions: The server has as many open ones as it allows.
            UsageError: An argument is not possible; InvalidRequest for the id, or the writer's.
        """
        return TransactionOpener(self._transport, id, conflict, ttl, writer, attempt)

    def transaction_part(self, token: str, part: str) -> TransactionPart:
        """Takes part in a transaction that was begun elsewhere; whoever has begun it commits it, and names the part.

        Args:
            token: That of the transaction.
            part: Names what is staged here, differently for each attempt: 1 to 128 characters.
        """
        return TransactionPart(self._transport, text_of(token, "token"), text_of(part, "part"))

    async def transactions(self) -> list[TransactionInfo]:
        """The open transactions of all clients, the oldest first. None of them is renewed by being listed.

        With them those that are committed and could not be applied everywhere, which have `stuck`.
        """
        return await list_transactions(self._transport)

    async def abort_transaction(self, token: str) -> None:
        """Aborts a transaction, also of another client; nothing happens when there is none of that token.

        Raises:
            TransactionCommitted: It is committed, or is being committed.
        """
        await abort_transaction(self._transport, token)

    async def give_up_transaction(self, token: str) -> list[LostWrites]:
        """Accepts that a committed transaction is lost where it cannot be applied, so that all its buckets are served.

        For an operator, when what it has staged, a bucket or the definition of a table is damaged, and there is no copy
        to restore it from: `transactions()` lists it, with `stuck`. All that can be applied is applied first. From then
        on the transaction counts as committed; what is lost cannot be had back.

        Args:
            token: Names it.

        Returns:
            What is lost, by table and bucket; nothing when all of it could be applied.

        Raises:
            TransactionLost: No committed transaction of that token is stuck.
            TransactionCommitted: It may be applied yet, because the disk is full, or it waits for an earlier one.
            DiskFull: It cannot be written down.
        """
        return await give_up_transaction(self._transport, token)

    async def adopt_snapshot(self, snapshot_id: str, ttl: float | None = None) -> Snapshot:
        """The snapshot of that id, which another process may have taken; its time to live begins anew.

        While the server is away it is tried for the operation timeout: leases survive a restart.

        Args:
            snapshot_id: `Snapshot.id`.
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            SnapshotLost: The lease was released or has expired, or its table was dropped.
        """
        return await adopt_snapshot(self._transport, text_of(snapshot_id, "snapshot_id"), ttl)

    async def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until the server serves, also when it is not there yet.

        Args:
            timeout: Seconds.

        Raises:
            UsageError: It is no such number.
            DeadlineExceeded: It did not within the timeout; says what it did last.
        """
        await self._transport.wait_ready(timeout_of(timeout))


class ClientOpener(Opener):
    """What `connect` returns: `async with connect(...) as client`, or `client = await connect(...)`."""

    call = "connect(...)"
    name = "client"
    result = Client

    def __init__(self, config: ClientConfig) -> None:
        """Called by `connect`; opens nothing."""
        self._config = config
        self._client: Client | None = None

    def __await__(self) -> Generator[None, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.aclose()

    async def _open(self) -> Client:
        return Client(self._config)


def connect(
    url: str | None = None,
    *,
    operation_timeout: float = 60.0,
    attempt_timeout: float = 10.0,
    next_chunk_timeout: float = 30.0,
    read_ahead_bytes: int = 2 * 1024 * 1024,
    read_ahead_chunks: int = 2,
) -> ClientOpener:
    """Opens a client, in `async with` or by `await`.

    The server need not be there yet: the first call connects, and fails within milliseconds where nobody listens. Only
    writes, which the server applies once however often they are repeated, and scans that know where they stand, of a
    pinned snapshot or with a resume token, wait for it.

    Args:
        url: The server as `host:port` or `scankv://host:port`, an IPv6 host in brackets. Default: `$SCANKV_URL`, else
            `localhost:7070`.
        operation_timeout: Seconds for one operation with all its attempts; for a scan, the time without progress.
        attempt_timeout: Seconds until the first message of an answer.
        next_chunk_timeout: Seconds until the next chunk or heartbeat of a scan, while the caller waits for it.
        read_ahead_bytes: Bytes of a scan that the server may send ahead, 64 KiB to 64 MiB.
        read_ahead_chunks: The same in chunks, 1 to 1024; the lesser of both counts.

    Raises:
        UsageError: The url cannot be read, or a number is out of its range.
    """
    return ClientOpener(
        ClientConfig(
            url=default_url() if url is None else url,
            operation_timeout=operation_timeout,
            attempt_timeout=attempt_timeout,
            next_chunk_timeout=next_chunk_timeout,
            read_ahead_bytes=read_ahead_bytes,
            read_ahead_chunks=read_ahead_chunks,
        )
    )


def _schema_bytes(schema: pa.Schema) -> bytes:
    data: bytes = schema.remove_metadata().serialize().to_pybytes()
    return data


def _option_text(value: str | bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
