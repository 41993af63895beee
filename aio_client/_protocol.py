"""What a scan asks for on the wire, and whether what comes back keeps the contract of `scan.proto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

from protos.scankv.v1 import scan_pb2
from table_model.errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Collection

    from protos.scankv.v1.scan_pb2 import ScanChunk, ScanHeader, ScanKvRequest, ScanKvResponse, ScanTrailer
    from table_model.scan_spec import ScanSpec


def scan_request(spec: ScanSpec) -> ScanKvRequest:
    """Writes a scan as the request that asks for it."""
    return scan_pb2.ScanKvRequest(
        table=spec.table,
        live_kv=scan_pb2.LiveKv(),
        buckets=spec.buckets or (),
        columns=None if spec.columns is None else scan_pb2.ColumnNames(names=spec.columns),
        limit=spec.limit,
        chunk=scan_pb2.ChunkBounds(max_rows=spec.chunk_rows or 0, max_bytes=spec.chunk_bytes or 0),
    )


class ScanLedger:
    """Books every message of one scan, and refuses the first that breaks the contract: header, chunks, trailer, end.

    Pure: it is handed messages and raises ProtocolViolation. What it has let pass by the end is the whole answer.

    Attributes:
        header: The header, once it came.
        schema: The Arrow schema of the rows, once the header came.
        trailer: The trailer, once it came and agreed with everything before it.
        rows: Rows received so far.
        bytes: Bytes of Arrow data received so far.
        chunks: Chunks received so far.
    """

    def __init__(self, spec: ScanSpec) -> None:
        self.spec = spec
        self.header: ScanHeader | None = None
        self.schema: pa.Schema | None = None
        self.trailer: ScanTrailer | None = None
        self.rows = 0
        self.bytes = 0
        self.chunks = 0
        self._crc32c = 0

    def book(self, message: ScanKvResponse) -> pa.RecordBatch | None:
        """Takes the next message of the stream.

        Returns:
            The rows of a chunk; None for every other message, also for one of a kind that only newer servers send.
        """
        kind = message.WhichOneof("message")
        if self.trailer is not None:
            raise _violation("nothing after the trailer", kind or "a message")
        if kind == "header":
            self._book_header(message.header)
        elif self.header is None:
            raise _violation("the header first", kind or "another message")
        elif kind == "chunk":
            return self._book_chunk(message.chunk)
        elif kind == "trailer":
            self._book_trailer(message.trailer)
        return None

    def close(self) -> None:
        """Takes the end of the stream: without the trailer, rows may be missing."""
        if self.trailer is None:
            raise _violation(
                "a trailer at the end of the stream", f"none after {self.rows:,} rows in {self.chunks:,} chunks"
            )

    def _book_header(self, header: ScanHeader) -> None:
        if self.header is not None:
            raise _violation("one header", "a second one")
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema))
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _violation("an Arrow schema in the header", f"{len(header.arrow_schema)} other bytes") from error
        wanted = self.spec.columns
        if wanted is not None and tuple(schema.names) != wanted:
            raise _violation(f"the columns {list(wanted)}", str(schema.names))
        asked = self.spec.buckets
        _compare("the buckets of the header", asked or range(len(header.log_offsets)), header.log_offsets)
        if not header.log_offsets:
            raise _violation("at least one bucket in the header", "none")
        self.header = header
        self.schema = schema

    def _book_chunk(self, chunk: ScanChunk) -> pa.RecordBatch:
        assert self.header is not None
        if chunk.bucket not in self.header.log_offsets:
            raise _violation("chunks of the buckets in the header", f"one of bucket {chunk.bucket}")
        data = chunk.record_batch  # Every access to a bytes field copies it.
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
            rows.validate()
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _violation("an Arrow record batch of the header's schema", f"{len(data)} other bytes") from error
        if rows.num_rows != chunk.row_count or not rows.num_rows:
            raise _violation(f"a chunk of {chunk.row_count:,} rows, at least 1", f"one of {rows.num_rows:,}")
        self.rows += rows.num_rows
        self.bytes += len(data)
        self.chunks += 1
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        if self.spec.limit is not None and self.rows > self.spec.limit:
            raise _violation(f"at most {self.spec.limit:,} rows", f"{self.rows:,}")
        return rows

    def _book_trailer(self, trailer: ScanTrailer) -> None:
        assert self.header is not None
        _compare_total("rows", trailer.rows_returned, self.rows)
        _compare_total("chunks", trailer.chunks, self.chunks)
        _compare_total("bytes of Arrow data", trailer.bytes_returned, self.bytes)
        _compare("the buckets of the trailer", self.header.log_offsets, trailer.buckets)
        if trailer.crc32c != self._crc32c:
            raise _violation(f"the CRC32C {trailer.crc32c:08x} of the trailer", f"{self._crc32c:08x}")
        self.trailer = trailer


def _compare_total(what: str, expected: int, got: int) -> None:
    if expected != got:
        raise _violation(f"{expected:,} {what}, as the trailer says", f"{got:,}")


def _compare(what: str, expected: Collection[int], got: Collection[int]) -> None:
    if sorted(expected) != sorted(got):
        raise _violation(f"{what} to be {sorted(expected)}", str(sorted(got)))


def _violation(expected: str, got: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"the server broke the contract of a scan: expected {expected}, got {got}; do not use the rows received"
    )
