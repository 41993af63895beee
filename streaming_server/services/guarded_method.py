"""Wraps the handlers of generated code, so that no request gets past the checks.

A call is authenticated before its message is read. Its message is then received by the intake, parsed, and authorised,
and only then its handler runs, or another worker answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from scankv.model.errors import InvalidRequest, PermissionDenied, ScanKvError, TooManyScans
from streaming_server.access.callers import ANYBODY, STREAM_CALLER
from streaming_server.access.owners import CALLER, NAMED_OWNER, check_named_owner
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.services.call_activity import CallActivity
from streaming_server.services.call_handlers import CallHandlers
from streaming_server.services.claims import NO_CLAIM, MemoryClaim, Sender
from streaming_server.services.errors import end_with
from streaming_server.services.intake import OpenIntake, announced_bytes
from streaming_server.services.message_shape import check_shape
from streaming_server.services.permissions import ids_in, permission_of
from streaming_server.services.routes import SERVICE, StreamRoute
from streaming_server.services.tablets.joined_calls import JoinedCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from google.protobuf.message import Message

    from streaming_server.access.callers import CallerIdentity
    from streaming_server.activity import Activity
    from streaming_server.scan.admission.chunk_turns import ChunkTurns
    from streaming_server.scan.admission.unread_answers import UnreadAnswer, UnreadAnswers
    from streaming_server.services.audit import AuditedCall
    from streaming_server.services.authorization import CallGuard
    from streaming_server.services.connection_watch import ConnectionWatch
    from streaming_server.services.intake import Intake
    from streaming_server.services.routes import Route
    from streaming_server.services.routing import Router

_CALL_BYTES: Final = 4096
"""An answer of at most this size is not counted. It takes no more memory than the call itself, whose number is bounded.
"""

_OF_OPERATORS: Final = ("scankv.v1.AdminService/", "scankv.v1.SnapshotService/", "grpc.")

_LOAN: Final = "scankv.v1.SnapshotService/UseSnapshot"
"""A call for a stream of another worker, which counts that stream as one of the caller."""

_MOST_LOGGED: Final = 200  # characters of the name of a table, which the client may have made up

Context = grpc.aio.ServicerContext


class GuardedServer:
    """Registers the handlers of generated code with the server, each as a `_GuardedMethod`."""

    def __init__(
        self,
        intake: Intake,
        server: grpc.aio.Server,
        turns: ChunkTurns,
        access: CallGuard | None,
        router: Router | None,
        connections: ConnectionWatch,
        activity: Activity,
    ) -> None:
        self._intake = intake
        self._activity = activity
        self._open_intake = OpenIntake(connections)
        self._connections = connections
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
        self._handlers.add(
            {
                name: _GuardedMethod(
                    name,
                    handler,
                    self._intake,
                    self._open_intake,
                    turns=self._turns,
                    access=self._access,
                    router=self._router,
                    connections=self._connections,
                    activity=self._activity,
                ).registered
                for name, handler in methods.items()
            }
        )


@dataclass(slots=True)
class _ArrivedCall:
    """A call whose message has arrived.

    Attributes:
        audited: Its line in the audit log. None: it gets none here.
        is_forwarded: Whether another worker makes it.
        caller: Who makes the call. None: the call is open to all callers, or another worker has checked the caller.
        count_bytes: Counts bytes against the limits of the caller.
        request: The message.
        claimed: The memory that it claims.
        route: How other workers answer it. None: this one does.
        ends_decided: Whether the point of its call is checked again before it is answered.
    """

    audited: AuditedCall | None
    is_forwarded: bool = False
    caller: CallerIdentity | None = None
    count_bytes: Callable[[int], None] | None = None
    request: Any = None
    claimed: MemoryClaim = NO_CLAIM
    route: Route | None = None
    ends_decided: bool = False


class _GuardedMethod:
    """One method of a service, as gRPC calls it.

    Args:
        name: The method, as `package.Service/Method`.
        handler: The handler of generated code.
        intake: Receives messages.
        open_intake: Receives the messages of calls that are open to all callers.
        turns: Has calls yield to streams.
        access: Authenticates and authorises callers. None: anyone may call.
        router: Finds the workers that answer a call. None: this process does.
        connections: Ends the connections without authenticated calls.
        activity: Counts the calls of clients.

    Attributes:
        registered: The handler to register.
    """

    def __init__(
        self,
        name: str,
        handler: Any,  # noqa: ANN401  # gRPC has no type
        intake: Intake,
        open_intake: Intake,
        *,
        turns: ChunkTurns,
        access: CallGuard | None,
        router: Router | None,
        connections: ConnectionWatch,
        activity: Activity,
    ) -> None:
        self._name = name
        self._handler = handler
        self._intake = intake
        self._connections = connections
        self._turns = turns
        self._router = router
        self._parse = _parser(name, handler.request_deserializer)
        self._serialize: Callable[[Any], bytes] | None = handler.response_serializer
        if router is not None and self._serialize is not None:
            self._serialize = _unless_serialized(self._serialize)
        # Operators look at the server, and release what takes memory.
        self._pressure = None if name.startswith(_OF_OPERATORS) else intake.pressure
        self._response_type = _response_type(name)
        self._method = name.removeprefix(SERVICE)
        counted = CallActivity(self._method, activity)
        self._counted = counted if counted.is_counted else None
        self._permission = permission_of(name)
        self._messages = open_intake if self._permission.is_open else intake
        # Without tokens, all callers are as well known.
        self._authenticates = not self._permission.is_open or access is None or not access.asks_for_tokens
        self._access = None if self._permission.is_open else access
        self._audit = None if access is None else access.audit
        self.registered = self._register()

    def _register(self) -> grpc.RpcMethodHandler[Any, Any]:
        measure = self._intake.calls.measure
        if self._handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(measure(self._name, self._answer), None, None)
        work = self._stream if self._handler.unary_stream is not None else self._converse
        return grpc.stream_stream_rpc_method_handler(measure(self._name, work), None, self._serialize)

    async def _receive(self, context: Context[Any, Any]) -> _ArrivedCall:
        """Receives the only message of a call. Ends the call if it is refused."""
        metadata, router = CALL_METADATA.get(), self._router
        is_forwarded = router is not None and router.workers.is_forwarded(metadata)
        received = _ArrivedCall(None if is_forwarded else self._begin_audit(context), is_forwarded)
        try:
            await self._check_caller(received, context, is_forwarded=is_forwarded)
            if self._pressure is not None and self._pressure.is_high:
                raise self._pressure.refusal()
            if self._intake.unread.unread_bytes:
                self._intake.unread.check(context.peer())
            if router is not None and (hold_id := router.hold_of(metadata)):
                CURRENT_HOLD.set(router.tables.holds.find(hold_id))
            data, received.claimed = await self._messages.receive(
                context, _sender(received, context, is_forwarded=is_forwarded), announced_bytes(metadata)
            )
            try:
                self._read(received, data, metadata)
            except BaseException:
                self._messages.release(received.claimed)
                raise
        except ScanKvError as error:
            await end_with(context, error)
            raise AssertionError("the call is over") from error
        return received

    def _begin_audit(self, context: Context[Any, Any]) -> AuditedCall | None:
        """Begins the line of a call in the audit log, if there is one."""
        call = CURRENT_CALL.get()
        return None if self._audit is None or call is None else self._audit.begin(call, self._permission, context)

    async def _check_caller(self, received: _ArrivedCall, context: Context[Any, Any], *, is_forwarded: bool) -> None:
        """Checks the token of a call, or the key of the workers, and counts the call. No message is received before.

        Raises:
            Unauthenticated: The call has no valid token.
            PermissionDenied: Only the server itself may make the call, or use its socket.
            ServerBusy: The caller makes too many calls.
        """
        permission, access, router = self._permission, self._access, self._router
        # A call that reaches something with an owner by a way that does not set its caller then fails.
        CALLER.set(ANYBODY if access is None else None)
        if not is_forwarded:
            if context.peer().startswith("unix"):
                raise PermissionDenied("this socket is for the server itself: use the port of the server")
            if access is not None:
                await self._admit(access, received, context, is_forwarded=False)
            elif self._authenticates:
                self._connections.record_call(context.peer())
            if permission.of_workers:
                raise PermissionDenied("only the processes of the server itself can make this call: use another one")
        elif access is not None and router is not None:
            if router.workers.is_of_server(CALL_METADATA.get()):
                # What the server asks itself needs no rights.
                CALLER.set(ANYBODY)
            elif permission.requirements:
                await self._admit(access, received, context, is_forwarded=True)
            else:
                # A part of a call of a client, which may be about what belongs to a principal.
                CALLER.set(await access.authenticate(context, self._name, is_forwarded=True))

    async def _admit(
        self, access: CallGuard, received: _ArrivedCall, context: Context[Any, Any], *, is_forwarded: bool
    ) -> None:
        """Authenticates the caller, and counts the call against its limits unless another worker has."""
        if is_forwarded:
            received.caller = await access.authenticate(context, self._name, is_forwarded=True)
        else:
            peer = context.peer()
            with self._connections.authenticating(peer):
                received.caller = await access.authenticate(context, self._name, is_forwarded=False)
            # Before its limits are looked at: who is at a limit is known all the same.
            self._connections.record_call(peer)
        CALLER.set(received.caller)
        if received.audited is not None:
            received.audited.caller = received.caller
        if not is_forwarded:
            access.limiter.admit(received.caller)
            received.count_bytes = access.limiter.byte_counter(received.caller)

    def _read(self, received: _ArrivedCall, data: bytes | None, metadata: Any) -> None:  # noqa: ANN401  # as gRPC's
        """Parses a message, and finds out who answers it. Authorises it if this process does."""
        size = len(data or b"")
        if received.count_bytes is not None:
            received.count_bytes(size)
        request = received.request = self._parse(data)
        if self._router is not None:
            received.route = self._router.route(self._name, request, data or b"", metadata)
            if received.route is None and received.is_forwarded:
                received.ends_decided = self._router.point_check.begin(self._method, request, metadata)
        is_guarded = self._access is not None and received.caller is not None
        if received.audited is not None and (received.route is not None or is_guarded):
            received.audited.read_request(request, size)
        if received.route is not None:
            # The workers that answer it authorise it and log it if it is slow. This one records it, since only this one
            # sees one call, and the certificate of its client.
            if (call := CURRENT_CALL.get()) is not None:
                call.may_last = True
        if received.route is None or isinstance(received.route, JoinedCall):
            self._authorize(received)
            if self._permission.owner_field:
                named, table = ids_in(request, [self._permission.owner_field, self._permission.owner_table])
                NAMED_OWNER.set(check_named_owner(named, filter(None, [table])))

    def _authorize(self, received: _ArrivedCall) -> None:
        """Checks that a call that this process answers may be made."""
        if self._access is None or received.caller is None:
            return
        # The message may have taken long.
        received.caller = self._access.renew(received.caller)
        CALLER.set(received.caller)
        tables = self._access.authorize(received.caller, self._permission, received.request)
        if received.audited is not None:
            received.audited.tables = tables

    async def _answer(self, _: object, context: Context[Any, Any]) -> bytes:
        self._turns.begin_call(context)
        try:
            received = await self._receive(context)
            memory = _AnswerMemory(self._intake.unread, context)
            if (call := CURRENT_CALL.get()) is not None:
                call.answer = memory
            # A call of a worker is a part of one that has arrived elsewhere.
            counted = None if self._counted is None or received.is_forwarded else self._counted.begin(received.request)
            try:
                if received.route is None:
                    response: Any = await self._handler.unary_unary(received.request, context)
                else:
                    response = await received.route(context)
                try:
                    message = self._finish(received, response, memory)
                    if counted is not None:
                        counted()
                    return message
                except ScanKvError as error:
                    await end_with(context, error)
                    raise AssertionError("the call is over") from error
            finally:
                self._messages.release(received.claimed)
                del received
        except grpc.aio.AbortError as error:
            # gRPC keeps the error with the call, and the frames of its traceback refer to the call. This cycle would
            # keep the request in memory until the next garbage collection.
            error.__context__ = None
            raise error.with_traceback(None) from None
        finally:
            self._turns.end_call(context)

    def _finish(self, received: _ArrivedCall, response: Any, memory: _AnswerMemory) -> bytes:  # noqa: ANN401
        """Returns the answer of a call as bytes, without what its caller may not see."""
        permission, audited = self._permission, received.audited
        if received.ends_decided and self._router is not None:
            self._router.point_check.end(received.request)
        if self._access is not None and received.caller is not None and received.route is None:
            if not permission.changes:
                # The call may have waited for a change. What is written cannot be refused any more.
                received.caller = self._renew(self._access, received.caller, received.request)
            self._access.keep_visible(received.caller, permission, response)
        message: bytes = response if self._serialize is None else self._serialize(response)
        if len(message) > _CALL_BYTES or memory.is_claimed:
            memory.claim(len(message), may_refuse=not permission.changes)
        if audited is not None and received.route is None:
            audited.read_response(response)
        elif audited is not None and permission.changes:
            audited.read_response(self._response_type.FromString(message))
        if received.count_bytes is not None:
            received.count_bytes(len(message))
        return message

    def _renew(self, access: CallGuard, caller: CallerIdentity, request: Message) -> CallerIdentity:
        """Returns the caller with its rights as they are now. Raises if it may not make the call any more."""
        renewed = access.renew(caller)
        if renewed is not caller:
            access.authorize(renewed, self._permission, request)
        return renewed

    async def _stream(self, _: object, context: Context[Any, Any]) -> None:
        received = await self._receive(context)
        self._messages.release(received.claimed)
        if received.route is not None:
            # Only calls about a table have streams.
            assert isinstance(received.route, StreamRoute)
            await received.route.stream(context, self._intake.unread)
            return
        request, caller, access = received.request, received.caller, self._access
        STREAM_CALLER.set(caller)
        if access is None or caller is None or self._name == _LOAN:
            await self._handler.unary_stream(request, context)
            return
        try:
            with access.limiter.stream(caller):
                if (call := CURRENT_CALL.get()) is not None:
                    call.stream_pace = access.limiter.stream_pace(caller)
                await self._handler.unary_stream(request, context)
        except TooManyScans as error:
            # Of the limiter: handlers end their calls themselves.
            await end_with(context, error)

    async def _converse(self, _: object, context: Context[Any, Any]) -> None:
        async for response in self._handler.stream_stream(self._requests(context), context):
            await context.write(response)

    async def _requests(self, context: Context[Any, Any]) -> AsyncIterator[Message]:
        """Yields the messages of a call that has several."""
        access, received = self._access, _ArrivedCall(self._begin_audit(context))
        try:
            while True:
                # For each message, because the token may be revoked in the meantime.
                await self._check_caller(received, context, is_forwarded=False)
                data, claimed = await self._messages.receive(context, _sender(received, context, is_forwarded=False))
                self._messages.release(claimed)
                if data is None:
                    return
                request = self._parse(data)
                if access is not None and received.caller is not None:
                    access.authorize(access.renew(received.caller), self._permission, request)
                yield request
        except ScanKvError as error:
            await end_with(context, error)


def _sender(received: _ArrivedCall, context: Context[Any, Any], *, is_forwarded: bool) -> Sender:
    """Returns whose shares of the memory the message of a call takes. Another worker passes on those of many."""
    principal = "" if received.caller is None else received.caller.principal
    return Sender("" if is_forwarded else context.peer(), principal)


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
