"""`ScanService`: one server stream for one scan.

Its messages leave the producer serialised, so it is registered by a handler of its own and not by the generated one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

import grpc

from protos.scankv.v1 import scan_pb2
from streaming_server.scan.producer import stream_messages
from streaming_server.scan.registry import LiveScan
from streaming_server.services.errors import mapped_errors
from streaming_server.services.reading import opened_view
from streaming_server.services.scan_request import chunk_spec, read_plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streaming_server.engine.tables import Tables
    from streaming_server.scan.opening import OpenedScan
    from streaming_server.scan.producer import ChunkSpec
    from streaming_server.scan.registry import ScanRegistry

Send: TypeAlias = Callable[[bytes], Awaitable[None]]


class ScanService:
    """Serves `ScanKv` and `ExplainScan`. See `protos/scankv/v1/scan.proto` for what it promises.

    Args:
        tables: What is scanned.
        registry: Admits, lists and ends the scans.
        incarnation: This start of the server.
        chunk_bytes: Most stored bytes of a chunk for requests that do not say.
        heartbeat_seconds: A scan that finds nothing is heard from that often.
    """

    def __init__(
        self, tables: Tables, registry: ScanRegistry, incarnation: str, *, chunk_bytes: int, heartbeat_seconds: float
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._incarnation = incarnation
        self._chunk_bytes = chunk_bytes
        self._heartbeat_seconds = heartbeat_seconds

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Registers the service, once, before the server starts."""
        read_request = scan_pb2.ScanKvRequest.FromString
        handlers = {
            "ScanKv": grpc.unary_stream_rpc_method_handler(self.ScanKv, read_request, None),
            "ExplainScan": grpc.unary_unary_rpc_method_handler(
                self.ExplainScan, read_request, scan_pb2.ExplainScanResponse.SerializeToString
            ),
        }
        name = scan_pb2.DESCRIPTOR.services_by_name["ScanService"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    async def ScanKv(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes],
    ) -> None:
        """Opens the view, then sends its messages; frees it however the call ends."""
        started = time.monotonic()
        async with mapped_errors(request, context):
            plan, chunk = read_plan(request), chunk_spec(request, self._chunk_bytes)
            table = self._tables.table(request.table)
            scan = LiveScan(
                table=request.table,
                buckets=tuple(sorted(plan.buckets or range(len(table.buckets)))),
                snapshot_id=request.snapshot.snapshot_id,
                peer=context.peer(),
            )
            with self._registry.call(scan):
                async with _one_in_flight(context, scan) as send, self._registry.admitted(scan):
                    async with opened_view(self._tables, table, request, plan) as opened:
                        scan.hold(opened.source)
                        await self._stream(opened, chunk, scan, started, send)

    async def ExplainScan(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, scan_pb2.ExplainScanResponse],
    ) -> scan_pb2.ExplainScanResponse:
        """Says what a scan would read. Makes no iterators, so it needs no admission."""
        async with mapped_errors(request, context):
            plan = read_plan(request)
            table = self._tables.table(request.table)
            if not request.HasField("snapshot"):
                return table.explain(plan)
            snapshot_id = request.snapshot.snapshot_id
            async with self._tables.snapshots.reading(snapshot_id, request.table, plan.buckets) as reader:
                answer = reader.explain(plan)
            answer.snapshot_id = snapshot_id
            return answer
        raise AssertionError("mapped_errors ends the call")

    async def _stream(self, opened: OpenedScan, chunk: ChunkSpec, scan: LiveScan, started: float, send: Send) -> None:
        for message in stream_messages(opened, chunk, self._incarnation, scan, started, self._heartbeat_seconds):
            if message is None:
                await asyncio.sleep(0)
            else:
                await send(message)


@asynccontextmanager
async def _one_in_flight(
    context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes], scan: LiveScan
) -> AsyncIterator[Send]:
    """Gives a `send` that returns while its message is on its way, so that the next one is made meanwhile.

    One is built, one in flight, never more. The block ends, also with an error, when the last message has been sent:
    gRPC takes one operation of a kind at a time, so a status sent beside a message would be lost, and the call hang.
    A reader that takes nothing holds the call here, with the one or two messages made and nothing else.
    """
    loop = asyncio.get_running_loop()
    writes: list[asyncio.Task[None]] = []

    async def settle() -> None:
        while writes:
            await writes.pop()

    async def write(message: bytes) -> None:
        scan.sending_since = loop.time()
        await context.write(message)
        scan.sending_since, scan.progress_at = None, loop.time()

    async def send(message: bytes) -> None:
        await settle()
        if scan.ended is not None:
            raise copy(scan.ended)
        writes.append(asyncio.create_task(write(message)))
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
        for task in writes:
            task.cancel()
