"""How calls reach the server: one gRPC channel, and the one table from gRPC's errors to ours.

The only module of the client that imports grpc.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aio_client._transport.anonymous_writers import UnnamedWriters
from aio_client._transport.call_queue import LONG_CALLS, SHORT_CALLS, STREAMS_PER_CONNECTION, CallQueue
from aio_client._transport.channel import channel_options
from aio_client._transport.framing import ScanMessage
from aio_client._transport.poller import ignore_stray_events
from aio_client._transport.retry import with_retries
from scankv.model.errors import (
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ProtocolViolation,
    RequestTooLarge,
    ScanKvError,
    ServerBusy,
    Unavailable,
    UsageError,
    error_for_reason,
)
from scankv.v1.admin_pb2 import BucketCheck
from scankv.v1.admin_pb2_grpc import AdminServiceStub
from scankv.v1.consumer_pb2_grpc import ConsumerServiceStub
from scankv.v1.lock_pb2_grpc import LockServiceStub
from scankv.v1.lookup_pb2_grpc import LookupServiceStub
from scankv.v1.scan_pb2 import DESCRIPTOR as SCAN
from scankv.v1.scan_pb2 import ScanKvRequest
from scankv.v1.scan_pb2_grpc import ScanServiceStub
from scankv.v1.snapshot_pb2_grpc import SnapshotServiceStub
from scankv.v1.table_pb2_grpc import TableServiceStub
from scankv.v1.transaction_pb2_grpc import TransactionServiceStub
from scankv.v1.write_pb2_grpc import WriteServiceStub

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.config import ClientConfig
    from scankv.v1.admin_pb2 import CheckTableRequest
    from scankv.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from scankv.v1.consumer_pb2_grpc import ConsumerServiceAsyncStub
    from scankv.v1.lock_pb2_grpc import LockServiceAsyncStub
    from scankv.v1.lookup_pb2_grpc import LookupServiceAsyncStub
    from scankv.v1.scan_pb2_grpc import ScanServiceAsyncStub
    from scankv.v1.snapshot_pb2_grpc import SnapshotServiceAsyncStub
    from scankv.v1.table_pb2_grpc import TableServiceAsyncStub
    from scankv.v1.transaction_pb2_grpc import TransactionServiceAsyncStub
    from scankv.v1.write_pb2_grpc import WriteServiceAsyncStub

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Call = TypeVar("_Call", bound="grpc.aio.Call")

Method: TypeAlias = grpc.aio.UnaryUnaryMultiCallable
"""A call with one request and one answer."""

# Where google.rpc.Status travels, by convention of all gRPC languages.
_DETAILS_KEY: Final = "grpc-status-details-bin"
_READY_POLL_SECONDS: Final = 0.05
_AWAY: Final = grpc.ChannelConnectivity.TRANSIENT_FAILURE

_ERROR_OF_STATUS: Final[dict[grpc.StatusCode, type[ScanKvError]]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    # A server that stops at once cancels its calls, and a proxy resets them, which gRPC calls INTERNAL.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.INTERNAL: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RequestTooLarge,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolViolation,
}


class Transport:
    """The connection of one client. It connects with the first call, and again after the server was away.

    Belongs to the event loop and the process it was made in: not thread-safe, not to be used after a fork. Closed by
    `close`, or when nothing refers to it any more.

    Attributes:
        config: What the client was opened with.
        address: The server, as `host:port`.
        writers: Who writes through it without a name of its own.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Prepares the channel without connecting. Must run in the event loop that will make the calls."""
        if _forked_while_open:
            raise UsageError(
                "this process was forked while a client was open in its parent, after which gRPC hangs; close all "
                "clients before forking, or start the process by spawning it",
                address=config.address,
            )
        self.config = config
        self.address: str = config.address
        self.writers: UnnamedWriters = UnnamedWriters()
        self._loop = asyncio.get_running_loop()
        ignore_stray_events(self._loop)
        self._pid = os.getpid()
        self._window = config.window_bytes(None)
        # A window belongs to a whole connection, so there are connections for each, of which only the last has room for
        # streams. The first of the client's own window has the calls with one answer. Empty once it is closed.
        self._connections: dict[int, list[_Services]] = {self._window: [self._connect(self._window)]}
        self._short, self._long = CallQueue(SHORT_CALLS), CallQueue(LONG_CALLS)
        # Connections that were replaced, for as long as a call is underway over them.
        self._replaced: weakref.WeakSet[_Services] = weakref.WeakSet()
        self._closed = asyncio.Event()
        _open_transports.add(self)

    def __del__(self) -> None:
        # The channel closes itself when it is dropped, but no longer in order once its loop is gone.
        if getattr(self, "_connections", None) and self._loop.is_closed():
            warnings.warn(
                f"the client of {self.address} was not closed before its event loop; use `async with connect(...)`",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    @property
    def services(self) -> _Services:
        """The calls that can be made.

        Raises:
            UsageError: The client is closed, or the caller is in another event loop or in a forked process.
        """
        if os.getpid() != self._pid:
            raise UsageError(
                "the client was made before this process was forked; connect in the child process instead",
                address=self.address,
            )
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "the client belongs to another event loop; connect once in each loop, or use scankv.sync",
                address=self.address,
            )
        if not self._connections:
            raise UsageError(f"the client of {self.address} is closed", address=self.address)
        return self._connections[self._window][0]

    def _connect(self, window: int) -> _Services:
        options = channel_options(window)
        return _Services(grpc.aio.insecure_channel(f"dns:///{self.address}", options=options))

    async def call(
        self, method: Callable[[], Method[_Request, _Response]], request: _Request, *, repeatable: bool = True
    ) -> _Response:
        """Makes a call with one answer; again only where it was not carried out, for the operation timeout.

        A call that the server refused to begin with is made again. One that was shed on the way, so that nobody can
        say whether it was carried out, is if carrying it out twice is as good as once. One for which no server can be
        reached, or whose attempt timeout is over, is not.

        Args:
            method: The call, from `services` of when it is made.
            request: What it is sent.
            repeatable: Whether carrying it out twice is as good as once.

        Raises:
            ScanKvError: What the server said, or what became of the connection.
        """

        async def attempt(deadline: float) -> _Response:
            return await self.attempt(method, request, deadline=deadline)

        def retries(error: ScanKvError) -> bool:
            shed = isinstance(error, Unavailable) and error.shed
            return isinstance(error, ServerBusy) or (repeatable and shed)

        return await with_retries(attempt, timeout=self.config.operation_timeout, retries=retries)

    async def attempt(
        self,
        method: Callable[[], Method[_Request, _Response]],
        request: _Request,
        *,
        deadline: float,
        is_long: bool = False,
    ) -> _Response:
        """Makes a call with one answer once, when it is its turn. The time that it waits is the operation's.

        Args:
            method: The call, from `services` of when it is made.
            request: What it is sent.
            deadline: The instant of `time.monotonic` at which the operation ends.
            is_long: Whether the server may have whole tables to read for the answer; then the attempt timeout is not
                for it, nor a turn of the other calls.

        Raises:
            ScanKvError: As `call`.
        """
        queue = self._long if is_long else self._short
        await queue.enter(deadline)
        try:
            left = max(0.001, deadline - time.monotonic())
            timeout = left if is_long else min(self.config.attempt_timeout, left)
            services = self.services
            return await self._answer(method()(request, timeout=timeout), services, timeout)
        finally:
            queue.leave()

    async def call_and_wait(
        self, method: Callable[[_Services], Method[_Request, _Response]], request: _Request, timeout: float
    ) -> _Response:
        """Makes a call once that waits at the server until something happens. It counts as a stream.

        Args:
            method: The call, from the services of a connection.
            request: What it is sent.
            timeout: Seconds until the answer must be there.
        """
        services = self._with_room(self._window)
        return await self._answer(services.stream(method(services)(request, timeout=timeout)), services, timeout)

    async def _answer(
        self, call: grpc.aio.UnaryUnaryCall[_Request, _Response], services: _Services, timeout: float
    ) -> _Response:
        # `services` is held, so that its connection stays when it is replaced meanwhile.
        try:
            await _over(call)
            response = await call
        except grpc.aio.AioRpcError as error:
            raise self.error_from(error, services, timeout) from error
        except asyncio.CancelledError:
            self._raise_if_closed_meanwhile()
            raise
        return _readable(response, self.address)

    def open_scan(self, request: ScanKvRequest, window: int) -> ScanCall:
        """Starts one attempt of a scan; nothing is awaited before its first `read`.

        Args:
            request: What is scanned.
            window: The receive window, in bytes. There is one connection for each that is in use, made when it is first
                needed and closed with the client.
        """
        services = self._with_room(window)
        return StreamCall(self, services, services.stream(services.scan_kv(request)), ScanMessage)

    def open_check(self, request: CheckTableRequest) -> StreamCall[BucketCheck]:
        """Starts the check of a table; nothing is awaited before its first `read`."""
        services = self._with_room(self._window)
        return StreamCall(self, services, services.stream(services.admin.CheckTable(request)), BucketCheck)

    def _with_room(self, window: int) -> _Services:
        """A connection of this window that can take one more stream; a new one where there is none."""
        _ = self.services  # Raises where the client cannot be used.
        # Beside the first, those are kept over which there are streams.
        kept = [each for each in self._connections.get(window, ())[1:] if each.streams]
        connections = [*self._connections.get(window, ())[:1], *kept]
        self._connections[window] = connections
        with_room = next((each for each in connections if each.streams < STREAMS_PER_CONNECTION), None)
        if with_room is None:
            with_room = self._connect(window)
            connections.append(with_room)
        return with_room

    def replace(self, services: _Services) -> None:
        """Has calls that come take another connection than the one over which a call failed.

        A connection that a firewall or a host has forgotten without a word looks as one over which nothing comes, and
        every further attempt over it would wait in vain; one that broke is still given to calls for a moment, by gRPC.
        Calls that are underway keep theirs, which ends with the last.
        """
        for window, connections in self._connections.items():
            if services in connections:
                connections[connections.index(services)] = self._connect(window)
                self._replaced.add(services)
                return

    def error_from(self, error: grpc.aio.AioRpcError, services: _Services, timeout: float) -> ScanKvError:
        """The one place where an error of gRPC becomes one of ours: by its typed detail, else by its status code.

        Where the connection failed rather than the server, calls that come take another one.

        Args:
            error: gRPC's.
            services: What the call was made with.
            timeout: Seconds that it had.
        """
        typed = _typed_error(error)
        if typed is not None:
            return typed
        cls = _ERROR_OF_STATUS.get(error.code(), InternalError)
        known = cls(_said(cls, error, self.address, timeout), address=self.address)
        if isinstance(known, Unavailable):
            state = services.channel.get_state() if self._connections else _AWAY
            known.shed = state is not _AWAY
        silent = cls is DeadlineExceeded and timeout >= self.config.min_silence_seconds
        if silent or (cls is Unavailable and state is not grpc.ChannelConnectivity.READY):
            self.replace(services)
        return known

    async def wait_closed(self) -> None:
        """Waits until the client is closed.

        Raises:
            UsageError: It is.
        """
        await self._closed.wait()
        raise UsageError(f"the client of {self.address} was closed while it was being used", address=self.address)

    async def wait_ready(self, timeout: float) -> None:
        """Waits until the standard health service says that the server serves.

        Raises:
            DeadlineExceeded: It did not within `timeout` seconds.
        """
        services = self.services
        last = "it does not answer"
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        answer = await services.health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
                    except grpc.aio.AioRpcError as error:
                        last = error.details() or str(error.code())
                    else:
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                        last = f"it says {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
                    await asyncio.sleep(_READY_POLL_SECONDS)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the ScanKV server at {self.address} was not ready within {timeout:g} s: {last}",
                address=self.address,
            ) from error
        except asyncio.CancelledError:
            self._raise_if_closed_meanwhile()
            raise

    async def close(self) -> None:
        """Cancels all calls that are underway and closes the connection. Idempotent."""
        if not self._connections:
            return
        connections = {self.services, *self._replaced}.union(*self._connections.values())
        channels = [each.channel for each in connections]
        # Only when nothing refers to gRPC's objects any more, it ends its threads, so that the process may fork.
        self._connections.clear()
        self._closed.set()
        for channel in channels:
            await channel.close(None)

    def _raise_if_closed_meanwhile(self) -> None:
        """Tells the closing of the client, which gRPC shows as a cancellation, from one of the caller's task."""
        if not self._connections and not _task_is_cancelled():
            raise UsageError(
                f"the client of {self.address} was closed while it was being used", address=self.address
            ) from None


class _Services:
    """A channel and the calls over it. The channel closes itself, and cancels its calls, when the object is dropped."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.streams: int = 0
        self.consumers: ConsumerServiceAsyncStub = ConsumerServiceStub(channel)
        self.admin: AdminServiceAsyncStub = AdminServiceStub(channel)
        self.health: health_pb2_grpc.HealthStub = health_pb2_grpc.HealthStub(channel)
        self.locks: LockServiceAsyncStub = LockServiceStub(channel)
        self.lookups: LookupServiceAsyncStub = LookupServiceStub(channel)
        self.scans: ScanServiceAsyncStub = ScanServiceStub(channel)
        # In place of the stub's, whose messages hold copies of the rows.
        self.scan_kv: grpc.aio.UnaryStreamMultiCallable[ScanKvRequest, ScanMessage] = channel.unary_stream(
            f"/{SCAN.services_by_name['ScanService'].full_name}/ScanKv",
            request_serializer=ScanKvRequest.SerializeToString,
            response_deserializer=ScanMessage.from_bytes,
        )
        self.snapshots: SnapshotServiceAsyncStub = SnapshotServiceStub(channel)
        self.tables: TableServiceAsyncStub = TableServiceStub(channel)
        self.transactions: TransactionServiceAsyncStub = TransactionServiceStub(channel)
        self.writes: WriteServiceAsyncStub = WriteServiceStub(channel)

    def stream(self, call: _Call) -> _Call:
        """Counts a call that may last as long as it likes, until it is over."""
        self.streams += 1
        counter = weakref.ref(self)  # The call is part of a reference cycle, and the channel goes with this object.

        def over(_: object) -> None:
            if (services := counter()) is not None:
                services.streams -= 1

        call.add_done_callback(over)
        return call


class StreamCall(Generic[_Response]):
    """One attempt of a scan, or of a check. Dropping the object cancels the call at once, from any thread.

    gRPC's own call object does not do that: it is part of a reference cycle.
    """

    def __init__(
        self,
        transport: Transport,
        services: _Services,
        call: grpc.aio.UnaryStreamCall[Any, _Response],
        message_type: type[_Response],
    ) -> None:
        self._transport = transport
        self._services = services
        self._call = call
        self._message_type = message_type
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is None or call.done():
            return
        if self._loop.is_closed():
            warnings.warn(
                "a scan was neither read to its end nor closed before its event loop", ResourceWarning, stacklevel=1
            )
        elif _running_loop() is self._loop:
            call.cancel()
        else:
            self._loop.call_soon_threadsafe(call.cancel)

    async def read(self, timeout: float | None) -> _Response | None:
        """Waits for the next message; None after the last one. When it is cancelled, so is the call.

        Args:
            timeout: Seconds to wait. None: for as long as it takes.

        Raises:
            DeadlineExceeded: No message came in time.
            ScanKvError: What the server said, or what became of the connection.
        """
        try:
            async with asyncio.timeout(timeout):
                message = await self._call.read()
        except TimeoutError as error:
            if (timeout or 0) >= self._transport.config.min_silence_seconds:
                self._transport.replace(self._services)
            address = self._transport.address
            raise DeadlineExceeded(
                f"the ScanKV server at {address} sent nothing for {_seconds(timeout or 0)} s", address=address
            ) from error
        except grpc.aio.AioRpcError as error:
            raise self._transport.error_from(error, self._services, timeout or 0) from error
        except asyncio.CancelledError:
            if not _task_is_cancelled():
                raise UsageError("the scan was closed while it was being read") from None
            raise
        readable = _readable(message, self._transport.address)
        return readable if isinstance(readable, self._message_type) else None  # gRPC's mark of the end

    def cancel(self) -> None:
        """Ends the call, so that the server frees what it holds for it. Idempotent."""
        self._call.cancel()


ScanCall: TypeAlias = StreamCall[ScanMessage]
"""One attempt of a scan: one `ScanKv` call."""


def _said(cls: type[ScanKvError], error: grpc.aio.AioRpcError, address: str, timeout: float) -> str:
    said = error.details() or str(error.code())
    if cls is Unavailable:
        return f"no ScanKV server answers at {address}: {said}"
    if cls is DeadlineExceeded:
        return f"the ScanKV server at {address} did not answer within {_seconds(timeout)} s"
    if cls is RequestTooLarge:
        return f"a message between here and {address} is over its limit: {said}"
    if cls is ProtocolViolation:
        return f"{address} does not know this call; is it a ScanKV server of this version? It says: {said}"
    return f"the ScanKV server at {address} failed: {said}"


def _seconds(timeout: float) -> str:
    """For messages: what is left of a timeout has more digits than anybody reads."""
    return f"{round(timeout, 2) or timeout:g}"


def _readable(message: _Response | None, address: str) -> _Response:
    if message is None:  # gRPC logs what it could not parse, and returns nothing.
        raise ProtocolViolation(
            f"{address} sent a message that cannot be read; is it a ScanKV server?", address=address
        )
    return message


def _typed_error(error: grpc.aio.AioRpcError) -> ScanKvError | None:
    """The error that the server raised, from the details of its status; None when it sent none that is known."""
    metadata: Any = error.trailing_metadata()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        status = status_pb2.Status.FromString(metadata.get(_DETAILS_KEY, b""))
    except DecodeError:
        return None
    for detail in status.details:
        if not detail.Unpack(info):
            detail.Unpack(retry)
    cls = error_for_reason(info.reason) if info.domain == "scankv" else None
    if cls is None:
        return None
    wait = retry.retry_delay.ToTimedelta().total_seconds()
    typed = cls(status.message, retry_after=wait or None)
    typed.details.update(info.metadata)
    return typed


async def _over(call: grpc.aio.Call) -> None:
    """Waits for the end of a call outside of gRPC's tasks, which lose what anyio knows a cancelled scope by."""
    over = asyncio.Event()
    call.add_done_callback(lambda _: over.set())
    try:
        await over.wait()
    except asyncio.CancelledError:
        call.cancel()
        raise


def _note_fork() -> None:
    global _forked_while_open
    _forked_while_open = _forked_while_open or any(transport._connections for transport in _open_transports)


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_open_transports: weakref.WeakSet[Transport] = weakref.WeakSet()
_forked_while_open = False
os.register_at_fork(after_in_child=_note_fork)
