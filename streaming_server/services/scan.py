"""`ScanService`: one server stream for one scan.

Its messages leave the producer serialised, so it is registered by a handler of its own and not by the generated one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc

from protos.scankv.v1 import scan_pb2
from streaming_server.scan.producer import StreamIdentity, StreamSpec, stream_messages
from streaming_server.services.errors import mapped_errors
from table_model.errors import InvalidRequest
from table_model.limits import DEFAULT_CHUNK_ROWS, MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, MIN_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from streaming_server.engine.tables import Tables
    from streaming_server.scan.registry import ScanRegistry


class ScanService:
    """Serves `ScanKv`. See `protos/scankv/v1/scan.proto` for what it promises.

    Args:
        tables: What is scanned.
        registry: Admits and lists the scans.
        incarnation: This start of the server.
        chunk_bytes: Most stored bytes of a chunk for requests that do not say.
    """

    def __init__(self, tables: Tables, registry: ScanRegistry, incarnation: str, chunk_bytes: int) -> None:
        self._tables = tables
        self._registry = registry
        self._incarnation = incarnation
        self._chunk_bytes = chunk_bytes

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Registers the service, once, before the server starts."""
        handler = grpc.unary_stream_rpc_method_handler(
            self.ScanKv, request_deserializer=scan_pb2.ScanKvRequest.FromString, response_serializer=None
        )
        name = scan_pb2.DESCRIPTOR.services_by_name["ScanService"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ScanKv": handler}),))

    async def ScanKv(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes],
    ) -> None:
        """Opens the view, then sends its messages; frees it however the call ends."""
        started = time.monotonic()
        async with mapped_errors(request, context), _one_in_flight(context) as send:
            table = self._tables.table(request.table)
            spec = self._spec(request)
            columns = tuple(request.columns.names) if request.HasField("columns") else None
            identity = StreamIdentity(
                server_incarnation=self._incarnation, table_incarnation=table.definition.incarnation
            )
            with self._registry.admitted(request.table, context.peer()) as scan:
                source = await table.open_view(tuple(request.buckets) or None, columns)
                try:
                    for message in stream_messages(source, spec, identity, scan, started):
                        await send(message)
                finally:
                    source.close()

    def _spec(self, request: scan_pb2.ScanKvRequest) -> StreamSpec:
        rows, size = request.chunk.max_rows or DEFAULT_CHUNK_ROWS, request.chunk.max_bytes or self._chunk_bytes
        if rows > MAX_CHUNK_ROWS:
            raise InvalidRequest(f"chunk.max_rows is {rows}: it must be from 1 to {MAX_CHUNK_ROWS}")
        if not MIN_CHUNK_BYTES <= size <= MAX_CHUNK_BYTES:
            raise InvalidRequest(f"chunk.max_bytes is {size}: it must be from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}")
        return StreamSpec(limit=request.limit if request.HasField("limit") else None, chunk_rows=rows, chunk_bytes=size)


@asynccontextmanager
async def _one_in_flight(
    context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes],
) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Gives a `send` that returns while its message is on its way, so that the next one is made meanwhile.

    One is built, one in flight, never more. The block ends, also with an error, when the last message has been sent:
    gRPC takes one operation of a kind at a time, so a status sent beside a message would be lost, and the call hang.
    """
    writes: list[asyncio.Task[None]] = []

    async def settle() -> None:
        while writes:
            await writes.pop()

    async def send(message: bytes) -> None:
        await settle()
        writes.append(asyncio.create_task(context.write(message)))
        # Let the write begin before the next chunk takes the loop.
        await asyncio.sleep(0)

    try:
        try:
            yield send
        except Exception:
            await settle()
            raise
        await settle()
    finally:
        for write in writes:
            write.cancel()
