"""The messages of a scan stream, in order: a header, the chunks of a source, a trailer that proves completeness.

Synchronous, and independent of gRPC: the sender asks for the next message when it can send it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.v1 import scan_pb2
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.scan.framing import frame_chunk
from streaming_server.scan.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.admission.live_scans import RegisteredScan
    from streaming_server.scan.chunk_source import Chunk, View
    from streaming_server.scan.execution.open_scan import OpenedScan

FIRST_CHUNK_ROWS = 256
FIRST_CHUNK_BYTES = 64 * 1024
SMALL_CHUNK_BYTES = 96 * 1024
_GROWTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """How large the chunks of a stream may become.

    Attributes:
        rows: The most rows of a chunk.
        bytes: The most stored bytes of a chunk, unless a single row is longer, or `BucketCursor.prefetch` reads more.
        large: Called for each chunk: whether it may exceed about 96 KiB as sent.
    """

    rows: int
    bytes: int
    large: Callable[[], bool] = lambda: True

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Yields the rows and bytes of each chunk: a small first one that arrives soon, then larger ones."""
        rows, size = FIRST_CHUNK_ROWS, FIRST_CHUNK_BYTES
        while rows < self.rows or size < self.bytes:
            yield min(rows, self.rows), min(size, self.bytes)
            rows, size = rows * _GROWTH, size * _GROWTH
        while True:
            yield self.rows, self.bytes


def stream_messages(
    opened: OpenedScan,
    chunk_spec: ChunkSpec,
    server_incarnation: str,
    scan: RegisteredScan,
    started: float,
    heartbeat_seconds: float,
) -> Iterator[bytes | None]:
    """Yields the messages of one stream, serialized `ScanKvResponse`s. Each is built on demand.

    None means that no message is complete yet: the caller lets other tasks run and then continues. A heartbeat is sent
    only if no message was sent for `heartbeat_seconds`.

    Raises:
        DataLoss: The source found damage. No trailer follows.
    """
    source, remaining = opened.source, opened.limit
    sent = _SentChunks(scan)
    yield _header(opened, server_incarnation, scan)
    spoken = time.monotonic()
    bounds = chunk_spec.bounds()
    while remaining is None or remaining > 0:
        max_rows, max_bytes = opened.room(*next(bounds))
        if sent.rows and not chunk_spec.large():
            max_rows = sent.fit_small_chunk(max_rows)
        # A source that filters rows cannot know how many to read for the remaining limit.
        wanted = max_rows if remaining is None or opened.selective else min(max_rows, remaining)
        while not source.prefetch(wanted, max_bytes):
            yield None
        chunk = source.next_chunk(wanted, max_bytes)
        if chunk is None:
            break
        if remaining is not None and chunk.batch.num_rows > remaining:
            chunk = replace(chunk, batch=chunk.batch.slice(0, remaining), message=None)
        count = chunk.batch.num_rows
        scan.rows_scanned = source.rows_scanned
        position = source.position()
        if position is None or (not count and time.monotonic() - spoken < heartbeat_seconds):
            yield None
            continue
        remaining = None if remaining is None else remaining - count
        token = opened.tokens.token(position, remaining)
        message = sent.frame(chunk, token) if count else _heartbeat(token, scan.rows_scanned)
        # Released before the message is sent, because the reader may stop here.
        del chunk
        yield message
        del message
        spoken = time.monotonic()
    scan.rows_scanned = source.rows_scanned
    yield sent.trailer(sorted(source.view.log_offsets), started)


class _SentChunks:
    """The chunks that a stream has sent: how many, of how many rows, and their checksum."""

    def __init__(self, scan: RegisteredScan) -> None:
        self.rows = 0
        self._chunks = 0
        self._checksum = 0
        self._scan = scan

    def fit_small_chunk(self, max_rows: int) -> int:
        """Returns how many rows of the average length sent so far take about 96 KiB, at most `max_rows`."""
        return max(1, min(max_rows, SMALL_CHUNK_BYTES * self.rows // self._scan.bytes_returned))

    def frame(self, chunk: Chunk, token: bytes) -> bytes:
        """Returns the message of the next chunk."""
        message = chunk.message or BatchMessage.of(chunk.batch)
        count = chunk.batch.num_rows
        self.rows += count
        self._chunks += 1
        self._checksum = chunk_crc32c(self._checksum, message.crc32c)
        self._scan.bytes_returned += message.data.size
        head = scan_pb2.ScanChunk(
            bucket=chunk.bucket,
            row_count=count,
            resume_token=token,
            rows_scanned=self._scan.rows_scanned,
            crc32c=self._checksum,
        )
        return frame_chunk(head, message.data)

    def trailer(self, buckets: Sequence[int], started: float) -> bytes:
        """Returns the message that ends the stream, and proves that the chunks are complete."""
        trailer = scan_pb2.ScanTrailer(
            rows_scanned=self._scan.rows_scanned,
            rows_returned=self.rows,
            bytes_returned=self._scan.bytes_returned,
            chunks=self._chunks,
            buckets=buckets,
            crc32c=self._checksum,
            elapsed_micros=int((time.monotonic() - started) * 1_000_000),
        )
        return scan_pb2.ScanKvResponse(trailer=trailer).SerializeToString()


def unchanged_messages(
    definition: TableDefinition,
    schema: pa.Schema,
    view: View,
    limit: int | None,
    server_incarnation: str,
    scan_id: str,
    started: float,
) -> Iterator[bytes]:
    """Yields the messages of a stream that reports no change, serialized: a header and a trailer.

    Args:
        definition: The table as of the view.
        schema: The columns that rows would have.
        view: The view that has not changed.
        limit: The limit of the request.
        server_incarnation: This start of the server.
        scan_id: Identifies the scan.
        started: When the request came, by the monotonic clock.
    """
    header = _header_of(definition, schema, definition.schema.id, view, limit, server_incarnation, scan_id)
    header.unchanged = True
    yield scan_pb2.ScanKvResponse(header=header).SerializeToString()
    trailer = scan_pb2.ScanTrailer(
        buckets=sorted(view.log_offsets), elapsed_micros=int((time.monotonic() - started) * 1_000_000)
    )
    yield scan_pb2.ScanKvResponse(trailer=trailer).SerializeToString()


def _header(opened: OpenedScan, server_incarnation: str, scan: RegisteredScan) -> bytes:
    source = opened.source
    header = _header_of(
        opened.definition, source.schema, source.schema_id, source.view, opened.limit, server_incarnation, scan.scan_id
    )
    if not opened.has_version:
        header.ClearField("version")
    if opened.resumed_from is not None:
        before = opened.resumed_from.view
        header.resumed_from.CopyFrom(scan_pb2.ResumedView(log_offsets=before.log_offsets, view_micros=before.micros))
    return scan_pb2.ScanKvResponse(header=header).SerializeToString()


def _header_of(
    definition: TableDefinition,
    schema: pa.Schema,
    schema_id: int,
    view: View,
    limit: int | None,
    server_incarnation: str,
    scan_id: str,
) -> scan_pb2.ScanHeader:
    return scan_pb2.ScanHeader(
        scan_id=scan_id,
        server_incarnation=server_incarnation,
        arrow_schema=schema.serialize().to_pybytes(),
        schema_id=schema_id,
        log_offsets=view.log_offsets,
        table_incarnation=definition.incarnation,
        row_estimate=view.rows,
        view_micros=view.micros,
        limit_left=limit,
        version=version_of(definition, view.log_offsets, view.micros, view.rows),
    )


def _heartbeat(token: bytes, rows_scanned: int) -> bytes:
    heartbeat = scan_pb2.ScanHeartbeat(resume_token=token, rows_scanned=rows_scanned)
    return scan_pb2.ScanKvResponse(heartbeat=heartbeat).SerializeToString()
