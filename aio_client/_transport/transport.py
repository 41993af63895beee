"""How calls reach the server: gRPC channels, and the one mapping from gRPC's errors to ours.

The only module of the client that imports grpc.
"""

from __future__ import annotations

import asyncio
import time
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aio_client._transport.anonymous_writers import AnonymousWriters
from aio_client._transport.authorization import authorization_of
from aio_client._transport.call_queue import LONG_CALLS, SHORT_CALLS, STREAMS_PER_CONNECTION, CallQueue
from aio_client._transport.call_traces import trace_call
from aio_client._transport.channel import channel_options
from aio_client._transport.continued_step import ContinuedStep
from aio_client._transport.framing import ScanMessage
from aio_client._transport.owner import ClientOwner
from aio_client._transport.patient_timeout import PatientTimeout
from aio_client._transport.poller import ignore_stray_events
from aio_client._transport.retry import with_retries
from aio_client._transport.status_errors import error_of_status, explain_failure, readable_seconds
from aio_client._transport.tls import read_certificates
from scankv.model.errors import (
    DeadlineExceeded,
    PermissionDenied,
    ProtocolViolation,
    ScanKvError,
    ServerBusy,
    TlsHandshakeFailed,
    Unauthenticated,
    Unavailable,
    UsageError,
)
from scankv.model.limits import MESSAGE_BYTES, SMALL_MESSAGE_BYTES
from scankv.model.short_tracebacks import SHORT_TRACEBACK
from scankv.model.tracing import find_tracer
from scankv.model.typed_errors import typed_error_of
from scankv.v1.admin_pb2 import BucketCheck
from scankv.v1.admin_pb2_grpc import AdminServiceStub
from scankv.v1.backup_pb2_grpc import BackupServiceStub
from scankv.v1.bootstrap_pb2_grpc import BootstrapServiceStub
from scankv.v1.consumer_pb2_grpc import ConsumerServiceStub
from scankv.v1.lock_pb2_grpc import LockServiceStub
from scankv.v1.lookup_pb2_grpc import LookupServiceStub
from scankv.v1.partition_pb2_grpc import PartitionServiceStub
from scankv.v1.scan_pb2 import DESCRIPTOR as SCAN
from scankv.v1.scan_pb2 import ScanKvRequest
from scankv.v1.scan_pb2_grpc import ScanServiceStub
from scankv.v1.snapshot_pb2_grpc import SnapshotServiceStub
from scankv.v1.table_pb2_grpc import TableServiceStub
from scankv.v1.transaction_pb2_grpc import TransactionServiceStub
from scankv.v1.write_pb2_grpc import WriteServiceStub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from aio_client._transport.authorization import Metadata
    from aio_client._transport.config import ClientConfig
    from aio_client._transport.owners import Owners
    from aio_client._transport.tls import Certificates, Tls
    from scankv.model.tracing import Headers, Tracer
    from scankv.v1 import table_pb2
    from scankv.v1.admin_pb2 import CheckTableRequest
    from scankv.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from scankv.v1.backup_pb2_grpc import BackupServiceAsyncStub
    from scankv.v1.bootstrap_pb2_grpc import BootstrapServiceAsyncStub
    from scankv.v1.consumer_pb2_grpc import ConsumerServiceAsyncStub
    from scankv.v1.lock_pb2_grpc import LockServiceAsyncStub
    from scankv.v1.lookup_pb2_grpc import LookupServiceAsyncStub
    from scankv.v1.partition_pb2_grpc import PartitionServiceAsyncStub
    from scankv.v1.scan_pb2_grpc import ScanServiceAsyncStub
    from scankv.v1.snapshot_pb2_grpc import SnapshotServiceAsyncStub
    from scankv.v1.table_pb2_grpc import TableServiceAsyncStub
    from scankv.v1.transaction_pb2_grpc import TransactionServiceAsyncStub
    from scankv.v1.write_pb2_grpc import WriteServiceAsyncStub

_Request = TypeVar("_Request", bound="Message")
_Result = TypeVar("_Result")
_Response = TypeVar("_Response")
_Call = TypeVar("_Call", bound="grpc.aio.Call")

Method: TypeAlias = grpc.aio.UnaryUnaryMultiCallable
"""A call with one request and one answer."""

# The metadata key of google.rpc.Status, by convention of all gRPC languages.
_DETAILS_KEY: Final = "grpc-status-details-bin"
_NOTHING: Final = object()
_READY_POLL_SECONDS: Final = 0.05
_AWAY: Final = grpc.ChannelConnectivity.TRANSIENT_FAILURE
# Errors that waiting does not remove.
_REFUSALS: Final = (Unauthenticated, PermissionDenied, TlsHandshakeFailed)


class Transport:
    """The connections of one client. The first call connects, and later calls reconnect if the connection is lost.

    Belongs to the event loop and the process it was made in: not thread-safe, and unusable after a fork. Closed by
    `close`, or when it is dropped.

    Attributes:
        config: The settings of the client.
        address: The server, as `host:port`.
        writers: The anonymous writers of the client.
        tracer: Makes the spans of calls. None: the program had not configured OpenTelemetry when the client was opened.
        owners: Finds the transports to the worker processes of the server. They belong to the client, so this is a weak
            reference. None: no client has this transport.
    """

    def __init__(self, config: ClientConfig, fallback: Transport | None = None) -> None:
        """Prepares the channel without connecting. Must run in the event loop that will make the calls.

        Args:
            config: The settings.
            fallback: The transport of the same client to another address where the same calls are answered. A
                connection that breaks is replaced by one to the other address. None: by one to the same address.

        Raises:
            UsageError: The token or a certificate cannot be read.
        """
        self._authorization = authorization_of(config.token, config.attempt_timeout)
        self._fixed: tuple[Metadata, _FixedMetadata | None] = (None, None)
        self._credentials = None if config.tls is None else _Credentials(config.tls)
        self._owner = ClientOwner(config.address)
        self.config = config
        self.address: str = config.address
        self._fallback_address: str | None = None if fallback is None else fallback.address
        self.writers: AnonymousWriters = AnonymousWriters() if fallback is None else fallback.writers
        self.tracer: Tracer | None = find_tracer()
        self.owners: weakref.ref[Owners] | None = None
        # Learned from the first refusal. An upgrade of the server is noticed by the next client.
        self.takes_encoded_reads = True
        self.takes_encoded_writes = True
        ignore_stray_events(self._owner.loop)
        self._window = config.window_bytes(None)
        # A receive window belongs to a connection, so every window has its own connections. Only the last one of a
        # window takes further streams. The first connection of the client's own window has the calls with one answer.
        # The dictionary is empty once the client is closed.
        self._connections: dict[int, list[_Services]] = {self._window: [self._connect(self._window)]}
        self._short, self._long = CallQueue(SHORT_CALLS), CallQueue(LONG_CALLS)
        # Replaced connections, as long as calls over them are in flight.
        self._replaced: weakref.WeakSet[_Services] = weakref.WeakSet()
        self._closed = asyncio.Event()

    def __del__(self) -> None:
        # A dropped channel closes itself, but not in order once its loop is closed.
        if getattr(self, "_connections", None) and self._owner.loop.is_closed():
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
        self._owner.check()
        if not self._connections:
            raise UsageError(f"the client of {self.address} is closed", address=self.address)
        return self._connections[self._window][0]

    def _connect(self, window: int) -> _Services:
        target = f"dns:///{self.address}"
        if self._credentials is None:
            return _Services(grpc.aio.insecure_channel(target, options=channel_options(window)))
        options = channel_options(window, self._credentials.tls.server_name)
        return _Services(grpc.aio.secure_channel(target, self._credentials.current(), options=options))

    async def call(
        self, method: Callable[[], Method[_Request, _Response]], request: _Request, *, repeatable: bool = True
    ) -> _Response:
        """Makes a call with one answer. Repeats it only if it was not carried out, for the operation timeout.

        A call that the server refused to begin is repeated. A call that was shed on the way, so that it is unknown
        whether it was carried out, is repeated if it is repeatable, and so is one that the server asks to repeat later,
        because a part of it is being started again. A call for which no server can be reached, or whose attempt timeout
        is over, is not repeated.

        Args:
            method: Returns the call from `services`; called when the request is sent.
            request: The request.
            repeatable: Whether carrying the call out twice is as good as once.

        Raises:
            ScanKvError: The server's error, or the failure of the connection.
        """

        async def attempt(deadline: float) -> _Response:
            return await self.attempt(method, request, deadline=deadline)

        def retries(error: ScanKvError) -> bool:
            shed = isinstance(error, Unavailable) and (error.shed or error.retry_after is not None)
            return isinstance(error, ServerBusy) or (repeatable and shed)

        with SHORT_TRACEBACK:
            return await self.retry(attempt, request, retries=retries)

    async def retry(
        self,
        attempt: Callable[[float], Awaitable[_Result]],
        request: Message,
        *,
        retries: Callable[[ScanKvError], bool],
    ) -> _Result:
        """Makes attempts of one operation, for the operation timeout. They belong to one span.

        Args:
            attempt: As for `with_retries`.
            request: The request of all attempts.
            retries: As for `with_retries`.
        """
        timeout = self.config.operation_timeout
        with SHORT_TRACEBACK:
            if self.tracer is None:
                return await with_retries(attempt, timeout=timeout, retries=retries)
            with trace_call(self.tracer, self.address, request) as attempts:
                return await with_retries(attempts.counting(attempt), timeout=timeout, retries=retries)

    async def attempt(
        self,
        method: Callable[[], Method[_Request, _Response]],
        request: _Request,
        *,
        deadline: float,
        is_long: bool = False,
    ) -> _Response:
        """Makes a call with one answer once, when it is its turn. Waiting for the turn counts as time of the operation.

        Args:
            method: Returns the call from `services`; called when the request is sent.
            request: The request.
            deadline: The instant of `time.monotonic` at which the operation ends.
            is_long: Whether the server may read complete tables for the answer. Such calls have no attempt timeout, and
                a queue of their own.

        Raises:
            ScanKvError: As `call`.
        """
        queue = self._long if is_long else self._short
        await queue.enter(deadline)
        try:
            await self.prepare_token()
            left = max(0.001, deadline - time.monotonic())
            timeout = left if is_long else min(self.config.attempt_timeout, left)
            return await self._answer(
                lambda metadata: self._start(method(), request, timeout, metadata), self.services, timeout
            )
        finally:
            queue.leave()

    def _start(
        self, method: Method[_Request, _Response], request: _Request, timeout: float, metadata: Metadata
    ) -> grpc.aio.UnaryUnaryCall[_Request, _Response]:
        """Starts a call. The server needs the size of its message, which is known once the message is serialized."""
        # The calls take a serialized message as well.
        data: Any = request.SerializeToString()
        return method(data, timeout=timeout, metadata=self._metadata(metadata, len(data)))

    async def call_and_wait(
        self, method: Callable[[_Services], Method[_Request, _Response]], request: _Request, timeout: float
    ) -> _Response:
        """Makes a call once that waits at the server until something happens. It counts as a stream.

        Args:
            method: Returns the call from the services of a connection.
            request: The request.
            timeout: Seconds until the answer must arrive.
        """
        services = self._connection_for_stream(self._window)

        async def attempt(_: float = 0) -> _Response:
            await self.prepare_token()
            return await self._answer(
                lambda metadata: services.stream(
                    method(services)(request, timeout=timeout, metadata=self._metadata(metadata, request.ByteSize()))
                ),
                services,
                timeout,
            )

        if self.tracer is None:
            return await attempt()
        with trace_call(self.tracer, self.address, request) as attempts:
            return await attempts.counting(attempt)(0)

    async def _answer(
        self,
        start: Callable[[Metadata], grpc.aio.UnaryUnaryCall[_Request, _Response]],
        services: _Services,
        timeout: float,
    ) -> _Response:
        """Waits for the answer of a call, which is made twice if a changed token may let the server accept it."""
        # Holding `services` keeps its connection open if it is replaced during the call.
        try:
            metadata = self._authorization.metadata()
            try:
                response = await _response_of(start(metadata))
            except grpc.aio.AioRpcError as error:
                if not await self.renew_token(error, metadata):
                    raise
                response = await _response_of(start(self._authorization.metadata()))
        except grpc.aio.AioRpcError as error:
            # gRPC's error says the same in more lines. It remains the context.
            raise self.error_from(error, services, timeout) from None
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        return _check_decoded(response, self.address)

    def open_scan(self, request: ScanKvRequest, window: int, trace: Headers = ()) -> ScanCall:
        """Starts one attempt of a scan, after `prepare_token`. Nothing is awaited before its first `read`.

        Args:
            request: The request.
            window: The receive window in bytes. Each window in use has connections of its own, which are made when
                first needed and closed with the client.
            trace: The trace context of the scan.
        """
        services = self._connection_for_stream(window)
        return StreamCall(
            self,
            services,
            lambda metadata: services.stream(
                services.scan_kv(request, metadata=_join(_announce(metadata, request.ByteSize()), trace))
            ),
            ScanMessage,
        )

    def open_check(self, request: CheckTableRequest) -> StreamCall[BucketCheck]:
        """Starts the check of a table, after `prepare_token`. Nothing is awaited before its first `read`."""
        services = self._connection_for_stream(self._window)
        return StreamCall(
            self,
            services,
            lambda metadata: services.stream(
                services.admin.CheckTable(request, metadata=self._metadata(metadata, request.ByteSize()))
            ),
            BucketCheck,
        )

    async def for_part(self, table: str, part: int) -> Transport:
        """Returns the client's transport to the worker process that reads a part of a snapshot.

        Args:
            table: The table.
            part: The number of the part.
        """
        owners = None if self.owners is None else self.owners()
        return self if owners is None else await owners.transport_for_part(table, part)

    def to_owner(self, port: int) -> Transport:
        """Returns the client's transport to the worker process that owns a table; that to the server until it is found.

        Args:
            port: The port of the worker. 0: the server is one process.
        """
        owners = None if self.owners is None or not port else self.owners()
        return self if owners is None else owners.known_transport(port)

    async def to_tablet(self, table: table_pb2.Table, tablet: int) -> Transport:
        """Returns the client's transport to the worker process that owns a tablet.

        Args:
            table: The table, as the server describes it.
            tablet: The number of the tablet.
        """
        ports = list(table.worker_ports)
        if table.owner_port not in ports:
            return self
        # The tablets have one worker after another, beginning with the owner of the table.
        return await self.for_part(table.name, ports.index(table.owner_port) + tablet)

    def _connection_for_stream(self, window: int) -> _Services:
        """Returns a connection of this window that can take one more stream, and makes one if necessary."""
        _ = self.services  # Raises if the client cannot be used.
        # Connections without streams are dropped, except for the first.
        kept = [each for each in self._connections.get(window, ())[1:] if each.streams]
        connections = [*self._connections.get(window, ())[:1], *kept]
        self._connections[window] = connections
        free = next((each for each in connections if each.streams < STREAMS_PER_CONNECTION), None)
        if free is None:
            free = self._connect(window)
            connections.append(free)
        return free

    def replace(self, services: _Services) -> None:
        """Gives later calls another connection than the one over which a call failed.

        A connection that a firewall or a host has silently forgotten looks like one over which nothing arrives, and
        every further attempt over it would wait in vain. gRPC still uses a broken connection for a moment. Calls in
        flight keep their connection, which closes with the last of them.
        """
        for window, connections in self._connections.items():
            if services in connections:
                if self._fallback_address is not None:
                    self.address, self._fallback_address = self._fallback_address, self.address
                connections[connections.index(services)] = self._connect(window)
                self._replaced.add(services)
                return

    def _metadata(self, metadata: Metadata, size: int) -> Metadata | _FixedMetadata:
        """Returns the metadata for gRPC, with the size of the message and the trace context of the current span."""
        if self.tracer is not None:
            return _join(_announce(metadata, size), self.tracer.headers())
        if size > SMALL_MESSAGE_BYTES:
            return _announce(metadata, size)
        last, fixed = self._fixed
        if metadata is not last or fixed is None:
            fixed = _FixedMetadata(_announce(metadata, size))
            self._fixed = metadata, fixed
        return fixed

    async def prepare_token(self) -> None:
        """Gets a token for the next call if it needs a new one.

        Raises:
            Unauthenticated, UsageError: A function of the caller does not return a token.
        """
        await self._authorization.prepare()

    def call_metadata(self) -> Metadata:
        """Returns the metadata for a call that is made now, after `prepare_token`."""
        return self._authorization.metadata()

    async def renew_token(self, error: grpc.aio.AioRpcError, refused: Metadata) -> bool:
        """Returns whether a call should be made again, because the server refused its token and the token has changed.

        Args:
            error: The error of the call.
            refused: The metadata of the call.
        """
        return error.code() is grpc.StatusCode.UNAUTHENTICATED and await self._authorization.renew(refused)

    def error_from(self, error: grpc.aio.AioRpcError, services: _Services, timeout: float) -> ScanKvError:
        """Maps an error of gRPC to ours: by its typed detail, or by its status code if it has none.

        If the connection failed rather than the server, later calls get another connection.

        Args:
            error: gRPC's error.
            services: The services that the call was made with.
            timeout: The seconds that the call had.
        """
        typed = _typed_error(error)
        if typed is not None:
            return typed
        known = self._status_error(error, timeout)
        if isinstance(known, Unavailable):
            state = services.channel.get_state() if self._connections else _AWAY
            # The next attempt goes to the other address. It is the last one if no server answers there, either.
            has_other = self._fallback_address is not None and self.address == self.config.address
            known.shed = state is not _AWAY or has_other
        silent = isinstance(known, DeadlineExceeded) and timeout >= self.config.min_silence
        broken = isinstance(known, Unavailable) and state is not grpc.ChannelConnectivity.READY
        # Another connection reads the certificates again.
        if silent or broken or isinstance(known, TlsHandshakeFailed):
            self.replace(services)
        return known

    def _status_error(self, error: grpc.aio.AioRpcError, timeout: float) -> ScanKvError:
        said = error.details() or str(error.code())
        return error_of_status(error.code().name, said, self.address, timeout, tls=self.config.tls is not None)

    async def wait_closed(self) -> None:
        """Waits until the client is closed.

        Raises:
            UsageError: The client is closed.
        """
        await self._closed.wait()
        raise UsageError(f"the client of {self.address} was closed while it was being used", address=self.address)

    async def wait_ready(self, timeout: float) -> None:
        """Waits until the standard health service reports that the server serves.

        Raises:
            DeadlineExceeded: The server was not ready within `timeout` seconds.
            TlsHandshakeFailed: The client does not trust the server, or the server does not use TLS.
            Unauthenticated: The server does not accept the token.
        """
        services = self.services
        last, is_explained = "it does not answer", False
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self.prepare_token()
                    metadata = self._authorization.metadata()
                    try:
                        answer = await services.health.Check(health_pb2.HealthCheckRequest(), metadata=metadata)
                    except grpc.aio.AioRpcError as error:
                        known = _typed_error(error) or self._status_error(error, timeout)
                        if isinstance(known, _REFUSALS) and not await self.renew_token(error, metadata):
                            raise known from None
                        said = error.details() or str(error.code())
                        if isinstance(known, Unavailable):
                            # If a host has several addresses, only some failures have the address of the server.
                            if not is_explained:
                                why = explain_failure(said, self.address, tls=self.config.tls is not None)
                                last, is_explained = f"it does not answer: {why}", why != said
                        else:
                            last = said
                    else:
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                        last = f"it says {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
                    await asyncio.sleep(_READY_POLL_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the ScanKV server at {self.address} was not ready within {timeout:g} s: {last}",
                address=self.address,
            ) from None
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise

    async def aclose(self) -> None:
        """Cancels all calls in flight and closes the connections. Idempotent."""
        if not self._connections:
            return
        connections = {self.services, *self._replaced}.union(*self._connections.values())
        channels = [each.channel for each in connections]
        # gRPC ends its threads, so that the process may fork, only when nothing refers to its objects any more.
        self._connections.clear()
        self._owner.release()
        self._closed.set()
        for channel in channels:
            await channel.close(None)

    def _raise_if_closed(self) -> None:
        """Raises UsageError if the client was closed, which gRPC reports like a cancellation of the caller's task."""
        if not self._connections and not _task_is_cancelled():
            raise UsageError(
                f"the client of {self.address} was closed while it was being used", address=self.address
            ) from None


class _FixedMetadata(grpc.aio.Metadata):
    """Metadata that many calls send. Immutable.

    gRPC would make an object of its own class for each call, which takes 2 us with reading it; this one takes 0.4 us.
    """

    def __init__(self, pairs: tuple[tuple[str, str], ...]) -> None:
        super().__init__(*pairs)
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Any:  # noqa: ANN401  # gRPC's type, and that of its stub, are not the same
        return iter(self._pairs)


class _Credentials:
    """The certificates of one client, read again for each new connection.

    Attributes:
        tls: Where the certificates are.
    """

    def __init__(self, tls: Tls) -> None:
        """Reads the certificates. Raises UsageError if one of them cannot be used."""
        self.tls = tls
        self._certificates = read_certificates(tls)
        self._credentials = _channel_credentials(self._certificates)

    def current(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a new connection."""
        # While files are being replaced, they may be missing, or not belong together.
        with suppress(UsageError):
            certificates = read_certificates(self.tls)
            if certificates != self._certificates:
                self._credentials = _channel_credentials(certificates)
                self._certificates = certificates
        return self._credentials


def _channel_credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(certificates.roots, certificates.key, certificates.chain)


class _SerializedCalls:
    """Makes the calls of stubs over a channel. A call with one answer takes its message, or the serialized message."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.unary_stream: Any = channel.unary_stream
        self._channel: Any = channel

    def unary_unary(self, method: str, *, request_serializer: Callable[[Any], bytes], **options: Any) -> Any:  # noqa: ANN401
        """Returns a call, as `Channel.unary_unary` does."""

        def serialize(message: Any) -> bytes:  # noqa: ANN401  # gRPC has no type
            return message if isinstance(message, bytes) else request_serializer(message)

        return self._channel.unary_unary(method, request_serializer=serialize, **options)


class _Services:
    """A channel and the calls over it. When the object is dropped, the channel closes and cancels its calls."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.streams: int = 0
        calls: Any = _SerializedCalls(channel)
        self.backups: BackupServiceAsyncStub = BackupServiceStub(calls)
        self.consumers: ConsumerServiceAsyncStub = ConsumerServiceStub(calls)
        self.admin: AdminServiceAsyncStub = AdminServiceStub(calls)
        self.health: health_pb2_grpc.HealthStub = health_pb2_grpc.HealthStub(channel)
        self.locks: LockServiceAsyncStub = LockServiceStub(calls)
        self.lookups: LookupServiceAsyncStub = LookupServiceStub(calls)
        self.partitions: PartitionServiceAsyncStub = PartitionServiceStub(calls)
        self.scans: ScanServiceAsyncStub = ScanServiceStub(calls)
        # Replaces the method of the stub, whose messages hold copies of the rows.
        self.scan_kv: grpc.aio.UnaryStreamMultiCallable[ScanKvRequest, ScanMessage] = channel.unary_stream(
            f"/{SCAN.services_by_name['ScanService'].full_name}/ScanKv",
            request_serializer=ScanKvRequest.SerializeToString,
            response_deserializer=ScanMessage.from_bytes,
        )
        self.snapshots: SnapshotServiceAsyncStub = SnapshotServiceStub(calls)
        self.tables: TableServiceAsyncStub = TableServiceStub(calls)
        self.bootstraps: BootstrapServiceAsyncStub = BootstrapServiceStub(calls)
        self.transactions: TransactionServiceAsyncStub = TransactionServiceStub(calls)
        self.writes: WriteServiceAsyncStub = WriteServiceStub(calls)

    def stream(self, call: _Call) -> _Call:
        """Counts a call without a time limit until it ends."""
        self.streams += 1
        # Weak, because the call is part of a reference cycle, and dropping this object must close the channel.
        counter = weakref.ref(self)

        def uncount(_: object) -> None:
            if (services := counter()) is not None:
                services.streams -= 1

        call.add_done_callback(uncount)
        return call


class StreamCall(Generic[_Response]):
    """One attempt of a scan, or of a check. Dropping the object cancels the call at once, from any thread.

    gRPC's own call object does not do that, because it is part of a reference cycle.
    """

    def __init__(
        self,
        transport: Transport,
        services: _Services,
        start: Callable[[Metadata], grpc.aio.UnaryStreamCall[Any, _Response]],
        message_type: type[_Response],
    ) -> None:
        self._transport = transport
        self._services = services
        self._metadata = transport.call_metadata()
        self._call = start(self._metadata)
        # Makes the call again, unless a message has come. None: a message has come, or it was made again.
        self._restart: Callable[[Metadata], grpc.aio.UnaryStreamCall[Any, _Response]] | None = start
        self._was_accepted = False
        self._message_type = message_type
        self._loop = asyncio.get_running_loop()
        # gRPC cancels the call if a coroutine that reads from it is cancelled. Holds only gRPC's object.
        self._next: ContinuedStep[Any] = ContinuedStep()

    def __del__(self) -> None:
        if hasattr(self, "_loop"):
            self.drop()

    def drop(self) -> None:
        """Cancels the call unless it has ended, from any thread, as dropping the object does."""
        call = self._call
        if call.done():
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
        """Waits for the next message; None after the last one. A read that is cancelled leaves its message to the next.

        Args:
            timeout: Seconds to wait. None: without a limit.

        Raises:
            DeadlineExceeded: No message came in time.
            ScanKvError: The server's error, or the failure of the connection.
        """
        try:
            async with PatientTimeout(timeout):
                message = await self._read()
        except TimeoutError:
            # Its traceback would keep the call, and so the connection, as long as a caller keeps the error.
            message = _NOTHING
            self.cancel()
        except grpc.aio.AioRpcError as error:
            if self._was_accepted and await self._transport.renew_token(error, self._metadata):
                # The server has ended a stream whose token is no longer valid. Another one may continue.
                raise Unavailable(
                    f"the ScanKV server at {self._transport.address} has ended the stream, because its token is no "
                    "longer valid; there is a new one",
                    address=self._transport.address,
                ) from error
            raise self._transport.error_from(error, self._services, timeout or 0) from None
        if message is _NOTHING:
            if (timeout or 0) >= self._transport.config.min_silence:
                self._transport.replace(self._services)
            address = self._transport.address
            raise DeadlineExceeded(
                f"the ScanKV server at {address} sent nothing for {readable_seconds(timeout or 0)} s", address=address
            )
        decoded = _check_decoded(message, self._transport.address)
        # At the end, gRPC returns a marker of another type.
        return decoded if isinstance(decoded, self._message_type) else None

    async def _read(self) -> Any:  # noqa: ANN401  # a message, or gRPC's marker of the end
        try:
            message = await self._next.wait(lambda: _read_from(self._call))
        except grpc.aio.AioRpcError as error:
            if self._restart is None or not await self._transport.renew_token(error, self._metadata):
                raise
            start, self._restart = self._restart, None
            self._metadata = self._transport.call_metadata()
            self._call = start(self._metadata)
            message = await self._next.wait(lambda: _read_from(self._call))
        self._restart = None
        self._was_accepted = True
        return message

    def cancel(self) -> None:
        """Ends the call, so that the server frees what it holds for it. Idempotent."""
        self._call.cancel()


def _announce(metadata: Metadata, size: int) -> tuple[tuple[str, str], ...]:
    """Adds the size of a message to the metadata of its call, which is the same for all small messages."""
    return (*(metadata or ()), (MESSAGE_BYTES, str(max(size, SMALL_MESSAGE_BYTES))))


def _join(metadata: Metadata, headers: Headers) -> Metadata:
    return (*(metadata or ()), *headers) if headers else metadata


ScanCall: TypeAlias = StreamCall[ScanMessage]
"""One attempt of a scan, which is one `ScanKv` call."""


def _check_decoded(message: _Response | None, address: str) -> _Response:
    if message is None:  # gRPC logs a message that it cannot parse, and returns None.
        raise ProtocolViolation(
            f"{address} sent a message that cannot be read; is it a ScanKV server?", address=address
        )
    return message


def _typed_error(error: grpc.aio.AioRpcError) -> ScanKvError | None:
    """Returns the server's error, from the details of the status. None if the details have no known error."""
    metadata: Any = error.trailing_metadata()
    return typed_error_of(metadata.get(_DETAILS_KEY, b""))


async def _response_of(call: grpc.aio.UnaryUnaryCall[_Request, _Response]) -> _Response:
    await _wait_for_end(call)
    return await call


async def _wait_for_end(call: grpc.aio.Call) -> None:
    """Waits for the end of a call outside of gRPC's tasks, which lose anyio's marks of a cancelled scope."""
    ended = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():  # The wait may have been cancelled.
            ended.set_result(None)

    call.add_done_callback(end)
    try:
        await ended
    except asyncio.CancelledError:
        call.cancel()
        raise


async def _read_from(call: grpc.aio.UnaryStreamCall[Any, _Response]) -> Any:  # noqa: ANN401  # as `StreamCall._read`
    return await call.read()


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
