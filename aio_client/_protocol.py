"""What a scan asks for on the wire, and whether what comes back keeps the contract of `scan.proto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

from protos.scankv.v1 import scan_pb2
from table_model.errors import ProtocolViolation
from table_model.expressions.wire import to_proto

if TYPE_CHECKING:
    from collections.abc import Collection

    from protos.scankv.v1.scan_pb2 import (
        ScanChunk,
        ScanHeader,
        ScanHeartbeat,
        ScanKvRequest,
        ScanKvResponse,
        ScanTrailer,
    )
    from table_model.scan_spec import ScanSpec


def scan_request(spec: ScanSpec, token: bytes | None = None) -> ScanKvRequest:
    """Writes a scan as the request that asks for it.

    Args:
        spec: The scan.
        token: Where to go on; the spec's own is not looked at. None: from the beginning.
    """
    snapshot = None if spec.snapshot_id is None else scan_pb2.PinnedSnapshot(snapshot_id=spec.snapshot_id)
    keys = spec.key_range
    return scan_pb2.ScanKvRequest(
        table=spec.table,
        live_kv=scan_pb2.LiveKv() if snapshot is None else None,
        snapshot=snapshot,
        buckets=spec.buckets or (),
        columns=None if spec.columns is None else scan_pb2.ColumnNames(names=spec.columns),
        where=None if spec.where is None else to_proto(spec.where),
        limit=spec.limit,
        chunk=scan_pb2.ChunkBounds(max_rows=spec.chunk_rows or 0, max_bytes=spec.chunk_bytes or 0),
        resume_token=token or b"",
        key_range=None if keys is None else scan_pb2.KeyRange(start=keys.start, end=keys.end),
        reverse=spec.reverse,
        ordered=spec.ordered,
    )


class EndedWithoutTrailer(ProtocolViolation):
    """A stream was cut without a status, as a proxy does: what came is right, but may not be all."""


class ScanLedger:
    """Books every message of one attempt of a scan, and refuses the first that breaks the contract.

    That is header, chunks and heartbeats, trailer, end. Pure: it is handed messages and raises ProtocolViolation. What
    it has let pass by the end is the whole answer; what it has let pass so far has the checksum of the server.

    Attributes:
        header: The header, once it came.
        schema: The Arrow schema of the rows, once the header came.
        trailer: The trailer, once it came and agreed with everything before it.
        rows: Rows received so far.
        bytes: Bytes of Arrow data received so far.
        chunks: Chunks received so far.
        rows_scanned: Rows that the server has read from storage, as it said last.
        token: Where to go on behind what was received: the token given, until a chunk or heartbeat came.
    """

    def __init__(self, spec: ScanSpec, *, token: bytes | None = None, limit: int | None = None) -> None:
        """Begins an attempt.

        Args:
            spec: The scan.
            token: The token that the attempt goes on from. None: it starts at the beginning.
            limit: The most rows that may come. None: the limit of the spec.
        """
        self.spec = spec
        self.header: ScanHeader | None = None
        self.schema: pa.Schema | None = None
        self.trailer: ScanTrailer | None = None
        self.rows = 0
        self.bytes = 0
        self.chunks = 0
        self.rows_scanned = 0
        self.token = token
        self._limit = spec.limit if limit is None else limit
        self._crc32c = 0

    def book(self, message: ScanKvResponse) -> pa.RecordBatch | None:
        """Takes the next message of the stream.

        Returns:
            The rows of a chunk; None for every other message, also for one of a kind that only newer servers send.
        """
        kind = message.WhichOneof("message")
        if self.trailer is not None:
            raise violation("nothing after the trailer", kind or "a message")
        if kind == "header":
            self._book_header(message.header)
        elif self.header is None:
            raise violation("the header first", kind or "another message")
        elif kind == "chunk":
            return self._book_chunk(message.chunk)
        elif kind == "heartbeat":
            self._book_position(message.heartbeat)
        elif kind == "trailer":
            self._book_trailer(message.trailer)
        return None

    def close(self) -> None:
        """Takes the end of the stream: without the trailer, rows may be missing."""
        if self.trailer is None:
            raise EndedWithoutTrailer(
                _broken(
                    "a trailer at the end of the stream", f"none after {self.rows:,} rows in {self.chunks:,} chunks"
                )
            )

    def _book_header(self, header: ScanHeader) -> None:
        if self.header is not None:
            raise violation("one header", "a second one")
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema))
        except (pa.ArrowException, OSError, EOFError) as error:
            raise violation("an Arrow schema in the header", f"{len(header.arrow_schema)} other bytes") from error
        wanted = self.spec.columns
        if wanted is not None and tuple(schema.names) != wanted:
            raise violation(f"the columns {list(wanted)}", str(schema.names))
        asked = self.spec.buckets
        _compare("the buckets of the header", asked or range(len(header.log_offsets)), header.log_offsets)
        if not header.log_offsets:
            raise violation("at least one bucket in the header", "none")
        # A server that began anew instead of going on would send rows twice.
        resumed = header.HasField("resumed_from")
        if resumed is not (self.token is not None):
            raise violation(
                "a scan from its beginning" if resumed else "a scan that goes on from the token", "the opposite"
            )
        self.header = header
        self.schema = schema

    def _book_chunk(self, chunk: ScanChunk) -> pa.RecordBatch:
        assert self.header is not None
        if not self.spec.ordered and chunk.bucket not in self.header.log_offsets:
            raise violation("chunks of the buckets in the header", f"one of bucket {chunk.bucket}")
        data = chunk.record_batch  # Every access to a bytes field copies it.
        crc32c = google_crc32c.extend(self._crc32c, data)
        if chunk.crc32c != crc32c:
            raise violation(f"the CRC32C {chunk.crc32c:08x} of a chunk and those before it", f"{crc32c:08x}")
        rows = self._read_rows(data, chunk.row_count)
        if self._limit is not None and self.rows + rows.num_rows > self._limit:
            raise violation(f"at most {self._limit:,} rows", f"{self.rows + rows.num_rows:,}")
        self._book_position(chunk)
        self._crc32c = crc32c
        self.rows += rows.num_rows
        self.bytes += len(data)
        self.chunks += 1
        return rows

    def _read_rows(self, data: bytes, row_count: int) -> pa.RecordBatch:
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
            rows.validate()
        except (pa.ArrowException, OSError, EOFError) as error:
            raise violation("an Arrow record batch of the header's schema", f"{len(data)} other bytes") from error
        if rows.num_rows != row_count or not rows.num_rows:
            raise violation(f"a chunk of {row_count:,} rows, at least 1", f"one of {rows.num_rows:,}")
        return rows

    def _book_position(self, message: ScanChunk | ScanHeartbeat) -> None:
        token = message.resume_token
        # Going on from an older token would bring rows twice.
        if not token:
            raise violation("a resume token in every chunk and heartbeat", "one without")
        self.token = token
        self.rows_scanned = message.rows_scanned

    def _book_trailer(self, trailer: ScanTrailer) -> None:
        assert self.header is not None
        _compare_total("rows", trailer.rows_returned, self.rows)
        _compare_total("chunks", trailer.chunks, self.chunks)
        _compare_total("bytes of Arrow data", trailer.bytes_returned, self.bytes)
        _compare("the buckets of the trailer", self.header.log_offsets, trailer.buckets)
        if trailer.crc32c != self._crc32c:
            raise violation(f"the CRC32C {trailer.crc32c:08x} of the trailer", f"{self._crc32c:08x}")
        self.rows_scanned = trailer.rows_scanned
        self.trailer = trailer


def _compare_total(what: str, expected: int, got: int) -> None:
    if expected != got:
        raise violation(f"{expected:,} {what}, as the trailer says", f"{got:,}")


def _compare(what: str, expected: Collection[int], got: Collection[int]) -> None:
    if sorted(expected) != sorted(got):
        raise violation(f"{what} to be {sorted(expected)}", str(sorted(got)))


def violation(expected: str, got: str) -> ProtocolViolation:
    """The error for a contract that was broken."""
    return ProtocolViolation(_broken(expected, got))


def _broken(expected: str, got: str) -> str:
    return f"the server broke the contract of a scan: expected {expected}, got {got}; do not use the rows received"
