"""The messages of a valid scan, which tests can corrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

from aio_client._transport.framing import ScanMessage
from scankv.v1.scan_pb2 import (
    ResumedView,
    ScanChunk,
    ScanHeader,
    ScanHeartbeat,
    ScanKvResponse,
    ScanTrailer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
LOG_OFFSETS = {0: 7, 1: 0, 2: 12}

# The first conversion of a process imports pandas, which takes longer than the timeouts of some tests.
pa.array([0])


def batch(first: int, rows: int) -> pa.RecordBatch:
    ids = range(first, first + rows)
    return pa.RecordBatch.from_pylist([{"id": id_, "name": f"n{id_}"} for id_ in ids], schema=SCHEMA)


def header(
    schema: pa.Schema = SCHEMA,
    log_offsets: dict[int, int] | None = None,
    *,
    resumed_from: dict[int, int] | None = None,
    table_incarnation: str = "table-1",
) -> ScanHeader:
    return ScanHeader(
        scan_id="scan-1",
        server_incarnation="server-1",
        arrow_schema=schema.serialize().to_pybytes(),
        schema_id=1,
        log_offsets=LOG_OFFSETS if log_offsets is None else log_offsets,
        table_incarnation=table_incarnation,
        resumed_from=None if resumed_from is None else ResumedView(log_offsets=resumed_from, view_micros=1),
    )


def checksum(record_batch: bytes, changes: bytes = b"", *, after: int = 0) -> int:
    """Returns the checksum of a chunk, as `scan.proto` defines it."""
    return int(google_crc32c.value(record_batch + changes + after.to_bytes(4, "little")))


def chunk(rows: pa.RecordBatch, bucket: int = 0, *, after: Iterable[ScanChunk] = ()) -> ScanChunk:
    """Returns a chunk that follows the given number of chunks of its call."""
    after = list(after)
    data = rows.serialize().to_pybytes()
    return ScanChunk(
        bucket=bucket,
        record_batch=data,
        row_count=rows.num_rows,
        # The last key is enough for a scripted server to continue after the token.
        resume_token=b"after %d" % rows["id"][-1].as_py() if rows.num_rows and rows.num_columns else b"somewhere",
        rows_scanned=sum(each.row_count for each in after) + rows.num_rows,
        crc32c=checksum(data, after=after[-1].crc32c if after else 0),
    )


def chunks(count: int = 3, rows: int = 5, first: int = 0) -> list[ScanChunk]:
    """Returns the chunks of one call, of which the first one has the given number."""
    sent: list[ScanChunk] = []
    for index in range(first, count):
        sent.append(chunk(batch(index * rows, rows), index % len(LOG_OFFSETS), after=sent))
    return sent


def heartbeat(token: bytes, rows_scanned: int) -> ScanHeartbeat:
    return ScanHeartbeat(resume_token=token, rows_scanned=rows_scanned)


def trailer(sent: Iterable[ScanChunk], buckets: Iterable[int] = LOG_OFFSETS) -> ScanTrailer:
    sent = list(sent)
    rows = sum(each.row_count for each in sent)
    return ScanTrailer(
        rows_scanned=rows + 1,
        rows_returned=rows,
        bytes_returned=sum(len(each.record_batch) for each in sent),
        chunks=len(sent),
        buckets=buckets,
        crc32c=sent[-1].crc32c if sent else 0,
    )


def response(part: ScanHeader | ScanChunk | ScanHeartbeat | ScanTrailer) -> ScanKvResponse:
    match part:
        case ScanHeader():
            return ScanKvResponse(header=part)
        case ScanChunk():
            return ScanKvResponse(chunk=part)
        case ScanHeartbeat():
            return ScanKvResponse(heartbeat=part)
        case ScanTrailer():
            return ScanKvResponse(trailer=part)


def received(part: ScanKvResponse | ScanHeader | ScanChunk | ScanHeartbeat | ScanTrailer) -> ScanMessage:
    """Returns the message as the client receives it."""
    message = part if isinstance(part, ScanKvResponse) else response(part)
    return ScanMessage.from_bytes(message.SerializeToString())


def whole_scan() -> list[ScanKvResponse]:
    """Returns the messages of a complete scan: a header, three chunks and a trailer."""
    sent = chunks()
    return [response(header()), *map(response, sent), response(trailer(sent))]
