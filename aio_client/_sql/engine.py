"""DuckDB: one connection for each query that runs, kept for later queries."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from aio_client._input.optional import import_optional
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import duckdb
    import pyarrow as pa

    from aio_client._integrations.arrow_dataset import TableDataset

    Parameters: TypeAlias = Sequence[object] | Mapping[str, object] | None

_Result = TypeVar("_Result")

_MOST_KEPT: Final = 4
_INTERRUPT_SECONDS: Final = 0.05
"""How often a query is interrupted until it ends."""
_PREFIX: Final = "scankv_"
"""The beginning of the names under which DuckDB has the tables."""
_HINT: Final = "\nA table of the server is named as database.table."


@dataclass(frozen=True, slots=True)
class SqlRun:
    """One run of a query.

    Attributes:
        text: One statement that reads.
        parameters: The values of its parameters, by position or name.
        tables: The tables of the server that it names, by `database.table`: live, or what the server has computed.
        frames: Data frames and Arrow tables that it names.
    """

    text: str
    parameters: Parameters
    tables: Mapping[str, TableDataset | pa.Table]
    frames: Mapping[str, object]


class Engine:
    """The connections of one client to DuckDB, each to a database in memory that has nothing between two queries."""

    def __init__(self) -> None:
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

    async def _in_thread(
        self,
        function: Callable[..., _Result],
        *arguments: SqlRun,
        cancel_scans: Callable[[], None] = lambda: None,
    ) -> _Result:
        con = self._free.pop() if self._free else await asyncio.to_thread(_connect, self._spill_directory())
        running = asyncio.ensure_future(asyncio.to_thread(function, con, *arguments))

        def interrupt() -> None:
            cancel_scans()
            con.interrupt()

        self._running[running] = interrupt
        is_clean = False
        try:
            found = await asyncio.shield(running)
            is_clean = True
            return found
        except asyncio.CancelledError:
            await self._interrupt(running)
            raise
        except UsageError as error:
            if self._is_closed:
                raise UsageError("the client was closed before the query ended") from error
            raise
        finally:
            del self._running[running]
            # After an error, names of the query may be left in the connection. If the call was cancelled twice, the
            # thread may still use it.
            if running.done():
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
        if is_clean and len(self._free) < _MOST_KEPT and not self._is_closed:
            self._free.append(con)
        else:
            con.close()


def _connect(spill_directory: str) -> duckdb.DuckDBPyConnection:
    con: duckdb.DuckDBPyConnection = import_optional("duckdb").connect()
    # A table that does not exist must not become a variable of this process that has its name.
    con.execute("set python_enable_replacements = false")
    con.execute("set temp_directory = ?", [spill_directory])
    return con


def _run(con: duckdb.DuckDBPyConnection, run: SqlRun) -> pa.Table:
    with _typed_errors(run), _named(con, run):
        return con.sql(run.text, params=run.parameters).to_arrow_table()


def _explain(con: duckdb.DuckDBPyConnection, run: SqlRun) -> str:
    with _typed_errors(run), _named(con, run):
        plans = con.execute(f"explain {run.text}", run.parameters).fetchall()
    return "\n".join(str(plan) for _, plan in plans)


def _run_as(con: duckdb.DuckDBPyConnection, asked: SqlRun, run: SqlRun) -> pa.Table | None:
    with _typed_errors(asked):
        with _named(con, asked):
            bound = con.sql(asked.text, params=asked.parameters)
            names, types = bound.columns, bound.types
        with _named(con, run):
            query = con.sql(run.text)
            return query.to_arrow_table().rename_columns(names) if query.types == types else None


@contextmanager
def _typed_errors(run: SqlRun) -> Iterator[None]:
    refused = import_optional("duckdb").Error
    try:
        yield
    except refused as error:
        for table in run.tables.values():
            # DuckDB has only the text of what has ended the scan of a dataset.
            if (failure := getattr(table, "error", None)) is not None:
                raise failure from error
        hint = _HINT if "Table with name" in str(error) else ""
        raise UsageError(f"DuckDB: {error}{hint}") from error


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
