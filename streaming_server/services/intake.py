"""Receives requests: one message per call, bounded in memory and time, parsed or refused with a typed error.

Rule: every message costs the server a bounded amount of memory and of time on its event loop, even before anything is
known about it. gRPC's own handlers receive and parse a message before our code runs. So this module registers each
handler as one that reads its message itself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from scankv.model.errors import InvalidRequest, ScanKvError, ServerBusy, TooManyScans
from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.access.callers import STREAM_CALLER
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL
from streaming_server.scan.admission.memory_pressure import MemoryPressure
from streaming_server.scan.admission.unread_answers import UnreadAnswer, UnreadAnswers
from streaming_server.services.call_handlers import CallHandlers
from streaming_server.services.calls import Calls
from streaming_server.services.errors import end_with
from streaming_server.services.message_shape import check_shape
from streaming_server.services.permissions import permission_of
from streaming_server.services.prompt_turns import PromptTurns
from streaming_server.services.routing import Forward

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from google.protobuf.message import Message

    from streaming_server.access.callers import CallerIdentity
    from streaming_server.scan.admission.chunk_turns import ChunkTurns
    from streaming_server.services.audit import AuditedCall
    from streaming_server.services.authorization import CallGuard
    from streaming_server.services.routing import Route, Router

MAX_MESSAGE_BYTES: Final = MAX_REQUEST_BYTES + 64 * 1024
"""The most bytes of one message: the Arrow data of a request and its other fields."""

WINDOW_BYTES: Final = 64 * 1024
"""The receive window of a stream: how many bytes gRPC receives of a call before its handler reads. A message that fits
is not counted against the memory for requests, because the limit of calls per connection bounds their number."""

_PROMPT_CALLS: Final = 4
"""How many messages may be arriving at once without a claim on the memory for requests."""

_PROMPT_SECONDS: Final = 0.02
"""How long a message may be arriving without a claim. Then it claims the memory of the largest message, or is refused.
So the bytes that arrive without a claim are bounded by the speed of the network."""

_PROMPT_SECONDS_IN_QUEUE: Final = 0.005
"""The same for a message whose call had to wait for others. If it is small, it has arrived while its call waited."""

_RETRY_SECONDS: Final = 0.25

_CALL_BYTES: Final = 4096
"""An answer of at most this size is not counted. It takes no more memory than the call itself, whose number is bounded.
"""

_OF_OPERATORS: Final = ("scankv.v1.AdminService/", "scankv.v1.SnapshotService/", "grpc.")

_LOAN: Final = "scankv.v1.SnapshotService/UseSnapshot"
"""A call for a stream of another worker, which counts that stream as one of the caller."""

_MOST_LOGGED: Final = 200  # characters of the name of a table, which the client may have made up

Context = grpc.aio.ServicerContext

if TYPE_CHECKING:
    # The request, the bytes that it claims, its caller, what counts the bytes of an answer, its line of audit, and how
    # other workers answer it.
    _Received: TypeAlias = tuple[
        Message, int, CallerIdentity | None, Callable[[int], None] | None, AuditedCall | None, Route | None
    ]


class Intake:
    """Receives the request of every call, and counts the memory of requests.

    The size of a message is unknown until it has arrived. Small messages arrive at once. A message that takes longer
    than 20 ms claims the memory of the largest message until its size is known. If too little memory is left, it is
    refused with `ServerBusy` before all of it has arrived. The claim ends with the call; for a call that streams its
    response, it ends once the message is parsed.

    Bound to the event loop.

    Attributes:
        calls: The measured calls.
        unread: The answers that clients have not taken yet.
        pressure: Whether the process has memory left for calls.
        claimed_bytes: The memory that requests of more than 64 KiB claim now.
        refused: The number of requests that were refused for lack of memory since the start.
    """

    def __init__(
        self,
        max_bytes: int,
        receive_seconds: float,
        calls: Calls | None = None,
        unread: UnreadAnswers | None = None,
        pressure: MemoryPressure | None = None,
    ) -> None:
        """Creates an intake without claims.

        Args:
            max_bytes: The most bytes of requests over 64 KiB that may be in memory at once.
            receive_seconds: The seconds after the beginning of its call within which a message must have arrived.
            calls: Measures the calls. None: an object that logs none of them.
            unread: Bounds the memory of answers. None: nothing does.
            pressure: Says when the process has too little memory left for calls. None: never.
        """
        self.calls = calls or Calls(slow_seconds=0)
        self.pressure = pressure or MemoryPressure(None)
        self.unread = unread or UnreadAnswers(sys.maxsize, 0)
        self._max_bytes = max_bytes
        self._receive_seconds = receive_seconds
        self._prompt = PromptTurns(_PROMPT_CALLS)
        self.claimed_bytes = 0
        self.refused = 0

    def guard(
        self,
        server: grpc.aio.Server,
        turns: ChunkTurns,
        access: CallGuard | None = None,
        router: Router | None = None,
    ) -> GuardedServer:
        """Returns the object to register services with instead of the server. The intake receives their requests.

        Args:
            server: The server.
            turns: Lets scans wait for calls with one response.
            access: Decides who may make which call. None: everybody may make all calls.
            router: Decides which worker process answers which call. None: this process answers all of them.
        """
        return GuardedServer(self, server, turns, access, router)

    async def receive(self, context: Context[Any, Any]) -> tuple[bytes | None, int]:
        """Receives the next message of a call.

        Returns:
            The message, and the bytes that it claims, to be passed to `release`. None: the client sends no more.

        Raises:
            ServerBusy: Too little memory is left for the message.
            InvalidRequest: The message did not arrive in time.
        """
        waited = await self._prompt.acquire(context.peer())
        receiving = _IncomingMessage(
            self, self._receive_seconds, _PROMPT_SECONDS_IN_QUEUE if waited else _PROMPT_SECONDS
        )
        began = time.perf_counter()
        try:
            message: Any = await context.read()
            if (call := CURRENT_CALL.get()) is not None:
                call.waited_seconds += time.perf_counter() - began
        except asyncio.CancelledError:
            receiving.end()
            receiving.raise_if_refused()
            raise
        except grpc.aio.BaseError as error:
            receiving.end()
            raise asyncio.CancelledError from error  # The client is gone.
        except BaseException:
            receiving.end()
            raise
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # not in its stub
            receiving.end()
            return None, 0
        return message, receiving.record_arrival(len(message))

    def claim(self, size: int) -> ServerBusy | None:
        """Claims memory for a request. Returns the refusal if too little is left; otherwise None."""
        if self.claimed_bytes + size > self._max_bytes:
            self.refused += 1
            return ServerBusy(
                f"the server has {self.claimed_bytes:,} bytes of other requests in memory, of at most "
                f"{self._max_bytes:,}: try again",
                retry_after=_RETRY_SECONDS,
            )
        self.claimed_bytes += size
        return None

    def release(self, size: int) -> None:
        """Releases claimed memory."""
        self.claimed_bytes -= size

    def _next_prompt(self) -> None:
        self._prompt.release()


class _IncomingMessage:
    """The receipt of one message: at first without a claim, and after 20 ms either with a claim or refused."""

    def __init__(self, intake: Intake, receive_seconds: float, prompt_seconds: float) -> None:
        self._intake = intake
        self._receive_seconds = receive_seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._prompt = True
        self._claimed = 0
        self._refusal: ScanKvError | None = None
        self._timer = self._loop.call_later(prompt_seconds, self._late)

    def _late(self) -> None:
        self._end_prompt()
        refusal = self._intake.claim(MAX_MESSAGE_BYTES)
        if refusal is not None:
            self._refuse(refusal)
            return
        self._claimed = MAX_MESSAGE_BYTES
        self._timer = self._loop.call_later(self._receive_seconds, self._too_late)

    def _too_late(self) -> None:
        self._refuse(InvalidRequest(f"the request did not arrive within {self._receive_seconds:g} s of its call"))

    def _refuse(self, refusal: ScanKvError) -> None:
        self._refusal = refusal
        if self._task is not None:
            self._task.cancel()

    def raise_if_refused(self) -> None:
        """Raises the refusal that caused the present cancellation; returns if something else caused it."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None and self._task is not None and self._task.uncancel() == 0:
            raise refusal from None

    def record_arrival(self, size: int) -> int:
        """Ends the receipt with a message that has arrived. Returns the bytes claimed for it."""
        claimed, self._claimed = self._claimed, 0
        self.end()
        self._intake.release(claimed)
        if size <= WINDOW_BYTES:
            return 0
        if (refusal := self._intake.claim(size)) is not None:
            raise refusal
        return size

    def end(self) -> None:
        """Ends the receipt and releases its claim, whether the message arrived or not."""
        self._timer.cancel()
        self._end_prompt()
        claimed, self._claimed = self._claimed, 0
        self._intake.release(claimed)

    def _end_prompt(self) -> None:
        if self._prompt:
            self._prompt = False
            self._intake._next_prompt()


class _AnswerMemory:
    """The memory of the answer of one call. It is released when the client has taken the answer, or is gone."""

    __slots__ = ("_context", "_counted", "_unread")

    def __init__(self, unread: UnreadAnswers, context: Context[Any, Any]) -> None:
        self._unread = unread
        self._context = context
        self._counted: UnreadAnswer | None = None

    @property
    def is_claimed(self) -> bool:
        return self._counted is not None

    def expect(self, size: int) -> None:
        self._record().expect(size)

    def claim(self, size: int, *, may_refuse: bool = True) -> None:
        self._record().claim(size, may_refuse=may_refuse)

    def _record(self) -> UnreadAnswer:
        counted = self._counted
        if counted is None:
            counted = self._counted = self._unread.answer(self._context.peer())
            # gRPC calls it once flow control has let all of the answer go. Its stub accepts no function.
            release: Any = lambda _: counted.release()  # noqa: E731
            self._context.add_done_callback(release)
        return counted


class GuardedServer:
    """Registers the handlers of generated code with the server, wrapped so that no request gets past the checks.

    A call is authenticated before its message is read. Its message is then received by the intake, parsed, and
    authorised, and only then its handler runs.
    """

    def __init__(
        self,
        intake: Intake,
        server: grpc.aio.Server,
        turns: ChunkTurns,
        access: CallGuard | None,
        router: Router | None,
    ) -> None:
        self._intake = intake
        self._turns = turns
        self._access = access
        self._router = router
        self._handlers = CallHandlers()
        server.add_generic_rpc_handlers((self._handlers,))

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing, because generated code registers the same handlers again by name."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        methods = {f"{service}/{name}": handler for name, handler in handlers.items()}
        self._handlers.add({method: self._guard(method, handler) for method, handler in methods.items()})

    def _guard(self, name: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:  # noqa: ANN401  # gRPC has no type
        intake, turns, parse = self._intake, self._turns, _parser(name, handler.request_deserializer)
        unread, router = intake.unread, self._router
        serialize = handler.response_serializer
        if router is not None and serialize is not None:
            serialize = _unless_serialized(serialize)
        # Operators look at the server, and release what takes memory.
        pressure = None if name.startswith(_OF_OPERATORS) else intake.pressure
        response_type = _response_type(name)
        permission = permission_of(name)
        access = None if permission.is_open else self._access
        audit = None if access is None else access.audit

        async def request_of(context: Context[Any, Any]) -> _Received:
            call, metadata = CURRENT_CALL.get(), CALL_METADATA.get()
            is_forwarded = router is not None and router.workers.is_forwarded(metadata)
            # What the server asks itself needs no rights.
            is_free = access is None or (router is not None and router.workers.is_of_server(metadata))
            audited = None if audit is None or call is None or is_forwarded else audit.begin(call, permission, context)
            caller, count_bytes = None, None
            try:
                if access is not None and not is_free:
                    caller = await access.authenticate(context, name)
                    if audited is not None:
                        audited.caller = caller
                    if not is_forwarded:
                        access.limiter.admit(caller)
                        count_bytes = access.limiter.byte_counter(caller)
                if pressure is not None and pressure.is_high:
                    raise pressure.refusal()
                if unread.unread_bytes:
                    unread.check(context.peer())
                data, claimed = await intake.receive(context)
                try:
                    if count_bytes is not None:
                        count_bytes(len(data or b""))
                    request = parse(data)
                    route = None if router is None else router.route(name, request, data or b"", metadata)
                    if route is not None:
                        # The workers that answer it authorise it and log it if it is slow. This one records it, since
                        # only this one sees one call, and the certificate of its client.
                        if audited is not None:
                            audited.read_request(request, len(data or b""))
                        if call is not None:
                            call.may_last = True
                        return request, claimed, caller, count_bytes, audited, route
                    if access is not None and caller is not None:
                        if audited is not None:
                            audited.read_request(request, len(data or b""))
                        # The message may have taken long.
                        caller = access.renew(caller)
                        tables = access.authorize(caller, permission, request)
                        if audited is not None:
                            audited.tables = tables
                    return request, claimed, caller, count_bytes, audited, None
                except BaseException:
                    intake.release(claimed)
                    raise
            except ScanKvError as error:
                await end_with(context, error)
                raise AssertionError("the call is over") from error

        def may_read_still(access: CallGuard, caller: CallerIdentity, request: Message) -> CallerIdentity:
            renewed = access.renew(caller)
            if renewed is not caller:
                access.authorize(renewed, permission, request)
            return renewed

        async def answer(_: object, context: Context[Any, Any]) -> bytes:
            turns.begin_call(context)
            try:
                request, claimed, caller, count_bytes, audited, route = await request_of(context)
                counted = _AnswerMemory(unread, context)
                if (call := CURRENT_CALL.get()) is not None:
                    call.answer = counted
                try:
                    handle = partial(handler.unary_unary, request) if route is None else route
                    response: Any = await handle(context)
                    try:
                        if access is not None and caller is not None and route is None:
                            if not permission.changes:
                                # The call may have waited for a change. What is written cannot be refused any more.
                                caller = may_read_still(access, caller, request)
                            access.keep_visible(caller, permission, response)
                        message: bytes = response if serialize is None else serialize(response)
                        if len(message) > _CALL_BYTES or counted.is_claimed:
                            counted.claim(len(message), may_refuse=not permission.changes)
                        if audited is not None and route is None:
                            audited.read_response(response)
                        elif audited is not None and permission.changes:
                            audited.read_response(response_type.FromString(message))
                        if count_bytes is not None:
                            count_bytes(len(message))
                    except ScanKvError as error:
                        await end_with(context, error)
                    return message
                finally:
                    del request
                    intake.release(claimed)
            except grpc.aio.AbortError as error:
                # gRPC keeps the error with the call, and the frames of its traceback refer to the call. This cycle
                # would keep the request in memory until the next garbage collection.
                error.__context__ = None
                raise error.with_traceback(None) from None
            finally:
                turns.end_call(context)

        async def stream(_: object, context: Context[Any, Any]) -> None:
            request, claimed, caller, _, _, route = await request_of(context)
            intake.release(claimed)
            if isinstance(route, Forward):
                await route.stream(context, unread)
                return
            STREAM_CALLER.set(caller)
            if access is None or caller is None or name == _LOAN:
                await handler.unary_stream(request, context)
                return
            try:
                with access.limiter.stream(caller):
                    if (call := CURRENT_CALL.get()) is not None:
                        call.stream_pace = access.limiter.stream_pace(caller)
                    await handler.unary_stream(request, context)
            except TooManyScans as error:
                # Of the limiter: handlers end their calls themselves.
                await end_with(context, error)

        async def converse(_: object, context: Context[Any, Any]) -> None:
            async for response in handler.stream_stream(requests_of(context), context):
                await context.write(response)

        async def requests_of(context: Context[Any, Any]) -> AsyncIterator[Message]:
            call = CURRENT_CALL.get()
            audited = None if audit is None or call is None else audit.begin(call, permission, context)
            try:
                while True:
                    # For each message, because the token may be revoked in the meantime.
                    caller = None if access is None else await access.authenticate(context, name)
                    if access is not None and caller is not None:
                        if audited is not None:
                            audited.caller = caller
                        access.limiter.admit(caller)
                    data, claimed = await intake.receive(context)
                    intake.release(claimed)
                    if data is None:
                        return
                    request = parse(data)
                    if access is not None and caller is not None:
                        access.authorize(access.renew(caller), permission, request)
                    yield request
            except ScanKvError as error:
                await end_with(context, error)

        measure = intake.calls.measure
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(measure(name, answer), None, None)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(measure(name, stream), None, serialize)
        return grpc.stream_stream_rpc_method_handler(measure(name, converse), None, serialize)


def _unless_serialized(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Returns a serializer that leaves what another worker has serialized already."""

    def serialize_once(message: Any) -> bytes:  # noqa: ANN401  # gRPC has no type
        return message if isinstance(message, bytes) else serialize(message)

    return serialize_once


def _response_type(name: str) -> type[Message]:
    method = descriptor_pool.Default().FindMethodByName(name.replace("/", "."))
    return message_factory.GetMessageClass(method.output_type)


def _parser(name: str, deserialize: Any) -> Callable[[bytes | None], Message]:  # noqa: ANN401  # gRPC has no type
    message_type: type[Message] = deserialize.__self__  # Generated code registers `FromString` of a message type.

    has_table = "table" in message_type.DESCRIPTOR.fields_by_name

    def parse(data: bytes | None) -> Message:
        if data is None:
            raise InvalidRequest(f"the call of {name} has no message")
        check_shape(data, message_type)
        try:
            message = message_type.FromString(data)
        except DecodeError as error:
            # A mistake of the client, so the server logs nothing.
            raise InvalidRequest(f"the message of {name} is not a protobuf message of its type") from error
        if has_table and (call := CURRENT_CALL.get()) is not None:
            call.table = message.table[:_MOST_LOGGED]  # type: ignore[attr-defined]
        return message

    return parse
