"""The common part of all calls about a table with tablets: asks the tablets, and holds them for one instant."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from scankv.model.errors import InvalidRequest, ScanKvError, TableNotFound, Unavailable
from scankv.model.keys.buckets import tablet_of
from scankv.v1 import worker_pb2
from streaming_server.engine.bucket.call_point import CallPoint
from streaming_server.services.forwarding import RETRY_SECONDS, error_of
from streaming_server.services.tablets.table_errors import of_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from google.protobuf.message import Message

    from streaming_server.engine.snapshots.part_ids import PartId
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.unread_answers import UnreadAnswers
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.services.forwarding import Workers

_Response = TypeVar("_Response", bound="Message")

_HOLD: Final = "scankv.v1.TabletService/HoldTablet"

HOLD_SECONDS: Final = 2.0
"""The longest pause of the writers of tablets, in which a view of all tablets is opened. So every worker answers sooner
than this to a call that only asks for the state of its tablets, or is reported."""


@dataclass(frozen=True, slots=True)
class QueryMemory:
    """What this process remembers of queries. Immutable, but its attributes are not.

    Attributes:
        results: The results of earlier queries.
        waiting: The calls that wait for a change of a result.
    """

    results: ResultCache
    waiting: WaitingCalls


class TabletCalls:
    """Asks the tablets of one table, in the name of the current call. Bound to the event loop.

    Args:
        workers: The workers of the server.
        tables: The tables and tablets of this worker.
        table: The table, which has no buckets by itself.
        context: The call.
        memory: The results of earlier queries. None: the call is no query.

    Attributes:
        workers: The workers of the server.
        context: The call.
        tables: The tables and tablets of this worker.
        table: The table.
        definition: The definition of the table when the call began; for a call about a snapshot, at its pin.
        tablets: The definitions of the tablets, by their numbers.
        scan_id: The id of the scan if the call is one.
        has_sent: Whether a message of the call was sent to the client.
        on_held: Called once no tablet that the call holds can be altered any more.
    """

    def __init__(
        self,
        workers: Workers,
        tables: Tables,
        table: LiveTable,
        context: grpc.aio.ServicerContext[Any, Any],
        memory: QueryMemory | None = None,
    ) -> None:
        self.workers = workers
        self.tables = tables
        self.table = table
        self.definition = table.definition
        self.tablets = self.definition.all_tablets
        self.context = context
        self.scan_id = uuid.uuid4().hex
        self._streams: list[grpc.aio.Call] = []
        self._memory = memory
        # The parts of the snapshot that the call reads, by tablet. Empty: it reads the table as of now.
        self._parts: dict[int, PartId] = {}
        self._is_alone = False
        self.has_sent = False
        self.on_held: Callable[[], None] = lambda: None
        self.decide()

    def decide(self) -> None:
        """Decides the time as of which rows have expired, for all further calls. The rest of the point stays."""
        self._point = CallPoint.of(self.definition, self.tables.clock)
        if self._parts:
            self._point = replace(self._point, version=None)

    @property
    def now_micros(self) -> int:
        """The commit time as of which rows have expired, in microseconds since 1970 UTC."""
        return self._point.now_micros

    @property
    def memory(self) -> QueryMemory:
        """What the process remembers of queries. Only for queries."""
        assert self._memory is not None
        return self._memory

    def read_snapshot(self, snapshot_id: str) -> None:
        """Has the calls read a snapshot of the table: each tablet reads its part, and nothing is held.

        Raises:
            SnapshotLost: No such snapshot exists.
            InvalidRequest: The snapshot is of another table.
            DataLoss: The description of its view is damaged.
        """
        part, pinned = self.tables.snapshots.first_part(snapshot_id, self.tablets[0].name)
        self._parts = part.all_parts
        self.definition = replace(
            pinned, name=self.definition.name, incarnation=self.definition.incarnation, tablet=None
        )
        self.decide()

    def _decided(self, hold_id: str, *, is_alone: bool) -> bytes:
        """Returns the point of the call, for a request to a tablet."""
        return replace(self._point, is_alone=is_alone and not hold_id and not self._parts).to_bytes()

    def _serialize(self, tablet: int, request: Any) -> bytes:  # noqa: ANN401  # a message, whose type has a snapshot
        """Returns a request for a tablet as bytes. If the call reads a snapshot, the request names its part."""
        is_query = isinstance(request, worker_pb2.QueryTabletRequest)
        asked = getattr(request, request.WhichOneof("query")) if is_query else request
        if self._parts and "snapshot" in asked.DESCRIPTOR.fields_by_name and asked.HasField("snapshot"):
            asked.snapshot.snapshot_id = str(self._parts[tablet])
        data: bytes = request.SerializeToString()
        return data

    def owner_of(self, tablet: int) -> int:
        """Returns the worker that owns a tablet."""
        return self.workers.placement.owner_of(self.tablets[tablet].name)

    def tablets_of_buckets(self, buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the tablet of each of some buckets."""
        return tablet_of(buckets, self.definition.buckets, len(self.tablets))

    def check_buckets(self, buckets: Sequence[int] | None) -> None:
        """Raises InvalidRequest if one of some buckets (None: all) does not exist, or is named twice."""
        if buckets is None:
            return
        if len(set(buckets)) != len(buckets):
            raise InvalidRequest("a bucket is named twice: name each once")
        for number in sorted(buckets):
            if not 0 <= number < self.definition.buckets:
                raise InvalidRequest(
                    f"table {self.definition.name} has no bucket {number}: it has 0 to {self.definition.buckets - 1}",
                    bucket=number,
                )

    def buckets_by_tablet(self, buckets: Iterable[int]) -> dict[int, list[int]]:
        """Returns which of some buckets (none: all) each tablet has; leaves out tablets that have none of them.

        Unknown buckets go to the first tablet, which refuses them.

        Raises:
            InvalidRequest: A bucket is named twice.
        """
        named = list(buckets)
        chosen = set(named) or set(range(self.definition.buckets))
        if named and len(named) != len(chosen):
            raise InvalidRequest("a bucket is named twice: name each once")
        found = {
            number: [each for each in tablet.own_buckets if each in chosen]
            for number, tablet in enumerate(self.tablets)
        }
        unknown = sorted(chosen - set(range(self.definition.buckets)))
        if unknown:
            found[0] += unknown
        return {number: each for number, each in found.items() if each}

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
                point = self._decided(hold_id, is_alone=len(requests) == 1)
                found = await self.workers.ask(owner, method, data, timeout, hold_id=hold_id, point=point)
                return answer.FromString(found)
            except grpc.aio.AioRpcError as error:
                return self.error_of(number, error)

        found = await asyncio.gather(*(one(*each) for each in requests.items()))
        return dict(zip(requests, found, strict=True))

    def error_of(self, tablet: int, error: grpc.aio.AioRpcError) -> ScanKvError:
        """Returns the error of a call to a tablet, to be raised here."""
        name = self.tablets[tablet].name
        found = error_of(error, self.owner_of(tablet), f"tablet {tablet} of {self.definition.name}")
        if isinstance(found, TableNotFound) and name in found.message:
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
        point = self._decided(hold_id, is_alone=self._is_alone)
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

    def sender(
        self, context: grpc.aio.ServicerContext[Any, Any], unread: UnreadAnswers
    ) -> Callable[[bytes], Awaitable[None]]:
        """Returns a function that sends a message to the client, which may take nothing for the stall timeout."""

        def cancel() -> None:
            for stream in self._streams:
                stream.cancel()

        async def send(message: bytes) -> None:
            self.has_sent = True
            with self.workers.patient(cancel, unread.answer(context.peer()), len(message)):
                await context.write(message)

        return send

    @asynccontextmanager
    async def hold(
        self, tablets: Iterable[int], *, flushes: bool = False, is_part: bool = False
    ) -> AsyncIterator[dict[int, str]]:
        """Pauses the writers of some tablets for the length of the block, at most for two seconds.

        Yields the id of the hold of each tablet, for calls that open views. A single tablet is not held, because one
        call to it sees one instant anyway. Neither are the tablets of a snapshot, which never changes.

        Args:
            tablets: The tablets.
            flushes: Whether to flush the tablets first, for a call that pins them.
            is_part: Whether the call reads other tablets as of other instants. Its rows expire as of one time all the
                same.

        Raises:
            Unavailable: A tablet cannot be held.
        """
        # All holds follow this order, and so do commits that raise barriers. Otherwise they could deadlock.
        order = sorted(tablets, key=lambda each: (self.owner_of(each), each))
        self._is_alone = len(order) == 1 and not is_part
        if len(order) == 1 or self._parts:
            self.on_held()
            yield dict.fromkeys(order, "")
            return
        hold_id, name = uuid.uuid4().hex, self.definition.name
        if flushes:
            await asyncio.gather(*map(self._flush, order))
        if not is_part:
            # Again, because the call may have waited for its turn.
            self.decide()
        async with AsyncExitStack() as holds:
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
                        point=self._decided(ids[number], is_alone=False),
                    )
                )
                try:
                    if not isinstance(await call.read(), bytes):
                        raise Unavailable(f"writes to {name} could not be paused: try again", retry_after=RETRY_SECONDS)
                except grpc.aio.AioRpcError as error:
                    raise self.error_of(number, error) from error
            if not is_part:
                # Writers are paused, so this time is later than that of any write in the views. Otherwise, a view could
                # show a row that a write has treated as expired.
                self.decide()
            self.on_held()
            yield ids

    async def _flush(self, tablet: int) -> None:
        """Flushes a tablet, so that a checkpoint of it takes little time. Its writers continue."""
        request = worker_pb2.HoldTabletRequest(tablet=self.tablets[tablet].name, flushes=True)
        with self.open(_HOLD, tablet, request, "") as call:
            async for _ in self.messages(tablet, call):
                pass
