"""The stream of a scan of a table with tablets: its header, its chunks, and the trailer that proves them complete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.errors import Unavailable
from scankv.v1 import scan_pb2
from streaming_server.scan.framing import frame_chunk
from streaming_server.services.forwarding import RETRY_SECONDS
from streaming_server.services.tablets.queries import joined_version
from streaming_server.services.tablets.scan_places import JoinedPlace, token_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import grpc
    import pyarrow as pa

    from streaming_server.scan.resume_token import Fingerprint
    from streaming_server.services.tablets.tablet_calls import TabletCalls

SCAN: Final = "scankv.v1.ScanService/ScanKv"


async def header_of(
    tablet: int, part: grpc.aio.UnaryStreamCall[bytes, bytes], calls: TabletCalls
) -> scan_pb2.ScanHeader:
    """Returns the header of the stream of a tablet, whose view is open then."""
    async for message in calls.messages(tablet, part):
        return scan_pb2.ScanKvResponse.FromString(message).header
    raise _incomplete()


async def checked_messages(
    tablet: int, part: grpc.aio.UnaryStreamCall[bytes, bytes], calls: TabletCalls
) -> AsyncIterator[scan_pb2.ScanKvResponse]:
    """Yields the messages of a tablet after its header, up to its trailer, which comes last.

    Raises:
        Unavailable: A message has changed on the way, or the stream has ended without its trailer.
    """
    checksum = rows = 0
    async for data in calls.messages(tablet, part):
        message = scan_pb2.ScanKvResponse.FromString(data)
        kind = message.WhichOneof("message")
        if kind == "chunk":
            rows += message.chunk.row_count
            checksum = chunk_crc32c(checksum, google_crc32c.value(message.chunk.record_batch))
            if checksum != message.chunk.crc32c:
                raise _incomplete()
        if kind == "trailer" and (message.trailer.crc32c, message.trailer.rows_returned) != (checksum, rows):
            raise _incomplete()
        yield message
        if kind == "trailer":
            return
    raise _incomplete()


def _incomplete() -> Unavailable:
    return Unavailable(
        "a stream of a worker of the server has ended early, or is damaged: try again", retry_after=RETRY_SECONDS
    )


class JoinedStream:
    """Makes the messages of one stream of what the tablets have answered.

    Args:
        request: The request.
        calls: The tablets.
        headers: The headers of the streams of the tablets that are read.
        schema: The columns of the rows.
        buckets: The buckets that the request names, or all.
        fingerprint: Identifies the scan.
        place: Where the scan continues. None: at its beginning.
        resumed_rows: The rows that were returned by the earlier calls that this call continues.

    Attributes:
        place: Where the scan continues. None: at its beginning.
        returned: The rows returned by this call.
        left: The rows that may still be returned. None: no limit.
        version: The version of the view. Empty if it may not be durable.
    """

    def __init__(
        self,
        request: scan_pb2.ScanKvRequest,
        calls: TabletCalls,
        headers: Mapping[int, scan_pb2.ScanHeader],
        schema: pa.Schema,
        buckets: list[int],
        fingerprint: Fingerprint,
        place: JoinedPlace | None,
        resumed_rows: int,
    ) -> None:
        self._request = request
        self._calls = calls
        self._headers = list(headers.values())
        self._schema = schema
        self._buckets = buckets
        self._fingerprint = fingerprint
        self.place = place
        self._began = time.monotonic()
        self.returned = self._chunks = self._bytes = self._crc32c = 0
        self.left = max(0, request.limit - resumed_rows) if request.HasField("limit") else None
        self.version = joined_version(each.version for each in self._headers)
        self._scanned: dict[int, int] = {}
        self._offsets = {} if place is None else {**place.log_offsets}
        for each in self._headers:
            self._offsets |= each.log_offsets
        self._view_micros = max(each.view_micros for each in self._headers)
        self._expired_at = self._view_micros if place is None else place.expired_at

    @property
    def is_full(self) -> bool:
        """Whether no further row is to be returned."""
        return self.left == 0

    def header(self, *, unchanged: bool = False, tickets: Mapping[int, str] | None = None) -> bytes:
        """Returns the header. With the tickets of parts, it is the header of a divided scan."""
        headers, place = self._headers, self.place
        joined = scan_pb2.ScanHeader()
        joined.CopyFrom(headers[0])
        joined.scan_id, joined.table_incarnation = self._calls.scan_id, self._calls.definition.incarnation
        joined.arrow_schema = self._schema.serialize().to_pybytes()
        joined.view_micros = self._view_micros
        for field in ("log_offsets", "row_estimate", "limit_left", "resumed_from"):
            joined.ClearField(field)
        joined.log_offsets.update(self._offsets)
        if all(each.HasField("row_estimate") for each in headers):
            joined.row_estimate = sum(each.row_estimate for each in headers)
        if self.left is not None:
            joined.limit_left = self.left
        if place is not None:
            before = scan_pb2.ResumedView(log_offsets=place.log_offsets, view_micros=place.view_micros)
            joined.resumed_from.CopyFrom(before)
        joined.version, joined.unchanged = self.version, unchanged
        for tablet, ticket in (tickets or {}).items():
            joined.parts.add(
                tablet=self._calls.tablets[tablet].name,
                number=tablet,
                ticket=ticket,
                owner=self._calls.owner_of(tablet),
                token_head=token_head(self.token(tablet, 0, b"")),
            )
        return scan_pb2.ScanKvResponse(header=joined).SerializeToString()

    def scanned(self, tablet: int, body: Any) -> None:  # noqa: ANN401  # a chunk, heartbeat or trailer
        """Records how many rows a tablet has read."""
        self._scanned[tablet] = body.rows_scanned

    def token(self, tablet: int, returned: int, rest: bytes) -> bytes:
        """Returns the token of a place of this scan: see `JoinedPlace`."""
        place = JoinedPlace(
            self._fingerprint, tablet, returned, self._view_micros, self._expired_at, self._offsets, rest
        )
        return place.to_bytes()

    def heartbeat(self, token: bytes) -> bytes:
        """Returns a heartbeat."""
        heartbeat = scan_pb2.ScanHeartbeat(resume_token=token, rows_scanned=sum(self._scanned.values()))
        return scan_pb2.ScanKvResponse(heartbeat=heartbeat).SerializeToString()

    def chunk(self, bucket: int, rows: pa.Buffer, crc32c: int, count: int, token: bytes) -> bytes:
        """Returns a chunk of rows, a record batch message with this checksum."""
        self.returned += count
        if self.left is not None:
            self.left -= count
        self._chunks += 1
        self._bytes += rows.size
        self._crc32c = chunk_crc32c(self._crc32c, crc32c)
        chunk = scan_pb2.ScanChunk(
            bucket=bucket,
            row_count=count,
            resume_token=token,
            rows_scanned=sum(self._scanned.values()),
            crc32c=self._crc32c,
        )
        return frame_chunk(chunk, rows)

    def add_part(self, trailer: scan_pb2.ScanTrailer) -> None:
        """Records a part that another call has read."""
        self.returned += trailer.rows_returned
        self._chunks += trailer.chunks
        self._bytes += trailer.bytes_returned

    def trailer(self) -> bytes:
        """Returns the trailer, which proves that the chunks are complete."""
        trailer = scan_pb2.ScanTrailer(
            rows_scanned=sum(self._scanned.values()),
            rows_returned=self.returned,
            bytes_returned=self._bytes,
            chunks=self._chunks,
            buckets=self._buckets,
            crc32c=self._crc32c,
            elapsed_micros=int((time.monotonic() - self._began) * 1_000_000),
        )
        return scan_pb2.ScanKvResponse(trailer=trailer).SerializeToString()
