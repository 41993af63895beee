"""One attempt of a scan of a table with tablets, whose rows the owner of each tablet sends directly."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import google_crc32c

from aio_client._scan.protocol import EndedWithoutTrailer, violation
from aio_client._transport.config import MIN_READ_AHEAD_BYTES
from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.counts import counted
from scankv.model.errors import DeadlineExceeded, ScanKvError, Unavailable
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._transport.framing import ScanMessage
    from aio_client._transport.transport import ScanCall, Transport
    from scankv.model.tracing import Headers


class DividedCall:
    """Reads the parts of a scan as one stream. Dropping the object cancels its calls.

    The parts are read one after another; or, if the rows may come in any order, one part of each owner at a time. Then
    the owners share the window, and the next message of each of them waits beside it.

    Each part has a checksum and totals of its own, which are compared here. The messages returned have the checksum of
    the whole stream.

    Args:
        transport: The transport to the server, or to the owner of the table.
        request: The scan. Its answer may have no parts: it is then returned as it comes.
        window: The receive window in bytes.
        trace: The trace context of the scan.
        unordered: Whether the rows of several owners may come in any order.
    """

    def __init__(
        self,
        transport: Transport,
        request: scan_pb2.ScanKvRequest,
        window: int,
        trace: Headers = (),
        *,
        unordered: bool = False,
    ) -> None:
        self._transport = transport
        self._table = request.table
        self._window = window
        self._trace = trace
        self._unordered = unordered
        self._main = transport.open_scan(request, window, trace)
        self._header: scan_pb2.ScanHeader | None = None
        self._first: ScanMessage | None = None
        # The parts that each owner is still to send, while none of them is open. A cancelled read leaves them here.
        self._unopened: deque[deque[scan_pb2.ScanPart]] = deque()
        self._open: list[_TabletCall] = []
        # The reads of open parts that have not returned, the longest waiting first.
        self._reads: dict[_TabletCall, asyncio.Task[ScanMessage | None]] = {}
        self._crc32c = 0
        self._scanned = 0

    def __del__(self) -> None:
        # A read that has not returned would keep its call.
        for part in getattr(self, "_reads", ()):
            part.call.drop()

    async def read(self, timeout: float | None) -> ScanMessage | None:
        """Returns the next message; None after the last one. As `StreamCall.read`.

        Raises:
            ProtocolViolation: A part is not what the server has sent.
        """
        if self._header is None:
            self._first = await self._main.read(timeout)
            if self._first is None:
                return None
            self._header = self._first.fields.header
            self._divide(self._header.parts)
        await self._open_next()
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while self._open:
            try:
                part, message = await self._read_open(timeout)
            except Unavailable as error:
                raise await self._cause_of(error, timeout) from error
            if message is not None:
                return self._joined(message)
            self._open.remove(part)
            self._scanned += part.rows_scanned
            self._unopened.append(part.later)
            await self._open_next()
        message = await self._main.read(timeout)
        if message is not None and self._header.parts and message.fields.HasField("trailer"):
            message.fields.trailer.crc32c = self._crc32c
        return message

    async def _read_open(self, timeout: float | None) -> tuple[_TabletCall, ScanMessage | None]:
        """Returns the next message of an open part, and the part. None: it is complete."""
        if len(self._open) == 1 and not self._reads:
            return self._open[0], await self._open[0].read(timeout)
        for part in self._open:
            if part not in self._reads:
                read = self._reads[part] = asyncio.create_task(part.read(timeout))
                read.add_done_callback(_retrieve)
        await asyncio.wait(self._reads.values(), return_when=asyncio.FIRST_COMPLETED)
        part = next(part for part, read in self._reads.items() if read.done())
        return part, self._reads.pop(part).result()

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

    def _divide(self, parts: Sequence[scan_pb2.ScanPart]) -> None:
        """Decides to begin with one part, or with one of each owner."""
        by_owner: dict[int, deque[scan_pb2.ScanPart]] = {}
        for part in parts:
            by_owner.setdefault(part.owner if self._unordered else 0, deque()).append(part)
        self._window = max(MIN_READ_AHEAD_BYTES, self._window // max(1, len(by_owner)))
        self._unopened.extend(by_owner.values())

    async def _open_next(self) -> None:
        """Begins to read the next part of each owner that has one. The server notices a reader that stops in one."""
        while self._unopened:
            parts = self._unopened[0]
            if parts:
                transport = await self._transport.for_part(self._table, parts[0].owner)
                await transport.prepare_token()
                part = parts.popleft()
                claim = scan_pb2.ScanClaim(ticket=part.ticket, token_head=part.token_head)
                request = scan_pb2.ScanKvRequest(table=part.tablet, claim=claim)
                self._open.append(_TabletCall(transport.open_scan(request, self._window, self._trace), parts))
            self._unopened.popleft()

    def _joined(self, message: ScanMessage) -> ScanMessage:
        fields = message.fields
        scanned = self._scanned + sum(part.rows_scanned for part in self._open)
        if fields.HasField("chunk"):
            self._crc32c = chunk_crc32c(self._crc32c, google_crc32c.value(message.record_batch))
            fields.chunk.crc32c = self._crc32c
            fields.chunk.rows_scanned = scanned
        elif fields.HasField("heartbeat"):
            fields.heartbeat.rows_scanned = scanned
        return message

    def cancel(self) -> None:
        """Ends the scan."""
        self._main.cancel()
        for part in self._open:
            part.call.cancel()


def _retrieve(read: asyncio.Task[ScanMessage | None]) -> None:
    """Marks the error of a read as retrieved, because the scan may have ended before."""
    if not read.cancelled():
        read.exception()


class _TabletCall:
    """The stream of one part.

    Args:
        call: The call that reads it.
        later: The parts that are read after it.
    """

    def __init__(self, call: ScanCall, later: deque[scan_pb2.ScanPart]) -> None:
        self.call = call
        self.later = later
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
                        f"a part of {counted(fields.trailer.rows_returned, 'row')} with the CRC32C "
                        f"{fields.trailer.crc32c:08x}",
                        f"one of {self._rows:,} with {self._crc32c:08x}",
                    )
                continue
            if fields.HasField("heartbeat"):
                self.rows_scanned = fields.heartbeat.rows_scanned
            if fields.HasField("chunk"):
                self.rows_scanned = fields.chunk.rows_scanned
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
