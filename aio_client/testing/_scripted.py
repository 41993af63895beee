"""A client whose scans are answered from a script: the real client and stream, without server or connection."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, cast

from aio_client._client.client import Client
from aio_client._transport.config import ClientConfig
from aio_client._transport.framing import ScanMessage
from aio_client._transport.owners import Owners
from aio_client.testing._script import Script, ScriptedAnswer, Step, check_script
from scankv.model.counts import counted
from scankv.model.errors import DeadlineExceeded, TableNotFound, UsageError
from scankv.v1 import table_pb2
from scankv.v1.scan_pb2 import ScanKvRequest, ScanKvResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from aio_client._transport.transport import Transport

_NAME = "scripted:1"


class ScriptedServer:
    """Answers the scans of one table from a test's script. A client talks to it without a connection.

        server = ScriptedServer(
            "game.scores",
            SCHEMA,
            [first_rows, Unavailable("the connection broke")],  # header, a chunk, the error
            [more_rows],                                        # header, a chunk, trailer
        )
        async with server.client() as client:
            scan = (await client.table("game.scores")).scan().resume(Resume.LATEST)
            assert (await scan.to_arrow()).num_rows == first_rows.num_rows + more_rows.num_rows
        assert server.requests[1].resume_token == server.tokens[0]
        assert server.open_scans == 0

    The n-th attempt, of whichever scan, gets the n-th script: a sequence of

    - a `pa.RecordBatch` of the table's schema with at least one row: one chunk. Columns that were not asked for are
      left out; limit, keys and direction are ignored.
    - a `ScanKvError`: raised from the read, as for a status of the server or the end of a connection.
    - a `Step`: a heartbeat, a stall, a wrong end.

    The header comes before the first of these, unless that is an error or a stall (put `Step.HEADER` first to send it),
    and the right trailer after the last, unless that ends the stream otherwise. `ScanStream` itself is real: its
    checks, timeouts, retries and resumption.

    The only other calls are `client.table(name)` and `client.wait_ready()`. Belongs to one event loop.

    Attributes:
        requests: The request of every attempt so far, as on the wire: table, columns, limit, resume token.
        tokens: The resume tokens of the chunks and heartbeats that were read so far.
    """

    def __init__(self, table: str, schema: pa.Schema, *attempts: Script, primary_key: Sequence[str] = ()) -> None:
        """Takes the scripts.

        Args:
            table: `database.table`.
            schema: The columns.
            *attempts: One script for each attempt.
            primary_key: The key columns. Default: the first column.

        Raises:
            UsageError: A script cannot be played.
        """
        self.requests: list[ScanKvRequest] = []
        self.tokens: list[bytes] = []
        self._description = table_pb2.Table(
            name=table,
            incarnation="scripted-table",
            arrow_schema=schema.remove_metadata().serialize().to_pybytes(),
            schema_id=1,
            primary_key=primary_key or schema.names[:1],
            bucket_key=primary_key or schema.names[:1],
            buckets=1,
        )
        self._schema = schema
        self._scripts = [check_script(script, schema) for script in attempts]
        self._open: weakref.WeakSet[_ScriptedCall] = weakref.WeakSet()

    @property
    def open_scans(self) -> int:
        """Attempts that were neither read to an end or an error nor cancelled: scans that a server would hold."""
        return sum(not call.ended for call in self._open)

    @property
    def attempts_left(self) -> int:
        """The number of scripts that were not played yet."""
        return len(self._scripts) - len(self.requests)

    def client(self, config: ClientConfig | None = None) -> Client:
        """Returns a client of this server, to be used in `async with`, in the running event loop.

        Args:
            config: The client's timeouts. Default: those of `connect`. The address is not used.
        """
        return _ScriptedClient(self, config or ClientConfig(url=_NAME))

    def _description_of(self, name: str) -> table_pb2.Table:
        if name != self._description.name:
            raise TableNotFound(f'there is no table "{name}" in the script', table=name)
        return self._description

    def _answer(self, request: ScanKvRequest) -> Iterator[ScanKvResponse | Step]:
        """Yields the answer to the next attempt."""
        self.requests.append(request)
        attempt = len(self.requests)
        if attempt > len(self._scripts):
            raise UsageError(
                f"the script has {counted(len(self._scripts), 'attempt')}, and the client makes another one"
            )
        self._description_of(request.table)
        answer = ScriptedAnswer(self._scripts[attempt - 1], self._schema, request, attempt)
        for message in answer.play():
            if isinstance(message, ScanKvResponse):
                token = message.chunk.resume_token or message.heartbeat.resume_token
                self.tokens += [token] if token else []
            yield message


class _ScriptedClient(Client):
    """A client with a given transport, where `Client` makes its own."""

    def __init__(self, server: ScriptedServer, config: ClientConfig) -> None:
        self._config = config
        self._transport = cast("Transport", _ScriptedTransport(server, config))
        self._owners = Owners(self._transport)
        self._bootstraps = {}
        self._sql = None


class _ScriptedTransport:
    """The part of `Transport` that `Client`, `Table` and `ScanStream` use."""

    def __init__(self, server: ScriptedServer, config: ClientConfig) -> None:
        self.config = config
        self.address = config.address
        self.tracer = None
        self._server = server
        self._closed = asyncio.Event()

    @property
    def services(self) -> _ScriptedServices:
        if self._closed.is_set():
            self._fail_closed()
        return _ScriptedServices()

    async def call(self, method: Callable[[], object], request: Any, *, repeatable: bool = True) -> Any:  # noqa: ANN401
        if (name := method()) != "tables.GetTable" or request.statistics:
            raise UsageError(f"a ScriptedServer answers scans and client.table(name), not {name}")
        return table_pb2.GetTableResponse(table=self._server._description_of(request.name))

    def to_owner(self, port: int) -> _ScriptedTransport:
        return self

    async def prepare_token(self) -> None:
        """Does nothing: a script asks for no token."""

    def open_scan(self, request: ScanKvRequest, window: int, trace: object = ()) -> _ScriptedCall:
        if self._closed.is_set():
            self._fail_closed()
        call = _ScriptedCall(self._server._answer(request), self.address)
        self._server._open.add(call)
        return call

    async def wait_ready(self, timeout: float) -> None:
        if self._closed.is_set():
            self._fail_closed()

    async def wait_closed(self) -> NoReturn:
        await self._closed.wait()
        self._fail_closed()

    async def aclose(self) -> None:
        self._closed.set()
        for call in list(self._server._open):
            call.cancel()

    def _fail_closed(self) -> NoReturn:
        raise UsageError(f"the client of {self.address} is closed", address=self.address)


class _ScriptedServices:
    """`services.tables.GetTable` as the text `tables.GetTable`."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    def __getattr__(self, name: str) -> _ScriptedServices | str:
        return f"{self._path}.{name}" if self._path else _ScriptedServices(name)


class _ScriptedCall:
    """One attempt; see `ScanCall`, whose contract it keeps."""

    def __init__(self, messages: Iterator[ScanKvResponse | Step], address: str) -> None:
        self._messages = messages
        self._address = address
        self._cancelled = asyncio.Event()
        self.ended = False

    async def read(self, timeout: float) -> ScanMessage | None:
        await asyncio.sleep(0)  # Lets other tasks run, as a real call does.
        if self._cancelled.is_set():
            self._fail_cancelled()
        try:
            message = next(self._messages, None)
        except BaseException:
            self.ended = True
            raise
        if message is Step.STALL:
            await self._stall(timeout)
        self.ended = message is None
        return ScanMessage.from_bytes(message.SerializeToString()) if isinstance(message, ScanKvResponse) else None

    async def _stall(self, timeout: float) -> NoReturn:
        try:
            async with asyncio.timeout(timeout):
                await self._cancelled.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the ScanKV server at {self._address} sent nothing for {timeout:g} s", address=self._address
            ) from error
        finally:
            self.ended = True
        self._fail_cancelled()

    def cancel(self) -> None:
        self.ended = True
        self._cancelled.set()

    def _fail_cancelled(self) -> NoReturn:
        raise UsageError("the scan was closed while it was being read")
