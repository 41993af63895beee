"""One running scan: an asynchronous iterator of Arrow batches that ends in success only when everything has arrived."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from aio_client._scan.progress import ScanProgress
from aio_client._scan.protocol import scan_request
from aio_client._scan.resume import Verdict, verdict
from aio_client._transport.repeatable_calls import commit_position
from aio_client._transport.retry import with_retries
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import ScanInterrupted, ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from aio_client._scan.resume import Resumption
    from aio_client._transport.transport import ScanCall, Transport
    from scankv.model.scans.scan_spec import ScanSpec
    from scankv.v1.scan_pb2 import ScanHeader


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStatistics:
    """What a scan has done so far.

    Attributes:
        rows_scanned: Rows that the server read from storage, over all attempts, as it said last.
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
    compared. Any error ends the stream, and further reads raise it again; it has the `resume_token` to go on with.

    A scan that is cut (the connection broke, the server stopped or ended it, nothing came in time) goes on by itself
    where that is exact, which is over a pinned snapshot, and where `Resume.LATEST` asked for it; `resumptions` says
    where. It is tried for the operation timeout after the last chunk or heartbeat. Otherwise the cut is an error.

    The scan starts with the first read, or on entering `async with`. The server stops when the reader does, and reads
    ahead by `read_ahead_bytes` or `read_ahead_chunks` of the client, whichever is less (and one chunk on its own side):
    there is no queue here, the receive window of the connection is the read-ahead. What is not counted in it: the batch
    that the caller holds, and one message larger than the window.

    To end it early, leave `async with`, call `aclose`, or drop the object, as `break` out of `async for` does: each
    frees the server's iterators at once. Cancelling a read ends the scan, too.

    One reader at a time. Belongs to the event loop of its client; may be dropped in any thread.
    """

    def __init__(self, transport: Transport, spec: ScanSpec) -> None:
        """Called by `Scan.stream`; starts nothing."""
        self._transport = transport
        self._progress = ScanProgress(spec)
        self._call: ScanCall | None = None
        self._listener: Callable[[], None] | None = None
        self._pausing: asyncio.Timeout | None = None
        self._reading = False
        self._failure: BaseException | None = None
        self._started: float | None = None
        self._ended: float | None = None

    async def __aenter__(self) -> Self:
        """Starts the scan and reads its header, so that `schema` and `log_offsets` are known."""
        try:
            with self._sole_reader():
                await self._with_retries(self._open)
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
            ScanStalled: The server ended the scan, because nothing was read for its stall timeout.
            ScanTooLong: The server ended the scan, because it took longer than the server's longest scan.
            ServerDraining: The server is shutting down.
            TooManyScans: The server has as many live scans as it allows, still after the operation timeout.
            DeadlineExceeded: The server did not answer within the attempt timeout, or sent nothing for the next-chunk
                timeout.
            SnapshotLost: The pinned snapshot is no more.
            DataLoss: Stored data is damaged; the rows returned are not all of them.
            ProtocolViolation: The server sent too little, too much, or something else than it said.
            UsageError: Another task is reading this stream, or it was closed.
        """
        with self._sole_reader():
            rows = await self._next_rows()
        if rows is None:
            raise StopAsyncIteration
        return rows

    async def commit(self, token: bytes | None = None) -> LogOffsets:
        """Commits what was returned so far, or up to a token, on behalf of the stream's consumer; durable on return.

        Whoever has the consumer next goes on behind it. Reading on commits nothing. May be called between reads and
        after the end, as often as one likes; it is tried for the operation timeout.

        Where one task reads ahead and others work on its batches, it hands out each batch with the `resume_token` of
        then, and whoever has finished all batches up to one commits that token, while the reading goes on:

            async for rows in stream:
                await batches.put((rows, stream.resume_token))
            ...
            await stream.commit(token)

        A position never goes back: committing an earlier token later changes nothing.

        Args:
            token: A `resume_token` of this stream. Default: that of the last batch that was returned.

        Returns:
            The consumer's offsets now: of every bucket that it ever read, the first change that is not committed.

        Raises:
            ConsumerFenced: Another stream has taken the consumer over, or it was reset, deleted, or has expired.
            InvalidResumeToken: The token is damaged, or is of another table.
            UsageError: The stream is not of a consumer, or was not started; or it is no token.
            Unavailable, DeadlineExceeded: There was no answer; it may have been committed.
        """
        spec = self._progress.spec
        if spec.log is None or spec.log.consumer_id is None:
            raise UsageError("commit is for the stream of a consumer: ask with with_consumer_id(...)")
        if token is not None and (not isinstance(token, bytes) or not token):
            raise UsageError(f"a token is bytes, as stream.resume_token gave it, not {type(token).__name__}")
        offsets, token = self.log_offsets, self._progress.token if token is None else token
        if token is None:  # nothing was returned yet
            return offsets
        return await commit_position(self._transport, spec.table, spec.log.consumer_id, self._progress.fence, token)

    async def aclose(self) -> None:
        """Ends the scan, so that the server frees its iterators. Idempotent, also after the end."""
        if self._ended is None:
            self._end(UsageError("the scan was closed before its end"))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, known once the scan has started."""
        self._header("schema")
        return self._progress.schema

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket of the scan, the offset of the first change that the rows do not show; opaque integers.

        Of a scan that went on over a fresh view, those of the last view; `resumptions` has the earlier ones.
        """
        header = self._header("log_offsets")
        offsets = LogOffsets()
        if self._progress.spec.buckets != ():
            offsets.advance(header.log_offsets, header.table_incarnation)
        return offsets

    @property
    def scan_id(self) -> str:
        """The name of this scan in the server's logs and listings."""
        return self._header("scan_id").scan_id

    @property
    def incarnation(self) -> str:
        """Of the server that answered last; differs after every start of a server."""
        return self._header("incarnation").server_incarnation

    @property
    def table_incarnation(self) -> str:
        """Of the table that is read; differs for every creation of a table, also of the same name."""
        return self._header("table_incarnation").table_incarnation

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last; None before the first, and of an ordered scan."""
        return None if self._progress.spec.ordered else self._progress.bucket

    @property
    def version(self) -> bytes:
        """Names what the rows are of, for `Scan.if_changed_since` and the like; opaque, equal until something changes.

        Of a scan that went on over a fresh view, that of the last view.
        """
        return self._header("version").version

    @property
    def unchanged(self) -> bool:
        """Whether nothing has changed since the version of `Scan.if_changed_since`: then there are no rows."""
        return self._header("unchanged").unchanged

    @property
    def consistency(self) -> Literal["table", "pinned"]:
        """What the rows of all buckets are one instant of: the live `table`, or a `pinned` snapshot.

        Of a live scan that went on, each part between two `resumptions` is one instant.
        """
        return "table" if self._progress.spec.snapshot_id is None else "pinned"

    @property
    def resume_token(self) -> bytes | None:
        """What goes on behind the last batch that was returned: `scan.resume_from(token)`; opaque.

        None before the first, and that of `resume_from` where the scan began with one.
        """
        return self._progress.token

    @property
    def resumptions(self) -> tuple[Resumption, ...]:
        """Where the scan went on after a cut, or by `resume_from`."""
        return self._progress.resumptions

    @property
    def next_offsets(self) -> LogOffsets:
        """Of a scan of the changelog, for every bucket the offset behind what was returned: where to start anew."""
        self._header("next_offsets")
        return self._progress.next_offsets

    @property
    def phase(self) -> Literal["rows", "changes"]:
        """Whether rows of the table are still to come, as at the beginning of a full start, or changes alone."""
        self._header("phase")
        return "rows" if self._progress.scanning or self._progress.spec.log is None else "changes"

    @property
    def ended(self) -> bool:
        """Whether the stream is over: all rows were returned, it failed, or it was closed."""
        return self._ended is not None

    def on_heartbeat(self, listener: Callable[[], None]) -> None:
        """Calls a listener whenever the stream is heard from without rows, while it is read."""
        self._listener = listener

    @property
    def watermark(self) -> datetime | None:
        """Of a scan of the changelog: what was committed before this time was returned; None while changes wait."""
        self._header("watermark")
        micros = self._progress.watermark_micros
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros) if micros else None

    def statistics(self) -> ScanStatistics:
        """What the scan has done so far; final when it has ended."""
        progress = self._progress
        now = self._ended if self._ended is not None else time.monotonic()
        return ScanStatistics(
            rows_scanned=progress.rows_scanned,
            rows_returned=progress.rows,
            bytes_returned=progress.bytes,
            chunks=progress.chunks,
            attempts=progress.attempts,
            seconds=0.0 if self._started is None else now - self._started,
        )

    async def _next_rows(self) -> pa.RecordBatch | None:
        """Reads on to the next rows; None at the end, also when it was reached before."""
        rows = None
        while rows is None and self._ended is None:
            rows = await self._with_retries(self._advance)
        return rows

    async def _with_retries(self, attempt: Callable[[float], Awaitable[_Result]]) -> _Result | None:
        """Makes one step with as many attempts as it takes; None when the scan was complete without it."""
        if self._started is None:
            self._started = time.monotonic()
        timeout = self._transport.config.operation_timeout
        try:
            return await with_retries(attempt, timeout=timeout, retries=self._goes_on, pause=self._pause)
        except ScanKvError as error:
            match self._verdict(error):
                case Verdict.COMPLETE:
                    self._end(None)
                    return None
                case Verdict.INTERRUPTED:
                    raise self._interrupted(error) from error
            raise

    async def _open(self, deadline: float) -> None:
        """Opens a call and reads its header, unless there is one already."""
        if self._call is not None:
            return
        progress, config = self._progress, self._transport.config
        progress.begin_attempt()
        window = config.window_bytes(progress.spec.chunk_bytes)
        request = scan_request(progress.spec, progress.token, progress.fence, config.heartbeat_millis)
        call = self._transport.open_scan(request, window)
        self._call = call
        before = progress.header
        while progress.header is before:
            message = await call.read(_within(config.attempt_timeout, deadline))
            if message is None:
                progress.close()
            else:
                progress.book(message)

    async def _advance(self, deadline: float) -> pa.RecordBatch | None:
        """Reads on to what counts as progress: the rows of a chunk; or None, for a heartbeat, the trailer, the end."""
        await self._open(deadline)
        assert self._call is not None
        while True:
            message = await self._call.read(_within(self._transport.config.next_chunk_timeout, deadline))
            if message is None:
                self._progress.close()
                self._end(None)
                return None
            rows = self._progress.book(message)
            if rows is None and self._listener is not None:
                self._listener()
            if rows is not None or message.fields.WhichOneof("message") in ("heartbeat", "trailer"):
                return rows

    def _verdict(self, error: ScanKvError) -> Verdict:
        progress = self._progress
        return verdict(error, progress.spec, started=progress.header is not None, complete=progress.complete)

    def _goes_on(self, error: ScanKvError) -> bool:
        """Whether another attempt follows; if so, lets go of the one that failed."""
        if self._verdict(error) is not Verdict.RETRY:
            return False
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._progress.cut(error)
        return True

    async def _pause(self, seconds: float) -> None:
        """Waits before the next attempt; ends at once when the stream or its client is closed."""
        try:
            async with asyncio.timeout(seconds) as self._pausing:
                await self._transport.wait_closed()
        except TimeoutError:
            if self._ended is not None:
                raise UsageError("the scan was closed while it was being read") from None
        finally:
            self._pausing = None

    def _interrupted(self, error: ScanKvError) -> ScanInterrupted:
        spec, rows = self._progress.spec, self._progress.rows
        what_to_do = "start the scan again"
        if self._progress.token is not None:
            what_to_do = "go on behind them with scan.resume_from(error.resume_token), or start the scan again"
        return ScanInterrupted(
            f"the scan of {spec.table} broke off after {rows:,} rows, which are not the whole: {error.message}; "
            f"{what_to_do}",
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
            message = "a read of the scan was cancelled, which ended it; start it again, or go on with its resume_token"
            self._end(UsageError(message))
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
        if isinstance(failure, ScanKvError):
            failure.resume_token = self._progress.token
        if self._call is not None:
            self._call.cancel()
        if self._pausing is not None and not self._pausing.expired():
            self._pausing.reschedule(0)

    def _header(self, what: str) -> ScanHeader:
        if self._progress.header is None:
            raise UsageError(
                f"{what} is known once the scan has started: enter `async with scan.stream() as stream`, or read first"
            )
        return self._progress.header


def _within(timeout: float, deadline: float) -> float:
    """Seconds that one message may take: its own timeout, or what is left until the deadline."""
    return max(0.0, min(timeout, deadline - time.monotonic()))
