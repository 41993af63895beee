"""What one stream carries, in order: a header, the chunks of a source, a trailer that proves there were no more.

Synchronous, and knows nothing of gRPC: whoever sends the messages asks for the next when there is room for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c

from protos.scankv.v1 import scan_pb2
from streaming_server.scan.framing import frame_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.scan.chunk_source import ChunkSource
    from streaming_server.scan.registry import LiveScan


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """How a source is streamed.

    Attributes:
        limit: Most rows of the stream, None for all.
        chunk_rows: Most rows of a chunk.
        chunk_bytes: Most stored bytes of a chunk, but for a single longer row.
    """

    limit: int | None
    chunk_rows: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """What the header says about where the rows come from."""

    server_incarnation: str
    table_incarnation: str


def stream_messages(
    source: ChunkSource, spec: StreamSpec, identity: StreamIdentity, scan: LiveScan, started: float
) -> Iterator[bytes]:
    """The messages of one stream, serialised `ScanKvResponse`s, each made when it is asked for.

    Raises:
        DataLoss: The source found damage; there will be no trailer.
    """
    yield scan_pb2.ScanKvResponse(
        header=scan_pb2.ScanHeader(
            scan_id=scan.scan_id,
            server_incarnation=identity.server_incarnation,
            arrow_schema=source.schema.serialize().to_pybytes(),
            schema_id=source.schema_id,
            log_offsets=source.log_offsets,
            table_incarnation=identity.table_incarnation,
            row_estimate=source.row_estimate,
        )
    ).SerializeToString()
    rows, chunks, checksum = 0, 0, 0
    while spec.limit is None or rows < spec.limit:
        most = spec.chunk_rows if spec.limit is None else min(spec.chunk_rows, spec.limit - rows)
        chunk = source.next_chunk(most, spec.chunk_bytes)
        if chunk is None:
            break
        data = chunk.batch.serialize()
        checksum = google_crc32c.extend(checksum, data)
        rows, chunks = rows + chunk.batch.num_rows, chunks + 1
        scan.rows_scanned = source.rows_scanned
        scan.bytes_returned += data.size
        yield frame_chunk(chunk.bucket, data, chunk.batch.num_rows)
    yield scan_pb2.ScanKvResponse(
        trailer=scan_pb2.ScanTrailer(
            rows_scanned=source.rows_scanned,
            rows_returned=rows,
            bytes_returned=scan.bytes_returned,
            chunks=chunks,
            buckets=sorted(source.log_offsets),
            crc32c=checksum,
            elapsed_micros=int((time.monotonic() - started) * 1_000_000),
        )
    ).SerializeToString()
