"""`Client`: the connection to a server, its tables, and its administration."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from aio_client._admin.admin import LiveScan, ServerStats, SlowCall
from aio_client._admin.backups import BackupStatus, backup_message, create_backup
from aio_client._admin.check import check_table
from aio_client._admin.damaged_table import DamagedTable
from aio_client._admin.indexes import index_messages, wait_until_built
from aio_client._admin.owners import assign_owner
from aio_client._admin.table_sizes import TableSize
from aio_client._client.bootstrap import bootstrap_table, open_source
from aio_client._client.table import Table
from aio_client._client.table_definition import definition_message, option_texts, schema_bytes, schema_of
from aio_client._client.transaction import (
    TransactionOpener,
    abort_transaction,
    give_up_transaction,
    list_transactions,
)
from aio_client._client.transaction_part import TransactionPart
from aio_client._input.arguments import names_of, text_of, timeout_of
from aio_client._input.column_changes import defaults_of, texts_of, types_of
from aio_client._input.near_misses import NearMisses
from aio_client._scan.scan import Scan
from aio_client._scan.snapshot import adopt_snapshot, list_snapshots
from aio_client._scan.snapshot_group import SnapshotGroupOpener
from aio_client._transport.owners import Owners
from aio_client._transport.transport import Transport
from aio_client._write.column_locks import list_locks, release_lock
from aio_client._write.merging import column_aggregators
from scankv.model.errors import UnknownField, UsageError
from scankv.model.scans.scan_spec import ScanSpec
from scankv.model.tables.merge_wire import aggregates_to_proto
from scankv.v1 import admin_pb2, table_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike
    from types import TracebackType

    import pyarrow as pa

    from aio_client._admin.check import BucketCheck
    from aio_client._admin.indexes import Indexes, IndexStatus
    from aio_client._admin.owners import AssignedOwner
    from aio_client._client.bootstrap import BootstrapProgress, Duplicates, OpenBootstrap
    from aio_client._client.transaction import ConflictMode, LockMode
    from aio_client._client.transaction_info import JobStep, LostWrites, TransactionInfo
    from aio_client._input.data import Data
    from aio_client._scan.snapshot import Snapshot
    from aio_client._sql.engine import Engine
    from aio_client._sql.query import SqlQuery
    from aio_client._transport.config import ClientConfig
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names, WriteMode
    from scankv.lake.sources.sources import SourceFormat
    from scankv.model.tables.agg import Aggregator


class Client(NearMisses):
    """A connection to one server. The first call connects, and later calls reconnect if the connection is lost.

    Belongs to the event loop it was opened in, where many tasks may use it at once; not to be used in a forked process.
    Made by `connect`.

    Besides the errors that a method lists, every call can raise ConnectionFailed, if the server cannot be reached or
    does not answer in time, and UsageError, if the client is closed.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Called by `connect`, in the event loop that the client will belong to."""
        self._config = config
        self._transport = Transport(config)
        self._owners = Owners(self._transport)
        self._bootstraps: dict[str, OpenBootstrap] = {}
        self._sql: Engine | None = None

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
        """The settings that the client was opened with; picklable."""
        return self._config

    async def aclose(self) -> None:
        """Ends all scans and bootstraps of this client, and closes the connection. Idempotent."""
        for each in [*self._bootstraps.values()]:
            # The blocking client is closed while an interrupted call ends.
            await each.abort()
        if self._sql is not None:
            await self._sql.aclose()
        await self._owners.aclose()
        await self._transport.aclose()

    async def create_table(
        self,
        name: str,
        schema: pa.Schema | str,
        *,
        primary_key: Sequence[str],
        bucket_key: Sequence[str] = (),
        buckets: int | None = None,
        tablets: int = 1,
        indexes: Indexes = (),
        partition_by: Sequence[str] = (),
        version_column: str | None = None,
        sequence_column: Names | None = None,
        sequence_groups: Mapping[Names, Names] | None = None,
        aggregators: Mapping[str, Aggregator] | None = None,
        **options: str | bool | int | None,
    ) -> Table:
        """Creates a table. The table is durable when the call returns.

        Args:
            name: `database.table`; each part 1 to 128 of `A-Z a-z 0-9 _ -`, beginning with a letter or `_`.
            schema: The columns, also as text, as the command line takes it: `"player string, score int64"`. Types that
                differ only in layout are stored as one: `large_string` as `string`. The page "Column types" of the
                documentation has all types.
            primary_key: The key columns, in key order; they become NOT NULL. Empty: a table without a key, to which
                rows are only appended, with `append`. Its changelog is its storage, so `log_retention_seconds`, which
                is unlimited there unless it is given, removes rows. It gives up everything that needs a key: `get`,
                `lookup`, deletes, merge engines, indexes, conditional writes, undo, mirrors, and an order over all
                buckets. In exchange, it takes rows several times as fast.
            bucket_key: The key columns whose values choose the bucket. Default: the complete primary key. In a table
                without a key, any columns that could be in a key; by default, the buckets take turns.
            buckets: The number of buckets, 1 to 1024. Default: the server's, 4.
            tablets: Into how many tablets to divide the buckets, at most as many as there are. The worker processes of
                a server share the tablets of a table, so that its rows are written and read on several cores; see
                "Tablets" in the documentation for what such tables lack. 1: into none.
            indexes: For each index its column, or its columns in order: `["score", ("league", "score")]`. An index lets
                top-N by its first column, and predicates on its first columns, read only the rows that they return. It
                makes every write read the old row.
            partition_by: The columns to partition by: the first ones of `primary_key`, in order, but not all of them.
                The rows of each value can be listed and dropped as one; see `Table.drop_partition`. Default: the table
                is not partitioned.
            version_column: For `merge_engine="versioned"`: the row with the greater version wins. Null is least, and of
                two equal versions the later row wins.
            sequence_column: For `merge_engine="last_row"`: as `version_column`, but one column or several, so that a
                row that arrives late does not replace a newer one.
            sequence_groups: For `merge_engine="partial_update"`: columns that change together, by the column, or the
                tuple of columns, that says how new they are: `{"seq": ["a", "b"]}`. A row changes them, also to null,
                unless it is older.
            aggregators: The functions that merge columns: `{"total": agg.sum(), "worst": agg.max()}`. For
                `merge_engine="aggregate"`, whose other columns keep the last value that is not null, and for columns in
                sequence groups.
            **options: Table options by name, None for the default: `merge_engine` ("last_row", "first_row",
                "versioned", "partial_update" or "aggregate"), `delete_behavior` ("allow", "ignore", "disable" or
                "retract"), `changelog`, `row_deduplicate`, `compression` and others. The page "Table options" of the
                documentation has all of them, with their values and defaults, and says which can change later.
                `changelog` is what readers of the changes get: "full" has the rows before and after every change;
                "upsert" has the rows after it, and the keys of deleted rows; "input" has what was written, before it is
                merged; "none" has nothing, so the table's changes cannot be read. If `changelog` is "upsert" or "none",
                a `last_row` table without an index takes complete rows faster, because the server does not read the
                rows that they replace. In such a table, writing an unchanged row and deleting a key without a row are
                changes like any other, and the table does not keep its number of rows, so `count` reads the rows.

        Returns:
            The new table.

        Raises:
            TableExists: A table of that name exists.
            InvalidRequest: The name, the key, the number of buckets, an index, an aggregate or `partition_by` is
                invalid; InvalidOption for an option, SchemaMismatch for a column.
            UpgradeNotConfirmed: The format of the server's data directory has no partitioned tables.
            UsageError: An argument has the wrong type.
        """
        request = definition_message(
            name,
            schema,
            options,
            primary_key=primary_key,
            bucket_key=bucket_key,
            buckets=buckets,
            tablets=tablets,
            indexes=indexes,
            partition_by=partition_by,
            version_column=version_column,
            sequence_column=sequence_column,
            sequence_groups=sequence_groups,
            aggregators=aggregators,
        )
        response = await self._transport.call(
            lambda: self._transport.services.tables.CreateTable, request, repeatable=False
        )
        return await self._open(response.table)

    async def bootstrap(
        self,
        name: str,
        source: Data | str | PathLike[str],
        *,
        primary_key: Sequence[str],
        schema: pa.Schema | str | None = None,
        source_format: SourceFormat | None = None,
        mode: WriteMode = "merge",
        duplicates: Duplicates = "error",
        from_scratch: bool = False,
        on_progress: Callable[[BootstrapProgress], None] | None = None,
        bucket_key: Sequence[str] = (),
        buckets: int | None = None,
        tablets: int = 1,
        indexes: Indexes = (),
        partition_by: Sequence[str] = (),
        version_column: str | None = None,
        sequence_column: Names | None = None,
        sequence_groups: Mapping[Names, Names] | None = None,
        aggregators: Mapping[str, Aggregator] | None = None,
        **options: str | bool | int | None,
    ) -> Table:
        """Makes a new table with all rows of a Delta table, an Iceberg table, a Parquet data set, or of other data.

            table = await client.bootstrap("game.scores", "s3://lake/scores", primary_key=["player"])

        The table appears with all rows at one instant, and is durable then. Before that, nothing of it is visible. The
        rows go into sorted files that the server's RocksDB takes as they are, which takes about a third of the time of
        upserts in random key order. The rows are not in the changelog: it begins with one marker in each bucket.
        Streams from `StartFrom.FULL` begin with all rows. Indexes are built in the background once the table exists.

        The same call resumes an interrupted bootstrap of a location, even if the process of the call or the server has
        ended. It sends only the rows that the server lacks. The server keeps the rows for a day after the last call. If
        the source or the definition has changed, the call fails; with `from_scratch` it begins again. The server keeps
        nothing after an error that the same call would meet again, such as DuplicateKeys, and after DiskFull. A
        bootstrap of rows that do not come from a location cannot be resumed by another call.

        Args:
            name: As for `create_table`.
            source: The location of a Delta table, an Iceberg table or Parquet files: a file, a directory, or a URI such
                as `s3://bucket/table`, with credentials in the environment. It is read as of its newest version, with
                all deletes; partition columns of directories are columns. Or rows, as for `upsert`, best as a
                `pyarrow.RecordBatchReader`.
            primary_key: As for `create_table`; not empty.
            schema: The columns of the table, to which the rows are cast if that loses nothing. Default: those of the
                source.
            source_format: "delta", "iceberg" or "parquet". Default: what the location contains.
            mode: "merge" merges the rows as the merge engine does. "overwrite" stores them as they are: use it for
                rows that are already merged, such as totals in a table that adds up.
            duplicates: "error" refuses rows with the same key, and names one. "merge" merges them, in their order, as
                the merge engine does; so in a `last_row` table the last one wins, and in a `versioned` one the newest.
            from_scratch: Discards what an interrupted bootstrap of the table has sent.
            on_progress: Called after each request and during the merge. Must not block.
            bucket_key: As for `create_table`, like all further arguments.
            buckets: The number of buckets.
            tablets: Into how many tablets to divide the buckets.
            indexes: The indexes.
            partition_by: The columns to partition by.
            version_column: For `merge_engine="versioned"`.
            sequence_column: For `merge_engine="last_row"`.
            sequence_groups: For `merge_engine="partial_update"`.
            aggregators: The functions that merge columns.
            **options: Table options.

        Returns:
            The new table.

        Raises:
            TableExists: A table of that name exists, or was created during the call.
            DuplicateKeys: Several rows have the same key.
            InvalidRequest: As for `create_table`; the table has no primary key, or `changelog="input"`; or a merge has
                no result. InvalidKey for a null in the key, SchemaMismatch for a column that does not fit.
            RequestTooLarge: A row or its key is too large.
            BootstrapDiffers: A bootstrap of the table was interrupted, and its source or its definition has changed.
            BootstrapLost: Another client has aborted the bootstrap, or the machine of the server has crashed.
            TooManyBootstraps: The server has 100 open bootstraps.
            LakeUnavailable, LakeDamaged: The source cannot be read.
            DiskFull: The server has too little disk space. It needs about twice the size of the table.
            UpgradeNotConfirmed: The server's data directory has an older format.
            UsageError: An argument has the wrong type, the location has no known format, or a package that reads it is
                not installed.
        """
        schema = None if schema is None else schema_of(schema, "schema")
        rows, total_rows, state = await asyncio.to_thread(open_source, source, source_format, schema)
        definition = definition_message(
            name,
            rows.schema if schema is None else schema,
            options,
            primary_key=primary_key,
            bucket_key=bucket_key,
            buckets=buckets,
            tablets=tablets,
            indexes=indexes,
            partition_by=partition_by,
            version_column=version_column,
            sequence_column=sequence_column,
            sequence_groups=sequence_groups,
            aggregators=aggregators,
        )
        description = await bootstrap_table(
            self._transport,
            self._bootstraps,
            definition,
            rows,
            total_rows=total_rows,
            source=state,
            mode=mode,
            duplicates=duplicates,
            from_scratch=from_scratch,
            on_progress=on_progress,
        )
        return await self._open(description)

    async def drop_table(self, name: str) -> None:
        """Drops a table with its rows and its changelog. Running scans of the table end with TableNotFound.

        Args:
            name: `database.table`.

        Raises:
            TableNotFound: The table does not exist.
        """
        request = table_pb2.DropTableRequest(name=text_of(name, "name"))
        await self._transport.call(lambda: self._transport.services.tables.DropTable, request, repeatable=False)

    async def alter_table(
        self,
        name: str,
        *,
        add_columns: pa.Schema | str | None = None,
        add_indexes: Indexes = (),
        drop_indexes: Indexes = (),
        add_aggregators: Mapping[str, Aggregator] | None = None,
        drop_columns: Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        column_types: Mapping[str, pa.DataType] | None = None,
        column_defaults: Mapping[str, object] | None = None,
        column_comments: Mapping[str, str] | None = None,
        column_order: Sequence[str] = (),
        wait: bool = True,
        on_progress: Callable[[list[IndexStatus]], None] | None = None,
        **options: str | bool | int | None,
    ) -> Table:
        """Changes the columns, indexes and options of a table while it is used: all of it, durably, or nothing.

        Nothing is rewritten, so the call takes as long for a large table as for an empty one. Running scans keep the
        columns that they began with, running streams of changes continue with the new ones, and clients that opened the
        table before may still write with the old ones. The server builds an index while the table is read and written,
        and uses it once it is complete. Options apply to running work, too: with a shorter retention, the server soon
        removes older changes.

        Columns are dropped, renamed, widened and added, in this order: `drop_columns`, `rename_columns` and
        `column_types` have the names before, all other arguments the names after.

        Args:
            name: `database.table`.
            add_columns: The columns to add at the end, also as text, all nullable. Rows written before have the default
                of such a column, or null.
            add_indexes: The columns of each index to add, as in `create_table`, also of columns that this call adds.
            drop_indexes: The exact columns of each index to drop, by their names before this change.
            add_aggregators: The aggregators of added columns, as `aggregators` of `create_table`.
            drop_columns: The columns to drop. A column that is added later under the same name is another column, which
                does not have the old values.
            rename_columns: New names of columns, by name.
            column_types: New types of columns, by name: wider integers and floats, decimals of the same scale and
                greater precision, and timestamps without time zone in s, ms or us for dates; in nested columns also
                structs with other nullable fields, found by name.
            column_defaults: Values, by column, that complete rows get which are written without the column. None
                removes a default. Rows that exist keep what they have.
            column_comments: What columns mean, by name: at most 1,000 characters each. "" removes a comment.
            column_order: All columns in a new order.
            wait: Whether to return only when the added indexes are ready, however long that takes. Cancelling the wait
                does not stop the server from building them. Default: yes.
            on_progress: Called with the states of the added indexes each time the server reports them during the wait;
                at least once.
            **options: New values of table options, as in `create_table`; None for the default. `changelog`,
                `log_retention_seconds`, `log_retention_bytes`, `columnar_base`, `row_deduplicate`, and the options of
                `ttl` and of `partition_ttl` can change. All others may only be given the value that they have. With
                `changelog`, running streams of changes may end: from "full" to "upsert" with `RangeNotTracked`, to
                "none" with `InvalidRequest`.

        Returns:
            The table with its new description.

        Raises:
            TableNotFound: The table does not exist, or was dropped during the call.
            SchemaMismatch: A name is taken, a type cannot be stored or indexed, or a column is NOT NULL; a type is not
                wider; or a column is in the key, in an index or in a rule of the merge engine, which needs it as it is.
            ColumnLocked: A column to drop or rename is locked.
            UpgradeNotConfirmed: The format of the server's data directory has no such changes of columns.
            InvalidRequest: An index to add exists, or one to drop does not; or an index cannot be built, in which case
                the message says why: the index exists then, is not used, and should be dropped. InvalidOption for an
                option that does not exist or cannot change, or a value that it cannot have.
            UpgradeNotConfirmed: `changelog` was to change, and the data directory has a format before 3.
            ConnectionFailed: No answer came; during the wait, for the operation timeout.
            UsageError: Nothing was to be altered, or an argument has the wrong type.
        """
        add_columns = None if add_columns is None else schema_of(add_columns, "add_columns")
        added = index_messages(add_indexes, "add_indexes")
        dropped = index_messages(drop_indexes, "drop_indexes")
        changes = (drop_columns, rename_columns, column_types, column_defaults, column_comments, column_order)
        if add_columns is None and not any((added, dropped, options, *changes)):
            raise UsageError(
                "there is nothing to alter: give columns to add or change, indexes to add or drop, or table options"
            )
        request = table_pb2.AlterTableRequest(
            name=text_of(name, "name"),
            add_columns=b"" if add_columns is None else schema_bytes(add_columns),
            add_indexes=added,
            drop_indexes=dropped,
            add_aggregates=aggregates_to_proto(column_aggregators(add_aggregators)),
            set_options=option_texts(options, self.alter_table),
            reset_options=[option for option, value in options.items() if value is None],
            drop_columns=names_of(drop_columns, "drop_columns"),
            rename_columns=texts_of(rename_columns, "rename_columns"),
            column_types=types_of(column_types, "column_types"),
            column_defaults=defaults_of(column_defaults, "column_defaults"),
            column_comments=texts_of(column_comments, "column_comments"),
            column_order=names_of(column_order, "column_order"),
        )
        response = await self._transport.call(
            lambda: self._transport.services.tables.AlterTable, request, repeatable=False
        )
        if wait and added:
            wanted = {tuple(index.columns) for index in added}
            await wait_until_built(self._transport, response.table, wanted, on_progress)
        return await self._open(response.table)

    async def check_table(
        self, name: str, *, on_bucket: Callable[[BucketCheck], None] | None = None
    ) -> list[BucketCheck]:
        """Has the server read a complete table and verify that all stored parts of it agree.

        The server verifies that each row can be decoded and has its key, that the number of rows is right, and that
        every index has exactly the entries of the rows. Each bucket is checked as of one instant, and writes continue.
        No rows are sent. The call takes about as long as a scan of all columns, and has no timeout.

        Args:
            name: `database.table`.
            on_bucket: Called with the result of each bucket as soon as it is done.

        Returns:
            The result of each bucket, in ascending order. Damage is reported, not raised: see
            `BucketCheck.is_consistent`.

        Raises:
            TableNotFound: The table does not exist, or was dropped during the call.
            TooManyScans, ScanTooLong, ScanCancelled, ServerDraining, Unavailable: As for a scan, because the server
                runs it as one.
        """
        return await check_table(self._transport, text_of(name, "name"), on_bucket)

    async def table(self, name: str) -> Table:
        """Returns the table of that name.

        Args:
            name: `database.table`.

        Raises:
            TableNotFound: The table does not exist; the message suggests similar names.
        """
        request = table_pb2.GetTableRequest(name=text_of(name, "name"))
        response = await self._transport.call(lambda: self._transport.services.tables.GetTable, request)
        return await self._open(response.table)

    async def _open(self, description: table_pb2.Table) -> Table:
        return Table(await self._owners.transport_to(description), description)

    async def tables(self) -> list[Table]:
        """Lists all usable tables, in ascending order of names. `damaged_tables` lists the others."""
        response = await self._list_tables()
        return [await self._open(description) for description in response.tables]

    async def damaged_tables(self) -> list[DamagedTable]:
        """Lists the tables that are damaged, completely or in some buckets, in ascending order of names.

        The server knows the damage of buckets that it has opened or read. `check_table` reads everything.
        """
        return _damaged(await self._list_tables())

    async def table_sizes(self, names: Sequence[str]) -> dict[str, TableSize]:
        """Returns how large some tables are, by name. The server opens no bucket for that.

        Args:
            names: The tables, as `database.table`; at most 100.

        Returns:
            The sizes. Without tables that do not exist or that the caller may not read, and without those that the
            server could not measure within a second, of which another call may have the sizes.

        Raises:
            InvalidRequest: There are more than 100 names.
            ProtocolViolation: The server is older than this call.
        """
        request = table_pb2.ListTableSizesRequest(names=names_of(names, "names"))
        response = await self._transport.call(lambda: self._transport.services.tables.ListTableSizes, request)
        return {each.name: TableSize.of(each) for each in response.sizes}

    async def _available_tables(self) -> tuple[list[Table], list[DamagedTable], int]:
        """Returns the usable and the damaged tables, and how many worker processes do not answer within a second.

        The tables of those are missing. A server of an earlier version lists all tables, or none.
        """
        try:
            response = await self._list_tables(partial=True)
        except UnknownField:
            response = await self._list_tables()
        tables = [await self._open(description) for description in response.tables]
        return tables, _damaged(response), response.absent_workers

    async def _caller_expires_at(self) -> float | None:
        """Checks the token, and returns when it expires, in seconds since 1970 UTC. None: never, or unknown."""
        response = await self._list_tables()
        return response.caller_expires_at if response.HasField("caller_expires_at") else None

    async def _list_tables(self, *, partial: bool = False) -> table_pb2.ListTablesResponse:
        return await self._transport.call(
            lambda: self._transport.services.tables.ListTables, table_pb2.ListTablesRequest(partial=partial)
        )

    def scan(self, spec: ScanSpec) -> Scan:
        """Makes a scan of a `Scan.spec`, which may come from another process.

        Args:
            spec: What to read.

        Returns:
            The scan, which its methods refine and start.

        Raises:
            UsageError: `spec` is not a ScanSpec.
        """
        if not isinstance(spec, ScanSpec):
            raise UsageError(f"spec must be a ScanSpec, as from scan.spec, not {spec!r:.80}")
        return Scan(self._transport, spec)

    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        frames: Mapping[str, object] | None = None,
        memory_bytes: int | None = None,
        timeout: float | None = None,
    ) -> SqlQuery:
        """Returns a statement in SQL over live tables, which its methods run.

            rows = await client.sql(
                "select league, sum(score) from game.scores where score > $least group by league", {"least": 10}
            ).to_arrow()

        DuckDB runs the query in this process: the dialect is its own, and so are files, such as
        `read_parquet('players.parquet')`. A table of the server is `database.table`. The server evaluates filters, and
        sends the columns that the query uses. A query shows one instant of all of its tables, however often it names
        them.

        Args:
            query: One statement: SELECT and others that read, whose rows `to_arrow` returns; or INSERT, UPDATE, DELETE,
                MERGE, CREATE TABLE, DROP TABLE and ALTER TABLE, which `run` carries out.
            parameters: The values of `?` in their order, or of `$name` by name. Default: none.
            frames: Data frames and Arrow tables, by the names that the query has for them. Default: none.
            memory_bytes: How much memory DuckDB may take before it writes to a temporary directory, at least 1 MiB.
                The result is not counted. Default: 80 % of the memory of the machine.
            timeout: How many seconds a run of the query may take. Default: without a limit.

        Raises:
            UsageError: duckdb is not installed; an argument is invalid; the query cannot be parsed, or is
                several statements.
        """
        from aio_client._sql.engine import Engine
        from aio_client._sql.query import SqlQuery

        self._sql = self._sql or Engine()
        return SqlQuery(
            self,
            self._sql,
            query,
            parameters,
            frames or {},
            memory_bytes=memory_bytes,
            timeout=timeout,
            can_write=True,
        )

    async def stats(self) -> ServerStats:
        """Returns statistics of the complete server. The server opens no bucket for them."""
        response = await self._transport.call(lambda: self._transport.services.admin.Stats, admin_pb2.StatsRequest())
        return ServerStats.of(response)

    async def metrics(self) -> str:
        """Returns the metrics of the server in the text format of Prometheus. The server opens no bucket for them."""
        request = admin_pb2.MetricsRequest()
        response = await self._transport.call(lambda: self._transport.services.admin.Metrics, request)
        return response.text.decode()

    async def _activity(
        self, read_at_micros: Mapping[str, int] | None = None, names: Sequence[str] = ()
    ) -> admin_pb2.ActivityResponse:
        """Returns counters of what clients do with the tables that the caller may read, for the charts of the console.

        Args:
            read_at_micros: When the last answer of each process was made, by incarnation: leaves out the tables of
                which nothing has changed since.
            names: Asks only which of these tables exist and may be read.
        """
        request = admin_pb2.ActivityRequest(read_at_micros=read_at_micros, names=names)
        return await self._transport.call(lambda: self._transport.services.admin.Activity, request)

    async def live_scans(self) -> list[LiveScan]:
        """Lists the live scans of all clients, which hold iterators at the server now, oldest first."""
        response = await self._transport.call(
            lambda: self._transport.services.admin.ListScans, admin_pb2.ListScansRequest()
        )
        return [LiveScan.of(scan) for scan in response.scans]

    async def slow_calls(self) -> list[SlowCall]:
        """Lists the latest calls that kept the server busy for longer than `slow_request_seconds`, newest first.

        The server remembers up to 100 since its start.

        Raises:
            PermissionDenied: The caller is not an admin of all tables.
        """
        request = admin_pb2.ListSlowCallsRequest()
        response = await self._transport.call(lambda: self._transport.services.admin.ListSlowCalls, request)
        return [SlowCall.of(call) for call in response.calls]

    async def cancel_scan(self, scan_id: str) -> None:
        """Ends a scan of any client. Its iterators are freed when the call returns; its reader gets ScanCancelled.

        The iterators of a scan that is just being opened are freed as soon as it is open, some milliseconds later.

        Args:
            scan_id: The id in `live_scans` and `stream.scan_id`.

        Raises:
            ScanNotFound: There is no such live scan; it may have ended by itself.
        """
        request = admin_pb2.CancelScanRequest(scan_id=text_of(scan_id, "scan_id"))
        await self._transport.call(lambda: self._transport.services.admin.CancelScan, request, repeatable=False)

    async def create_backup(self, *, on_progress: Callable[[BackupStatus], None] | None = None) -> BackupStatus:
        """Has the server create a backup of all tables as of one instant, and waits until it is complete.

        The server stores the backup where its setting `backup_location` says. Files that an earlier backup has are not
        copied again. Writers are paused for the instant, about 2 ms for each bucket. If this call is cancelled, the
        server continues.

        Args:
            on_progress: Called with the status several times a second, and at the end.

        Returns:
            The status of the complete backup. Damaged tables are in `left_out`.

        Raises:
            BackupFailed: The server has no location for backups, a backup is running already, or the location cannot be
                written.
            PermissionDenied: The caller is not an admin of all tables.
        """
        return await create_backup(self._transport, on_progress)

    async def backup_status(self) -> BackupStatus:
        """Returns how far the running backup is, or how the last one since the start of the server has ended."""
        return BackupStatus.of(await backup_message(self._transport))

    def snapshot(self, tables: Sequence[str], ttl: float = 600) -> SnapshotGroupOpener:
        """Pins several tables as of now, all at one instant, so that reads of them fit together.

            async with client.snapshot(["game.scores", "game.players"]) as snapshots:
                rows = await scores.scan().as_of(snapshots.table("game.scores")).to_arrow()

        All snapshots show a transaction, or none does. If one shows a write, the others show every write that was
        acknowledged before it began. `async with` renews the snapshots, and releases them at the end. The call is
        repeated within the operation timeout as that of `table.snapshot`; snapshots whose answer was lost expire.

        Args:
            tables: The tables, as `database.table`: 1 to 100, each once.
            ttl: Seconds after which the snapshots expire unless they are renewed, 1 to 604,800.

        Returns:
            An object for `async with` or `await`, which takes a `SnapshotGroup` each time.

        Raises:
            TableNotFound: A table does not exist.
            TooManySnapshots, SnapshotNotTaken: As for `table.snapshot`.
            PermissionDenied: The token does not grant the role read for one of the tables.
            InvalidRequest: There are more than 100 tables.
            UsageError: There is no table, one is named twice, or `ttl` is out of range.
            ProtocolViolation: The server is older than this call.
        """
        return SnapshotGroupOpener(self._transport, tables, ttl)

    async def snapshots(self, table: str | None = None) -> list[Snapshot]:
        """Lists the pinned snapshots of all clients, in the order of their views, oldest first. Renews none of them.

        Args:
            table: List only snapshots of this table, given as `database.table`. Default: of all tables.

        Raises:
            TableNotFound: The table does not exist.
        """
        return await list_snapshots(self._transport, None if table is None else text_of(table, "table"))

    async def column_locks(self, table: str | None = None) -> list[ColumnLock]:
        """Lists the column locks of all clients, in order of table and id. Renews none of them.

        Args:
            table: List only locks of this table, given as `database.table`. Default: of all tables.

        Raises:
            TableNotFound: The table does not exist.
        """
        return await list_locks(self._transport, None if table is None else text_of(table, "table"))

    async def release_column_lock(self, lock_id: str) -> None:
        """Ends a column lock of any client. Later writes that name the lock are refused with LockLost.

        Args:
            lock_id: `ColumnLock.id`.

        Raises:
            LockLost: No lock has that id.
        """
        await release_lock(self._transport, lock_id)

    async def assign_owner(self, table: str, principal: str, *, current: str | None = None) -> AssignedOwner:
        """Gives the snapshots, consumers, column locks and opened writers of a table to a principal.

        On a server with tokens, only the principal to whom one of them belongs, or an admin of the table, may renew,
        release, take over or end it. Open transactions stay as they are.

        Args:
            table: The table, as `database.table`.
            principal: To whom they will belong.
            current: To whom they belong now. Default: they have no owner, because they were made before the server had
                tokens or owners.

        Raises:
            PermissionDenied: The caller is not an admin of the table.
            TooManySnapshots, TooManyConsumers: The caller is not an admin of every table, and the principal would get
                more than half of its share of the server.
            TableNotFound: The table does not exist.
        """
        return await assign_owner(self._transport, table, principal, current)

    def transaction(
        self,
        id: str | None = None,
        *,
        conflict: ConflictMode = "last_wins",
        ttl: float | None = None,
        writer: str | None = None,
        attempt: str | None = None,
        lock: LockMode | None = None,
        lock_timeout: float | None = None,
        job: JobStep | None = None,
        principal: str | None = None,
    ) -> TransactionOpener:
        """Begins a transaction: writes to any tables of the server that become visible together, or never.

            async with client.transaction(id="job-1:7") as tx:
                await tx.upsert(flights, rows)
                await tx.delete(queue, keys)

        `async with` commits the transaction at the end of the block, and aborts it if an error leaves the block. After
        `tx = await client.transaction(...)`, the caller commits or aborts it. Writes are checked at once and staged on
        the server's disk until the commit, which survives a restart of the server. Readers, including readers of
        changes, see all of a transaction or nothing.

        Args:
            id: The id by which the transaction is committed once, however often it is repeated, also by another process
                after a crash: 1 to 128 characters, such as "job:sequence". Beginning an id again aborts its open
                transaction; if the id was committed, nothing is staged and `Transaction.result` has the result. The
                server remembers ids for 7 days. Of all ids with the same text before the last `:`, it remembers the
                last one while a table of its transaction exists. Default: none.
            conflict: What the commit does if other writers have changed keys that the transaction writes since it first
                wrote to their table: "last_wins" replaces their changes, "abort" raises TransactionConflict.
            ttl: Seconds without a call after which the transaction is aborted, 1 to 604,800. Default: the server's, one
                hour.
            writer: The id of the writer to which the changes belong, so that `Table.undo` reverts them together with
                that writer's own. The writer need not be open, and is not fenced. Default: no writer.
            attempt: With an id: every caller, in any process, that begins the id with the same attempt gets the open
                transaction instead of aborting it; each then stages with `transaction_part`. 1 to 64 of `A-Z a-z 0-9 _
                -`. Default: each call is an attempt of its own.
            lock: "keys": the transaction locks each key that it reads with `get_for_update`, before it reads, and each
                key that it writes, until its end. Other transactions that lock the same keys wait, so none of them has
                to be repeated; other writers do not wait. A restart of the server ends such a transaction
                (TransactionLost). Default: no locks.
            lock_timeout: With `lock`: how many seconds a call waits for keys that others have locked, before it raises
                LockTimeout: 0 to 60, and at most `ttl`. Default: 10.
            job: With an id: the job that the transaction belongs to, and the job's previous transaction. The begin
                fails if the job's table lacks the rows of the previous transaction, because the table was restored or
                created again. A server of an earlier version does not check that. Default: no job.
            principal: The principal to whom a new transaction belongs, which can then stage in it and commit it. Only
                an admin of all tables, or with `job` of its table, may name another principal than that of its token.
                Default: the principal of the token.

        Returns:
            An object for `async with` or `await`, which begins a `Transaction` each time.

        Raises:
            TooManyTransactions: The server has as many open transactions as it allows.
            TableRecreated: With `job`: its table lacks rows of earlier transactions. The message says how to continue.
            TableNotFound: With `job`: its table does not exist.
            PermissionDenied: An open transaction with this id belongs to another principal, or `principal` is another
                one than that of the token, which has no role admin.
            UsageError: An argument is invalid; InvalidRequest for `id` or `writer`.
        """
        return TransactionOpener(
            self._transport, id, conflict, ttl, writer, attempt, lock, lock_timeout, job, principal
        )

    def transaction_part(self, token: str, part: str) -> TransactionPart:
        """Joins a transaction that was begun elsewhere. Its owner commits it, and names the parts that count.

        Args:
            token: `Transaction.token`.
            part: The name of what is staged here, 1 to 128 characters. Each attempt of the same work needs its own.

        Returns:
            A `TransactionPart`. Making it does not call the server.

        Raises:
            UsageError: An argument is not text.
        """
        return TransactionPart(self._transport, text_of(token, "token"), text_of(part, "part"))

    async def transactions(self) -> list[TransactionInfo]:
        """Lists the open transactions of all clients, oldest first. Renews none of them.

        Includes committed transactions that could not be applied everywhere, which have `stuck` set.
        """
        return await list_transactions(self._transport)

    async def abort_transaction(self, token: str) -> None:
        """Aborts a transaction of any client. Does nothing if no transaction has that token.

        Args:
            token: `TransactionInfo.token`.

        Raises:
            TransactionCommitted: The transaction is committed, or is being committed.
        """
        await abort_transaction(self._transport, token)

    async def give_up_transaction(self, token: str) -> list[LostWrites]:
        """Accepts that a committed transaction is lost where it cannot be applied, so that its buckets serve again.

        For operators, if staged rows, a bucket or a table definition is damaged, and no copy exists to restore it from:
        `transactions()` lists the transaction with `stuck`. The server first applies everything that it can apply.
        Afterwards, the transaction counts as committed, and what is lost cannot be recovered.

        Args:
            token: `TransactionInfo.token`.

        Returns:
            What is lost, by table and bucket. Empty if everything could be applied.

        Raises:
            TransactionLost: No committed transaction with that token is stuck.
            TransactionCommitted: The transaction may still be applied, because the disk is full, or because it waits
                for an earlier one.
            DiskFull: The decision cannot be stored.
        """
        return await give_up_transaction(self._transport, token)

    async def adopt_snapshot(self, snapshot_id: str, ttl: float | None = None) -> Snapshot:
        """Returns the snapshot of that id, which another process may have taken, and starts its time to live again.

        The call is repeated for the operation timeout if the server cannot be reached, because leases survive a
        restart.

        Args:
            snapshot_id: `Snapshot.id`.
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            SnapshotLost: The lease was released or has expired, or its table was dropped.
            UsageError: `ttl` is out of range.
        """
        return await adopt_snapshot(self._transport, text_of(snapshot_id, "snapshot_id"), ttl)

    async def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until the server serves requests. The server need not be running yet.

        Args:
            timeout: The longest time to wait, in seconds.

        Raises:
            UsageError: `timeout` is negative or not a number.
            DeadlineExceeded: The server was not ready within the timeout; the message has the last problem.
        """
        await self._transport.wait_ready(timeout_of(timeout))


def _damaged(response: table_pb2.ListTablesResponse) -> list[DamagedTable]:
    usable = {table.name for table in response.tables}
    return [DamagedTable(name=each.name, reason=each.reason, partial=each.name in usable) for each in response.damaged]
