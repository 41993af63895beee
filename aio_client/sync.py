"""The same client for code that blocks: scripts, threads, notebooks, libraries without an event loop.

    from aio_client.sync import connect

    client = connect("localhost:7070")
    for rows in client.table("game.scores").scan():
        ...

Names and meanings are those of `aio_client`. A client runs an event loop in a thread of its own, so it works beside a
running one, and it and all that it makes may be used from any thread. It closes with `close`, at the end of `with`,
when nothing refers to it and its tables, scans and streams any more, and when the interpreter exits. Connect after a
fork, not before it.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import pyarrow as pa

from aio_client._arguments import flag_of
from aio_client._config import ClientConfig, default_url
from aio_client._duckdb import check_connection, create_table
from aio_client._lazy_polars import lazy_frame
from aio_client._merging import MergedTable
from aio_client._optional import import_optional
from aio_client._runner import Runner
from aio_client._scan_builder import ScanBuilder
from aio_client._sync_computed import ComputedAnswers
from aio_client._sync_consumers import ConsumersOfTable
from aio_client._sync_snapshot import Snapshot
from aio_client._sync_stream import ScanStream
from aio_client._sync_transaction import Transaction, TransactionPart
from aio_client._sync_watch import TopNWatch
from aio_client._sync_writer import ColumnLock, Writer, ids_of
from aio_client.read_ahead import BATCH_BYTES, BATCH_ROWS, ITEMS_AHEAD, ReadAhead, gather
from table_model.errors import UsageError
from table_model.log_positions import StartFrom

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from types import TracebackType

    import duckdb
    import pandas as pd
    import polars as pl

    from aio_client._admin import LiveScan, ServerStats
    from aio_client._check import BucketCheck
    from aio_client._client import Client as AsyncClient
    from aio_client._damaged_table import DamagedTable
    from aio_client._data import Data
    from aio_client._disk_use import DiskUse
    from aio_client._explanation import ScanExplanation
    from aio_client._indexes import Indexes, IndexStatus
    from aio_client._lookup import VersionedRows
    from aio_client._merging import Names, WriteMode
    from aio_client._scan_builder import Pinned
    from aio_client._shards import ScannedTable
    from aio_client._table import BucketStatistics
    from aio_client._table import Table as AsyncTable
    from aio_client._transaction import ConflictMode, LostWrites, TransactionInfo
    from aio_client._write_requests import UndoReport, WriteResult
    from protos.scankv.v1 import table_pb2
    from table_model.agg import Aggregator
    from table_model.expressions import Where
    from table_model.log_offsets import LogOffsets
    from table_model.log_positions import StopAt
    from table_model.scan_spec import ScanSpec

_Item = TypeVar("_Item")

__all__ = [
    "Client",
    "ColumnLock",
    "Scan",
    "ScanStream",
    "Snapshot",
    "Table",
    "TopNWatch",
    "Transaction",
    "TransactionPart",
    "Writer",
    "connect",
]


class Client:
    """A connection to one server. Thread-safe. See `aio_client.Client`."""

    def __init__(self, config: ClientConfig) -> None:
        """Opens the client; `connect` is the usual way."""
        self._runner = Runner(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync {type(self).__name__} of {self.config.address}>"

    @property
    def config(self) -> ClientConfig:
        """What the client was opened with; picklable."""
        return self._runner.client.config

    def close(self) -> None:
        """Ends all scans of this client and closes the connection. Idempotent."""
        self._runner.close()

    def create_table(
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
        """Creates a table. See `aio_client.Client.create_table`."""
        create = partial(
            self._runner.client.create_table,
            name,
            schema,
            primary_key=primary_key,
            bucket_key=bucket_key,
            buckets=buckets,
            indexes=indexes,
            version_column=version_column,
            sequence_column=sequence_column,
            sequence_groups=sequence_groups,
            aggregates=aggregates,
        )
        return Table(self._runner, self._runner.call(partial(create, **options)))

    def drop_table(self, name: str) -> None:
        """Drops a table with its rows. See `aio_client.Client.drop_table`."""
        self._runner.call(self._runner.client.drop_table, name)

    def alter_table(
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
        """Adds columns at the end of a table, adds and drops indexes. See `aio_client.Client.alter_table`.

        `on_progress` is called in the client's thread, and must not block.
        """
        alter = partial(
            self._runner.client.alter_table,
            add_columns=add_columns,
            add_indexes=add_indexes,
            drop_indexes=drop_indexes,
            add_aggregates=add_aggregates,
            wait=wait,
            on_progress=on_progress,
        )
        return Table(self._runner, self._runner.call(alter, name))

    def check_table(self, name: str, *, on_bucket: Callable[[BucketCheck], None] | None = None) -> list[BucketCheck]:
        """Says whether all that is stored of a table agrees. See `aio_client.Client.check_table`.

        `on_bucket` is called in the client's thread, and must not block.
        """
        return self._runner.call(partial(self._runner.client.check_table, on_bucket=on_bucket), name)

    def table(self, name: str) -> Table:
        """The table of that name. See `aio_client.Client.table`."""
        return Table(self._runner, self._runner.call(self._runner.client.table, name))

    def tables(self) -> list[Table]:
        """All tables that can be used, by name. See `aio_client.Client.tables`."""
        return [Table(self._runner, table) for table in self._runner.call(self._runner.client.tables)]

    def damaged_tables(self) -> list[DamagedTable]:
        """The tables that cannot be used, at least not all of them. See `aio_client.Client.damaged_tables`."""
        return self._runner.call(self._runner.client.damaged_tables)

    def scan(self, spec: ScanSpec) -> Scan:
        """Makes a scan of a `Scan.spec`, which may come from another process."""
        return Scan(self._runner, spec)

    def read_ahead(
        self, make: Callable[[AsyncClient], AsyncGenerator[_Item, None]], ahead: int = ITEMS_AHEAD
    ) -> ReadAhead[_Item]:
        """Runs an asynchronous generator in the client's event loop, and gives its items to a caller that blocks.

            async def both(client):
                for name in ("game.scores", "game.players"):
                    async for rows in (await client.table(name)).scan().stream():
                        yield rows

            with client.read_ahead(both) as batches:
                for rows in batches:
                    ...

        Args:
            make: Makes the generator of the asynchronous client that this one runs; must not block.
            ahead: How many items may be made and not yet done with, at least 1.
        """
        return ReadAhead(self._runner, make, ahead)

    def server_stats(self) -> ServerStats:
        """The figures of the whole server."""
        return self._runner.call(self._runner.client.server_stats)

    def live_scans(self) -> list[LiveScan]:
        """The scans of all clients that hold iterators now, the oldest first."""
        return self._runner.call(self._runner.client.live_scans)

    def cancel_scan(self, scan_id: str) -> None:
        """Ends a scan, also of another client. See `aio_client.Client.cancel_scan`."""
        self._runner.call(self._runner.client.cancel_scan, scan_id)

    def snapshots(self, table: str | None = None) -> list[Snapshot]:
        """The pinned snapshots of all clients, or of one table. See `aio_client.Client.snapshots`."""
        return [Snapshot(self._runner, each) for each in self._runner.call(self._runner.client.snapshots, table)]

    def column_locks(self, table: str | None = None) -> list[ColumnLock]:
        """The column locks of all clients, or on one table. See `aio_client.Client.column_locks`."""
        return [ColumnLock(self._runner, each) for each in self._runner.call(self._runner.client.column_locks, table)]

    def release_column_lock(self, lock_id: str) -> None:
        """Ends a column lock, also of another client. See `aio_client.Client.release_column_lock`."""
        self._runner.call(self._runner.client.release_column_lock, lock_id)

    def transaction(
        self,
        id: str | None = None,
        *,
        conflict: ConflictMode = "last_wins",
        ttl: float | None = None,
        writer: str | None = None,
        attempt: str | None = None,
    ) -> Transaction:
        """Begins a transaction: `with` it, or commit or abort it. See `aio_client.Client.transaction`."""
        beginning = self._runner.client.transaction(id, conflict=conflict, ttl=ttl, writer=writer, attempt=attempt)
        return Transaction(self._runner, beginning)

    def transaction_part(self, token: str, part: str) -> TransactionPart:
        """Takes part in a transaction that was begun elsewhere. See `aio_client.Client.transaction_part`."""
        return TransactionPart(self._runner, self._runner.client.transaction_part(token, part))

    def transactions(self) -> list[TransactionInfo]:
        """The open transactions of all clients. See `aio_client.Client.transactions`."""
        return self._runner.call(self._runner.client.transactions)

    def abort_transaction(self, token: str) -> None:
        """Aborts a transaction, also of another client. See `aio_client.Client.abort_transaction`."""
        self._runner.call(self._runner.client.abort_transaction, token)

    def give_up_transaction(self, token: str) -> list[LostWrites]:
        """Accepts what a stuck transaction has lost. See `aio_client.Client.give_up_transaction`."""
        return self._runner.call(self._runner.client.give_up_transaction, token)

    def adopt_snapshot(self, snapshot_id: str, ttl: float | None = None) -> Snapshot:
        """The snapshot of that id, renewed. See `aio_client.Client.adopt_snapshot`."""
        return Snapshot(self._runner, self._runner.call(self._runner.client.adopt_snapshot, snapshot_id, ttl))

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until the server serves. See `aio_client.Client.wait_ready`."""
        self._runner.call(self._runner.client.wait_ready, timeout)


class Table(ComputedAnswers, ConsumersOfTable, MergedTable):
    """A table on the server. Thread-safe. See `aio_client.Table`."""

    def __init__(self, runner: Runner, table: AsyncTable) -> None:
        """Called by the methods of `Client`."""
        self._runner = runner
        self._table = table

    def __repr__(self) -> str:
        return f"<sync {repr(self._table)[1:]}"

    @property
    def _description(self) -> table_pb2.Table:
        return self._table._description

    @property
    def name(self) -> str:
        """`database.table`."""
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """The columns. Key columns are not nullable."""
        return self._table.schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order."""
        return self._table.primary_key

    @property
    def bucket_key(self) -> list[str]:
        """The key columns whose values choose the bucket."""
        return self._table.bucket_key

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._table.buckets

    @property
    def incarnation(self) -> str:
        """Differs for every creation of a table, also of the same name."""
        return self._table.incarnation

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from their defaults."""
        return self._table.options

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """The columns of each index. See `aio_client.Table.indexes`."""
        return self._table.indexes

    def upsert(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Inserts rows, and merges them into those whose key is there already. See `aio_client.Table.upsert`."""
        return self._runner.call(
            partial(self._table.upsert, data, columns, mode=mode, if_version=if_version, locks=ids_of(locks))
        )

    def retract(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Takes rows back that were written before. See `aio_client.Table.retract`."""
        return self._runner.call(
            partial(self._table.retract, data, columns, if_version=if_version, locks=ids_of(locks))
        )

    def delete(
        self,
        keys: object,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Deletes the rows with these keys, or columns of them. See `aio_client.Table.delete`."""
        return self._runner.call(
            partial(self._table.delete, keys, columns, mode=mode, if_version=if_version, locks=ids_of(locks))
        )

    def get(self, key: object) -> dict[str, Any] | None:
        """The row with this key, None when there is none. See `aio_client.Table.get`."""
        return self._runner.call(self._table.get, key)

    @overload
    def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: Literal[False] = False
    ) -> pa.Table: ...
    @overload
    def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: Literal[True]
    ) -> VersionedRows: ...
    def lookup(
        self, keys: object, *, missing: Literal["omit", "null"] = "omit", with_version: bool = False
    ) -> pa.Table | VersionedRows:
        """The rows with these keys in the order asked. See `aio_client.Table.lookup`."""
        if with_version:
            return self._runner.call(partial(self._table.lookup, keys, missing=missing, with_version=True))
        return self._runner.call(partial(self._table.lookup, keys, missing=missing))

    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Scan:
        """A scan of the table. See `aio_client.Table.scan`."""
        scan = self._table.scan(columns, where=where, limit=limit)
        return Scan(self._runner, scan.spec, scan.of_table)

    def changes(
        self,
        start: StartFrom = StartFrom.FULL,
        stop: StopAt | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        consumer_id: str | None = None,
        shard: tuple[int, int] | None = None,
        clamp: bool = False,
    ) -> Scan:
        """The changes of the table as they happen. See `aio_client.Table.changes`."""
        scan = self._table.changes(
            start, stop, columns=columns, where=where, consumer_id=consumer_id, shard=shard, clamp=clamp
        )
        return Scan(self._runner, scan.spec, scan.of_table)

    def snapshot(
        self, ttl: float = 600, *, same_view_as: Pinned | str | None = None, id: str | None = None
    ) -> Snapshot:
        """Pins the table as of now: `with table.snapshot() as snap` renews and releases it, else that is the caller's.

        The arguments and errors are those of `aio_client.Table.snapshot`.
        """
        pinning = self._table.snapshot(ttl, same_view_as=same_view_as, id=id)
        return Snapshot(self._runner, self._runner.call(pinning.pin))

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
        """A writer that sends rows in the background, to be entered with `with`. See `aio_client.Table.writer`."""
        make = partial(
            self._table.writer,
            id,
            columns=columns,
            lock=lock,
            lock_ttl=lock_ttl,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
            max_buffered_bytes=max_buffered_bytes,
            in_flight=in_flight,
        )
        return Writer(self._runner, make)

    def undo(
        self,
        writer_id: str,
        to_offsets: Mapping[int, int],
        *,
        any_incarnation: bool = False,
        locks: Sequence[ColumnLock | str] = (),
    ) -> UndoReport:
        """Takes back what a named writer has done since some offsets. See `aio_client.Table.undo`."""
        undo = partial(self._table.undo, any_incarnation=any_incarnation, locks=ids_of(locks))
        return self._runner.call(partial(undo, writer_id, to_offsets))

    def lock_columns(
        self, columns: Sequence[str], *, owner: str, ttl: float = 30.0, take_over: bool = False
    ) -> ColumnLock:
        """Locks columns: `with` renews and releases the lock, else that is the caller's.

        The arguments and errors are those of `aio_client.Table.lock_columns`.
        """
        locking = self._table.lock_columns(columns, owner=owner, ttl=ttl, take_over=take_over)
        return ColumnLock(self._runner, self._runner.call(locking.lock))

    def statistics(self) -> list[BucketStatistics]:
        """The figures of every bucket."""
        return self._runner.call(self._table.statistics)

    def disk_use(self) -> DiskUse:
        """What the table takes on disk now. See `aio_client.Table.disk_use`."""
        return self._runner.call(self._table.disk_use)

    def log_offsets(self) -> LogOffsets:
        """Where the changelog of every bucket ends, at one instant. See `aio_client.Table.log_offsets`."""
        return self._runner.call(self._table.log_offsets)

    def index_status(self) -> list[IndexStatus]:
        """How far every index is built now."""
        return self._runner.call(self._table.index_status)


class Scan(ScanBuilder):
    """A scan of one table that has not started. Immutable, thread-safe; iterating starts it: `for rows in scan`.

    DuckDB, Polars, pyarrow and others read it directly (`duckdb.sql("select * from scan")`, `polars.DataFrame(scan)`),
    through `__arrow_c_stream__`: all of its rows, with a new view each time they do.
    """

    __slots__ = ("_runner",)

    def __init__(self, runner: Runner, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Table.scan` and `Client.scan`."""
        super().__init__(spec, table)
        self._runner = runner

    def __iter__(self) -> ScanStream:
        return self.stream()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Starts the scan as an Arrow C stream. Errors in the middle reach the reader through it, so no row is lost.

        Most readers gather all rows, so changes without an end are refused as in `to_arrow`.
        """
        self._check_ends("an Arrow reader of this scan")
        self._check_has_rows("an Arrow reader of this scan")
        stream = self.stream().__enter__()
        return pa.RecordBatchReader.from_batches(stream.schema, stream).__arrow_c_stream__(requested_schema)

    def stream(self) -> ScanStream:
        """The rows as they come, in bounded memory, each time with a new view. The same as `iter(scan)`."""
        return ScanStream(self._runner, self._runner.client.scan(self._spec).stream())

    def stream_sync(self) -> ScanStream:
        """The same as `stream`."""
        return self.stream()

    def batches(
        self, *, rows: int = BATCH_ROWS, bytes: int = BATCH_BYTES, ahead: int = ITEMS_AHEAD
    ) -> ReadAhead[pa.RecordBatch]:
        """The rows in large batches, of which the next ones are received while the caller works on one.

            with scan.batches(rows=100_000) as batches:
                for batch in batches:
                    train(batch)

        For readers that take some time for each batch, as PyTorch and pandas do; `stream` gives the chunks as they
        come, with their resume tokens. The first chunk is a batch of its own, and the last batch may be small.

        Args:
            rows: Rows that make a batch large enough, at least 1; it may have one chunk more.
            bytes: Bytes of Arrow data that do so, at least 1.
            ahead: How many batches may be received and not yet done with, the caller's own among them.

        Raises:
            UsageError: An argument is out of its range.
        """
        for name, number in (("rows", rows), ("bytes", bytes)):
            if type(number) is not int or number < 1:
                raise UsageError(f"{name} is a number of at least 1, not {number!r}", option=name)
        spec = self._spec

        async def make(client: AsyncClient) -> AsyncGenerator[pa.RecordBatch, None]:
            async with client.scan(spec).stream() as stream, aclosing(gather(stream, rows, bytes)) as gathered:
                async for batch in gathered:
                    yield batch

        return ReadAhead(self._runner, make, ahead)

    def splits(self, n: int, *, rows_per_split: int | None = None) -> list[Scan]:
        """Cuts a scan of a pinned snapshot into parts of about equally many rows. See `aio_client.Scan.splits`."""
        cut = partial(self._runner.client.scan(self._spec).splits, n, rows_per_split=rows_per_split)
        parts = self._runner.call(cut)
        return [Scan(self._runner, part.spec, self._table) for part in parts]

    def explain(self) -> ScanExplanation:
        """How the server would answer the scan. See `aio_client.Scan.explain`."""
        return self._runner.call(self._runner.client.scan(self._spec).explain)

    def to_arrow(self) -> pa.Table:
        """All rows as one table in memory; with the schema, also when there are none."""
        return self._runner.call(self._runner.client.scan(self._spec).to_arrow)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame. Needs pandas."""
        return self._runner.call(self._runner.client.scan(self._spec).to_pandas)

    @overload
    def to_polars(self, *, lazy: Literal[False] = False) -> pl.DataFrame: ...
    @overload
    def to_polars(self, *, lazy: Literal[True]) -> pl.LazyFrame: ...
    def to_polars(self, *, lazy: bool = False) -> pl.DataFrame | pl.LazyFrame:
        """All rows as a Polars DataFrame, or as a LazyFrame that reads what it needs when it is collected.

        Needs polars. The LazyFrame uses this client's connection. See `aio_client.Scan.to_polars`.
        """
        if not flag_of(lazy, "lazy"):
            return self._runner.call(self._runner.client.scan(self._spec).to_polars)
        import_optional("polars")
        self._check_ends("to_polars")
        self._check_has_rows("to_polars")
        with self.stream() as stream:
            schema = stream.schema
        return lazy_frame(self, schema, lambda spec: Scan(self._runner, spec).stream())

    def to_duckdb(self, con: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
        """All rows as a new table in DuckDB. See `aio_client.Scan.to_duckdb`."""
        self._check_ends("to_duckdb")
        check_connection(con, name)
        self._check_has_rows("to_duckdb")
        with self.stream() as stream:
            return create_table(con, name, stream.schema, stream)

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dictionaries."""
        return self._runner.call(self._runner.client.scan(self._spec).to_pylist)

    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        return type(self)(self._runner, replace(self._spec, **changes), self._table)


def connect(
    url: str | None = None,
    *,
    operation_timeout: float = 60.0,
    attempt_timeout: float = 10.0,
    next_chunk_timeout: float = 30.0,
    read_ahead_bytes: int = 2 * 1024 * 1024,
    read_ahead_chunks: int = 2,
) -> Client:
    """Opens a client, to be used as it is or in `with`.

    The arguments and errors are those of `aio_client.connect`.
    """
    return Client(
        ClientConfig(
            url=default_url() if url is None else url,
            operation_timeout=operation_timeout,
            attempt_timeout=attempt_timeout,
            next_chunk_timeout=next_chunk_timeout,
            read_ahead_bytes=read_ahead_bytes,
            read_ahead_chunks=read_ahead_chunks,
        )
    )
