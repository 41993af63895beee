"""Ordered scans of tables with tablets: the streams of the tablets, merged into key order in bounded memory."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS, MIN_CHUNK_BYTES
from streaming_server.arrays.sorted_merge import stable_order
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.services.tablets.joined_stream import checked_messages
from streaming_server.services.tablets.scan_places import ALL_TABLETS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import grpc

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.v1 import scan_pb2
    from streaming_server.services.tablets.joined_stream import JoinedStream
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_NO_KEYS: Final = pa.array([], pa.binary())


def ordered_request(request: scan_pb2.ScanKvRequest, primary_key: Sequence[str], tablets: int) -> None:
    """Changes a request into one for each of several tablets: adds the key columns, and divides the chunk size."""
    if request.HasField("columns"):
        request.columns.names[:] = dict.fromkeys([*request.columns.names, *primary_key])
    rows = request.chunk.max_rows or DEFAULT_CHUNK_ROWS
    size = request.chunk.max_bytes or DEFAULT_CHUNK_BYTES
    request.chunk.max_rows, request.chunk.max_bytes = max(1, rows // tablets), max(MIN_CHUNK_BYTES, size // tablets)


def keys_after(request: scan_pb2.ScanKvRequest, key: bytes) -> None:
    """Leaves only the keys that come after a key, in the order of the scan. The empty key comes before all keys."""
    if not key:
        return
    keys = request.key_range
    if request.reverse:
        keys.end = min(keys.end, key) if keys.HasField("end") else key
    else:
        # A key followed by a zero byte is the next one of all byte strings.
        keys.start = max(keys.start, key + b"\0")


def rows_schema(schema: pa.Schema, request: scan_pb2.ScanKvRequest) -> pa.Schema:
    """Returns the requested columns, without the further columns that tablets return."""
    if not request.HasField("columns"):
        return schema
    return pa.schema([schema.field(name) for name in request.columns.names])


class OrderedMerge:
    """Merges the streams of tablets, whose rows are in key order.

    It holds a chunk of each tablet. Rows up to the least of the last keys are merged by their encoded keys and
    returned together.

    Args:
        request: The request.
        calls: The tablets.
        stream: Makes the messages.
        parts: The stream of each tablet, after its header.
        headers: The headers.
    """

    def __init__(
        self,
        request: scan_pb2.ScanKvRequest,
        calls: TabletCalls,
        stream: JoinedStream,
        parts: Mapping[int, grpc.aio.UnaryStreamCall[bytes, bytes]],
        headers: Mapping[int, scan_pb2.ScanHeader],
    ) -> None:
        self._stream = stream
        self._reverse = request.reverse
        self._most_rows = request.chunk.max_rows or DEFAULT_CHUNK_ROWS
        self._columns = list(request.columns.names) if request.HasField("columns") else None
        keys = calls.table.state.codec.key_codec
        self._runs = [
            _TabletRun(tablet, checked_messages(tablet, part, calls), headers[tablet], keys, reverse=request.reverse)
            for tablet, part in parts.items()
        ]
        self._earlier, last = (0, b"") if stream.place is None else (stream.place.returned, stream.place.rest)
        self._token = stream.token(ALL_TABLETS, self._earlier, last)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yields the chunks and heartbeats."""
        while not self._stream.is_full:
            for run in self._runs:
                while run.needs_rows:
                    if await run.read(self._stream):
                        yield self._stream.heartbeat(self._token)
            merged = self._merge()
            if merged is None:
                return
            for chunk in self._chunks(*merged):
                yield chunk

    def _merge(self) -> tuple[pa.RecordBatch, pa.BinaryArray] | None:
        """Returns the next rows and their keys, before which no tablet can have further rows. None: no row remains."""
        ends = [run.keys[-1].as_py() for run in self._runs if not run.ended]
        cutoff = (max if self._reverse else min)(ends, default=None)
        taken = [run.take(run.count_to(cutoff)) for run in self._runs if len(run.keys)]
        if not taken:
            return None
        rows = pa.concat_batches([each for each, _ in taken])
        keys = pa.concat_arrays([each for _, each in taken])
        # The runs are sorted already, which the stable sort exploits.
        order = stable_order(keys)
        order = order[::-1] if self._reverse else order
        return rows.take(order), keys.take(order)

    def _chunks(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> list[bytes]:
        """Returns the chunks of some rows, up to the limit."""
        count = len(keys) if self._stream.left is None else min(len(keys), self._stream.left)
        chunks = []
        for start in range(0, count, self._most_rows):
            part = rows.slice(start, min(self._most_rows, count - start))
            last = keys[start + len(part) - 1].as_py()
            returned = self._earlier + self._stream.returned + len(part)
            self._token = self._stream.token(ALL_TABLETS, returned, last)
            message = BatchMessage.of(part if self._columns is None else part.select(self._columns))
            chunks.append(self._stream.chunk(0, message.data, message.crc32c, len(part), self._token))
        return chunks


class _TabletRun:
    """The rows of one tablet that have come and are not merged yet.

    Attributes:
        keys: Their encoded keys, in the order of the scan.
        ended: Whether no more rows come.
    """

    def __init__(
        self,
        tablet: int,
        messages: AsyncIterator[scan_pb2.ScanKvResponse],
        header: scan_pb2.ScanHeader,
        codec: KeyCodec,
        *,
        reverse: bool,
    ) -> None:
        self._tablet = tablet
        self._messages = messages
        self._schema = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema))
        self._codec = codec
        self._reverse = reverse
        self._rows = pa.RecordBatch.from_pylist([], schema=self._schema)
        self.keys = _NO_KEYS
        self.ended = False

    @property
    def needs_rows(self) -> bool:
        """Whether more rows must come before any row can be merged."""
        return not self.ended and not len(self.keys)

    async def read(self, stream: JoinedStream) -> bool:
        """Waits for the next message. Returns whether it is a heartbeat."""
        message = await anext(self._messages)
        kind = message.WhichOneof("message")
        stream.scanned(self._tablet, getattr(message, kind or ""))
        if kind == "trailer":
            self.ended = True
        elif kind == "chunk":
            self._rows = pa.ipc.read_record_batch(pa.py_buffer(message.chunk.record_batch), self._schema)
            self.keys = self._codec.encode([self._rows.column(name) for name in self._codec.names])
        return kind == "heartbeat"

    def count_to(self, key: bytes | None) -> int:
        """Returns the number of rows up to and including a key; all rows for None."""
        if key is None:
            return len(self.keys)
        is_after = key.__gt__ if self._reverse else key.__lt__
        return bisect_left(range(len(self.keys)), True, key=lambda index: is_after(self.keys[index].as_py()))

    def take(self, count: int) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """Removes and returns the first rows and their keys."""
        taken = self._rows.slice(0, count), self.keys[:count]
        self._rows, self.keys = self._rows.slice(count), self.keys[count:]
        return taken
