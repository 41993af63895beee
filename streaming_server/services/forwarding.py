"""Forwards calls between the worker processes of a server, as bytes that only the owner of the table decodes."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scankv.model.errors import InternalError, ScanStalled, Unavailable
from scankv.model.forwarded_peers import FORWARDED_PEER, forwarded_peer
from scankv.model.limits import MESSAGE_BYTES, MIN_CALLS_PER_CONNECTION
from scankv.model.typed_errors import typed_error_of
from streaming_server.access.owners import CALLER
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL, current_client
from streaming_server.engine.bucket.call_point import PASSED_ON
from streaming_server.services.errors import end_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scankv.model.errors import ScanKvError
    from streaming_server.current_call import Metadata
    from streaming_server.scan.admission.unread_answers import UnreadAnswer, UnreadAnswers
    from streaming_server.workers import WorkerSettings

FORWARDED: Final = "scankv-forwarded"
"""The metadata by which a worker shows that it forwards a call. Its value is the secret of the workers."""

HOLD: Final = "scankv-hold"
"""Further metadata of a worker's call: the id of the hold under which the call opens its view."""

PARK: Final = "scankv-park"
"""Further metadata of a worker's call: the ticket of the call that will read the scan."""

SCAN_ID: Final = "scankv-scan"
"""Further metadata of a worker's call: the id of the scan of which the call reads a part."""

POINT: Final = "scankv-point-bin"
"""Further metadata of a worker's call about a tablet: the `CallPoint` of the call that it is a part of."""

OF_SERVER: Final = "scankv-of-server"
"""The metadata, with the same value, by which a worker shows that it makes a call in the name of the server."""

CERTIFIED: Final = "scankv-certified"
"""Further metadata of a worker's call for a client without a token: the line of the token file that names the client's
certificate, and when the certificate ends."""

RETRY_SECONDS: Final = 0.5
"""How long a client should wait before it tries again to call a worker that does not run. A start takes some tenths
of a second, and the opening of tables longer."""

_CONNECT_SECONDS: Final = 2.0
_STALL_MARGIN_SECONDS: Final = 1.0
# gRPC reports a stream that was reset as INTERNAL. An error of a worker always has a reason.
_ABSENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
    }
)
_DETAILS_KEY: Final = "grpc-status-details-bin"
# gRPC makes these by itself for every call.
_OF_GRPC: Final = ("grpc-", ":")
_NOT_FORWARDED: Final = frozenset(
    {
        "user-agent",
        "content-type",
        "te",
        CERTIFIED,
        POINT,
        FORWARDED,
        FORWARDED_PEER,
        HOLD,
        MESSAGE_BYTES,
        OF_SERVER,
        PARK,
        SCAN_ID,
    }
)
_CALLS_PER_CONNECTION: Final = MIN_CALLS_PER_CONNECTION // 2
"""Streams may last forever, and further calls over their connection would wait for their end."""

Context = grpc.aio.ServicerContext


class Workers:
    """The workers of a server, as one of them calls the others. Bound to the event loop.

    A call that arrives with the key of the workers is never forwarded again.

    Args:
        settings: The settings of this worker.
        window_bytes: How much of a stream is received before its client has taken it.
        stall_seconds: For how long the client of a stream may take nothing.
    """

    def __init__(self, settings: WorkerSettings, window_bytes: int, stall_seconds: float) -> None:
        # The owner notices it as well, and says so in its log, before its call is cancelled.
        self._patience = stall_seconds + _STALL_MARGIN_SECONDS
        self.placement = settings.placement
        self._key, self._peer_key = settings.key, settings.peer_key
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", window_bytes),
            ("grpc.enable_retries", 0),
            # Otherwise, all channels would share one connection.
            ("grpc.use_local_subchannel_pool", 1),
            # A worker that is back is noticed at once: connecting costs nothing here.
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
            ("grpc.max_metadata_size", 32 * 1024),
        ]
        self._connections = [
            _Connections(settings.address_of(number), options) for number in range(settings.placement.workers)
        ]

    def __len__(self) -> int:
        return len(self._connections)

    async def connect(self) -> None:
        """Connects to all workers. Gives up those that do not listen within a few seconds.

        Without it, a call right after the start could fail, because gRPC waits after an attempt that came too early.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.gather(*(connections.connect() for connections in self._connections))

    def is_forwarded(self, metadata: Metadata) -> bool:
        """Whether a worker of this server makes a call, in the name of a client or of the server."""
        return self._has_key(metadata, FORWARDED) or self.is_of_server(metadata)

    def is_of_server(self, metadata: Metadata) -> bool:
        """Whether a worker of this server makes a call in the name of the server, which may do everything."""
        return self._has_key(metadata, OF_SERVER)

    def _has_key(self, metadata: Metadata, wanted: str) -> bool:
        given = next((value for name, value in metadata if name == wanted), "")
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self._key.encode())

    async def ask(
        self,
        number: int,
        method: str,
        request: bytes,
        timeout: float | None,
        *,
        of_server: bool = False,
        hold_id: str = "",
        point: bytes = b"",
    ) -> bytes:
        """Makes a call with one answer to a worker, possibly this one, in the name of the caller of the current call.

        Args:
            number: The worker.
            method: The method, as `package.Service/Method`.
            request: The serialized request.
            timeout: The seconds that are left. None: no limit.
            of_server: Whether to make the call in the name of the server instead, which may do everything.
            hold_id: The hold under which the call opens its view. Empty: none.
            point: The point of the call, if it is about a tablet. Empty: none.

        Raises:
            grpc.aio.AioRpcError: The answer of the worker is an error, or it does not run.
        """
        with self._connections[number].use() as channel:
            call = channel.unary_unary(f"/{method}", _as_it_is, _as_it_is)
            metadata = self._metadata(of_server=of_server, hold_id=hold_id, point=point, size=len(request))
            answer: bytes = await call(request, metadata=metadata, timeout=timeout)
            return answer

    async def relay(
        self, number: int, method: str, request: bytes, context: Context[Any, Any], unread: UnreadAnswers
    ) -> None:
        """Makes a streaming call to a worker, and gives its messages to the client, as fast as it takes them.

        If the client takes nothing for the stall timeout, the call to the worker is cancelled, so that only one message
        stays in memory until the client takes it or is gone.

        Raises:
            grpc.aio.AioRpcError: As `ask`.
            ScanStalled: The client has taken nothing for the stall timeout.
        """
        with self.open(number, method, request, context.time_remaining(), point=PASSED_ON) as call:
            try:
                async for message in call:
                    with self.patient(call.cancel, unread.answer(context.peer()), len(message)):
                        await context.write(message)
            except grpc.aio.BaseError as error:
                # The client is gone, as in `map_errors`.
                raise asyncio.CancelledError from error

    @contextmanager
    def open(
        self,
        number: int,
        method: str,
        request: bytes,
        timeout: float | None = None,
        *,
        hold_id: str = "",
        ticket: str = "",
        scan_id: str = "",
        point: bytes = b"",
    ) -> Iterator[grpc.aio.UnaryStreamCall[bytes, bytes]]:
        """Makes a streaming call to a worker for the length of the block, in the name of the current caller.

        Args:
            number: The worker.
            method: The method, as `package.Service/Method`.
            request: The serialized request.
            timeout: The seconds that are left. None: no limit.
            hold_id: The hold under which the call opens its view. Empty: none.
            ticket: The ticket of the call that will read the stream. Empty: this call reads it.
            scan_id: The scan that the call reads a part of. Empty: none.
            point: The point of the call, if it is about a tablet. Empty: none.
        """
        with self._connections[number].use() as channel:
            stream = channel.unary_stream(f"/{method}", _as_it_is, _as_it_is)
            metadata = self._metadata(hold_id=hold_id, ticket=ticket, scan_id=scan_id, point=point, size=len(request))
            call = stream(request, metadata=metadata, timeout=timeout)
            try:
                yield call
            finally:
                call.cancel()

    @contextmanager
    def patient(self, cancel: Callable[[], object], answer: UnreadAnswer, size: int) -> Iterator[None]:
        """Limits the time of a block that writes a message. If the block takes too long, calls `cancel`.

        Args:
            cancel: Ends the source of the message.
            answer: Counts the message as unread, once the block has taken too long.
            size: The bytes of the message.

        Raises:
            ScanStalled: The block took too long.
        """
        is_stalled = False

        def stall() -> None:
            nonlocal is_stalled
            is_stalled = True
            cancel()
            answer.claim(size, may_refuse=False)

        # A write cannot be given up: gRPC would lose the status that follows it.
        timer = asyncio.get_running_loop().call_later(self._patience, stall)
        try:
            yield
        finally:
            timer.cancel()
            answer.release()
        if is_stalled:
            raise ScanStalled(
                f"the reader took nothing for {self._patience:g} s (stall_timeout_seconds), so the server ended the "
                "stream: resume it, or read faster"
            )

    def _metadata(
        self,
        *,
        of_server: bool = False,
        hold_id: str = "",
        ticket: str = "",
        scan_id: str = "",
        point: bytes = b"",
        size: int,
    ) -> tuple[tuple[str, str | bytes], ...]:
        point_of_call: tuple[tuple[str, str | bytes], ...] = ((POINT, point),) if point else ()
        decided = (*point_of_call, (MESSAGE_BYTES, str(size)))
        if of_server:
            return ((OF_SERVER, self._key), *decided)
        given = [
            (name, value)
            for name, value in CALL_METADATA.get()
            if name not in _NOT_FORWARDED and not name.startswith(_OF_GRPC)
        ]
        held = tuple((name, value) for name, value in ((HOLD, hold_id), (PARK, ticket), (SCAN_ID, scan_id)) if value)
        peer = forwarded_peer(self._peer_key, current_client())
        return ((FORWARDED, self._key), *held, *decided, peer, *_certified(), *given)

    def hold_of(self, metadata: Metadata) -> str:
        """Returns the id of the hold under which a call of a worker opens its view. Empty: none."""
        return self._given(metadata, HOLD)

    def ticket_of(self, metadata: Metadata) -> str:
        """Returns the ticket of the call that will read the stream of a call of a worker. Empty: that call itself."""
        return self._given(metadata, PARK)

    def scan_of(self, metadata: Metadata) -> str:
        """Returns the id of the scan that a call of a worker reads a part of. Empty: none."""
        return self._given(metadata, SCAN_ID)

    def point_of(self, metadata: Metadata) -> bytes:
        """Returns the point of the call that a worker's call is a part of. Empty: it has none."""
        return next((value for name, value in metadata if name == POINT and isinstance(value, bytes)), b"")

    def _given(self, metadata: Metadata, wanted: str) -> str:
        given = next((value for name, value in metadata if name == wanted), "")
        return given if isinstance(given, str) and self.is_forwarded(metadata) else ""

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(each.close() for each in self._connections))


class _Connections:
    """The connections to one worker. A connection carries a bounded number of calls."""

    def __init__(self, address: str, options: Sequence[tuple[str, int]]) -> None:
        self._address = address
        self._options = options
        self._calls: dict[grpc.aio.Channel, int] = {}

    @contextmanager
    def use(self) -> Iterator[grpc.aio.Channel]:
        """Yields a connection for one call; makes another one if all are in use."""
        free = (channel for channel, calls in self._calls.items() if calls < _CALLS_PER_CONNECTION)
        channel = next(free, None) or grpc.aio.insecure_channel(self._address, options=self._options)
        self._calls[channel] = self._calls.get(channel, 0) + 1
        try:
            yield channel
        finally:
            if channel in self._calls:
                self._calls[channel] -= 1

    async def connect(self) -> None:
        """Waits until there is a connection."""
        with self.use() as channel:
            await channel.channel_ready()

    async def close(self) -> None:
        channels, self._calls = list(self._calls), {}
        for channel in channels:
            await channel.close(None)


def _certified() -> tuple[tuple[str, str], ...]:
    caller = CALLER.get()
    if caller is None or caller.certificate_ends is None:
        return ()
    return ((CERTIFIED, f"{caller.token_id} {caller.certificate_ends!r}"),)


def certified_in(metadata: Metadata) -> tuple[str, float] | None:
    """Returns the line of the token file for a certificate, and when it ends, from the metadata of a worker's call."""
    for name, value in metadata:
        if name == CERTIFIED and isinstance(value, str):
            id_, _, ends = value.partition(" ")
            return id_, float(ends)
    return None


def _as_it_is(message: bytes) -> bytes:
    return message


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Returns the reason of the error with which a worker has answered. Empty: it has not answered."""
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(status_in(error)).details:
        if detail.Unpack(info):
            return str(info.reason)
    return ""


def status_in(error: grpc.aio.AioRpcError) -> bytes:
    """Returns the serialized google.rpc.Status of the error with which a worker has answered; empty without one."""
    found = next((value for name, value in _trailing(error) if name == _DETAILS_KEY), b"")
    return found if isinstance(found, bytes) else found.encode()


def is_absent(error: grpc.aio.AioRpcError) -> bool:
    """Whether a worker has not answered, because it does not run or is frozen."""
    return error.code() in _ABSENT and not reason_of(error)


def absence_of(error: grpc.aio.AioRpcError, number: int, what: str) -> Unavailable:
    """Returns the error to report for a worker that has not answered.

    Args:
        error: The error of the call.
        number: The worker.
        what: What the worker owns, for the message.
    """
    is_down = error.code() is grpc.StatusCode.UNAVAILABLE
    state = "does not run, and is started again" if is_down else "does not answer"
    return Unavailable(
        f"worker {number} of the server, which owns {what}, {state}: try again", retry_after=RETRY_SECONDS
    )


def error_of(error: grpc.aio.AioRpcError, number: int, what: str) -> ScanKvError:
    """Returns the error of a worker, to be raised here. Arguments as for `absence_of`."""
    typed = typed_error_of(status_in(error))
    if typed is None and is_absent(error):
        return absence_of(error, number, what)
    return typed or InternalError(f"worker {number} of the server failed; its log has the cause")


async def end_as(context: Context[Any, Any], error: grpc.aio.AioRpcError, number: int, what: str) -> NoReturn:
    """Ends a call with the error of a worker. Raises the exception by which gRPC ends handlers.

    Args:
        context: The call.
        error: The error.
        number: The worker.
        what: What the worker owns, for the message.
    """
    if is_absent(error):
        await end_with(context, absence_of(error, number, what))
    if (call := CURRENT_CALL.get()) is not None:
        call.error = reason_of(error)
    details = tuple((name, value) for name, value in _trailing(error) if name == _DETAILS_KEY)
    await context.abort(error.code(), error.details() or "", trailing_metadata=details)
    raise AssertionError("the call is over")


def _trailing(error: grpc.aio.AioRpcError) -> Iterable[tuple[str, str | bytes]]:
    metadata: Any = error.trailing_metadata()
    return tuple(metadata or ())
