"""What is to be scanned, as an immutable value that can be refined, started, and collected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import pyarrow as pa

from aio_client._input.arguments import flag_of
from aio_client._input.optional import import_optional, to_pylist
from aio_client._integrations.blocking_stream import open_blocking_stream
from aio_client._integrations.duckdb import check_connection, create_table_of_stream
from aio_client._integrations.polars_frames import lazy_frame
from aio_client._scan.explanation import explain
from aio_client._scan.protocol import scan_request
from aio_client._scan.scan_builder import ScanBuilder
from aio_client._scan.snapshot import splits
from aio_client._scan.stream import ScanStream

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from aio_client._integrations.blocking_stream import BlockingStream
    from aio_client._scan.explanation import ScanExplanation
    from aio_client._scan.shards import ScannedTable
    from aio_client._transport.transport import Transport
    from scankv.model.scans.scan_spec import ScanSpec


class Scan(ScanBuilder):
    """A scan of one table that has not started. Immutable; start it as often as you like, each time with a new view.

    Made by `table.scan()` or `client.scan(spec)`. Not picklable: send `spec`.
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Table.scan` and `Client.scan`.

        Args:
            transport: The client's connection.
            spec: What is scanned.
            table: What it is a scan of, where that is known.
        """
        super().__init__(spec, table)
        self._transport = transport

    def stream(self) -> ScanStream:
        """The rows as they come, in bounded memory: `async for rows in scan.stream()`, each a `pa.RecordBatch`."""
        return ScanStream(self._transport, self._readable())

    def stream_sync(self) -> BlockingStream:
        """The rows as they come, for code that blocks: `for rows in scan.stream_sync()`.

        Opens a connection of its own in a thread of its own, which end with the stream. In a coroutine it blocks the
        event loop; use `stream` there.
        """
        return open_blocking_stream(self._transport.config, self._readable())

    async def splits(self, n: int, *, rows_per_split: int | None = None) -> list[Scan]:
        """Cuts a scan of a pinned snapshot into parts of about equally many rows, which give each row once together.

        Each part is a range of keys over all buckets of the scan. The server cuts within the keys that the scan reads;
        it reads up to some 200,000 keys for it, however large the table is, and estimates where there are more. Equal
        calls give equal parts.

        Args:
            n: How many parts, 1 to 1024.
            rows_per_split: About how many rows a part has at least; where the keys that the scan reads have fewer rows,
                there are fewer parts, down to one. Default: exactly `n` parts.

        Returns:
            `n` scans, or fewer, in ascending key order; where there are fewer keys, some of them are empty.
            Their `spec` can be sent to other processes.

        Raises:
            UsageError: The scan is not of a snapshot, has a limit or a resume token, or `n` is out of its range.
            SnapshotLost: The snapshot's lease has ended.
            DataLoss: The snapshot is damaged.
        """
        specs = await splits(self._transport, self._spec, n, rows_per_split)
        return [Scan(self._transport, spec, self._table) for spec in specs]

    async def explain(self) -> ScanExplanation:
        """How the server would answer the scan: which buckets and keys it would read, and what it would decode of them.

        Nothing is read. `print(await scan.explain())` shows it. Explained from its beginning, also with a resume token.

        Raises:
            SchemaMismatch: A column does not exist, or a value of `where` is not of its column's type.
            TableNotFound, InvalidRequest, SnapshotLost: As when the scan starts.
        """
        explanation = await explain(self._transport, scan_request(self._spec))
        if self._spec.buckets == ():
            return replace(explanation, buckets=(), ranges=(), points=0, first_points=())
        return explanation

    async def to_arrow(self) -> pa.Table:
        """All rows as one table in memory; with the schema, also when there are none.

        Raises:
            UsageError: It is a stream of changes without an end, as for the methods below.
        """
        self._check_ends("to_arrow")
        async with self.stream() as stream:
            batches = [rows async for rows in stream]
        return pa.Table.from_batches(batches, schema=stream.schema)

    async def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame. Needs pandas."""
        import_optional("pandas")
        self._check_ends("to_pandas")
        return (await self.to_arrow()).to_pandas()

    @overload
    async def to_polars(self, *, lazy: Literal[False] = False) -> pl.DataFrame: ...
    @overload
    async def to_polars(self, *, lazy: Literal[True]) -> pl.LazyFrame: ...
    @overload
    async def to_polars(self, *, lazy: bool) -> pl.DataFrame | pl.LazyFrame: ...
    async def to_polars(self, *, lazy: bool = False) -> pl.DataFrame | pl.LazyFrame:
        """All rows as a Polars DataFrame, or as a LazyFrame that reads them when it is collected. Needs polars.

        Every `collect` of a LazyFrame runs the scan anew, with a view of its own, and has the server do what it does
        exactly as Polars: columns that are not used are not sent, `head` ends the scan, and of a filter, comparisons
        with values, `is_in`, `is_null`, `starts_with`, joined by `&`, `|` and `~`, choose the rows at the server. With
        a `limit` of the scan filters stay with Polars, as all else does; with a resume token, and of the changelog,
        everything does.
        A query that has enough before the end, as with `head` behind a filter, lets go of its scan when Polars is used
        next, at the latest when the server's stall timeout ends it.

        Args:
            lazy: Whether to return a LazyFrame; only its schema is asked for now. `collect` blocks, over a connection
                of its own: in a coroutine use `await asyncio.to_thread(frame.collect)`.

        Raises:
            SchemaMismatch, TableNotFound, SnapshotLost, ...: As when the scan starts; `collect` raises as the stream.
        """
        polars = import_optional("polars")
        self._check_ends("to_polars")
        if not flag_of(lazy, "lazy"):
            frame: pl.DataFrame = polars.from_arrow(await self.to_arrow())
            return frame
        self._check_has_rows("to_polars")
        async with self.stream() as stream:
            schema = stream.schema
        config = self._transport.config
        return lazy_frame(self, schema, lambda spec: open_blocking_stream(config, spec))

    async def to_duckdb(self, con: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
        """All rows as a new table in DuckDB, which reads them as they come: in bounded memory, but for the table.

        The table is there when all rows are, and not at all after an error. It is a copy as of one instant; the
        blocking `Scan` can be queried by DuckDB directly, without a copy. DuckDB works in a thread. When this is
        cancelled, it ends once DuckDB has let go of the connection. Needs duckdb.

        Args:
            con: A connection that nothing else uses meanwhile. A transaction that it is in is left open, and is
                aborted by an error, as by any other.
            name: As DuckDB reads it: `flights`, `main.flights`, or in quotes `"odd name"`.

        Returns:
            The table, to be queried.

        Raises:
            UsageError: `con` is no connection.
            duckdb.Error: There is such a table, or DuckDB has no such type as a column's.
        """
        self._check_ends("to_duckdb")
        check_connection(con, name)
        self._check_has_rows("to_duckdb")
        async with self.stream() as stream:
            return await create_table_of_stream(con, name, stream)

    async def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dictionaries. Nanosecond times that no Python type holds need pandas."""
        self._check_ends("to_pylist")
        return to_pylist(await self.to_arrow())

    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        return type(self)(self._transport, replace(self._spec, **changes), self._table)
