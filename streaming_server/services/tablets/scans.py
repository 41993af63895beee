"""Scans of tables with tablets: the streams of the tablets, one after another, as one stream of one instant."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import grpc
import pyarrow as pa

from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.errors import InvalidRequest, InvalidResumeToken, Unavailable
from scankv.v1 import scan_pb2
from streaming_server.scan.divided_token import TabletPlace
from streaming_server.scan.framing import frame_chunk
from streaming_server.services.forwarding import RETRY_SECONDS
from streaming_server.services.parked_scans import FIRST
from streaming_server.services.tablets.queries import joined_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from streaming_server.scan.admission.unread_answers import UnreadAnswers
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_SCAN: Final = "scankv.v1.ScanService/ScanKv"


async def scan(
    request: scan_pb2.ScanKvRequest,
    calls: TabletCalls,
    context: grpc.aio.ServicerContext[Any, Any],
    unread: UnreadAnswers,
) -> None:
    """Streams the rows of all tablets: see `ScanService.ScanKv`."""
    requests, place = _divide(request, calls)
    if request.divided:
        await _let_read(request, requests, place, calls, context, unread)
        return
    if request.ordered and len(requests) > 1:
        raise InvalidRequest(
            f"table {calls.definition.name} has tablets, which are not merged into one order: sort the rows when they "
            "are read",
            table=calls.definition.name,
        )
    with ExitStack() as streams:
        async with calls.hold(requests) as holds:
            parts = {
                tablet: streams.enter_context(calls.open(_SCAN, tablet, each, holds[tablet]))
                for tablet, each in requests.items()
            }
            headers = {tablet: await _header_of(tablet, part, calls) for tablet, part in parts.items()}
        joined = _JoinedStream(request, calls, headers, place)
        send = calls.sender(context, unread)
        await send(joined.header())
        for tablet, part in parts.items():
            async for message in joined.messages(tablet, calls.messages(tablet, part)):
                await send(message)
            if joined.is_full:
                break
        await send(joined.trailer())


async def _let_read(
    request: scan_pb2.ScanKvRequest,
    requests: Mapping[int, scan_pb2.ScanKvRequest],
    place: TabletPlace,
    calls: TabletCalls,
    context: grpc.aio.ServicerContext[Any, Any],
    unread: UnreadAnswers,
) -> None:
    """Opens the views of all tablets, and lets the client read them at their owners."""
    if request.ordered or request.HasField("limit"):
        raise InvalidRequest("a scan with a limit or an order is not divided: leave out divided")
    first = min(requests)
    tickets = {tablet: f"{FIRST if tablet == first else ''}{uuid.uuid4().hex}" for tablet in requests}
    with ExitStack() as streams:
        async with calls.hold(requests) as holds:
            parts = {
                tablet: streams.enter_context(calls.open(_SCAN, tablet, each, holds[tablet], tickets[tablet]))
                for tablet, each in requests.items()
            }
            headers = {tablet: await _header_of(tablet, part, calls) for tablet, part in parts.items()}
        joined, send = _JoinedStream(request, calls, headers, place), calls.sender(context, unread)
        await send(joined.header(tickets))
        total = scan_pb2.ScanTrailer()
        for tablet, part in () if joined.is_full else parts.items():
            async for data in calls.messages(tablet, part):
                trailer = scan_pb2.ScanKvResponse.FromString(data).trailer
                total.rows_scanned += trailer.rows_scanned
                total.rows_returned += trailer.rows_returned
                total.bytes_returned += trailer.bytes_returned
                total.chunks += trailer.chunks
        total.buckets[:] = joined.buckets()
        await send(scan_pb2.ScanKvResponse(trailer=total).SerializeToString())


def _divide(
    request: scan_pb2.ScanKvRequest, calls: TabletCalls
) -> tuple[dict[int, scan_pb2.ScanKvRequest], TabletPlace]:
    """Returns the request for each tablet that is read, and where the scan continues."""
    by_tablet = calls.buckets_by_tablet(request.buckets)
    place = TabletPlace.of(request.resume_token) if request.resume_token else TabletPlace(min(by_tablet), 0, b"")
    if place.tablet not in by_tablet:
        raise InvalidResumeToken("the resume token comes from a scan of other buckets: start again")
    requests = {}
    for tablet, buckets in by_tablet.items():
        if tablet < place.tablet:
            continue
        each = requests[tablet] = scan_pb2.ScanKvRequest()
        each.CopyFrom(request)
        each.ClearField("if_changed_since")
        each.ClearField("divided")
        each.table, each.buckets[:] = calls.tablets[tablet].name, buckets
        each.resume_token = place.token if tablet == place.tablet else b""
    return requests, place


async def _header_of(
    tablet: int, part: grpc.aio.UnaryStreamCall[bytes, bytes], calls: TabletCalls
) -> scan_pb2.ScanHeader:
    """Returns the header of the stream of a tablet, whose view is open then."""
    try:
        message = await part.read()
    except grpc.aio.AioRpcError as error:
        raise calls.error_of(tablet, error) from error
    if not isinstance(message, bytes):
        raise Unavailable("a stream has ended before its header: try again", retry_after=RETRY_SECONDS)
    return scan_pb2.ScanKvResponse.FromString(message).header


class _JoinedStream:
    """Joins the streams of tablets, in the order of the tablets."""

    def __init__(
        self,
        request: scan_pb2.ScanKvRequest,
        calls: TabletCalls,
        headers: Mapping[int, scan_pb2.ScanHeader],
        place: TabletPlace,
    ) -> None:
        self._request = request
        self._calls = calls
        self._headers = headers
        self._place = place
        self._limit = request.limit if request.HasField("limit") else None
        self._began = time.monotonic()
        self._earlier = place.returned
        self._returned = self._chunks = self._bytes = self._crc32c = 0
        self._scanned = self._scanned_before = 0
        self._offsets = {**place.log_offsets}
        self._offsets |= {bucket: offset for each in headers.values() for bucket, offset in each.log_offsets.items()}
        self._is_unchanged = False
        first = next(iter(headers.values()))
        # What the first stream has returned before it was resumed.
        self._resumed_rows = 0 if self._limit is None else self._limit - first.limit_left
        calls.check_same_schema(pa.ipc.read_schema(pa.py_buffer(each.arrow_schema)) for each in headers.values())

    @property
    def _left(self) -> int | None:
        """How much of the limit remains."""
        return None if self._limit is None else self._limit - self._earlier - self._resumed_rows - self._returned

    @property
    def is_full(self) -> bool:
        """Whether no further row is to be returned."""
        return self._is_unchanged or self._left == 0

    def header(self, tickets: Mapping[int, str] | None = None) -> bytes:
        """Returns the header; with tickets, that of a divided scan."""
        headers = list(self._headers.values())
        joined = scan_pb2.ScanHeader()
        joined.CopyFrom(headers[0])
        joined.scan_id, joined.table_incarnation = uuid.uuid4().hex, self._calls.definition.incarnation
        joined.view_micros = max(each.view_micros for each in headers)
        joined.ClearField("log_offsets")
        joined.log_offsets.update(self._offsets)
        joined.ClearField("row_estimate")
        if all(each.HasField("row_estimate") for each in headers):
            joined.row_estimate = sum(each.row_estimate for each in headers)
        if self._left is not None:
            joined.limit_left = self._left
        if joined.HasField("resumed_from"):
            joined.resumed_from.log_offsets.update(self._place.log_offsets)
        joined.version = joined_version(each.version for each in headers)
        since = self._request.if_changed_since if self._request.HasField("if_changed_since") else None
        self._is_unchanged = joined.unchanged = since is not None and since == joined.version
        if tickets and not self._is_unchanged:
            joined.parts.extend(
                scan_pb2.ScanPart(
                    tablet=self._calls.tablets[tablet].name,
                    number=tablet,
                    ticket=ticket,
                    owner=self._calls.owner_of(tablet),
                )
                for tablet, ticket in tickets.items()
            )
        return scan_pb2.ScanKvResponse(header=joined).SerializeToString()

    async def messages(self, tablet: int, part: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields the chunks and heartbeats of one tablet, as those of the joined stream."""
        returned_before, self._scanned_before = (
            self._earlier + self._resumed_before(tablet) + self._returned,
            self._scanned,
        )
        if self.is_full:
            return
        async for data in part:
            message = scan_pb2.ScanKvResponse.FromString(data)
            kind = message.WhichOneof("message")
            if kind == "trailer":
                self._scanned = self._scanned_before + message.trailer.rows_scanned
                continue
            body = message.chunk if kind == "chunk" else message.heartbeat
            self._scanned = body.rows_scanned = self._scanned_before + body.rows_scanned
            body.resume_token = TabletPlace(tablet, returned_before, body.resume_token, self._offsets).to_bytes()
            if kind == "heartbeat":
                yield message.SerializeToString()
                continue
            yield self._chunk(message.chunk, tablet)
            if self.is_full:
                return

    def _resumed_before(self, tablet: int) -> int:
        """Returns the rows that the first stream has returned before it was resumed, for the tablets after it."""
        return 0 if tablet == self._place.tablet else self._resumed_rows

    def _chunk(self, chunk: scan_pb2.ScanChunk, tablet: int) -> bytes:
        rows, count = pa.py_buffer(chunk.record_batch), chunk.row_count
        if self._left is not None and count > self._left:
            rows, count = self._first_rows(rows, self._left, tablet), self._left
        self._returned += count
        self._chunks += 1
        self._bytes += rows.size
        self._crc32c = chunk_crc32c(self._crc32c, google_crc32c.value(rows))
        chunk.row_count, chunk.crc32c = count, self._crc32c
        chunk.ClearField("record_batch")
        chunk.ClearField("padding")
        return frame_chunk(chunk, rows)

    def _first_rows(self, rows: pa.Buffer, count: int, tablet: int) -> pa.Buffer:
        """Returns the first rows of a record batch message."""
        schema = pa.ipc.read_schema(pa.py_buffer(self._headers[tablet].arrow_schema))
        return pa.ipc.read_record_batch(rows, schema).slice(0, count).serialize()

    def trailer(self) -> bytes:
        """Returns the trailer, which proves that the chunks are complete."""
        trailer = scan_pb2.ScanTrailer(
            rows_scanned=self._scanned,
            rows_returned=self._returned,
            bytes_returned=self._bytes,
            chunks=self._chunks,
            buckets=self.buckets(),
            crc32c=self._crc32c,
            elapsed_micros=int((time.monotonic() - self._began) * 1_000_000),
        )
        return scan_pb2.ScanKvResponse(trailer=trailer).SerializeToString()

    def buckets(self) -> Sequence[int]:
        """Returns the buckets of the scan, ascending."""
        return sorted(self._request.buckets or range(self._calls.definition.buckets))
