"""`ScanStream`: one running scan, which ends with success only if everything has arrived."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from aio_client._scan.cleared_range import ClearedRange
from aio_client._scan.divided_call import DividedCall
from aio_client._scan.progress import ScanProgress
from aio_client._scan.protocol import scan_request, violation
from aio_client._scan.resume import Verdict, verdict
from aio_client._scan.scan_trace import ScanTrace
from aio_client._transport.call_traces import start_call
from aio_client._transport.repeatable_calls import commit_position
from aio_client._transport.retry import with_retries
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import Untracked
from scankv.model.counts import counted
from scankv.model.errors import RESUME_HINT, START_AGAIN, ScanInterrupted, ScanKvError, UsageError
from scankv.model.scans.scan_spec import Resume
from scankv.model.short_tracebacks import SHORT_TRACEBACK
from scankv.model.types.default_values import values_from_ipc
from scankv.v1.scan_pb2 import ScanKvRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from aio_client._scan.resume import Resumption
    from aio_client._scan.shards import ScannedTable
    from aio_client._transport.transport import ScanCall, Transport
    from scankv.model.scans.scan_spec import ScanSpec
    from scankv.v1 import scan_pb2
    from scankv.v1.scan_pb2 import ScanHeader


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStats:
    """What a scan has done so far.

    Attributes:
        rows_scanned: Rows that the server read from storage, over all attempts, as last reported.
        rows_returned: Rows received.
        bytes_returned: Bytes of Arrow data received.
        chunks: Chunks received.
        attempts: Calls that the scan made.
        elapsed: Seconds from the opening of the scan to its end, or to now.
    """

    rows_scanned: int
    rows_returned: int
    bytes_returned: int
    chunks: int
    attempts: int
    elapsed: float


class ScanStream:
    """The rows of one scan as Arrow batches with at least one row each, as of one instant over all buckets.

    Reading to the end without an exception means that every row arrived: the client compares the server's totals and
    checksum. An error ends the stream, and further reads raise it again; its `resume_token` continues the scan.

    A scan is interrupted if the connection breaks, the server stops or ends it, or nothing arrives in time. It resumes
    by itself if that is exact, which is the case for a pinned snapshot and for the changelog, or if `Resume.LATEST`
    allows it; `resumptions` says where. The client tries for the operation timeout after the last chunk or heartbeat.
    Otherwise the interruption is raised.

    The scan starts with the first read, or on entering `async with`. The server stops reading when the reader stops. It
    reads ahead by the client's `read_ahead_bytes` or `read_ahead_chunks`, whichever is less, and by one chunk on its
    own side. The receive window of the connection is the only buffer of the client. Memory beyond it: the batch that
    the caller holds, and one message that is larger than the window; of an `unordered` scan, one message of each owner.

    To end the scan early, leave `async with`, call `aclose`, or drop the object, as `break` out of `async for` does.
    Each frees the server's iterators at once. A read that is cancelled, as `asyncio.wait_for` does, loses nothing: the
    next read returns its rows.

    One reader at a time. Belongs to the event loop of its client; may be dropped in any thread.
    """

    def __init__(self, transport: Transport, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Scan.stream`; starts nothing."""
        self._table = table
        self._on_cleared: Callable[[ClearedRange], None] | None = None
        self._transport = transport
        self._progress = ScanProgress(spec)
        self._call: ScanCall | DividedCall | None = None
        self._before_call: ScanHeader | None = None
        self._trace: ScanTrace | None = None
        self._listener: Callable[[], None] | None = None
        self._pausing: asyncio.Timeout | None = None
        self._reading = False
        self._failure: BaseException | None = None
        self._started: float | None = None
        self._ended: float | None = None

    async def __aenter__(self) -> Self:
        """Starts the scan and reads its header, so that `schema` and `log_offsets` are known.

        Raises:
            ScanKvError: As for reading.
        """
        try:
            with self._sole_reader(), SHORT_TRACEBACK:
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
        """Reads the next rows.

        Returns:
            A RecordBatch with at least one row and the columns of `schema`.

        Raises:
            StopAsyncIteration: All rows were returned, and are complete.
            ScanInterrupted: The connection broke; the rows returned are not all rows.
            ScanStalled: The server ended the scan because nothing was read for its stall timeout.
            ScanTooLong: The server ended the scan because it took longer than the server's longest scan.
            ServerDraining: The server is shutting down.
            TooManyScans: The server had as many live scans as it allows, for the whole operation timeout.
            DeadlineExceeded: The server did not answer within the attempt timeout, or sent nothing for the next-chunk
                timeout.
            SnapshotLost: The lease of the pinned snapshot has ended.
            DataLoss: Stored data is damaged; the rows returned are not all rows.
            ProtocolViolation: The server sent too little, too much, or something unexpected.
            UsageError: Another task is reading this stream, or it was closed.
        """
        try:
            with self._sole_reader(), SHORT_TRACEBACK:
                rows = await self._next_rows()
        except asyncio.CancelledError as error:
            # Its traceback would keep the scan open as long as the cancelled task exists.
            del self
            raise error.with_traceback(None) from None
        if rows is None:
            raise StopAsyncIteration
        return rows

    async def commit(self, token: bytes | None = None) -> LogOffsets:
        """Commits the position of the stream's consumer: all that was returned so far, or all up to a token.

        The commit is durable when the call returns. The next stream of the consumer continues after it. Reading commits
        nothing. May be called between reads and after the end, any number of times; it is tried for the operation
        timeout.

        If one task reads and others process its batches, the reader passes the `resume_token` on with each batch. A
        worker that knows that all batches up to one are processed commits the token of that batch, while the reader
        continues:

            async for rows in stream:
                await batches.put((rows, stream.resume_token))
            ...
            await stream.commit(token)

        A position never goes back: committing an earlier token later changes nothing.

        Args:
            token: A `resume_token` of this stream. Default: the one after the last batch that was returned.

        Returns:
            The consumer's offsets now: for every bucket that it has read, the offset of the first change that is not
            committed.

        Raises:
            ConsumerFenced: Another stream has taken the consumer over, or the consumer was reset or deleted, or has
                expired.
            InvalidResumeToken: The token is damaged, or belongs to another table.
            UsageError: The stream has no consumer, or was not started; or `token` is not bytes.
            Unavailable, DeadlineExceeded: No answer came; the position may have been committed.
        """
        spec = self._progress.spec
        if spec.log is None or spec.log.consumer_id is None:
            raise UsageError("commit is for the stream of a consumer: use with_consumer_id(...)")
        if token is not None and (not isinstance(token, bytes) or not token):
            raise UsageError(f"a token must be bytes, as stream.resume_token gave it, not {type(token).__name__}")
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
        """The schema of the rows. Known once the scan has started.

        Raises:
            UsageError: The scan has not started.
        """
        self._header("schema")
        return self._progress.schema

    @property
    def column_ids(self) -> tuple[int, ...]:
        """Of a stream of changes: the permanent ids of the table's columns in `schema`, in its order.

        A column that is renamed keeps its id; one that is dropped and added again gets another. Columns that describe
        the change have none.

        Raises:
            UsageError: The scan has not started.
        """
        return tuple(self._header("column_ids").column_ids)

    @property
    def initial_defaults(self) -> dict[str, pa.Scalar]:
        """Of a stream of changes: what rows have, by column, that were written before the column was added.

        They have a null in columns that are missing here.

        Raises:
            UsageError: The scan has not started.
        """
        return values_from_ipc(self._header("initial_defaults").initial_defaults)

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket of the scan, the offset of the first change that the rows do not show; opaque integers.

        If the scan resumed over a new view, the offsets of the last view; `resumptions` has the earlier ones. Known
        once the scan has started.
        """
        header = self._header("log_offsets")
        offsets = LogOffsets()
        if self._progress.spec.buckets != ():
            offsets.advance(header.log_offsets, header.table_incarnation)
        return offsets

    @property
    def schema_id(self) -> int:
        """The version of the table's columns that the rows have. Known once the scan has started."""
        return self._header("schema_id").schema_id

    @property
    def taken_at(self) -> datetime:
        """When the view was taken, in UTC, by the server's clock. Known once the scan has started.

        If the scan resumed over a new view, the time of the last view.
        """
        return _EPOCH + timedelta(microseconds=self._header("taken_at").view_micros)

    @property
    def scan_id(self) -> str:
        """The id of this scan in the server's logs and listings. Known once the scan has started."""
        return self._header("scan_id").scan_id

    @property
    def incarnation(self) -> str:
        """Identifies the run of the server that answered last: every start of a server has another value."""
        return self._header("incarnation").server_incarnation

    @property
    def table_incarnation(self) -> str:
        """Identifies the table incarnation read: a table created again under the same name has another value."""
        return self._header("table_incarnation").table_incarnation

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last. None before the first rows, and for an ordered scan."""
        return None if self._progress.spec.ordered else self._progress.bucket

    @property
    def version(self) -> bytes:
        """The version that the rows are as of, for `Scan.if_changed_since`. Opaque; equal until something changes.

        If the scan resumed over a new view, the version of the last view. Known once the scan has started.
        """
        return self._header("version").version

    @property
    def unchanged(self) -> bool:
        """Whether nothing has changed since the version of `Scan.if_changed_since`, so that there are no rows."""
        return self._header("unchanged").unchanged

    @property
    def consistency(self) -> Literal["table", "owner", "pinned", "lake"]:
        """The kind of view that the rows belong to: the live `table`, a `pinned` snapshot, or a version in the `lake`.

        `owner` is a view of the live table in which only the rows of each owner are of one instant: see
        `Scan.consistency`. If a scan of the table resumed, the rows between two `resumptions` are of one instant.
        """
        spec = self._progress.spec
        if spec.as_of is not None:
            return "lake"
        return spec.consistency if spec.snapshot_id is None else "pinned"

    @property
    def lake_fallback(self) -> str | None:
        """Of a scan with `read_path("lake", ...)`: why it reads the server alone. None: it reads the published table.

        Known once the scan has started; None for every other scan.
        """
        return None

    @property
    def resume_token(self) -> bytes | None:
        """The token that continues after the last batch that was returned, for `scan.resume_from(token)`. Opaque.

        None before the first batch, and of an `unordered` scan of a table with tablets; the token of `resume_from` if
        the scan began with one.
        """
        return None if self._is_unordered else self._progress.token

    @property
    def resumptions(self) -> tuple[Resumption, ...]:
        """Where the scan resumed, after interruptions or by `resume_from`, in order."""
        return self._progress.resumptions

    @property
    def next_offsets(self) -> LogOffsets:
        """For a scan of the changelog: by bucket, the offset after the changes returned, to start another scan at."""
        self._header("next_offsets")
        return self._progress.next_offsets

    @property
    def phase(self) -> Literal["rows", "changes"]:
        """The phase: "rows" while a start with `StartFrom.FULL` still returns rows of the table, then "changes"."""
        self._header("phase")
        return "rows" if self._progress.scanning or self._progress.spec.log is None else "changes"

    @property
    def ended(self) -> bool:
        """Whether the stream is over: all rows were returned, it failed, or it was closed."""
        return self._ended is not None

    def on_heartbeat(self, listener: Callable[[], None]) -> None:
        """Calls a listener for every message without rows.

        Args:
            listener: Called while the stream is read, without arguments. Must not block. Replaces an earlier listener.
        """
        self._listener = listener

    def on_cleared(self, listener: Callable[[ClearedRange], None]) -> None:
        """Calls a listener for every range of keys whose rows were deleted without a change for each row.

        For a reader that stores the last row of each key, and reads with `with_untracked("rescan")`: it drops its rows
        of the range. Then the stream returns the rows that the range has now as `+U`, and continues with the changes
        after the deletion. Without a listener, the stream fails there with `RangeNotTracked`.

            stream.on_cleared(lambda cleared: [rows.pop(key) for key in list(rows) if cleared.contains(key)[0].as_py()])

        After an interruption, or if a consumer continues, the same range may come again, before all of its rows.

        Args:
            listener: Called between two reads of the stream, in order with its rows. Must not block. Replaces an
                earlier listener.

        Raises:
            UsageError: The stream has started; or it is no stream of a table's changes with `with_untracked("rescan")`.
        """
        spec = self._progress.spec
        if self._started is not None:
            raise UsageError("on_cleared must be called before the stream is read")
        if spec.log is None or spec.log.untracked is not Untracked.RESCAN or self._table is None:
            raise UsageError('on_cleared is for changes of a table that are read with with_untracked("rescan")')
        self._on_cleared = listener

    @property
    def watermark(self) -> datetime | None:
        """For a scan of the changelog: all changes committed before this time were returned.

        In UTC, by the server's clock; it never decreases. None until the stream has caught up with the changes for the
        first time, and during a start with `StartFrom.FULL` while it returns rows of the table.
        """
        self._header("watermark")
        micros = self._progress.watermark_micros
        return _EPOCH + timedelta(microseconds=micros) if micros else None

    def stats(self) -> ScanStats:
        """Returns the statistics of the scan so far, which are final once it has ended."""
        progress = self._progress
        now = self._ended if self._ended is not None else time.monotonic()
        return ScanStats(
            rows_scanned=progress.rows_scanned,
            rows_returned=progress.rows,
            bytes_returned=progress.bytes,
            chunks=progress.chunks,
            attempts=progress.attempts,
            elapsed=0.0 if self._started is None else now - self._started,
        )

    async def _next_rows(self) -> pa.RecordBatch | None:
        """Reads until the next rows. Returns None at the end, and after it."""
        rows = None
        while rows is None and self._ended is None:
            rows = await self._with_retries(self._advance)
        return rows

    async def _with_retries(self, attempt: Callable[[float], Awaitable[_Result]]) -> _Result | None:
        """Makes one step in as many attempts as it takes. None if the scan was complete without the step."""
        if self._started is None:
            self._started = time.monotonic()
            self._trace = self._start_trace()
        timeout = self._transport.config.operation_timeout
        try:
            with SHORT_TRACEBACK:
                return await with_retries(attempt, timeout=timeout, retries=self._prepare_retry, pause=self._pause)
        except ScanKvError as error:
            match self._verdict(error):
                case Verdict.COMPLETE:
                    self._end(None)
                    return None
                case Verdict.INTERRUPTED:
                    raise self._interruption(error) from error
            raise

    async def _open(self, deadline: float) -> None:
        """Opens a call and reads its header, unless that is done. Continues where it was cancelled."""
        progress, config = self._progress, self._transport.config
        if self._call is None:
            self._before_call = progress.header
            self._call = await self._open_call()
        if progress.header is not self._before_call:
            return
        while progress.header is self._before_call:
            message = await self._call.read(_within(config.attempt_timeout, deadline))
            if message is None:
                progress.close()
            else:
                progress.book(message)
        if self._trace is not None:
            self._trace.begin_rows()

    async def _open_call(self) -> ScanCall | DividedCall:
        """Begins the next attempt."""
        progress, config = self._progress, self._transport.config
        transport = await self._find_transport()
        await transport.prepare_token()
        progress.begin_attempt()
        window = config.window_bytes(progress.spec.chunk_bytes)
        clears = self._on_cleared is not None
        request = scan_request(
            progress.spec, progress.token, progress.fence, int(1000 * config.heartbeat_interval), clears=clears
        )
        trace = () if self._trace is None else self._trace.headers
        # A part of a snapshot may be read without knowing the table, but not at a worker of an old server.
        if self._is_divided or (self._table is None and self._can_be_divided and transport is not self._transport):
            request.divided = True
            return DividedCall(transport, request, window, trace, unordered=self._is_unordered)
        return transport.open_scan(request, window, trace)

    @property
    def _can_be_divided(self) -> bool:
        """Whether the owners of tablets send their rows directly if the table has tablets."""
        spec = self._progress.spec
        return spec.log is None and spec.limit is None and not spec.ordered and spec.buckets != ()

    @property
    def _is_divided(self) -> bool:
        """Whether the table is known to have tablets, whose owners send their rows directly."""
        return self._can_be_divided and self._table is not None and self._table.tablets > 1

    @property
    def _is_unordered(self) -> bool:
        """Whether the rows of several owners come in any order, so that no token says which are still to come."""
        spec = self._progress.spec
        resumes = spec.resume is Resume.LATEST or spec.resume_token is not None or spec.snapshot_id is not None
        return spec.unordered and self._is_divided and not resumes

    async def _find_transport(self) -> Transport:
        """Returns the transport to the worker of the server that is to be called."""
        spec = self._progress.spec
        if spec.part is None or spec.snapshot_id is None:
            return self._transport
        return await self._transport.for_part(spec.table, spec.part)

    def _start_trace(self) -> ScanTrace | None:
        transport, spec = self._transport, self._progress.spec
        if transport.tracer is None:
            return None
        span = start_call(transport.tracer, transport.address, ScanKvRequest, spec.table, streams=True)
        return ScanTrace(span, self._progress)

    async def _advance(self, deadline: float) -> pa.RecordBatch | None:
        """Reads until the scan makes progress: the rows of a chunk, or None for a heartbeat, the trailer or the end."""
        await self._open(deadline)
        assert self._call is not None
        while True:
            message = await self._call.read(_within(self._transport.config.next_chunk_timeout, deadline))
            if message is None:
                self._progress.close()
                self._end(None)
                return None
            rows = self._progress.book(message)
            if message.fields.heartbeat.cleared:
                self._clear(message.fields.heartbeat.cleared)
            if rows is None and self._listener is not None:
                self._listener()
            if rows is not None or message.fields.WhichOneof("message") in ("heartbeat", "trailer"):
                return rows

    def _clear(self, ranges: Iterable[scan_pb2.ClearedRange]) -> None:
        if self._on_cleared is None or self._table is None:
            raise violation("no cleared ranges, because the reader has not asked for them", "some")
        for each in ranges:
            self._on_cleared(ClearedRange.of(each, self._table))

    def _verdict(self, error: ScanKvError) -> Verdict:
        progress = self._progress
        return verdict(error, progress.spec, started=progress.header is not None, complete=progress.complete)

    def _prepare_retry(self, error: ScanKvError) -> bool:
        """Returns whether another attempt follows. If so, drops the call of the failed attempt."""
        if self._verdict(error) is not Verdict.RETRY:
            return False
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._progress.cut(error)
        if self._trace is not None:
            self._trace.fail_attempt(error)
        return True

    async def _pause(self, seconds: float) -> None:
        """Waits before the next attempt. Ends at once when the stream or its client is closed."""
        try:
            async with asyncio.timeout(seconds) as self._pausing:
                await self._transport.wait_closed()
        except TimeoutError:
            if self._ended is not None:
                raise UsageError("the scan was closed while it was being read") from None
        finally:
            self._pausing = None

    def _interruption(self, error: ScanKvError) -> ScanInterrupted:
        spec, rows = self._progress.spec, self._progress.rows
        what_to_do = START_AGAIN if self.resume_token is None else f"{RESUME_HINT}{START_AGAIN}"
        return ScanInterrupted(
            f"the scan of {spec.table} broke off after {counted(rows, 'row')}, before its end: {error.message}; "
            f"{what_to_do}",
            table=spec.table,
            rows=rows,
            address=self._transport.address,
        )

    @contextmanager
    def _sole_reader(self) -> Iterator[None]:
        """Allows one read at a time, and none after a failure."""
        if self._reading:
            raise UsageError("the scan is being read by another task; give each task its own stream")
        if self._failure is not None:
            raise self._failure
        self._reading = True
        try:
            yield
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._reading = False

    def _end(self, failure: BaseException | None) -> None:
        """Ends the call. Every further read raises the failure, or ends if there was none."""
        if self._ended is not None:
            return
        self._ended = time.monotonic()
        self._failure = failure
        if isinstance(failure, ScanKvError):
            failure.resume_token = self.resume_token
        if self._trace is not None:
            self._trace.end(failure)
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
    """Returns the seconds that one message may take: its own timeout, or the time left until the deadline."""
    return max(0.0, min(timeout, deadline - time.monotonic()))
