"""`SqlQuery`: one statement over live tables, as an immutable value that can be run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from aio_client._input.arguments import timeout_of
from aio_client._input.other_rows import to_polars, to_pylist
from aio_client._integrations.pandas_frames import check_dtype_backend, frame_of
from aio_client._scan.read_ahead import ReadAhead, gather
from aio_client._sql.client_loop import ClientLoop
from aio_client._sql.engine import SqlRun, SqlStream
from aio_client._sql.explanation import SqlExplanation
from aio_client._sql.result import SqlResult  # noqa: TC001  # exported
from aio_client._sql.shortcuts import AnsweringTable, find_shortcut
from aio_client._sql.statement import parse_statement
from scankv.model.errors import (
    RESUME_HINT,
    START_AGAIN,
    DeadlineExceeded,
    InvalidRequest,
    RequestTooLarge,
    ScanInterrupted,
    SchemaMismatch,
    UsageError,
)
from scankv.model.public_names import set_public_module

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence

    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from aio_client._integrations.arrow_dataset import RunningScan, TableDataset
    from aio_client._scan.scan import Scan
    from aio_client._scan.snapshot import Snapshot, SnapshotOpener
    from aio_client._scan.snapshot_group import SnapshotGroupOpener
    from aio_client._sql.engine import Engine, Parameters
    from aio_client._transport.config import ClientConfig
    from scankv.model.scans.scan_spec import ScanSpec

_PIN_SECONDS: Final = 60.0
_LEAST_MEMORY: Final = 1 << 20
_NOT_ANSWERED: Final = (InvalidRequest, RequestTooLarge, SchemaMismatch)
"""The errors of what the server does not compute, though DuckDB may: a sum that overflows, too many groups."""


@asynccontextmanager
async def limit_time(timeout: float | None, end: float | None = None) -> AsyncIterator[None]:
    """Ends the block after so many seconds, None for never, or when the event loop's time is `end`.

    Raises:
        DeadlineExceeded: The time is over.
    """
    try:
        async with asyncio.timeout(timeout) if end is None else asyncio.timeout_at(end) as timer:
            yield
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise DeadlineExceeded(
            f"the query took longer than {timeout:g} s: select less, or allow it more time"
        ) from error


class EmptyScan:
    """A scan that has no rows, and does not run."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def close(self) -> None:
        """Does nothing."""


class QueriedTable(AnsweringTable, Protocol):
    """A table of the client."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def primary_key(self) -> list[str]: ...

    def snapshot(self, ttl: float) -> SnapshotOpener: ...


class QueriedClient(Protocol):
    """The client, which is defined in a later layer."""

    @property
    def config(self) -> ClientConfig: ...

    async def table(self, name: str) -> QueriedTable: ...

    def scan(self, spec: ScanSpec) -> Scan: ...

    def snapshot(self, tables: Sequence[str], ttl: float) -> SnapshotGroupOpener: ...


class SqlQuery:
    """A query in SQL over live tables, which runs each time that its rows are asked for. Immutable.

    Made by `client.sql()`. Belongs to the event loop of its client.
    """

    def __init__(
        self,
        client: QueriedClient,
        engine: Engine,
        text: str,
        parameters: Parameters,
        frames: Mapping[str, object],
        *,
        memory_bytes: int | None = None,
        timeout: float | None = None,
        can_write: bool = False,
    ) -> None:
        """Called by `Client.sql`.

        Args:
            client: Reads the tables.
            engine: Runs the query.
            text: One statement that reads.
            parameters: The values of its parameters.
            frames: Data frames and Arrow tables, by the names that the query has for them.
            memory_bytes: How much memory DuckDB may take. None: as it likes.
            timeout: How many seconds the query may take. None: without a limit.
            can_write: Whether the statement may change rows and tables.

        Raises:
            UsageError: As for `Client.sql`.
        """
        self._client = client
        self._engine = engine
        self._statement = parse_statement(text, can_write=can_write)
        self._parameters = parameters
        self._frames = frames
        self._memory_bytes = _memory_of(memory_bytes)
        self._timeout = None if timeout is None else timeout_of(timeout)

    def __repr__(self) -> str:
        return f"<SqlQuery {self._statement.text!r:.80}>"

    @property
    def writes(self) -> bool:
        """Whether the statement changes rows or tables, and is run with `run`; otherwise, it has rows."""
        return self._statement.writes

    async def run(self) -> SqlResult:
        """Runs a statement that changes rows or tables.

        INSERT, UPDATE, DELETE and MERGE are one transaction each. The rows that it changes are those of one instant: it
        reads them again with `get_for_update` under locks, and computes the changes again if other writers have changed
        them in the meantime, for the operation timeout. Other rows that the statement reads are as of its query. Up to
        100,000 rows can be changed by a statement that reads them; a DELETE whose condition the server evaluates, and
        INSERT OR REPLACE, have no such limit.

        Raises:
            UsageError: The statement only reads; it has something that is not supported, and the message names the
                call to use; it would change too many rows; or, for INSERT, a key has a row.
            TransactionConflict: Other writers kept changing the rows.
            SchemaMismatch: A column does not exist, or cannot have a value.
            TableNotFound, TableExists: As for the calls of the client.
            ScanKvError: As for `to_arrow` and `Client.transaction`.
        """
        if not self._statement.writes:
            raise UsageError("the statement only reads: get its rows with to_arrow()")
        from aio_client._sql.changes import RowChanges
        from aio_client._sql.definitions import define

        client: Any = self._client
        statement = self._statement.tree.copy()
        async with limit_time(self._timeout):
            if type(statement).__name__ in ("Create", "Drop", "Alter"):
                return await define(client, self._engine, statement)
            return await RowChanges(client, self._engine, self._read, self._parameters).run(statement)

    async def _read(self, text: str) -> pa.Table:
        """Runs a query with the parameters and frames of this statement."""
        query = SqlQuery(
            self._client, self._engine, text, self._parameters, self._frames, memory_bytes=self._memory_bytes
        )
        return await query.to_arrow()

    async def to_arrow(self) -> pa.Table:
        """Runs the query, and returns its rows as one table in memory, in the order that the query asks for.

        The server evaluates the parts of the filters that it can, and sends the columns that the query uses; DuckDB
        does the rest, in a thread. Several tables, and one that is named several times, are read as of one instant, for
        which the client pins them. When the call is cancelled, the query and its scans end.

        Raises:
            UsageError: DuckDB refuses the query, with its reason; or it is not installed.
            RequestTooLarge: The query needs more memory than it may take.
            DeadlineExceeded: The query takes longer than it may.
            TableNotFound: A table of the query does not exist.
            ScanKvError: As for the stream of a scan.
        """
        async with limit_time(self._timeout):
            return await self._rows()

    async def _rows(self) -> pa.Table:
        names = self._names()
        if len(names) == 1 and (rows := await self._from_answer(names[0])) is not None:
            return rows
        async with self._live(names) as (run, cancel_scans):
            return await self._engine.run(run, cancel_scans=cancel_scans)

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[SqlStream]:
        """Runs the query for the length of the block, whose rows come as they are asked for: see `Engine.stream`."""
        names = self._names()
        if len(names) == 1 and (rows := await self._from_answer(names[0])) is not None:
            batches = iter(rows.to_batches())

            async def read() -> pa.RecordBatch | None:
                return next(batches, None)

            yield SqlStream(rows.schema, read)
            return
        async with self._live(names) as (run, cancel_scans), self._engine.stream(run, cancel_scans) as stream:
            yield stream

    @asynccontextmanager
    async def _live(self, names: Sequence[str]) -> AsyncIterator[tuple[SqlRun, Callable[[], None]]]:
        """Yields the query over the live tables, and what ends their scans without waiting."""
        loop = ClientLoop(self._client.config.address)
        started: list[ReadAhead[pa.RecordBatch]] = []

        def start(spec: ScanSpec) -> ReadAhead[pa.RecordBatch]:
            async def batches() -> AsyncGenerator[pa.RecordBatch, None]:
                try:
                    async with self._client.scan(spec).stream() as stream, aclosing(gather(stream)) as gathered:
                        async for batch in gathered:
                            yield batch
                except ScanInterrupted as error:
                    # DuckDB may have used the rows so far, so another scan cannot continue after them.
                    problem = error.message.replace(RESUME_HINT, "").removesuffix(START_AGAIN)
                    raise ScanInterrupted(f"{problem}run the query again", table=spec.table) from error

            started.append(ReadAhead(loop, batches))
            return started[-1]

        def cancel_scans() -> None:
            for rows in started:
                rows.cancel()

        async with AsyncExitStack() as pins:
            yield self._run(await self._datasets(start, pins)), cancel_scans

    async def explain(self) -> SqlExplanation:
        """Returns what the server would evaluate, and what DuckDB would do. The server reads no rows.

        `print(await query.explain())` shows it.

        Raises:
            UsageError, TableNotFound: As for `to_arrow`.
        """
        names = self._names()
        if len(names) == 1:
            table = await self._client.table(names[0])
            shortcut = find_shortcut(self._statement.tree, table.schema, table.primary_key, self._parameters)
            if shortcut is not None:
                plan = await self._engine.explain(self._run({names[0]: table.schema.empty_table()}))
                scan = await shortcut.explain(table)
                return SqlExplanation(computed=shortcut.description, scans=(scan,), plan=plan)
        begun: list[ScanSpec] = []

        def note(spec: ScanSpec) -> EmptyScan:
            begun.append(spec)
            return EmptyScan()

        async with AsyncExitStack() as pins:
            run = self._run(await self._datasets(note, pins))
            plan = await self._engine.explain(run)
            await self._engine.run(run)
            scans = [await self._client.scan(spec).explain() for spec in begun]
        pinned = tuple(dict.fromkeys(names)) if len(names) > 1 else ()
        return SqlExplanation(computed=None, scans=tuple(scans), plan=plan, pinned=pinned)

    def _names(self) -> tuple[str, ...]:
        """Returns the live tables, each as often as the query names it. Raises UsageError if it changes something."""
        if self._statement.writes:
            raise UsageError("the statement changes something, and has no rows: run it with run()")
        return self._statement.tables

    def _run(self, tables: Mapping[str, TableDataset | pa.Table]) -> SqlRun:
        return SqlRun(self._statement.text, self._parameters, tables, self._frames, self._memory_bytes)

    async def _from_answer(self, name: str) -> pa.Table | None:
        """Runs the query over what the server computes of it. Returns None if that is nothing."""
        table = await self._client.table(name)
        shortcut = find_shortcut(self._statement.tree, table.schema, table.primary_key, self._parameters)
        if shortcut is None:
            return None
        try:
            answer = await shortcut.ask(table)
        except _NOT_ANSWERED:
            return None
        if shortcut.text is None:
            return await self._engine.run(self._run({name: answer}))
        asked = self._run({name: table.schema.empty_table()})
        return await self._engine.run_as(asked, SqlRun(shortcut.text, None, {name: answer}, {}))

    async def _datasets(
        self, start: Callable[[ScanSpec], RunningScan], pins: AsyncExitStack
    ) -> dict[str, TableDataset]:
        """Returns the tables as datasets. If they are read several times, they are pinned as of one instant."""
        from aio_client._integrations.arrow_dataset import TableDataset

        names = self._statement.tables
        tables = {name: await self._client.table(name) for name in dict.fromkeys(names)}
        pinned: dict[str, Snapshot] = {}
        if len(tables) > 1:
            group = await pins.enter_async_context(self._client.snapshot([*tables], ttl=_PIN_SECONDS))
            pinned = {name: group.table(name) for name in tables}
        elif len(names) > 1:
            (table,) = tables.values()
            pinned = {names[0]: await pins.enter_async_context(table.snapshot(ttl=_PIN_SECONDS))}
        scans = {
            name: table.scan().as_of(pinned[name]) if pinned else table.scan().unordered()
            for name, table in tables.items()
        }
        return {name: TableDataset(table.schema, scans[name], start) for name, table in tables.items()}

    async def to_pandas(self, *, dtype_backend: Literal["pyarrow", "numpy"] = "pyarrow") -> pd.DataFrame:
        """Runs the query, and returns its rows as a pandas DataFrame: see `Scan.to_pandas`.

        Raises:
            UsageError: pandas is not installed; `dtype_backend` has another value; or as for `to_arrow`.
            ScanKvError: As for `to_arrow`.
        """
        check_dtype_backend(dtype_backend)
        return frame_of(await self.to_arrow(), dtype_backend)

    async def to_polars(self) -> pl.DataFrame:
        """Runs the query, and returns its rows as a Polars DataFrame. Needs polars.

        Raises:
            UsageError: polars is not installed; it cannot hold a column or a value; or as for `to_arrow`.
            ScanKvError: As for `to_arrow`.
        """
        return to_polars(await self.to_arrow())

    async def to_pylist(self) -> list[dict[str, Any]]:
        """Runs the query, and returns its rows as dictionaries by column name.

        Raises:
            UsageError: A value has no Python type; or as for `to_arrow`.
            ScanKvError: As for `to_arrow`.
        """
        return to_pylist(await self.to_arrow())


def _memory_of(value: object) -> int | None:
    """Returns the argument `memory_bytes`. Raises UsageError for values that are no size."""
    if value is not None and (type(value) is not int or value < _LEAST_MEMORY):
        raise UsageError(
            f"memory_bytes must be a whole number of at least {_LEAST_MEMORY:,}, not {value!r:.80}",
            option="memory_bytes",
        )
    return value


set_public_module("scankv", globals(), ["SqlExplanation", "SqlQuery", "SqlResult"])
