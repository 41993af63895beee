"""DuckDB: one connection for each query that runs, kept for later queries."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import anyio
import pyarrow as pa

from aio_client._input.optional import import_optional
from scankv.model.errors import RequestTooLarge, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    import duckdb

    from aio_client._integrations.arrow_dataset import TableDataset

    Parameters: TypeAlias = Sequence[object] | Mapping[str, object] | None

_Result = TypeVar("_Result")

_MOST_KEPT: Final = 4
_INTERRUPT_SECONDS: Final = 0.05
"""How often a query is interrupted until it ends."""
_PREFIX: Final = "scankv_"
"""The beginning of the names under which DuckDB has the tables."""
_STREAMED_ROWS: Final = 8_192
_LOCKED: Final = (
    "python_enable_replacements = false",
    "temp_directory = ''",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "allow_persistent_secrets = false",
    "enable_external_access = false",
    "lock_configuration = true",  # comes last
)
_MEMORY_HINT: Final = ": select less, or allow the query more memory"
_HINT: Final = "\nA table of the server is named as database.table."


@dataclass(frozen=True, slots=True)
class SqlRun:
    """One run of a query.

    Attributes:
        text: One statement that reads.
        parameters: The values of its parameters, by position or name.
        tables: The tables of the server that it names, by `database.table`: live, or what the server has computed.
        frames: Data frames and Arrow tables that it names.
        memory_bytes: How much memory DuckDB may take for it. None: as its connection says.
    """

    text: str
    parameters: Parameters
    tables: Mapping[str, TableDataset | pa.Table]
    frames: Mapping[str, object]
    memory_bytes: int | None = None


class ThreadCall(Protocol):
    """Calls a function with a connection in a thread. When the call is cancelled, the query is interrupted first."""

    async def __call__(self, function: Callable[..., _Result], *arguments: SqlRun) -> _Result: ...


class SqlStream(NamedTuple):
    """The rows of a query that runs.

    Attributes:
        schema: Their columns.
        read: Returns the next rows. None: the end.
    """

    schema: pa.Schema
    read: Callable[[], Awaitable[pa.RecordBatch | None]]


class RunningQuery:
    """A query whose rows are read one batch after another. Its methods are called in threads, one at a time."""

    def __init__(self, run: SqlRun) -> None:
        self._run = run
        self._names = ExitStack()
        self._reader: pa.RecordBatchReader | None = None

    def begin(self, con: duckdb.DuckDBPyConnection) -> pa.Schema:
        """Starts the query, and returns its columns. Raises UsageError or the error of a scan."""
        with _typed_errors(self._run):
            self._names.enter_context(_prepared(con, self._run))
            self._reader = con.sql(self._run.text, params=self._run.parameters).to_arrow_reader(_STREAMED_ROWS)
            return self._reader.schema

    def read(self, con: duckdb.DuckDBPyConnection) -> pa.RecordBatch | None:
        """Returns the next rows. None: the end. Raises UsageError or the error of a scan."""
        assert self._reader is not None
        with _typed_errors(self._run):
            return next(iter(self._reader), None)

    def end(self, con: duckdb.DuckDBPyConnection) -> None:
        """Ends the query, and takes its names from the connection."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._names.close()


class Engine:
    """The connections of one client to DuckDB, each to a database in memory that has nothing between two queries.

    Args:
        connect: Makes a connection. Default: one that may read files, and writes what does not fit into memory to a
            directory that only this user may read.
        most_kept: How many connections are kept for later queries.
    """

    def __init__(
        self, connect: Callable[[], duckdb.DuckDBPyConnection] | None = None, most_kept: int = _MOST_KEPT
    ) -> None:
        self._connect = connect
        self._most_kept = most_kept
        self._free: list[duckdb.DuckDBPyConnection] = []
        # How to interrupt each query.
        self._running: dict[asyncio.Future[Any], Callable[[], None]] = {}
        self._is_closed = False
        self._spilled: tempfile.TemporaryDirectory[str] | None = None

    async def run(self, run: SqlRun, *, cancel_scans: Callable[[], None] = lambda: None) -> pa.Table:
        """Runs a query in a thread.

        When the call is cancelled, the query is interrupted, and the call ends once DuckDB has ended it.

        Args:
            run: The query.
            cancel_scans: Ends the scans of live tables, for which DuckDB waits. May be called several times.

        Raises:
            UsageError: duckdb is not installed, or refuses the query or its data.
            ScanKvError: As for the scans of the tables.
        """
        return await self._in_thread(_run, run, cancel_scans=cancel_scans)

    async def explain(self, run: SqlRun) -> str:
        """Returns DuckDB's plan of a query as text, without running it. Raises UsageError as `run` does."""
        return await self._in_thread(_explain, run)

    async def run_as(self, asked: SqlRun, run: SqlRun) -> pa.Table | None:
        """Runs a query that takes the place of another one, whose columns have the names of the result.

        Returns:
            The rows. None if the columns would have other types.

        Raises:
            UsageError: As for `run`.
        """
        return await self._in_thread(_run_as, asked, run)

    @asynccontextmanager
    async def stream(self, run: SqlRun, cancel_scans: Callable[[], None]) -> AsyncIterator[SqlStream]:
        """Runs a query for the length of the block, whose rows come as they are asked for.

        At the end, the query is interrupted, and the block ends once DuckDB has ended it.

        Args:
            run: The query.
            cancel_scans: As for `run`.

        Raises:
            UsageError, ScanKvError: As for `run`; also while the rows are read.
        """
        async with self._session(cancel_scans) as call:
            running = RunningQuery(run)
            try:
                yield SqlStream(await call(running.begin), lambda: call(running.read))
            finally:
                cancel_scans()
                with anyio.CancelScope(shield=True):
                    await call(running.end)

    async def _in_thread(
        self,
        function: Callable[..., _Result],
        *arguments: SqlRun,
        cancel_scans: Callable[[], None] = lambda: None,
    ) -> _Result:
        async with self._session(cancel_scans) as call:
            return await call(function, *arguments)

    @asynccontextmanager
    async def _session(self, cancel_scans: Callable[[], None]) -> AsyncIterator[ThreadCall]:
        """Takes a connection for the length of the block. Yields what calls a function with it in a thread."""
        if self._free:
            con = self._free.pop()
        else:
            con = await asyncio.to_thread(self._connect or partial(_connect, self._spill_directory()))
        running: asyncio.Future[Any] | None = None

        def interrupt() -> None:
            cancel_scans()
            con.interrupt()

        async def call(function: Callable[..., _Result], *arguments: SqlRun) -> _Result:
            nonlocal running
            running = thread = asyncio.ensure_future(asyncio.to_thread(function, con, *arguments))
            self._running[thread] = interrupt
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                await self._interrupt(thread)
                raise
            except UsageError as error:
                if self._is_closed:
                    raise UsageError("the client was closed before the query ended") from error
                raise
            finally:
                del self._running[thread]

        is_clean = False
        try:
            yield call
            is_clean = True
        finally:
            # After an error, names of the query may be left in the connection. If the call was cancelled twice, the
            # thread may still use it.
            if running is None or running.done():
                self._give_back(con, is_clean=is_clean)

    async def aclose(self) -> None:
        """Ends the queries that run, and closes all connections."""
        self._is_closed = True
        await self._interrupt(*self._running)
        while self._free:
            self._free.pop().close()
        if self._spilled is not None:
            self._spilled.cleanup()

    def _spill_directory(self) -> str:
        """Returns where DuckDB writes what does not fit into memory: a directory that only this user may read."""
        if self._spilled is None:
            self._spilled = tempfile.TemporaryDirectory(prefix="scankv-sql-", ignore_cleanup_errors=True)
        return self._spilled.name

    async def _interrupt(self, *queries: asyncio.Future[Any]) -> None:
        """Returns when queries have ended, with whatever error."""
        left = {*queries}
        while left:
            for query in left:
                self._running[query]()  # Again and again, since it may just begin.
            done, left = await asyncio.wait(left, timeout=_INTERRUPT_SECONDS)
            for query in done:
                query.exception()

    def _give_back(self, con: duckdb.DuckDBPyConnection, *, is_clean: bool) -> None:
        if is_clean and len(self._free) < self._most_kept and not self._is_closed:
            self._free.append(con)
        else:
            con.close()


def _connect(spill_directory: str) -> duckdb.DuckDBPyConnection:
    con: duckdb.DuckDBPyConnection = import_optional("duckdb").connect()
    # A table that does not exist must not become a variable of this process that has its name.
    con.execute("set python_enable_replacements = false")
    con.execute("set temp_directory = ?", [spill_directory])
    return con


def connect_locked(memory_bytes: int, threads: int) -> duckdb.DuckDBPyConnection:
    """Returns a connection for queries of others: it reaches neither files, network nor variables of this process.

    No statement can change its configuration. What does not fit into memory is not written, so the query fails.

    Raises:
        UsageError: duckdb is not installed.
    """
    con: duckdb.DuckDBPyConnection = import_optional("duckdb").connect()
    con.execute(f"set memory_limit = '{memory_bytes} B'")
    con.execute(f"set threads = {threads}")
    for setting in _LOCKED:
        con.execute(f"set {setting}")
    return con


def _run(con: duckdb.DuckDBPyConnection, run: SqlRun) -> pa.Table:
    with _typed_errors(run), _prepared(con, run):
        return con.sql(run.text, params=run.parameters).to_arrow_table()


def _explain(con: duckdb.DuckDBPyConnection, run: SqlRun) -> str:
    with _typed_errors(run), _prepared(con, run):
        plans = con.execute(f"explain {run.text}", run.parameters).fetchall()
    return "\n".join(str(plan) for _, plan in plans)


def _run_as(con: duckdb.DuckDBPyConnection, asked: SqlRun, run: SqlRun) -> pa.Table | None:
    with _typed_errors(asked):
        with _prepared(con, asked):
            bound = con.sql(asked.text, params=asked.parameters)
            names, types = bound.columns, bound.types
        with _prepared(con, run):
            query = con.sql(run.text)
            return query.to_arrow_table().rename_columns(names) if query.types == types else None


@contextmanager
def _typed_errors(run: SqlRun) -> Iterator[None]:
    duckdb = import_optional("duckdb")
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow's are those of DuckDB while rows are read.
        for table in run.tables.values():
            # DuckDB has only the text of what has ended the scan of a dataset.
            if (failure := getattr(table, "error", None)) is not None:
                raise failure from error
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
            raise RequestTooLarge(f"DuckDB: {str(error).partition(chr(10))[0]}{_MEMORY_HINT}") from error
        hint = _HINT if "Table with name" in str(error) else ""
        raise UsageError(f"DuckDB: {error}{hint}") from error


@contextmanager
def _prepared(con: duckdb.DuckDBPyConnection, run: SqlRun) -> Iterator[None]:
    """Gives DuckDB the names and the memory of a query for the length of the block."""
    with _named(con, run):
        if run.memory_bytes is not None:
            con.execute(f"set memory_limit = '{run.memory_bytes} B'")
        try:
            yield
        finally:
            if run.memory_bytes is not None:
                con.execute("reset memory_limit")


@contextmanager
def _named(con: duckdb.DuckDBPyConnection, run: SqlRun) -> Iterator[None]:
    """Gives DuckDB tables and frames by their names for the length of the block."""
    registered: list[str] = []
    made: list[str] = []
    try:
        for name, frame in run.frames.items():
            if name.lower().startswith(_PREFIX):
                raise UsageError(f"a frame must not be named {name!r}: names that begin with {_PREFIX} are taken")
            con.register(name, frame)
            registered.append(name)
        for number, (name, dataset) in enumerate(run.tables.items()):
            database, _, table = name.partition(".")
            con.register(f"{_PREFIX}{number}", dataset)
            registered.append(f"{_PREFIX}{number}")
            con.execute(f"create schema if not exists {_quoted(database)}")
            view = f"{_quoted(database)}.{_quoted(table)}"
            con.execute(f"create or replace view {view} as select * from {_PREFIX}{number}")
            made.append(view)
        yield
    finally:
        for view in made:
            con.execute(f"drop view if exists {view}")
        for name in registered:
            con.unregister(name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
