"""Scans of tables with tablets: the streams of the tablets as one stream, of one instant unless asked otherwise."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import google_crc32c
import pyarrow as pa

from scankv.model.errors import InvalidRequest, InvalidResumeToken
from scankv.model.limits import DEFAULT_CHUNK_BYTES
from scankv.v1 import scan_pb2
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.services.parked_scans import new_tickets
from streaming_server.services.scan_request import chunk_spec, read_plan
from streaming_server.services.tablets.joined_stream import SCAN, JoinedStream, checked_messages, header_of
from streaming_server.services.tablets.ordered_scans import OrderedMerge, keys_after, ordered_request, rows_schema
from streaming_server.services.tablets.queries import joined_version, one_instant, versions_of
from streaming_server.services.tablets.scan_places import ALL_TABLETS, JoinedPlace, fingerprint_of, read_place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    import grpc

    from streaming_server.scan.admission.unread_answers import UnreadAnswers
    from streaming_server.scan.resume_token import Fingerprint
    from streaming_server.services.tablets.tablet_calls import TabletCalls

    _Part: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"


async def scan(
    request: scan_pb2.ScanKvRequest,
    calls: TabletCalls,
    context: grpc.aio.ServicerContext[Any, Any],
    unread: UnreadAnswers,
) -> None:
    """Streams the rows of all tablets: see `ScanService.ScanKv`."""
    if request.divided and (request.ordered or request.HasField("limit")):
        raise InvalidRequest("a scan with a limit or an order is not divided: leave out divided")
    joined = _JoinedScan.of(request, calls)
    send = calls.sender(context, unread)
    if request.HasField("if_changed_since") and (stream := await joined.unchanged()) is not None:
        calls.memory.results.unchanged += 1
        await send(stream.header(unchanged=True))
        await send(stream.trailer())
        return
    async with AsyncExitStack() as streams:
        tickets = new_tickets(joined.tablets) if request.divided else {}
        parts, headers = await joined.open(streams, tickets)
        stream = joined.stream_of(headers)
        is_unchanged = request.HasField("if_changed_since") and stream.version == request.if_changed_since
        await send(stream.header(unchanged=is_unchanged, tickets={} if is_unchanged else tickets))
        if tickets and not is_unchanged:
            await _wait_for_readers(stream, parts, calls)
        elif not is_unchanged:
            async for message in joined.messages(stream, parts, headers):
                await send(message)
        await send(stream.trailer())


def tablets_by_instant(request: scan_pb2.ScanKvRequest, calls: TabletCalls, tablets: Iterable[int]) -> list[list[int]]:
    """Returns some tablets in groups, of which each is to be read as of one instant."""
    if request.consistency != scan_pb2.CONSISTENCY_OWNER:
        return [[*tablets]]
    by_owner = defaultdict(list)
    for tablet in tablets:
        by_owner[calls.owner_of(tablet)].append(tablet)
    return [*by_owner.values()]


async def _wait_for_readers(stream: JoinedStream, parts: Mapping[int, _Part], calls: TabletCalls) -> None:
    """Returns once the client has read all parts at the owners of the tablets, in any order or several at once."""

    async def wait_for_reader(tablet: int, part: _Part) -> None:
        async for message in calls.messages(tablet, part):
            trailer = scan_pb2.ScanKvResponse.FromString(message).trailer
            stream.scanned(tablet, trailer)
            stream.add_part(trailer)

    try:
        async with asyncio.TaskGroup() as readers:
            for tablet, part in parts.items():
                readers.create_task(wait_for_reader(tablet, part))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class _JoinedScan:
    """A scan of a table with tablets. Immutable.

    Attributes:
        request: The request.
        calls: The tablets.
        by_tablet: The buckets of each tablet that are read.
        fingerprint: What identifies the scan.
        place: Where it continues. None: at its beginning.
    """

    request: scan_pb2.ScanKvRequest
    calls: TabletCalls
    by_tablet: Mapping[int, list[int]]
    fingerprint: Fingerprint
    place: JoinedPlace | None

    @classmethod
    def of(cls, request: scan_pb2.ScanKvRequest, calls: TabletCalls) -> _JoinedScan:
        """Checks a request. Raises as `ScanService.ScanKv`."""
        plan = read_plan(request)
        chunk_spec(request, DEFAULT_CHUNK_BYTES)
        plan.bind(calls.definition.schema)
        calls.check_buckets(plan.buckets)
        by_tablet = calls.buckets_by_tablet(request.buckets)
        fingerprint = fingerprint_of(plan, calls.definition, request.snapshot.snapshot_id)
        place = read_place(request.resume_token, fingerprint) if request.resume_token else None
        if place is not None and place.tablet not in (by_tablet if not request.ordered else (ALL_TABLETS,)):
            raise InvalidResumeToken("the resume token comes from another server: start again")
        return cls(request, calls, by_tablet, fingerprint, place)

    async def unchanged(self) -> JoinedStream | None:
        """Returns the stream of a result that has not changed; None if it has changed. Reads nothing."""
        versions = await versions_of(self.request, self.calls, self.by_tablet)
        if joined_version(versions.values()) != self.request.if_changed_since:
            return None
        async with AsyncExitStack() as streams:
            headers = {}
            for tablet, version in versions.items():
                request = self._request_of(tablet)
                request.if_changed_since = version
                part = streams.enter_context(self.calls.open(SCAN, tablet, request, ""))
                headers[tablet] = await header_of(tablet, part, self.calls)
        return self.stream_of(headers) if all(each.unchanged for each in headers.values()) else None

    @property
    def tablets(self) -> list[int]:
        """The tablets that are still to be read."""
        first = 0 if self.place is None or self.request.ordered else self.place.tablet
        return [tablet for tablet in self.by_tablet if tablet >= first]

    async def open(
        self, streams: AsyncExitStack, tickets: Mapping[int, str]
    ) -> tuple[dict[int, _Part], dict[int, scan_pb2.ScanHeader]]:
        """Opens the streams of all tablets that are still to be read. Returns their headers, too.

        Those with a ticket are read by another call.
        """
        instants = tablets_by_instant(self.request, self.calls, self.tablets)
        is_part = len(instants) > 1
        parts: dict[int, _Part] = {}
        headers: dict[int, scan_pb2.ScanHeader] = {}
        for opened, their_headers in await all_ended(
            self._open_at_once(streams, tickets, tablets, is_part=is_part) for tablets in instants
        ):
            parts |= opened
            headers |= their_headers
        return dict(sorted(parts.items())), dict(sorted(headers.items()))

    async def _open_at_once(
        self, streams: AsyncExitStack, tickets: Mapping[int, str], tablets: Iterable[int], *, is_part: bool
    ) -> tuple[dict[int, _Part], dict[int, scan_pb2.ScanHeader]]:
        """Opens the streams of some tablets as of one instant. Returns their headers, too."""
        requests = {tablet: self._request_of(tablet) for tablet in tablets}
        async with one_instant(self.request, self.calls, requests, is_part=is_part) as holds:
            parts = {
                tablet: streams.enter_context(
                    self.calls.open(SCAN, tablet, each, holds[tablet], tickets.get(tablet, ""))
                )
                for tablet, each in requests.items()
            }
            return parts, {tablet: await header_of(tablet, part, self.calls) for tablet, part in parts.items()}

    def _request_of(self, tablet: int) -> scan_pb2.ScanKvRequest:
        """Returns the request for a tablet."""
        place, each = self.place, scan_pb2.ScanKvRequest()
        each.CopyFrom(self.request)
        each.ClearField("if_changed_since")
        each.ClearField("resume_token")
        each.ClearField("divided")
        each.table, each.buckets[:] = self.calls.tablets[tablet].name, self.by_tablet[tablet]
        if self.request.ordered:
            ordered_request(each, self.calls.definition.primary_key, len(self.by_tablet))
        if place is None:
            return each
        if place.tablet == tablet:
            each.resume_token = place.rest
            return each
        each.expired_at_micros = place.expired_at
        if self.request.ordered:
            keys_after(each, place.rest)
            if each.HasField("limit"):
                each.limit -= min(each.limit, place.returned)
        return each

    def stream_of(self, headers: Mapping[int, scan_pb2.ScanHeader]) -> JoinedStream:
        """Returns what makes the messages."""
        # All tablets have the same schema, because they have the version of the definition that was decided.
        schema = pa.ipc.read_schema(pa.py_buffer(next(iter(headers.values())).arrow_schema))
        if self.request.ordered:
            schema = rows_schema(schema, self.request)
        return JoinedStream(
            self.request,
            self.calls,
            headers,
            schema,
            sorted(bucket for each in self.by_tablet.values() for bucket in each),
            self.fingerprint,
            self.place,
            self._rows_before(headers),
        )

    def _rows_before(self, headers: Mapping[int, scan_pb2.ScanHeader]) -> int:
        """Returns the rows that were returned before this call, if there is a limit."""
        if self.place is None:
            return 0
        if self.request.ordered:
            return self.place.returned
        return self.place.returned + self._rows_of_first(headers)

    def _rows_of_first(self, headers: Mapping[int, scan_pb2.ScanHeader]) -> int:
        """Returns the rows that the first tablet has returned before this call, if there is a limit."""
        first = next(iter(headers.values()))
        return self.request.limit - first.limit_left if first.HasField("limit_left") else 0

    def messages(
        self,
        stream: JoinedStream,
        parts: Mapping[int, _Part],
        headers: Mapping[int, scan_pb2.ScanHeader],
    ) -> AsyncIterator[bytes]:
        """Returns the chunks and heartbeats."""
        if self.request.ordered:
            return OrderedMerge(self.request, self.calls, stream, parts, headers).messages()
        return self._one_after_another(stream, parts, headers)

    async def _one_after_another(
        self,
        stream: JoinedStream,
        parts: Mapping[int, _Part],
        headers: Mapping[int, scan_pb2.ScanHeader],
    ) -> AsyncIterator[bytes]:
        returned = 0 if self.place is None else self.place.returned
        of_first = self._rows_of_first(headers)
        for tablet, part in parts.items():
            if stream.is_full:
                return
            before = stream.returned
            async for message in checked_messages(tablet, part, self.calls):
                body = getattr(message, message.WhichOneof("message") or "")
                stream.scanned(tablet, body)
                if isinstance(body, scan_pb2.ScanTrailer):
                    break
                token = stream.token(tablet, returned, body.resume_token)
                if isinstance(body, scan_pb2.ScanHeartbeat):
                    yield stream.heartbeat(token)
                    continue
                yield self._chunk(stream, body, token, headers[tablet])
                if stream.is_full:
                    return
            returned += stream.returned - before + of_first
            of_first = 0

    def _chunk(
        self, stream: JoinedStream, chunk: scan_pb2.ScanChunk, token: bytes, header: scan_pb2.ScanHeader
    ) -> bytes:
        """Returns the chunk of a tablet, up to the limit."""
        rows = pa.py_buffer(chunk.record_batch)
        if stream.left is None or chunk.row_count <= stream.left:
            return stream.chunk(chunk.bucket, rows, google_crc32c.value(rows), chunk.row_count, token)
        schema = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema))
        first = BatchMessage.of(pa.ipc.read_record_batch(rows, schema).slice(0, stream.left))
        return stream.chunk(chunk.bucket, first.data, first.crc32c, stream.left, token)
