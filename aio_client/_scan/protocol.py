"""The request of a scan, and the check that its answer keeps the contract of `scan.proto`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import google_crc32c
import pyarrow as pa
from google.protobuf.message import DecodeError

from aio_client._input.isolation import isolation_message
from scankv.model.changes.change_columns import ChangeColumns
from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.changes.log_positions import CatchUp, PositionKind, Unmatched, Untracked
from scankv.model.counts import counted
from scankv.model.errors import ProtocolViolation, UsageError
from scankv.model.expressions.wire import to_proto
from scankv.model.tables.columns import CHANGE_COLUMNS
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from collections.abc import Collection

    from aio_client._transport.framing import ScanMessage
    from scankv.model.changes.log_positions import LogSpec, StartFrom, StopAt
    from scankv.model.scans.scan_spec import ScanSpec
    from scankv.v1.scan_pb2 import ScanChunk, ScanHeader, ScanHeartbeat, ScanKvRequest, ScanTrailer


_READ_PATHS: Final = {
    "auto": scan_pb2.READ_PATH_UNSPECIFIED,
    "rocksdb": scan_pb2.READ_PATH_ROCKSDB,
    "columnar": scan_pb2.READ_PATH_COLUMNAR,
    "lake": scan_pb2.READ_PATH_UNSPECIFIED,
}


def scan_request(
    spec: ScanSpec, token: bytes | None = None, fence: int = 0, heartbeat_millis: int = 0, *, clears: bool = False
) -> ScanKvRequest:
    """Converts a scan to a request.

    Args:
        spec: The scan.
        token: Where to continue, in place of the spec's own token. None: from the beginning.
        fence: The fence of the consumer's stream, from its header. 0: the stream takes the consumer over, or has none.
        heartbeat_millis: The longest time between two messages. 0: the server's default.
        clears: Whether the reader drops its rows of deleted ranges, if it reads ranges that were not tracked again.
    """
    snapshot = None if spec.snapshot_id is None else scan_pb2.PinnedSnapshot(snapshot_id=spec.snapshot_id)
    log = None if spec.log is None else _consumer_changelog_message(spec.log, fence, clears=clears)
    keys = spec.key_range
    return scan_pb2.ScanKvRequest(
        table=spec.table,
        live_kv=scan_pb2.LiveKv() if snapshot is None and log is None else None,
        snapshot=snapshot,
        log=log,
        # A scan of no bucket asks one bucket for the schema of its rows.
        buckets=(0,) if spec.buckets == () and log is None else spec.buckets,
        no_buckets=spec.buckets == () and log is not None,
        columns=None if spec.columns is None else scan_pb2.ColumnNames(names=spec.columns),
        where=None if spec.where is None else to_proto(spec.where),
        limit=0 if spec.buckets == () and log is None else spec.limit,
        chunk=scan_pb2.ChunkBounds(max_rows=spec.chunk_rows or 0, max_bytes=spec.chunk_bytes or 0),
        resume_token=token or b"",
        # A scan that resumes has returned rows already, so the remaining rows must come in any case.
        if_changed_since=None if token else spec.if_changed_since,
        key_range=None if keys is None else scan_pb2.KeyRange(start=keys.start, end=keys.end),
        reverse=spec.reverse,
        ordered=spec.ordered,
        read_path=_READ_PATHS[spec.read_path],
        isolation=isolation_message(spec.isolation),
        # The default is left out, as earlier servers do not know it.
        consistency=scan_pb2.CONSISTENCY_OWNER if spec.consistency == "owner" else scan_pb2.CONSISTENCY_UNSPECIFIED,
        heartbeat_millis=heartbeat_millis,
        changes_follow=spec.changes_follow,
    )


def _consumer_changelog_message(log: LogSpec, fence: int, *, clears: bool) -> scan_pb2.Changelog:
    message = changelog_message(log, clears=clears)
    message.rows_elsewhere = log.rows_elsewhere
    if log.consumer_id is not None:
        message.consumer_id, message.consumer_fence = log.consumer_id, fence
        message.consumer_must_exist = log.consumer_must_exist
        # A stream that continues makes no consumer.
        message.consumer_principal = "" if fence else log.consumer_principal or ""
    return message


def changelog_message(log: LogSpec, *, clears: bool = False) -> scan_pb2.Changelog:
    """Converts the start and the end of a stream of changes to a message.

    With `clears`, the reader drops its rows of deleted ranges.
    """
    message = scan_pb2.Changelog(
        net_changes=log.catch_up is CatchUp.NET,
        net_changes_lag_threshold=log.lag_threshold or 0,
        clamp=log.clamp,
        unmatched_delete=log.unmatched is Unmatched.DELETE,
        rescan_untracked=log.untracked is Untracked.RESCAN,
        clear_ranges=clears and log.untracked is Untracked.RESCAN,
    )
    start, stop = log.start, log.stop
    match start.kind:
        case PositionKind.TIMESTAMP:
            message.timestamp_micros = start.micros
        case PositionKind.OFFSETS:
            message.offsets.CopyFrom(log_offsets_message(start))
        case PositionKind.LAST:
            message.last = start.count
        case PositionKind.FULL:
            message.full.SetInParent()
        case PositionKind.EARLIEST:
            message.earliest.SetInParent()
        case PositionKind.LATEST:
            message.latest.SetInParent()
        case PositionKind.LAKE:
            raise UsageError("StartFrom.lake is for streams of changes: the server cannot read files")
    if stop is not None:
        match stop.kind:
            case PositionKind.TIMESTAMP:
                message.stop_timestamp_micros = stop.micros
            case PositionKind.OFFSETS:
                message.stop_offsets.CopyFrom(log_offsets_message(stop))
            case _:
                message.stop_latest.SetInParent()
    return message


def log_offsets_message(position: StartFrom | StopAt) -> scan_pb2.LogOffsets:
    """Converts the offsets of a position to a message, with their table incarnation if it is known."""
    return scan_pb2.LogOffsets(by_bucket=dict(position.by_bucket), table_incarnation=position.table_incarnation)


class EndedWithoutTrailer(ProtocolViolation):
    """A stream ended without a status, as when a proxy cuts it: what arrived is right, but may be incomplete."""


class ScanLedger:
    """Books every message of one attempt of a scan, and refuses the first one that breaks the contract.

    The contract is header, chunks and heartbeats, trailer, end. Pure: it takes messages and raises ProtocolViolation.
    What it has accepted by the end is the complete answer. Until then, what it has accepted has the server's checksum.

    Attributes:
        header: The header, once it has arrived.
        schema: The Arrow schema of the rows, once the header has arrived.
        trailer: The trailer, once it has arrived and agreed with everything before it.
        rows: Rows received so far.
        bytes: Bytes of Arrow data received so far.
        chunks: Chunks received so far.
        rows_scanned: Rows that the server has read from storage, as last reported.
        token: The token that continues after what was received: the given token until a chunk or heartbeat arrives.
        next_offsets: For changes: the offset of the next change of each bucket.
        bucket: The bucket of the last chunk. None before the first.
        scanning: For changes: whether rows of the table are still to come.
        watermark_micros: For changes: all changes committed before this time have arrived. 0 if not known.
    """

    def __init__(self, spec: ScanSpec, *, token: bytes | None = None, limit: int | None = None) -> None:
        """Begins an attempt.

        Args:
            spec: The scan.
            token: The token from which the attempt continues. None: the attempt starts at the beginning.
            limit: The most rows that may arrive. None: the limit of the spec.
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
        # A scan of no bucket asks one bucket for the schema, and for no rows.
        self._for_schema = spec.buckets == () and spec.log is None
        self._limit = spec.limit if limit is None else limit
        self._crc32c = 0
        self._batch_schema: pa.Schema | None = None
        self.next_offsets: dict[int, int] = {}
        self.bucket: int | None = None
        self.watermark_micros = 0
        self.scanning = False

    def book(self, received: ScanMessage) -> pa.RecordBatch | None:
        """Books the next message of the stream.

        Returns:
            The rows of a chunk. None for every other message, including kinds that only newer servers send.
        """
        message = received.fields
        kind = message.WhichOneof("message")
        if self.trailer is not None:
            raise violation("nothing after the trailer", kind or "a message")
        if kind == "header":
            self._book_header(message.header)
        elif self.header is None:
            raise violation("the header first", kind or "another message")
        elif kind == "chunk":
            return self._book_chunk(message.chunk, received.record_batch)
        elif kind == "heartbeat" and self._for_schema:
            pass  # It belongs to the bucket that was asked for the schema.
        elif kind == "heartbeat":
            self._book_position(message.heartbeat)
            self.next_offsets.update(message.heartbeat.next_offsets)
            self.scanning = message.heartbeat.scanning
            self.watermark_micros = max(self.watermark_micros, message.heartbeat.watermark_micros)
        elif kind == "trailer":
            self._book_trailer(message.trailer)
        return None

    def close(self) -> None:
        """Books the end of the stream. Raises EndedWithoutTrailer without a trailer, because rows may be missing."""
        if self.trailer is None:
            raise EndedWithoutTrailer(
                _violation_message(
                    "a trailer at the end of the stream",
                    f"none after {counted(self.rows, 'row')} in {counted(self.chunks, 'chunk')}",
                )
            )

    def _book_header(self, header: ScanHeader) -> None:
        if self.header is not None and self.spec.log is None:
            raise violation("one header", "a second one")
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema))
        except (pa.ArrowException, OSError, EOFError) as error:
            raise violation("an Arrow schema in the header", f"{len(header.arrow_schema)} other bytes") from error
        before = CHANGE_COLUMNS if self.spec.log is not None else ()
        wanted = self.spec.columns
        if wanted is not None and tuple(schema.names) != (*before, *wanted):
            raise violation(f"the columns {[*before, *wanted]}", str(schema.names))
        if self.schema is not None and tuple(schema.names[: len(before)]) != tuple(before):
            raise violation(f"the columns {[*before]} first", str(schema.names))
        asked: Collection[int] | None = (0,) if self._for_schema else self.spec.buckets
        if asked is None:
            asked = range(len(header.log_offsets))
        _compare("the buckets of the header", asked, header.log_offsets)
        if not header.log_offsets and self.spec.buckets != ():
            raise violation("at least one bucket in the header", "none")
        # A server that started from the beginning instead of resuming would send rows twice.
        resumed = header.HasField("resumed_from")
        if self.header is None and resumed is not (self.token is not None):
            raise violation(
                "a scan from its beginning" if resumed else "a scan that resumes from the token", "the opposite"
            )
        if header.unchanged and (resumed or header.version != self.spec.if_changed_since):
            raise violation("an answer about the requested version", "that nothing has changed since another version")
        of_consumer = self.spec.log is not None and self.spec.log.consumer_id is not None
        if of_consumer is not bool(header.consumer_fence):
            raise violation(
                "a fence in the header" if of_consumer else "no fence in the header of a stream without a consumer",
                f"fence {header.consumer_fence}",
            )
        if self.header is None and not self._for_schema:
            self.token = header.resume_token or self.token
            self.next_offsets = dict(header.log_offsets)
            self.scanning = header.full
        self.header = header
        self.schema = schema
        self._batch_schema = pa.schema(list(schema)[len(before) :])

    def _book_chunk(self, chunk: ScanChunk, data: pa.Buffer) -> pa.RecordBatch:
        assert self.header is not None
        if self.header.unchanged:
            raise violation("no chunk after a header that says that nothing has changed", "a chunk")
        if not self.spec.ordered and chunk.bucket not in self.header.log_offsets:
            raise violation("chunks of the buckets in the header", f"one of bucket {chunk.bucket}")
        changes = chunk.changes
        crc32c = chunk_crc32c(self._crc32c, google_crc32c.value(data), changes)
        if chunk.crc32c != crc32c:
            raise violation(f"the CRC32C {chunk.crc32c:08x} of a chunk and those before it", f"{crc32c:08x}")
        rows = self._read_rows(data, chunk.row_count)
        if self.spec.log is not None:
            rows = self._as_changes(rows, changes, chunk.bucket)
        if self._limit is not None and self.rows + rows.num_rows > self._limit:
            raise violation(f"at most {counted(self._limit, 'row')}", f"{self.rows + rows.num_rows:,}")
        self._book_position(chunk)
        if self.spec.log is not None:
            self.next_offsets[chunk.bucket] = chunk.next_offset
        self.bucket = chunk.bucket
        self._crc32c = crc32c
        self.rows += rows.num_rows
        self.bytes += data.size
        self.chunks += 1
        return rows

    def _read_rows(self, data: pa.Buffer, row_count: int) -> pa.RecordBatch:
        try:
            rows = pa.ipc.read_record_batch(data, self._batch_schema)
            rows.validate()
        except (pa.ArrowException, OSError, EOFError) as error:
            raise violation("an Arrow record batch of the header's schema", f"{data.size} other bytes") from error
        if rows.num_rows != row_count or not rows.num_rows:
            raise violation(f"a chunk of {counted(row_count, 'row')}, at least 1", f"one of {rows.num_rows:,}")
        return rows

    def _as_changes(self, rows: pa.RecordBatch, changes: bytes, bucket: int) -> pa.RecordBatch:
        try:
            columns = ChangeColumns.from_bytes(changes, rows.num_rows).arrays(bucket)
        except (DecodeError, ValueError) as error:
            raise violation(
                f"the change columns of {counted(rows.num_rows, 'row')}", f"{len(changes)} other bytes"
            ) from error
        return pa.RecordBatch.from_arrays([*columns, *rows.columns], schema=self.schema)

    def _book_position(self, message: ScanChunk | ScanHeartbeat) -> None:
        token = message.resume_token
        # Resuming from an older token would return rows twice.
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


def _extends(schema: pa.Schema, earlier: pa.Schema) -> bool:
    """Whether a schema has the columns of an earlier one, and perhaps more. Columns may have become nullable."""
    if len(schema) < len(earlier):
        return False
    return all(
        now.equals(before) or (now.nullable and now.equals(before.with_nullable(True)))
        for now, before in zip(schema, earlier, strict=False)
    )


def _compare(what: str, expected: Collection[int], got: Collection[int]) -> None:
    if sorted(expected) != sorted(got):
        raise violation(f"{what} to be {sorted(expected)}", str(sorted(got)))


def violation(expected: str, got: str) -> ProtocolViolation:
    """Returns the error for a broken contract."""
    return ProtocolViolation(_violation_message(expected, got))


def _violation_message(expected: str, got: str) -> str:
    return f"the server broke the contract of a scan: expected {expected}, got {got}; do not use the rows received"
