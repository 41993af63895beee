"""Small servers that answer scans wrongly, each in the way that its name says."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from aio_client._transport.call_queue import SHORT_CALLS
from scankv.v1 import table_pb2
from scankv.v1.scan_pb2 import ScanChunk, ScanKvRequest, ScanKvResponse
from scankv.v1.scan_pb2_grpc import ScanServiceServicer, add_ScanServiceServicer_to_server
from scankv.v1.table_pb2_grpc import TableServiceServicer, add_TableServiceServicer_to_server
from tests.unit.client.messages import (
    batch,
    checksum,
    chunk,
    header,
    response,
    whole_scan,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scankv.v1.scan_pb2 import ExplainScanResponse

Context: TypeAlias = grpc.aio.ServicerContext[ScanKvRequest, ScanKvResponse]

FOREVER = 3600.0


class OnlyScans(ScanServiceServicer):
    """Answers no other call of the service."""

    async def ExplainScan(self, request: ScanKvRequest, context: Any) -> ExplainScanResponse:
        raise NotImplementedError


class KeepsItsContract(OnlyScans):
    """Answers every scan correctly; base of the others.

    Attributes:
        sent: Messages written.
        begun: Set when a scan has come.
        ended: Set when the handler of a scan has ended, however that came.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        for message in whole_scan():
            yield message

    async def ScanKv(self, request: ScanKvRequest, context: Context) -> None:  # type: ignore[override]
        self.begun.set()
        try:
            async for message in self.messages(context):
                await self.write(context, message)
                self.sent += 1
        finally:
            self.ended.set()

    async def write(self, context: Context, message: ScanKvResponse) -> None:
        await context.write(message)


class SendsNoTrailer(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        for message in whole_scan()[:-1]:
            yield message


class SendsWrongChecksum(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        *messages, end = whole_scan()
        for message in messages:
            yield message
        end.trailer.crc32c ^= 1
        yield end


class SendsNothing(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        return
        yield


class StallsBeforeHeader(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        await asyncio.sleep(FOREVER)
        yield response(header())


class StallsAfterHeader(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        yield response(header())
        await asyncio.sleep(FOREVER)


class StallsAfterFirstChunk(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        for message in whole_scan()[:2]:
            yield message
        await asyncio.sleep(FOREVER)


class StallsAfterTrailer(KeepsItsContract):
    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        for message in whole_scan():
            yield message
        await asyncio.sleep(FOREVER)


class NeverEnds(KeepsItsContract):
    """Sends chunks of 64 KiB until its reader stops; then sets `stalled`."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled = asyncio.Event()
        self.chunk = chunk(batch(0, 3000))

    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        yield response(header())
        sent = ScanChunk()
        sent.CopyFrom(self.chunk)
        while True:
            yield response(sent)
            sent.crc32c = checksum(sent.record_batch, after=sent.crc32c)

    async def write(self, context: Context, message: ScanKvResponse) -> None:
        note = asyncio.get_running_loop().call_later(0.3, self.stalled.set)
        try:
            await context.write(message)
        finally:
            note.cancel()


class EndsWith(KeepsItsContract):
    """Ends with a status after some messages of a scan."""

    def __init__(
        self, code: grpc.StatusCode, *, after: int = 0, reason: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__()
        self._code = code
        self._after = after
        self._reason = reason
        self._retry_after = retry_after

    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        for message in whole_scan()[: self._after]:
            yield message
        await end_with(context, self._code, self._reason, self._retry_after)


class SendsUnreadableMessages:
    """Sends bytes that are not a protobuf message."""

    def add_to(self, server: grpc.aio.Server) -> None:
        async def scan(request: bytes, context: Context) -> AsyncIterator[bytes]:
            yield b"\xff\xff\xff"

        handlers = {"ScanKv": grpc.unary_stream_rpc_method_handler(scan)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("scankv.v1.ScanService", handlers),))


class OnlyTables(TableServiceServicer):
    """Never answers a call about tables."""

    async def _stall(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(FOREVER)

    GetTable = CreateTable = DropTable = AlterTable = ListTables = ListTableSizes = _stall


class ShedsTables(OnlyTables):
    """Drops the first calls, as a proxy or an overloaded gRPC server does, and counts them; then answers."""

    def __init__(self, code: grpc.StatusCode, sheds: int) -> None:
        self._code = code
        self._sheds = sheds
        self.calls = 0

    async def _shed(self, context: Any) -> None:
        self.calls += 1
        if self.calls <= self._sheds:
            await context.abort(self._code, "dropped")

    async def ListTables(self, request: Any, context: Any) -> table_pb2.ListTablesResponse:
        await self._shed(context)
        return table_pb2.ListTablesResponse()

    async def DropTable(self, request: Any, context: Any) -> table_pb2.DropTableResponse:
        await self._shed(context)
        return table_pb2.DropTableResponse()


class AnswersTogether(OnlyTables):
    """Answers when the given number of calls is in flight, or when `release` is set; records the maximum."""

    def __init__(self, together: int) -> None:
        self._together = together
        self.release = asyncio.Event()
        self.in_flight = self.most = 0

    async def ListTables(self, request: Any, context: Any) -> table_pb2.ListTablesResponse:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        if self.in_flight == self._together:
            self.release.set()
        await self.release.wait()
        self.in_flight -= 1
        return table_pb2.ListTablesResponse()

    async def is_full(self) -> bool:
        return self.in_flight >= SHORT_CALLS


class RefusesTables(OnlyTables):
    """Ends `GetTable` with a status, and never answers the other calls."""

    def __init__(self, code: grpc.StatusCode, reason: str | None = None, retry_after: float | None = None) -> None:
        self._code = code
        self._reason = reason
        self._retry_after = retry_after

    async def GetTable(self, request: table_pb2.GetTableRequest, context: Any) -> table_pb2.GetTableResponse:
        await end_with(context, self._code, self._reason, self._retry_after)
        raise AssertionError


async def end_with(
    context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, reason: str | None, retry_after: float | None
) -> None:
    """Ends a call with a status, and with the typed detail of ScanKV if a reason is given."""
    if reason is None:
        await context.abort(code, "what the server says")
    info = error_details_pb2.ErrorInfo(reason=reason, domain="scankv", metadata={"table": "game.scores"})
    details: list[Any] = [info]
    if retry_after is not None:
        delay = duration_pb2.Duration(seconds=int(retry_after), nanos=int(retry_after % 1 * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for each, detail in zip(packed, details, strict=True):
        each.Pack(detail)
    status = status_pb2.Status(code=code.value[0], message="what the server says", details=packed)
    await context.abort(
        code, "what the server says", trailing_metadata=(("grpc-status-details-bin", status.SerializeToString()),)
    )


@asynccontextmanager
async def serving(
    *servicers: ScanServiceServicer | TableServiceServicer | SendsUnreadableMessages, port: int = 0
) -> AsyncIterator[str]:
    """Runs one of these servers in this event loop; yields its address."""
    server = grpc.aio.server()
    for servicer in servicers:
        if isinstance(servicer, ScanServiceServicer):
            add_ScanServiceServicer_to_server(servicer, server)
        elif isinstance(servicer, TableServiceServicer):
            add_TableServiceServicer_to_server(servicer, server)
        else:
            servicer.add_to(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
