"""The messages of a change stream, in order: a header, chunks, heartbeats while it waits, and a trailer at its end.

Synchronous, and independent of gRPC, like `producer`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.types.default_values import values_to_ipc
from scankv.v1 import scan_pb2
from streaming_server.scan.chunk_source import BatchMessage, Waiting
from streaming_server.scan.framing import frame_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from scankv.model.tables.columns import ColumnDefinition
    from streaming_server.scan.admission.live_scans import RegisteredScan
    from streaming_server.scan.changes.log_plan import OpenedLog
    from streaming_server.scan.chunk_source import Chunk
    from streaming_server.scan.execution.producer import ChunkSpec


class ChangeStream:
    """The messages of one stream of changes.

    Args:
        opened: The opened stream of changes.
        chunk_spec: How large chunks may become.
        server_incarnation: This start of the server.
        scan: The stream's entry in the registry. Kept up to date.
        started: When the request came, by the monotonic clock.
        heartbeat_seconds: The stream sends a message at least this often.
    """

    def __init__(
        self,
        opened: OpenedLog,
        chunk_spec: ChunkSpec,
        server_incarnation: str,
        scan: RegisteredScan,
        started: float,
        heartbeat_seconds: float,
    ) -> None:
        self._opened = opened
        self._source = opened.source
        self._chunk_spec = chunk_spec
        self._incarnation = server_incarnation
        self._scan = scan
        self._started = started
        self._heartbeat_seconds = heartbeat_seconds
        self._rows = self._chunks = self._checksum = 0
        self._remaining = opened.limit
        self._watermark = 0
        # The token of the last message. A header for a new schema repeats it, because the header precedes its chunk.
        self._last_token = b"" if opened.full else opened.token(opened.limit)

    def messages(self) -> Iterator[bytes | float]:
        """Yields serialized messages, each built on demand, or a number: the seconds to wait for more changes.

        Raises:
            DataLoss, PositionExpired: The changes cannot be read. No trailer follows.
        """
        source = self._source
        yield self._header()
        schema, columns = source.schema, source.columns
        spoken = time.monotonic()
        scanning = source.scanning
        bounds = self._chunk_spec.bounds()
        # The position of each bucket before the ranges that were reported as cleared.
        before_cleared: dict[int, int] = {}
        while self._remaining is None or self._remaining > 0:
            max_rows, max_bytes = next(bounds)
            # A source that filters rows cannot know how many to read for the remaining limit.
            limited = self._remaining is not None and not self._opened.selective
            wanted = min(max_rows, self._remaining or 0) if limited else max_rows
            while not source.prefetch(wanted, max_bytes):
                yield 0.0
            chunk = source.next_chunk(wanted, max_bytes)
            if chunk is None:
                break
            self._scan.rows_scanned = source.rows_scanned
            if scanning and not source.scanning:
                scanning = False
                yield self._heartbeat()
                continue
            if not isinstance(chunk, Waiting) and chunk.cleared:
                before_cleared[chunk.bucket] = source.offsets[chunk.bucket]
                yield self._heartbeat(chunk)
            elif isinstance(chunk, Waiting) or not chunk.batch.num_rows:
                left = spoken + self._heartbeat_seconds - time.monotonic()
                past = [bucket for bucket, offset in before_cleared.items() if source.offsets[bucket] != offset]
                for bucket in past:
                    del before_cleared[bucket]
                if left > 0 and not past:
                    yield left if isinstance(chunk, Waiting) else 0.0
                    continue
                yield self._heartbeat()
            else:
                if source.schema is not schema or source.columns is not columns:
                    # A column may have been replaced by another one of the same name and type.
                    changed = not source.schema.equals(schema) or _meanings(source.columns) != _meanings(columns)
                    schema, columns = source.schema, source.columns
                    if changed:
                        yield self._header()
                message = self._chunk(chunk)
                del chunk  # Released before the message is sent, because the reader may stop here.
                yield message
            spoken = time.monotonic()
        self._scan.rows_scanned = source.rows_scanned
        # No token so far covers the changes read after the last chunk, or the end of the rows.
        yield self._heartbeat()
        yield self._trailer()

    def _chunk(self, chunk: Chunk) -> bytes:
        bucket, batch, message, columns = chunk.bucket, chunk.batch, chunk.message, chunk.changes
        assert columns is not None
        if self._remaining is not None:
            if batch.num_rows > self._remaining:
                batch, message, columns = batch.slice(0, self._remaining), None, columns.first(self._remaining)
                self._source.give_back(bucket, None if columns.offsets is None else int(columns.offsets[-1]))
            self._remaining -= batch.num_rows
        message, changes = message or BatchMessage.of(batch), columns.to_bytes()
        self._rows += batch.num_rows
        self._chunks += 1
        self._checksum = chunk_crc32c(self._checksum, message.crc32c, changes)
        self._scan.bytes_returned += message.data.size
        head = scan_pb2.ScanChunk(
            bucket=bucket,
            row_count=batch.num_rows,
            resume_token=self._token(),
            rows_scanned=self._source.rows_scanned,
            crc32c=self._checksum,
            next_offset=self._source.offsets[bucket],
            changes=changes,
        )
        return frame_chunk(head, message.data)

    def _header(self) -> bytes:
        opened, source = self._opened, self._source
        header = scan_pb2.ScanHeader(
            scan_id=self._scan.scan_id,
            server_incarnation=self._incarnation,
            arrow_schema=source.schema.serialize().to_pybytes(),
            schema_id=source.schema_id,
            log_offsets=source.view.log_offsets,
            table_incarnation=opened.definition.incarnation,
            row_estimate=source.view.rows,
            view_micros=source.view.micros,
            limit_left=opened.limit,
            full=opened.full,
            resume_token=self._last_token,
            consumer_fence=opened.consumer_fence,
            column_ids=[column.id for column in source.columns],
            initial_defaults=values_to_ipc(
                {each.name: each.initial_default for each in source.columns if each.initial_default is not None}
            ),
        )
        if opened.resumed_from is not None:
            header.resumed_from.CopyFrom(scan_pb2.ResumedView(log_offsets=opened.resumed_from.offsets))
        return scan_pb2.ScanKvResponse(header=header).SerializeToString()

    def _heartbeat(self, cleared: Chunk | None = None) -> bytes:
        self._watermark = self._source.watermark() or self._watermark
        heartbeat = scan_pb2.ScanHeartbeat(
            resume_token=self._token(),
            rows_scanned=self._source.rows_scanned,
            next_offsets=self._source.offsets,
            watermark_micros=self._watermark,
            scanning=self._source.scanning,
        )
        if cleared is not None:
            for keys, offset in cleared.cleared:
                message = scan_pb2.KeyRange(start=keys.start, end=keys.end)
                heartbeat.cleared.add(bucket=cleared.bucket, keys=message, offset=offset)
        return scan_pb2.ScanKvResponse(heartbeat=heartbeat).SerializeToString()

    def _token(self) -> bytes:
        self._last_token = self._opened.token(self._remaining)
        return self._last_token

    def _trailer(self) -> bytes:
        trailer = scan_pb2.ScanTrailer(
            rows_scanned=self._source.rows_scanned,
            rows_returned=self._rows,
            bytes_returned=self._scan.bytes_returned,
            chunks=self._chunks,
            buckets=sorted(self._source.offsets),
            crc32c=self._checksum,
            elapsed_micros=int((time.monotonic() - self._started) * 1_000_000),
        )
        return scan_pb2.ScanKvResponse(trailer=trailer).SerializeToString()


def _meanings(columns: Sequence[ColumnDefinition]) -> list[tuple[int, pa.Scalar | None]]:
    """Returns what the header says about columns besides their names and types."""
    return [(column.id, column.initial_default) for column in columns]
