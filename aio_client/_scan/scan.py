"""`Scan`: what to read, as an immutable value that can be refined, started and collected."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import pyarrow as pa

from aio_client._input.arguments import flag_of
from aio_client._input.optional import import_optional
from aio_client._input.other_rows import to_polars, to_pylist
from aio_client._integrations.blocking_stream import open_blocking_stream
from aio_client._integrations.duckdb import check_connection, create_table_of_stream
from aio_client._integrations.pandas_frames import check_dtype_backend, frame_of
from aio_client._integrations.polars_frames import lazy_frame
from aio_client._scan.explanation import explain
from aio_client._scan.protocol import scan_request
from aio_client._scan.scan_builder import ScanBuilder
from aio_client._scan.snapshot import split_scan
from aio_client._scan.stream import ScanStream
from scankv.model.changes.log_positions import PositionKind

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
    """A scan of one table that has not started. Immutable; each start has a new view.

    Made by `table.scan()`, `table.changes()` or `client.scan(spec)`. Not picklable: send `spec`.
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Table.scan` and `Client.scan`.

        Args:
            transport: The client's connection.
            spec: What to read.
            table: The table that is read, if it is known.
        """
        super().__init__(spec, table)
        self._transport = transport

    def stream(self) -> ScanStream:
        """Returns a stream of the rows in bounded memory, as batches: `async for rows in scan.stream()`.

        Each item is a `pa.RecordBatch` with at least one row. The scan starts with the first read.

        Raises:
            UsageError: The scan reads the changelog without `with_row_kind`, or `as_of` without a published table.
        """
        spec = self._readable()
        if spec.read_path == "lake":
            from scankv.lake.union.union_stream import UnionStream

            return UnionStream(self._transport, spec, self._table)
        if spec.log is not None and spec.log.start.kind is PositionKind.LAKE:
            from scankv.lake.union.handover import open_changes

            return open_changes(self._transport, spec, self._table)
        return ScanStream(self._transport, spec, self._table)

    def stream_sync(self) -> BlockingStream:
        """Returns a stream of the rows for code that blocks: `for rows in scan.stream_sync()`.

        The stream opens a connection of its own in a thread of its own, and both end with the stream. In a coroutine,
        the stream would block the event loop; use `stream` there.

        Raises:
            UsageError: As for `stream`.
        """
        return open_blocking_stream(self._transport.config, self._readable())

    async def splits(self, count: int, *, rows_per_split: int | None = None) -> list[Scan]:
        """Splits a scan of a pinned snapshot into parts of about equally many rows, for parallel readers.

        Together the parts return each row once. Each part is a key range over all buckets of the scan. The server
        splits within the keys that the scan reads. To do so, it reads up to about 200,000 keys, however large the table
        is, and estimates if there are more. Equal calls return equal parts. If the server has several worker processes,
        they take turns in reading the parts, so parallel readers use several cores of the server.

        Args:
            count: How many parts, 1 to 1024.
            rows_per_split: About how many rows a part should have at least: if the scan's keys have fewer rows, there
                are fewer parts, at least one. Default: exactly `count` parts.

        Returns:
            `count` scans, or fewer with `rows_per_split`, in ascending key order. If there are fewer keys than parts,
            some parts are empty. Their `spec` can be sent to other processes.

        Raises:
            UsageError: The scan does not read a snapshot, has a limit or a resume token, or `count` is out of range.
            SnapshotLost: The snapshot's lease has ended.
            DataLoss: The snapshot is damaged.
        """
        specs = await split_scan(self._transport, self._spec, count, rows_per_split)
        return [Scan(self._transport, spec, self._table) for spec in specs]

    async def explain(self) -> ScanExplanation:
        """Returns how the server would answer the scan: which buckets and keys it would read, and what it would decode.

        The server reads no rows, except for `read_path("lake")` without `as_of`: what has changed since then.
        `print(await scan.explain())` shows the explanation. A scan with a resume token is
        explained from its beginning.

        Raises:
            SchemaMismatch: A column does not exist, or a value of `where` is not of its column's type.
            TableNotFound, InvalidRequest, SnapshotLost: As when the scan starts.
        """
        explanation = await explain(self._transport, scan_request(self._readable()))
        if self._spec.buckets == ():
            return replace(explanation, buckets=(), ranges=(), points=0, first_points=())
        if self._spec.read_path == "lake":
            from scankv.lake.union.union_stream import explain_union

            return await explain_union(self._transport, self._spec, explanation)
        return explanation

    async def to_arrow(self) -> pa.Table:
        """Returns all rows as one table in memory, in the order of the stream. An empty result has the schema, too.

        A table with tablets is read from all of its owners at once.

        Raises:
            UsageError: The scan reads changes without an end, or without `with_row_kind`.
            ScanKvError: As for the stream of the scan.
        """
        self._check_ends("to_arrow")
        async with self._in_any_order().stream() as stream:
            batches = [(stream.bucket or 0, rows) async for rows in stream]
        if self._spec.log is None:
            batches.sort(key=itemgetter(0))  # The rows of each bucket have come in order.
        return pa.Table.from_batches([rows for _, rows in batches], schema=stream.schema)

    async def to_pandas(self, *, dtype_backend: Literal["pyarrow", "numpy"] = "pyarrow") -> pd.DataFrame:
        """Returns all rows as a pandas DataFrame in memory. Needs pandas.

        By default, the dtypes are those of Arrow: they follow from the types of the columns, and if you write the
        DataFrame, every value is stored unchanged. For other Arrow data, such as the result of `top_n`,
        `rows.to_pandas(types_mapper=pandas.ArrowDtype)` does the same.

        Args:
            dtype_backend: "pyarrow" for the dtypes of Arrow. "numpy" for those of NumPy, as pyarrow's `to_pandas`
                chooses them, which loses values: integers with a null become floats, which are rounded from 2^53 on,
                even within lists, and null becomes NaN. The dtypes then depend on the rows.

        Raises:
            UsageError: pandas is not installed; `dtype_backend` has another value; or as for `to_arrow`.
            ScanKvError: As for the stream of the scan.
        """
        check_dtype_backend(dtype_backend)
        self._check_ends("to_pandas")
        return frame_of(await self.to_arrow(), dtype_backend)

    @overload
    async def to_polars(self, *, lazy: Literal[False] = False) -> pl.DataFrame: ...
    @overload
    async def to_polars(self, *, lazy: Literal[True]) -> pl.LazyFrame: ...
    @overload
    async def to_polars(self, *, lazy: bool) -> pl.DataFrame | pl.LazyFrame: ...
    async def to_polars(self, *, lazy: bool = False) -> pl.DataFrame | pl.LazyFrame:
        """Returns all rows as a Polars DataFrame, or a LazyFrame that reads them when it is collected. Needs polars.

        Every `collect` of a LazyFrame runs the scan again, with a view of its own. The server evaluates what it
        evaluates exactly as Polars does: columns that are not used are not sent, `head` ends the scan, and in a filter,
        comparisons with values, `is_in`, `is_null`, `starts_with` and literal `contains`, joined by `&`, `|` and `~`,
        select the rows. If the scan has a `limit`, Polars evaluates filters itself; if the scan has a resume token or
        reads the changelog, Polars evaluates everything itself. A query that has enough rows before the end, as with
        `head` after a filter, closes its scan when Polars is used next, or at the latest when the server's stall
        timeout ends the scan.

        Args:
            lazy: Whether to return a LazyFrame, for which only the schema is read now. `collect` blocks, over a
                connection of its own: in a coroutine use `await asyncio.to_thread(frame.collect)`.

        Raises:
            SchemaMismatch, TableNotFound, SnapshotLost: As when the scan starts; `collect` raises as the stream does.
            UsageError: polars is not installed; it cannot hold a column, which the message names, or one of its values;
                or as for `to_arrow`.
        """
        import_optional("polars")
        self._check_ends("to_polars")
        if not flag_of(lazy, "lazy"):
            return to_polars(await self.to_arrow())
        self._check_has_rows("to_polars")
        async with self.stream() as stream:
            schema = stream.schema
        config = self._transport.config
        return lazy_frame(self, schema, lambda spec: open_blocking_stream(config, spec))

    async def to_duckdb(self, con: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
        """Creates a table in DuckDB from all rows, which DuckDB reads as they come. Needs duckdb.

        Memory is bounded, apart from the table. The table exists once all rows are in it. After an error, it does not
        exist. It is a copy as of one instant; the blocking `Scan` can be queried by DuckDB directly, without a copy.
        DuckDB works in a thread. When the call is cancelled, it ends once DuckDB has released the connection.

        Args:
            con: A connection that nothing else uses until the call returns. If it is in a transaction, the transaction
                is left open, and is aborted by an error as by any other.
            name: The table's name as DuckDB parses it: `flights`, `main.flights`, or in quotes `"odd name"`.

        Returns:
            The table, to be queried.

        Raises:
            UsageError: duckdb is not installed, `con` is not a connection, `name` is not text, or as for `to_arrow`.
            duckdb.Error: The table exists already, or DuckDB has no type for a column.
            ScanKvError: As for the stream of the scan.
        """
        self._check_ends("to_duckdb")
        check_connection(con, name)
        self._check_has_rows("to_duckdb")
        async with self._in_any_order().stream() as stream:
            return await create_table_of_stream(con, name, stream)

    async def to_pylist(self) -> list[dict[str, Any]]:
        """Returns all rows as dictionaries by column name. Needs pandas for timestamps with nanoseconds.

        Raises:
            UsageError: A value has no Python type, such as a year after 9999 or a time of day with nanoseconds, or a
                timestamp with nanoseconds if pandas is not installed; or as for `to_arrow`.
            ScanKvError: As for the stream of the scan.
        """
        self._check_ends("to_pylist")
        return to_pylist(await self.to_arrow())

    def _in_any_order(self) -> Self:
        """Returns the scan for a reader that can restore the order of buckets, or does not need it."""
        return self if self._spec.ordered or self._spec.log is not None else self.unordered()

    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        return type(self)(self._transport, replace(self._spec, **changes), self._table)
