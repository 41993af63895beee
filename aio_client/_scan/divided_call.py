"""One attempt of a scan of a table with tablets, whose rows the owner of each tablet sends directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from aio_client._scan.protocol import EndedWithoutTrailer, violation
from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.errors import DeadlineExceeded, ScanKvError, Unavailable
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from aio_client._transport.framing import ScanMessage
    from aio_client._transport.transport import ScanCall, Transport
    from scankv.model.tracing import Headers


class DividedCall:
    """Reads the parts of a scan one after another, as one stream. Dropping the object cancels its calls.

    Each part has a checksum and totals of its own, which are compared here. The messages returned have the checksum of
    the whole stream.

    Args:
        transport: The transport to the server, or to the owner of the table.
        request: The scan. Its answer may have no parts: it is then returned as it comes.
        window: The receive window in bytes.
        trace: The trace context of the scan.
    """

    def __init__(self, transport: Transport, request: scan_pb2.ScanKvRequest, window: int, trace: Headers = ()) -> None:
        self._transport = transport
        self._table = request.table
        self._window = window
        self._trace = trace
        self._main = transport.open_scan(request, window, trace)
        self._header: scan_pb2.ScanHeader | None = None
        self._part: _TabletCall | None = None
        self._parts_read = 0
        self._crc32c = 0
        self._scanned = 0

    async def read(self, timeout: float | None) -> ScanMessage | None:
        """Returns the next message; None after the last one. As `StreamCall.read`.

        Raises:
            ProtocolViolation: A part is not what the server has sent.
        """
        if self._header is None:
            message = await self._main.read(timeout)
            if message is not None:
                self._header = message.fields.header
                await self._open_next(self._header)
            return message
        while self._part is not None:
            try:
                message = await self._part.read(timeout)
            except Unavailable as error:
                raise await self._cause_of(error, timeout) from error
            if message is not None:
                return self._joined(message)
            self._scanned += self._part.rows_scanned
            await self._open_next(self._header)
        message = await self._main.read(timeout)
        if message is not None and self._header.parts and message.fields.HasField("trailer"):
            message.fields.trailer.crc32c = self._crc32c
        return message

    async def _cause_of(self, error: Unavailable, timeout: float | None) -> ScanKvError:
        """Returns why the scan has ended if a part has ended with an error of its server: the owner of the table knows.

        If the connection of the part broke, that is the cause.
        """
        if error.retry_after is None:
            return error
        try:
            while await self._main.read(timeout) is not None:
                pass
        except DeadlineExceeded:
            return error
        except ScanKvError as found:
            return found
        return error

    async def _open_next(self, header: scan_pb2.ScanHeader) -> None:
        """Begins to read the next part, if there is one. The server notices a reader that stops in one."""
        self._part = None
        if self._parts_read == len(header.parts):
            return
        part = header.parts[self._parts_read]
        self._parts_read += 1
        claim = scan_pb2.ScanClaim(ticket=part.ticket, token_head=part.token_head)
        transport = await self._transport.for_part(self._table, part.owner)
        await transport.prepare_token()
        request = scan_pb2.ScanKvRequest(table=part.tablet, claim=claim)
        self._part = _TabletCall(transport.open_scan(request, self._window, self._trace))

    def _joined(self, message: ScanMessage) -> ScanMessage:
        fields = message.fields
        if fields.HasField("chunk"):
            self._crc32c = chunk_crc32c(self._crc32c, google_crc32c.value(message.record_batch))
            fields.chunk.crc32c = self._crc32c
            fields.chunk.rows_scanned += self._scanned
        elif fields.HasField("heartbeat"):
            fields.heartbeat.rows_scanned += self._scanned
        return message

    def cancel(self) -> None:
        """Ends the scan."""
        self._main.cancel()
        if self._part is not None:
            self._part.call.cancel()


class _TabletCall:
    """The stream of one part."""

    def __init__(self, call: ScanCall) -> None:
        self.call = call
        self.rows_scanned = 0
        self._crc32c = 0
        self._rows = 0
        self._trailer: scan_pb2.ScanTrailer | None = None

    async def read(self, timeout: float | None) -> ScanMessage | None:
        """Returns the next chunk or heartbeat; None after the last one, which the trailer proves."""
        while (message := await self.call.read(timeout)) is not None:
            fields = message.fields
            if self._trailer is not None:
                raise violation("nothing after the trailer of a part", "a message")
            if fields.HasField("trailer"):
                self._trailer = fields.trailer
                self.rows_scanned = fields.trailer.rows_scanned
                if (fields.trailer.rows_returned, fields.trailer.crc32c) != (self._rows, self._crc32c):
                    raise violation(
                        f"{fields.trailer.rows_returned:,} rows of a part with the CRC32C {fields.trailer.crc32c:08x}",
                        f"{self._rows:,} with {self._crc32c:08x}",
                    )
                continue
            if fields.HasField("chunk"):
                self._rows += fields.chunk.row_count
                self._crc32c = chunk_crc32c(self._crc32c, google_crc32c.value(message.record_batch))
                if fields.chunk.crc32c != self._crc32c:
                    raise violation(f"the CRC32C {fields.chunk.crc32c:08x} of a part", f"{self._crc32c:08x}")
            return message
        if self._trailer is None:
            raise EndedWithoutTrailer(
                "the server broke the contract of a scan: a part ended without a trailer; do not use the rows received"
            )
        return None
