"""The bases of the generated classes of `scankv.sync`, and what only the blocking client has."""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from aio_client._input.arguments import flag_of
from aio_client._input.near_misses import NearMisses
from aio_client._input.optional import import_optional
from aio_client._integrations.duckdb import check_connection, create_table
from aio_client._integrations.polars_frames import lazy_frame
from aio_client._scan.read_ahead import BATCH_BYTES, BATCH_ROWS, ITEMS_AHEAD, ReadAhead, gather
from aio_client._scan.scan import Scan
from aio_client._scan.scan_builder import ScanBuilder
from aio_client._sync.runner import Runner
from aio_client._sync.stream import ScanStream
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType

    import duckdb
    import polars as pl

    from aio_client._client.client import Client
    from aio_client._integrations.arrow_dataset import TableDataset
    from aio_client._scan.scan_builder import Pinned
    from aio_client._scan.shards import ScannedTable
    from aio_client._sync.generated import Table
    from aio_client._transport.config import ClientConfig
    from scankv.model.scans.scan_spec import ScanSpec

_Item = TypeVar("_Item")


class Blocking(NearMisses):
    """An object of the asynchronous client, whose coroutines run in the event loop of a blocking client."""

    _aio: Any

    def __init__(self, runner: Runner, aio: object) -> None:
        """Called by the methods that return such an object.

        Args:
            runner: Runs the event loop, and keeps the client open.
            aio: The asynchronous object.
        """
        self._runner = runner
        self._aio = aio

    def __repr__(self) -> str:
        return f"<sync {repr(self._aio)[1:]}"

    def _repr_html_(self) -> str | None:
        show = getattr(self._aio, "_repr_html_", None)
        return None if show is None else show()


class BlockingContextManager(Blocking):
    """An object that is used in `with`."""

    def __enter__(self) -> Self:
        self._runner.call(self._aio.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # If the client was closed in the block, its UsageError must not hide an error of the block.
        with suppress(*(() if kind is None else (UsageError,))):
            self._runner.call(self._aio.__aexit__, kind, error, traceback)


class BlockingLease(BlockingContextManager):
    """A lease. If the client was closed in the block, it cannot be released, and expires by itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(UsageError):
            super().__exit__(kind, error, traceback)


class BlockingClient(Blocking):
    """The members of a blocking client that are not generated: its event loop begins and ends with it."""

    def __init__(self, config: ClientConfig) -> None:
        """Opens the client; `connect` is the usual way."""
        runner = Runner(config)
        super().__init__(runner, runner.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all scans of this client and closes the connection. Idempotent."""
        self._runner.close()

    def read_ahead(
        self, make: Callable[[Client], AsyncGenerator[_Item, None]], ahead: int = ITEMS_AHEAD
    ) -> ReadAhead[_Item]:
        """Runs an asynchronous generator in the client's event loop, and returns its items to a caller that blocks.

            async def both(client):
                for name in ("game.scores", "game.players"):
                    async for rows in (await client.table(name)).scan().stream():
                        yield rows

            with client.read_ahead(both) as batches:
                for rows in batches:
                    ...

        Args:
            make: Makes the generator from the asynchronous client that this client runs; must not block.
            ahead: How many unfinished items may exist, at least 1. An item is finished when the caller asks for the
                next one.

        Returns:
            An iterator of the items, for `with`.

        Raises:
            UsageError: `ahead` is not at least 1.
        """
        client = self._runner.client
        return ReadAhead(self._runner, lambda: make(client), ahead)


class BlockingScan(ScanBuilder):
    """The members of a blocking scan that are not generated: iteration, and reading by other libraries."""

    __slots__ = ("_runner",)

    def __init__(self, runner: Runner, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Table.scan` and `Client.scan`.

        Args:
            runner: Runs the event loop, and keeps the client open.
            spec: What to read.
            table: The table that is read, if it is known.
        """
        super().__init__(spec, table)
        self._runner = runner

    @classmethod
    def _of(cls, runner: Runner, scan: Scan) -> Self:
        """Returns the blocking form of an asynchronous scan."""
        return cls(runner, scan.spec, scan.of_table)

    @property
    def _aio(self) -> Scan:
        return Scan(self._runner.client._transport, self._spec, self._table)

    def __iter__(self) -> ScanStream:
        return _stream(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Starts the scan as an Arrow C stream, which raises the errors of the scan in its reader.

        Most readers collect all rows, so changes without an end are refused as in `to_arrow`.
        """
        self._check_ends("an Arrow reader of this scan")
        self._check_has_rows("an Arrow reader of this scan")
        stream = _stream(self).__enter__()
        return pa.RecordBatchReader.from_batches(stream.schema, stream).__arrow_c_stream__(requested_schema)

    def batches(
        self, *, rows: int = BATCH_ROWS, bytes: int = BATCH_BYTES, ahead: int = ITEMS_AHEAD
    ) -> ReadAhead[pa.RecordBatch]:
        """Returns the rows in large batches, of which the next ones are received while the caller works on one.

            with scan.batches(rows=100_000) as batches:
                for batch in batches:
                    train(batch)

        For readers that need some time for each batch, such as PyTorch and pandas. `stream` returns the chunks as they
        come, with their resume tokens. The first chunk is a batch of its own, and the last batch may be small.

        Args:
            rows: The rows that complete a batch, at least 1; it may have one chunk more.
            bytes: The bytes of Arrow data that complete a batch, at least 1.
            ahead: How many batches may be received and unfinished, including the one that the caller works on.

        Returns:
            An iterator of RecordBatches, for `with`.

        Raises:
            UsageError: An argument is out of range.
        """
        for name, number in (("rows", rows), ("bytes", bytes)):
            if type(number) is not int or number < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, not {number!r}", option=name)
        spec = self._spec

        client = self._runner.client

        async def make() -> AsyncGenerator[pa.RecordBatch, None]:
            async with client.scan(spec).stream() as stream, aclosing(gather(stream, rows, bytes)) as gathered:
                async for batch in gathered:
                    yield batch

        return ReadAhead(self._runner, make, ahead)

    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        return type(self)(self._runner, replace(self._spec, **changes), self._table)


def to_polars(scan: BlockingScan, *, lazy: bool) -> pl.DataFrame | pl.LazyFrame:
    """Returns all rows as a Polars frame. A LazyFrame reads them over the scan's client, which must be open."""
    if not flag_of(lazy, "lazy"):
        return scan._runner.call(scan._aio.to_polars)
    import_optional("polars")
    scan._check_ends("to_polars")
    scan._check_has_rows("to_polars")
    with _stream(scan) as stream:
        schema = stream.schema
    return lazy_frame(scan, schema, lambda spec: _stream(type(scan)(scan._runner, spec)))


def to_duckdb(scan: BlockingScan, con: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
    """Returns all rows as a new table in DuckDB, which reads them in the caller's thread."""
    scan._check_ends("to_duckdb")
    check_connection(con, name)
    scan._check_has_rows("to_duckdb")
    with _stream(scan) as stream:
        return create_table(con, name, stream.schema, stream)


def dataset(table: Table, as_of: Pinned | str | None) -> TableDataset:
    """Returns a table as a dataset, which is read over the table's client."""
    from aio_client._integrations.arrow_dataset import TableDataset

    scan = table.scan().unordered() if as_of is None else table.scan().as_of(as_of)
    return TableDataset(table.schema, scan, lambda spec: type(scan)(scan._runner, spec).batches())


def unwrap(given: Any) -> Any:  # noqa: ANN401  # what it is, the asynchronous method checks
    """Returns the asynchronous objects behind blocking ones, also in a list or tuple; other values are unchanged."""
    if isinstance(given, Blocking):
        return given._aio
    if isinstance(given, list):
        return [unwrap(each) for each in given]
    return tuple(map(unwrap, given)) if isinstance(given, tuple) else given


def _stream(scan: BlockingScan) -> ScanStream:
    return ScanStream(scan._runner, scan._aio.stream())
