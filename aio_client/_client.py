"""The connection to a server: opened, closed, and the tables behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from aio_client._config import ClientConfig, default_url
from aio_client._scan import Scan
from aio_client._table import Table
from aio_client._transport import Transport
from protos.scankv.v1 import admin_pb2, table_pb2
from table_model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from table_model.scan_spec import ScanSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """The figures of a server, since its start unless said otherwise.

    Attributes:
        version: The version of its software.
        incarnation: Differs after every start.
        uptime_millis: How long it has been running.
        tables: Tables there are.
        open_buckets: Buckets that are open now.
        live_scans: Scans that hold an iterator now.
        scans_started: Scans started.
        rows_scanned: Rows read by scans.
        bytes_returned: Bytes of Arrow data that scans returned.
        rows_written: Rows in upserts and deletes that were acknowledged.
        log_syncs: Syncs of write-ahead logs; one may serve many writers.
        resident_bytes: Resident memory now.
        peak_resident_bytes: Resident memory at its highest.
        damaged_buckets: The buckets found damaged, as `database.table/bucket`.
    """

    version: str
    incarnation: str
    uptime_millis: int
    tables: int
    open_buckets: int
    live_scans: int
    scans_started: int
    rows_scanned: int
    bytes_returned: int
    rows_written: int
    log_syncs: int
    resident_bytes: int
    peak_resident_bytes: int
    damaged_buckets: tuple[str, ...]


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
        **options: str | bool | int,
    ) -> Table:
        """Creates a table; it is durable when this returns.

        Args:
            name: `database.table`; each part 1 to 128 of `A-Z a-z 0-9 _ -`, beginning with a letter or `_`.
            schema: The columns. Types that differ in layout only are stored as one, so `large_string` as `string`.
            primary_key: The key columns, in key order; they become NOT NULL.
            bucket_key: The key columns whose values choose the bucket. Default: the whole primary key.
            buckets: How many buckets the table has, 1 to 1024. Default: the server's, 4.
            **options: Table options by name: `merge_engine`, `changelog`, `row_deduplicate`, `compression`, and what
                else the server knows.

        Raises:
            TableExists: There is a table of that name.
            InvalidRequest: The name, the key or the number of buckets is not possible; InvalidOption for an option,
                SchemaMismatch for a column.
        """
        if not isinstance(schema, pa.Schema):
            raise UsageError(f"schema is a pyarrow.Schema, not a {type(schema).__name__}", option="schema")
        if buckets is not None and (type(buckets) is not int or buckets < 1):
            raise UsageError(f"buckets is a number of at least 1, not {buckets!r}", option="buckets")
        request = table_pb2.CreateTableRequest(
            name=name,
            arrow_schema=_schema_bytes(schema),
            primary_key=_names(primary_key),
            bucket_key=_names(bucket_key),
            buckets=buckets or 0,
            options={option: _option_text(value) for option, value in options.items()},
        )
        response = await self._transport.call(self._transport.services.tables.CreateTable, request)
        return Table(self._transport, response.table)

    async def drop_table(self, name: str) -> None:
        """Drops a table with its rows and changelog; scans of it that are running end with TableNotFound.

        Raises:
            TableNotFound: There is none of that name.
        """
        await self._transport.call(self._transport.services.tables.DropTable, table_pb2.DropTableRequest(name=name))

    async def alter_table(self, name: str, *, add_columns: pa.Schema) -> Table:
        """Adds columns at the end of a table; rows written before are null there. Scans that are running keep theirs.

        Args:
            name: `database.table`.
            add_columns: The columns, all nullable.

        Raises:
            TableNotFound: There is no such table.
            SchemaMismatch: A name is taken, a type cannot be stored, or a column is NOT NULL.
        """
        if not isinstance(add_columns, pa.Schema):
            raise UsageError(
                f"add_columns is a pyarrow.Schema, not a {type(add_columns).__name__}", option="add_columns"
            )
        request = table_pb2.AlterTableRequest(name=name, add_columns=_schema_bytes(add_columns))
        response = await self._transport.call(self._transport.services.tables.AlterTable, request)
        return Table(self._transport, response.table)

    async def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            TableNotFound: There is none; the message has the near ones.
        """
        response = await self._transport.call(
            self._transport.services.tables.GetTable, table_pb2.GetTableRequest(name=name)
        )
        return Table(self._transport, response.table)

    async def tables(self) -> list[Table]:
        """All tables, by name, ascending."""
        response = await self._transport.call(self._transport.services.tables.ListTables, table_pb2.ListTablesRequest())
        return [Table(self._transport, description) for description in response.tables]

    def scan(self, spec: ScanSpec) -> Scan:
        """Makes a scan of a `Scan.spec`, which may come from another process."""
        return Scan(self._transport, spec)

    async def server_stats(self) -> ServerStats:
        """The figures of the whole server; nothing is opened for them."""
        stats = await self._transport.call(self._transport.services.admin.Stats, admin_pb2.StatsRequest())
        return ServerStats(
            version=stats.version,
            incarnation=stats.incarnation,
            uptime_millis=stats.uptime_millis,
            tables=stats.tables,
            open_buckets=stats.open_buckets,
            live_scans=stats.live_scans,
            scans_started=stats.scans_started,
            rows_scanned=stats.rows_scanned,
            bytes_returned=stats.bytes_returned,
            rows_written=stats.rows_written,
            log_syncs=stats.log_syncs,
            resident_bytes=stats.resident_bytes,
            peak_resident_bytes=stats.peak_resident_bytes,
            damaged_buckets=tuple(stats.damaged_buckets),
        )

    async def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until the server serves, also when it is not there yet.

        Args:
            timeout: Seconds.

        Raises:
            DeadlineExceeded: It did not within the timeout; says what it did last.
        """
        await self._transport.wait_ready(timeout)


class Connecting:
    """What `connect` returns: `async with connect(...) as client`, or `client = await connect(...)`."""

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
    read_ahead_bytes: int = 2 * 1024 * 1024,
) -> Connecting:
    """Opens a client, in `async with` or by `await`.

    The server need not be there yet: the first call connects, and fails within milliseconds where nobody listens.

    Args:
        url: The server as `host:port` or `scankv://host:port`, an IPv6 host in brackets. Default: `$SCANKV_URL`, else
            `localhost:7070`.
        operation_timeout: Seconds for one operation with all its attempts; for a scan, the time without progress.
        attempt_timeout: Seconds until the first message of an answer.
        read_ahead_bytes: Bytes of a scan that the server may send ahead, 64 KiB to 64 MiB.

    Raises:
        UsageError: The url cannot be read, or a number is out of its range.
    """
    return Connecting(
        ClientConfig(
            url=default_url() if url is None else url,
            operation_timeout=operation_timeout,
            attempt_timeout=attempt_timeout,
            read_ahead_bytes=read_ahead_bytes,
        )
    )


def _schema_bytes(schema: pa.Schema) -> bytes:
    data: bytes = schema.remove_metadata().serialize().to_pybytes()
    return data


def _names(names: Sequence[str]) -> Sequence[str]:
    """One name given as text is that name, not its letters."""
    return (names,) if isinstance(names, str) else names


def _option_text(value: str | bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
