"""A bare grpc.aio server and client that scan in several variants; each differs from the first in one thing."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

import google_crc32c
import grpc
import pyarrow as pa

from benchmarks.files import definition, open_bucket
from benchmarks.measure import Timing
from scankv.model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS
from scankv.v1.scan_pb2 import ScanChunk, ScanKvResponse
from streaming_server.scan.framing import frame_chunk
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from streaming_server.storage.cursors.cursor import BucketCursor

_SERVICE: Final = "bench.Variants"
_METHOD: Final = "Scan"
_FRAME: Final = struct.Struct("<BII")
_CHUNK_KIND: Final = 2
_TICK_SECONDS: Final = 0.005
# The options of ScanKV's client.
_CLIENT_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 * 1024 * 1024),
)


class Variant(StrEnum):
    SERVED = "on the event loop, protobuf with the rows framed by hand (the server's way)"
    THREAD = "the same in a thread"
    PROTOBUF = "on the event loop, protobuf by its library"
    FRAMED = "on the event loop, a frame of our own on both sides"


class VariantServer:
    """Serves T4 in every variant, with an event loop in a separate thread."""

    def __init__(self, data: Path) -> None:
        self._bucket = open_bucket(data)
        table = definition(data)
        self._codec, self._keys = RowCodec(table), KeyEncoder(table).codec
        self._pool = ThreadPoolExecutor(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._longest_gap = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown()
        self._bucket.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        self._server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(self._scan)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._ticker = asyncio.create_task(self._tick())

    async def _stop(self) -> None:
        self._ticker.cancel()
        await self._server.stop(None)

    def url(self) -> str:
        """Returns the address that the server listens on."""
        return f"127.0.0.1:{self._port}"

    def longest_gap(self) -> float:
        """Returns the longest time in seconds for which the event loop was blocked since the last call."""
        longest, self._longest_gap = self._longest_gap, 0.0
        return longest

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.perf_counter()
            self._longest_gap = max(self._longest_gap, now - last - _TICK_SECONDS)
            last = now

    async def _scan(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        variant = Variant(request.decode())
        cursor = self._bucket.cursor(self._codec, self._codec.decoder(), self._keys)
        messages = _MESSAGES[variant](cursor)
        in_flight: asyncio.Task[None] | None = None
        while (message := await self._next(variant, messages)) is not None:
            if in_flight is not None:
                await in_flight
            in_flight = asyncio.create_task(context.write(message))
            await asyncio.sleep(0)
        if in_flight is not None:
            await in_flight
        cursor.close()

    async def _next(self, variant: Variant, messages: Iterator[bytes]) -> bytes | None:
        if variant is Variant.THREAD:
            return await self._loop.run_in_executor(self._pool, next, messages, None)
        return next(messages, None)


def _server_messages(cursor: BucketCursor) -> Iterator[bytes]:
    for rows, data in _record_batches(cursor):
        yield frame_chunk(ScanChunk(row_count=rows), data)


def _protobuf_messages(cursor: BucketCursor) -> Iterator[bytes]:
    for rows, data in _record_batches(cursor):
        chunk = ScanChunk(bucket=0, record_batch=data.to_pybytes(), row_count=rows)
        yield ScanKvResponse(chunk=chunk).SerializeToString()


def _framed_messages(cursor: BucketCursor) -> Iterator[bytes]:
    for rows, data in _record_batches(cursor):
        yield b"".join((_FRAME.pack(_CHUNK_KIND, 0, rows), data))


def _record_batches(cursor: BucketCursor) -> Iterator[tuple[int, pa.Buffer]]:
    checksum = 0
    while (batch := cursor.next_batch(DEFAULT_CHUNK_ROWS, DEFAULT_CHUNK_BYTES)) is not None:
        data = batch.serialize()
        checksum = google_crc32c.extend(checksum, data)
        yield batch.num_rows, data


_MESSAGES: Final[Mapping[Variant, Callable[[BucketCursor], Iterator[bytes]]]] = {
    Variant.SERVED: _server_messages,
    Variant.THREAD: _server_messages,
    Variant.PROTOBUF: _protobuf_messages,
    Variant.FRAMED: _framed_messages,
}


class VariantReader:
    """Reads T4 in every variant. Opens and validates each batch and computes the checksum, as ScanKV's client does."""

    def __init__(self, url: str, schema: pa.Schema) -> None:
        self._url = url
        self._schema = schema
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    async def _connect(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._url, options=_CLIENT_OPTIONS)
        self._scan = self._channel.unary_stream(
            f"/{_SERVICE}/{_METHOD}", request_serializer=None, response_deserializer=None
        )

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._channel.close(None))
        self._runner.close()

    def read(self, variant: Variant) -> Timing:
        """Reads all rows once."""
        return self._runner.run(self._read(variant, _open_framed if variant is Variant.FRAMED else _open_protobuf))

    async def _read(self, variant: Variant, open_message: Callable[[bytes], pa.Buffer]) -> Timing:
        started, rows, checksum = time.perf_counter(), 0, 0
        async for message in self._scan(variant.encode()):
            data = open_message(message)
            checksum = google_crc32c.extend(checksum, data)
            batch = pa.ipc.read_record_batch(data, self._schema)
            batch.validate()
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)


def _open_protobuf(message: bytes) -> pa.Buffer:
    return pa.py_buffer(ScanKvResponse.FromString(message).chunk.record_batch)


def _open_framed(message: bytes) -> pa.Buffer:
    return pa.py_buffer(message).slice(_FRAME.size)
