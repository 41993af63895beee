"""The messages of a scan that keeps its contract, for tests to spoil."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

from protos.scankv.v1.scan_pb2 import ScanChunk, ScanHeader, ScanKvResponse, ScanTrailer

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
LOG_OFFSETS = {0: 7, 1: 0, 2: 12}


def batch(first: int, rows: int) -> pa.RecordBatch:
    ids = range(first, first + rows)
    return pa.RecordBatch.from_pylist([{"id": id_, "name": f"n{id_}"} for id_ in ids], schema=SCHEMA)


def header(schema: pa.Schema = SCHEMA, log_offsets: dict[int, int] | None = None) -> ScanHeader:
    return ScanHeader(
        scan_id="scan-1",
        server_incarnation="server-1",
        arrow_schema=schema.serialize().to_pybytes(),
        schema_id=1,
        log_offsets=LOG_OFFSETS if log_offsets is None else log_offsets,
        table_incarnation="table-1",
    )


def chunk(rows: pa.RecordBatch, bucket: int = 0) -> ScanChunk:
    return ScanChunk(bucket=bucket, record_batch=rows.serialize().to_pybytes(), row_count=rows.num_rows)


def chunks(count: int = 3, rows: int = 5) -> list[ScanChunk]:
    return [chunk(batch(index * rows, rows), index % len(LOG_OFFSETS)) for index in range(count)]


def trailer(sent: Iterable[ScanChunk], buckets: Iterable[int] = LOG_OFFSETS) -> ScanTrailer:
    sent = list(sent)
    rows = sum(each.row_count for each in sent)
    return ScanTrailer(
        rows_scanned=rows + 1,
        rows_returned=rows,
        bytes_returned=sum(len(each.record_batch) for each in sent),
        chunks=len(sent),
        buckets=buckets,
        crc32c=google_crc32c.value(b"".join(each.record_batch for each in sent)),
    )


def response(part: ScanHeader | ScanChunk | ScanTrailer) -> ScanKvResponse:
    match part:
        case ScanHeader():
            return ScanKvResponse(header=part)
        case ScanChunk():
            return ScanKvResponse(chunk=part)
        case ScanTrailer():
            return ScanKvResponse(trailer=part)


def whole_scan() -> list[ScanKvResponse]:
    """A header, three chunks and a trailer."""
    sent = chunks()
    return [response(header()), *map(response, sent), response(trailer(sent))]
