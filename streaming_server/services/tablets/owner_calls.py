"""Asks the owners of tablets and tables, and holds these for one instant."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from scankv.model.errors import ScanKvError, TableNotFound, Unavailable
from scankv.model.names import lock_order, table_of, tablet_number
from scankv.v1 import worker_pb2
from streaming_server.engine.bucket.call_point import CallPoint
from streaming_server.services.forwarding import RETRY_SECONDS, error_of
from streaming_server.services.tablets.table_errors import of_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from google.protobuf.message import Message

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.services.forwarding import Workers

_Response = TypeVar("_Response", bound="Message")

_HOLD: Final = "scankv.v1.TabletService/HoldTablet"

HOLD_SECONDS: Final = 2.0
"""The longest pause of the writers of tablets, in which a view of all tablets is opened. So every worker answers sooner
than this to a call that only asks for the state of its tablets, or is reported."""


class OwnerCalls:
    """Asks the owners of some tablets, in the name of the current call. Bound to the event loop.

    A table without tablets counts as a tablet with the name of the table.

    Args:
        workers: The workers of the server.
        clock: The clock of the server.
        tablets: The definitions of the tablets.
        context: The call.

    Attributes:
        workers: The workers of the server.
        context: The call.
        tablets: The definitions of the tablets, by their numbers in this list.
        now_micros: The commit time as of which rows have expired, in microseconds since 1970 UTC.
        scan_id: The id of the scan if the call is one.
        on_held: Called once no tablet that the call holds can be altered any more.
    """

    def __init__(
        self,
        workers: Workers,
        clock: ServerClock,
        tablets: Sequence[TableDefinition],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        self.workers = workers
        self.tablets = tablets
        self.context = context
        self.scan_id = uuid.uuid4().hex
        self.on_held: Callable[[], None] = lambda: None
        self._clock = clock
        self._streams: list[grpc.aio.Call] = []
        self._is_alone = False
        # Whether the call reads a snapshot, which never changes, so that no tablet is held.
        self._is_pinned = False
        self.decide()

    def decide(self) -> None:
        """Decides the time as of which rows have expired, for all further calls. The rest of the point stays."""
        self.now_micros = self._clock.commit_micros()

    def _decided(self, tablet: int, hold_id: str, *, is_alone: bool) -> bytes:
        """Returns the point of the call, for a request to a tablet."""
        definition, is_pinned = self.tablets[tablet], self._is_pinned
        point = CallPoint(
            definition.table_incarnation,
            None if is_pinned else definition.version,
            self.now_micros,
            is_alone=is_alone and not hold_id and not is_pinned,
        )
        return point.to_bytes()

    def _serialize(self, _tablet: int, request: Message) -> bytes:
        """Returns a request for a tablet as bytes."""
        return request.SerializeToString()

    def owner_of(self, tablet: int) -> int:
        """Returns the worker that owns a tablet."""
        return self.workers.placement.owner_of(self.tablets[tablet].name)

    async def ask(
        self,
        method: str,
        requests: Mapping[int, Message],
        answer: type[_Response],
        holds: Mapping[int, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> dict[int, _Response]:
        """Makes a call to some tablets at once, and returns their answers once all calls have ended.

        Args:
            method: The method, as `package.Service/Method`.
            requests: The request for each tablet.
            answer: The type of the answers.
            holds: The hold of each tablet under which it opens its view. None: no tablet is held.
            seconds: How long the calls may take. None: as long as the client waits.

        Raises:
            ScanKvError: The error of the first tablet that has refused the call.
        """
        found = await self.ask_each(method, requests, answer, holds, seconds=seconds)
        answers = {number: each for number, each in found.items() if not isinstance(each, ScanKvError)}
        for each in found.values():
            if isinstance(each, ScanKvError):
                raise each
        return answers

    async def ask_each(
        self,
        method: str,
        requests: Mapping[int, Message],
        answer: type[_Response],
        holds: Mapping[int, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> dict[int, _Response | ScanKvError]:
        """Like `ask`, but returns the errors of tablets instead of raising one.

        Args:
            method: As for `ask`.
            requests: As for `ask`.
            answer: As for `ask`.
            holds: As for `ask`.
            seconds: As for `ask`.
        """
        timeout = self.context.time_remaining() if seconds is None else seconds

        async def one(number: int, request: Message) -> _Response | ScanKvError:
            data = self._serialize(number, request)
            hold_id = "" if holds is None else holds[number]
            owner = self.owner_of(number)
            try:
                point = self._decided(number, hold_id, is_alone=len(requests) == 1)
                found = await self.workers.ask(owner, method, data, timeout, hold_id=hold_id, point=point)
                return answer.FromString(found)
            except grpc.aio.AioRpcError as error:
                return self.error_of(number, error)

        found = await asyncio.gather(*(one(*each) for each in requests.items()))
        return dict(zip(requests, found, strict=True))

    def error_of(self, tablet: int, error: grpc.aio.AioRpcError) -> ScanKvError:
        """Returns the error of a call to a tablet, to be raised here."""
        name = self.tablets[tablet].name
        table, number = table_of(name), tablet_number(name)
        what = f"the table {table}" if number is None else f"tablet {number} of {table}"
        found = error_of(error, self.owner_of(tablet), what)
        if number is not None and isinstance(found, TableNotFound) and name in found.message:
            return Unavailable(f"{name} is being created or dropped: try again", retry_after=RETRY_SECONDS)
        # Clients know the table, and not its tablets.
        return of_table(found, name)

    @contextmanager
    def open(
        self,
        method: str,
        tablet: int,
        request: Message,
        hold_id: str,
        ticket: str = "",
        *,
        outlasts: bool = False,
    ) -> Iterator[grpc.aio.UnaryStreamCall[bytes, bytes]]:
        """Makes a streaming call to a tablet for the length of the block.

        Args:
            method: The method, as `package.Service/Method`.
            tablet: The tablet.
            request: The request.
            hold_id: The hold under which the call opens its view. Empty: no hold.
            ticket: The ticket of the call that will read the stream. Empty: this call reads it.
            outlasts: Whether the call may last longer than the current one, because others wait for it, too.
        """
        owner, seconds = self.owner_of(tablet), None if outlasts else self.context.time_remaining()
        data = self._serialize(tablet, request)
        point = self._decided(tablet, hold_id, is_alone=self._is_alone)
        with self.workers.open(
            owner, method, data, seconds, hold_id=hold_id, ticket=ticket, scan_id=self.scan_id, point=point
        ) as call:
            self._streams.append(call)
            yield call

    async def messages(self, tablet: int, call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> AsyncIterator[bytes]:
        """Yields the further messages of a streaming call to a tablet. Raises the error with which it ends."""
        try:
            while isinstance(message := await call.read(), bytes):
                yield message
        except grpc.aio.AioRpcError as error:
            raise self.error_of(tablet, error) from error

    @asynccontextmanager
    async def hold(
        self, tablets: Iterable[int], *, pins: bool = False, is_part: bool = False
    ) -> AsyncIterator[dict[int, str]]:
        """Pauses the writers of some tablets for the length of the block, at most for two seconds.

        Yields the id of the hold of each tablet, for calls that open views. A single tablet is not held, because one
        call to it sees one instant anyway. Neither are the tablets of a snapshot, which never changes.

        Args:
            tablets: The tablets.
            pins: Whether the calls pin the tablets. No other call pins one of them during the block.
            is_part: Whether the call reads other tablets as of other instants. Its rows expire as of one time all the
                same.

        Raises:
            Unavailable: A tablet cannot be held.
        """
        # All holds follow this order, and so do commits that raise barriers. Otherwise they could deadlock.
        order = sorted(tablets, key=lambda each: (self.owner_of(each), *lock_order(self.tablets[each].name)))
        self._is_alone = len(order) == 1 and not is_part
        if len(order) == 1 or self._is_pinned:
            self.on_held()
            yield dict.fromkeys(order, "")
            return
        hold_id = uuid.uuid4().hex
        async with AsyncExitStack() as holds:
            if pins:
                await self._prepare_pins(order, holds)
            if not is_part:
                # Again, because the call may have waited for its turn.
                self.decide()
            ids: dict[int, str] = {}
            for number in order:
                ids[number] = f"{hold_id}-{number}"
                request = worker_pb2.HoldTabletRequest(tablet=self.tablets[number].name, hold_id=ids[number])
                call = holds.enter_context(
                    self.workers.open(
                        self.owner_of(number),
                        _HOLD,
                        request.SerializeToString(),
                        HOLD_SECONDS,
                        point=self._decided(number, ids[number], is_alone=False),
                    )
                )
                await self._wait_for_answer(number, call)
            if not is_part:
                # Writers are paused, so this time is later than that of any write in the views. Otherwise, a view could
                # show a row that a write has treated as expired.
                self.decide()
            self.on_held()
            yield ids

    async def _prepare_pins(self, order: Iterable[int], holds: AsyncExitStack) -> None:
        """Keeps other calls from pinning some tablets until the holds end, and flushes the tablets.

        So a checkpoint takes little time. Writers continue. Before any tablet is held, since another pin may hold them.
        """
        calls: dict[int, grpc.aio.UnaryStreamCall[bytes, bytes]] = {}
        for number in order:
            request = worker_pb2.HoldTabletRequest(tablet=self.tablets[number].name, flushes=True)
            calls[number] = holds.enter_context(self.open(_HOLD, number, request, ""))
            await self._wait_for_answer(number, calls[number])
        await asyncio.gather(*(self._wait_for_answer(*each) for each in calls.items()))

    async def _wait_for_answer(self, tablet: int, call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> None:
        """Returns once a call to a tablet has its next answer."""
        try:
            if isinstance(await call.read(), bytes):
                return
        except grpc.aio.AioRpcError as error:
            raise self.error_of(tablet, error) from error
        name = table_of(self.tablets[tablet].name)
        raise Unavailable(f"writes to {name} could not be paused: try again", retry_after=RETRY_SECONDS)
