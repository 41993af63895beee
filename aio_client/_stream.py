"""One running scan: an asynchronous iterator of Arrow batches that ends in success only when everything has arrived."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from aio_client._protocol import ScanLedger, scan_request
from table_model.errors import ScanInterrupted, Unavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import pyarrow as pa

    from aio_client._transport import ScanCall, Transport
    from protos.scankv.v1.scan_pb2 import ScanHeader, ScanKvResponse
    from table_model.scan_spec import ScanSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStatistics:
    """What a scan has done so far.

    Attributes:
        rows_scanned: Rows that the server read from storage; those received as long as the scan runs.
        rows_returned: Rows received.
        bytes_returned: Bytes of Arrow data received.
        chunks: Chunks received.
        attempts: Calls that the scan took.
        seconds: From the opening of the scan to its end, or to now.
    """

    rows_scanned: int
    rows_returned: int
    bytes_returned: int
    chunks: int
    attempts: int
    seconds: float


class ScanStream:
    """The rows of one scan as Arrow batches, each with at least one row, as of one instant over all its buckets.

    Reading to the end without an exception means that every row arrived: totals and checksum of the server were
    compared. Any error ends the stream, and further reads raise it again.

    The scan starts with the first read, or on entering `async with`. The server stops when the reader does, and reads
    ahead by `read_ahead_bytes` of the client (and one chunk on its own side): there is no queue here, the receive
    window of the connection is the read-ahead. What is not counted in it: the batch that the caller holds, and one
    message larger than the window.

    To end it early, leave `async with`, call `aclose`, or drop the object, as `break` out of `async for` does: each
    frees the server's iterators at once. Cancelling a read ends the scan, too.

    One reader at a time. Belongs to the event loop of its client; may be dropped in any thread.
    """

    def __init__(self, transport: Transport, spec: ScanSpec) -> None:
        """Called by `Scan.stream`; starts nothing."""
        self._transport = transport
        self._ledger = ScanLedger(spec)
        self._call: ScanCall | None = None
        self._attempts = 0
        self._reading = False
        self._failure: BaseException | None = None
        self._started: float | None = None
        self._ended: float | None = None

    async def __aenter__(self) -> Self:
        """Starts the scan and reads its header, so that `schema` and `log_offsets` are known."""
        try:
            with self._sole_reader():
                await self._open()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next rows.

        Raises:
            StopAsyncIteration: All rows were returned, and are complete.
            ScanInterrupted: The connection broke; the rows returned are not all of them.
            DeadlineExceeded: The server did not answer within the attempt timeout, or sent nothing for the operation
                timeout.
            DataLoss: Stored data is damaged; the rows returned are not all of them.
            ProtocolViolation: The server sent too little, too much, or something else than it said.
            UsageError: Another task is reading this stream, or it was closed.
        """
        with self._sole_reader():
            await self._open()
            rows = await self._next_rows()
        if rows is None:
            raise StopAsyncIteration
        return rows

    async def aclose(self) -> None:
        """Ends the scan, so that the server frees its iterators. Idempotent, also after the end."""
        if self._ended is None:
            self._end(UsageError("the scan was closed before its end"))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, known once the scan has started."""
        self._header("schema")
        return self._ledger.schema

    @property
    def log_offsets(self) -> dict[int, int]:
        """For every bucket of the scan, the offset of the first change that the rows do not show; opaque integers."""
        return dict(self._header("log_offsets").log_offsets)

    @property
    def scan_id(self) -> str:
        """The name of this scan in the server's logs and listings."""
        return self._header("scan_id").scan_id

    @property
    def consistency(self) -> Literal["table"]:
        """`table`: the rows of all buckets are those of one instant."""
        return "table"

    def statistics(self) -> ScanStatistics:
        """What the scan has done so far; final when it has ended."""
        ledger = self._ledger
        now = self._ended if self._ended is not None else time.monotonic()
        return ScanStatistics(
            rows_scanned=ledger.rows if ledger.trailer is None else ledger.trailer.rows_scanned,
            rows_returned=ledger.rows,
            bytes_returned=ledger.bytes,
            chunks=ledger.chunks,
            attempts=self._attempts,
            seconds=0.0 if self._started is None else now - self._started,
        )

    async def _open(self) -> None:
        """Makes the first attempt, unless it was made."""
        if self._call is not None:
            return
        self._started = time.monotonic()
        self._attempts += 1
        self._call = self._transport.open_scan(scan_request(self._ledger.spec))
        while self._ledger.header is None:
            message = await self._receive(self._transport.config.call_timeout)
            if message is None:
                self._ledger.close()
            else:
                self._ledger.book(message)

    async def _next_rows(self) -> pa.RecordBatch | None:
        """Reads on to the next rows; None at the end, also when it was reached before."""
        while self._ended is None:
            message = await self._receive(self._transport.config.operation_timeout)
            if message is None:
                self._ledger.close()
                self._end(None)
                break
            rows = self._ledger.book(message)
            if rows is not None:
                return rows
        return None

    async def _receive(self, timeout: float) -> ScanKvResponse | None:
        """Waits for the next message of the current attempt; None at its end."""
        assert self._call is not None
        try:
            return await self._call.read(timeout)
        except Unavailable as error:
            if self._ledger.header is None:
                raise
            raise self._interrupted(error) from error

    def _interrupted(self, error: Unavailable) -> ScanInterrupted:
        spec, rows = self._ledger.spec, self._ledger.rows
        return ScanInterrupted(
            f"the scan of {spec.table} broke off after {rows:,} rows, which are not the whole: {error.message}; "
            "start the scan again",
            table=spec.table,
            rows=rows,
            address=self._transport.address,
        )

    @contextmanager
    def _sole_reader(self) -> Iterator[None]:
        """Lets one read happen at a time, and none after a failure."""
        if self._reading:
            raise UsageError("the scan is being read by another task; give each task its own stream")
        if self._failure is not None:
            raise self._failure
        self._reading = True
        try:
            yield
        except asyncio.CancelledError:
            self._end(UsageError("a read of the scan was cancelled, which ended it; start the scan again"))
            raise
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._reading = False

    def _end(self, failure: BaseException | None) -> None:
        """Ends the call; every further read raises the failure, or finds the end when there was none."""
        if self._ended is not None:
            return
        self._ended = time.monotonic()
        self._failure = failure
        if self._call is not None:
            self._call.cancel()

    def _header(self, what: str) -> ScanHeader:
        if self._ledger.header is None:
            raise UsageError(
                f"{what} is known once the scan has started: enter `async with scan.stream() as stream`, or read first"
            )
        return self._ledger.header
