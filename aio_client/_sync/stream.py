"""`scankv.sync.ScanStream`: one running scan for code that blocks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from aio_client._input.arguments import timeout_of
from aio_client._scan.read_ahead import WAKE_SECONDS
from aio_client._sync.runner import Runner
from scankv.model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa

    from aio_client._scan.cleared_range import ClearedRange
    from aio_client._scan.resume import Resumption
    from aio_client._scan.stream import ScanStats
    from aio_client._scan.stream import ScanStream as AsyncScanStream
    from aio_client._transport.config import ClientConfig
    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.scans.scan_spec import ScanSpec


class ScanStream:
    """The rows of one scan as Arrow batches with at least one row each, as of one instant over all buckets.

    Reading to the end without an exception means that every row arrived: the client compares the server's totals and
    checksum. An error ends the stream, and further reads raise it again; its `resume_token` continues the scan.

    A scan is interrupted if the connection breaks, the server stops or ends it, or nothing arrives in time. It resumes
    by itself if that is exact, which is the case for a pinned snapshot and for the changelog, or if `Resume.LATEST`
    allows it; `resumptions` says where. The client tries for the operation timeout after the last chunk or heartbeat.
    Otherwise the interruption is raised.

    The scan starts with the first read, or on entering `with`. The server stops reading when the reader stops. It reads
    ahead by the client's `read_ahead_bytes` or `read_ahead_chunks`, whichever is less, and by one chunk on its own
    side. The receive window of the connection is the only buffer of the client. Memory beyond it: the batch that the
    caller holds, and one message that is larger than the window.

    To end the scan early, leave `with`, call `close`, or drop the object, as `break` out of `for` does. Each frees the
    server's iterators at once. An interrupt of a read, such as Ctrl-C, ends the scan too.

    One reader at a time, in any thread.
    """

    def __init__(self, runner: Runner, stream: AsyncScanStream, *, closes_runner: bool = False) -> None:
        """Called by `Scan.stream`; starts nothing.

        Args:
            runner: Where the stream runs.
            stream: The asynchronous stream.
            closes_runner: Whether the runner is this stream's alone, and ends with it.
        """
        self._runner = runner
        self._stream = stream
        self._closes_runner = closes_runner
        self._interrupted: UsageError | None = None
        # A read that continues between polls, and the state of the stream for its reader when that read began.
        self._pending: Future[pa.RecordBatch | None] | None = None
        self._before: _ReaderState | None = None
        self._turn = threading.Lock()

    def __del__(self) -> None:
        if (pending := getattr(self, "_pending", None)) is not None:
            pending.cancel()  # It would keep the scan alive.

    def __enter__(self) -> Self:
        """Starts the scan and reads its header, so that `schema` and `log_offsets` are known.

        Raises:
            ScanKvError: As for reading.
        """
        self._runner.call(self._stream.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Reads the next rows.

        Returns:
            A RecordBatch with at least one row and the columns of `schema`.

        Raises:
            StopIteration: All rows were returned, and are complete.
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
            UsageError: Another thread is reading this stream, or it was closed. Or an interrupt such as Ctrl-C has
                ended it: the error's `resume_token` continues after the rows before.
        """
        if self._interrupted is not None:
            raise self._interrupted
        token = self.resume_token
        try:
            rows = self._runner.call(_next, self._stream) if self._pending is None else self._read_pending(None)
        except ScanKvError:
            raise
        except BaseException:
            self._interrupt(token)
            raise
        if rows is None:
            if self._closes_runner:
                self._runner.close()
            raise StopIteration
        return rows

    def poll(self, timeout: float) -> pa.RecordBatch | None:
        """Returns the next rows if they arrive in time, for a loop that has other things to do.

            while not stream.ended:
                rows = stream.poll(1.0)
                if rows is not None:
                    ...
                    stream.commit()
                report_lag()

        The read continues between two polls, and the next poll returns rows that arrive in the meantime. Until then,
        they count as not returned: `resume_token`, `commit` and the other properties ignore them.

        Args:
            timeout: The longest time to wait in seconds, 0 or more. It also bounds the opening, and waiting for a
                server that is away.

        Returns:
            Rows. None if none arrived in time, and after the end, when `ended` is true.

        Raises:
            UsageError: `timeout` is negative or not a number.
            ScanKvError: As for iterating.
        """
        timeout = timeout_of(timeout)
        if self._interrupted is not None:
            raise self._interrupted
        token = self.resume_token
        try:
            rows = self._read_pending(timeout)
        except ScanKvError:
            raise
        except BaseException:
            self._interrupt(token)
            raise
        if self._closes_runner and self.ended:
            self._runner.close()
        return rows

    def _read_pending(self, timeout: float | None) -> pa.RecordBatch | None:
        """Returns the result of a read that continues between polls. None at the end, and if no rows arrive in time."""
        if not self._turn.acquire(blocking=False):
            raise UsageError("the scan is being read by another thread; give each thread its own stream")
        try:
            if self._pending is None:
                self._before = _ReaderState.of(self._stream)
                self._pending = self._runner.start(_next, self._stream)
            if timeout is not None and not _is_done_within(self._pending, timeout):
                return None
            try:
                return self._runner.result(self._pending)
            finally:
                self._pending = self._before = None
        except BaseException:
            if self._pending is not None:
                self._pending.cancel()
                self._pending = self._before = None
            raise
        finally:
            self._turn.release()

    def _interrupt(self, token: bytes | None) -> None:
        """Ends the scan for good: rows that arrived at that moment are lost, so no later read may follow."""
        self._interrupted = UsageError(
            "a read of the scan was interrupted, which ended it; start it again, or continue with its resume_token"
        )
        self._interrupted.resume_token = token
        with suppress(ScanKvError):
            self.close()

    def commit(self, token: bytes | None = None) -> LogOffsets:
        """Commits the position of the stream's consumer: all that was returned so far, or all up to a token.

        The commit is durable when the call returns. The next stream of the consumer continues after it. Reading commits
        nothing. May be called between reads and after the end, any number of times; it is tried for the operation
        timeout.

        If one thread reads and others process its batches, the reader passes the `resume_token` on with each batch. A
        worker that knows that all batches up to one are processed commits the token of that batch, while the reader
        continues:

            for rows in stream:
                batches.put((rows, stream.resume_token))
            ...
            stream.commit(token)

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
        if self._interrupted is not None:
            raise self._interrupted
        if token is None and self._before is not None:
            token = self._before.token
            if token is None:
                return self._stream.log_offsets
        return self._runner.call(self._stream.commit, token)

    def close(self) -> None:
        """Ends the scan, so that the server frees its iterators. Idempotent, also after the end."""
        if self._closes_runner:
            self._runner.close()
        else:
            self._runner.call(self._stream.aclose)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows. Known once the scan has started.

        Raises:
            UsageError: The scan has not started.
        """
        return self._stream.schema

    @property
    def column_ids(self) -> tuple[int, ...]:
        """Of a stream of changes: the permanent ids of the table's columns in `schema`, in its order.

        A column that is renamed keeps its id; one that is dropped and added again gets another. Columns that describe
        the change have none.

        Raises:
            UsageError: The scan has not started.
        """
        return self._stream.column_ids

    @property
    def initial_defaults(self) -> dict[str, pa.Scalar]:
        """Of a stream of changes: what rows have, by column, that were written before the column was added.

        They have a null in columns that are missing here.

        Raises:
            UsageError: The scan has not started.
        """
        return self._stream.initial_defaults

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket of the scan, the offset of the first change that the rows do not show; opaque integers.

        If the scan resumed over a new view, the offsets of the last view; `resumptions` has the earlier ones. Known
        once the scan has started.
        """
        return self._stream.log_offsets

    @property
    def schema_id(self) -> int:
        """The version of the table's columns that the rows have. Known once the scan has started."""
        return self._stream.schema_id

    @property
    def taken_at(self) -> datetime:
        """When the view was taken, in UTC, by the server's clock. Known once the scan has started.

        If the scan resumed over a new view, the time of the last view.
        """
        return self._stream.taken_at

    @property
    def scan_id(self) -> str:
        """The id of this scan in the server's logs and listings. Known once the scan has started."""
        return self._stream.scan_id

    @property
    def incarnation(self) -> str:
        """Identifies the run of the server that answered last: every start of a server has another value."""
        return self._stream.incarnation

    @property
    def table_incarnation(self) -> str:
        """Identifies the table incarnation read: a table created again under the same name has another value."""
        return self._stream.table_incarnation

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last. None before the first rows, and for an ordered scan."""
        return self._stream.bucket if self._before is None else self._before.bucket

    @property
    def version(self) -> bytes:
        """The version that the rows are as of, for `Scan.if_changed_since`. Opaque; equal until something changes.

        If the scan resumed over a new view, the version of the last view. Known once the scan has started.
        """
        return self._stream.version

    @property
    def unchanged(self) -> bool:
        """Whether nothing has changed since the version of `Scan.if_changed_since`, so that there are no rows."""
        return self._stream.unchanged

    @property
    def consistency(self) -> Literal["table", "owner", "pinned", "lake"]:
        """The kind of view that the rows belong to: the live `table`, a `pinned` snapshot, or a version in the `lake`.

        `owner` is a view of the live table in which only the rows of each owner are of one instant: see
        `Scan.consistency`. If a scan of the table resumed, the rows between two `resumptions` are of one instant.
        """
        return self._stream.consistency

    @property
    def lake_fallback(self) -> str | None:
        """Of a scan with `read_path("lake", ...)`: why it reads the server alone. None: it reads the published table.

        Known once the scan has started; None for every other scan.
        """
        return self._stream.lake_fallback

    @property
    def resume_token(self) -> bytes | None:
        """The token that continues after the last batch that was returned, for `scan.resume_from(token)`. Opaque.

        None before the first batch, and of an `unordered` scan of a table with tablets; the token of `resume_from` if
        the scan began with one.
        """
        if self._interrupted is not None:
            return self._interrupted.resume_token
        return self._stream.resume_token if self._before is None else self._before.token

    @property
    def resumptions(self) -> tuple[Resumption, ...]:
        """Where the scan resumed, after interruptions or by `resume_from`, in order."""
        return self._stream.resumptions

    @property
    def next_offsets(self) -> LogOffsets:
        """For a scan of the changelog: by bucket, the offset after the changes returned, to start another scan at."""
        offsets = self._stream.next_offsets
        if self._before is None:
            return offsets
        # Before the first rows, the offsets at which they begin.
        return self._before.next_offsets or self._stream.log_offsets

    @property
    def phase(self) -> Literal["rows", "changes"]:
        """The phase: "rows" while a start with `StartFrom.FULL` still returns rows of the table, then "changes"."""
        phase = self._stream.phase
        if self._before is None:
            return phase
        # Before the first rows, the phase in the header.
        header = self._stream._progress.header
        return self._before.phase or ("rows" if header is None or header.full else "changes")

    @property
    def watermark(self) -> datetime | None:
        """For a scan of the changelog: all changes committed before this time were returned.

        In UTC, by the server's clock; it never decreases. None until the stream has caught up with the changes for the
        first time, and during a start with `StartFrom.FULL` while it returns rows of the table.
        """
        watermark = self._stream.watermark
        return watermark if self._before is None else self._before.watermark

    @property
    def ended(self) -> bool:
        """Whether the stream is over, and its last rows were returned."""
        return self._pending is None and self._stream.ended

    def on_heartbeat(self, listener: Callable[[], None]) -> None:
        """Calls a listener in the client's thread for every message without rows.

        Args:
            listener: Called while the stream is read, without arguments. Must not block. Replaces an earlier listener.
        """
        self._stream.on_heartbeat(listener)

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
        self._stream.on_cleared(listener)

    def stats(self) -> ScanStats:
        """Returns the statistics of the scan so far, which are final once it has ended."""
        return self._stream.stats()


@dataclass(frozen=True, slots=True)
class _ReaderState:
    """The properties of a stream as its reader knows them, while a read continues between polls."""

    token: bytes | None
    bucket: int | None = None
    next_offsets: LogOffsets | None = None
    phase: Literal["rows", "changes"] | None = None
    watermark: datetime | None = None

    @classmethod
    def of(cls, stream: AsyncScanStream) -> _ReaderState:
        """Returns the properties now. A stream that has not started has only a token."""
        token = stream.resume_token
        if stream._progress.header is None:
            return cls(token)
        return cls(token, stream.bucket, stream.next_offsets, stream.phase, stream.watermark)


def _is_done_within(future: Future[pa.RecordBatch | None], timeout: float) -> bool:
    """Waits for a future, in steps so that interrupts are noticed. Returns whether it is done."""
    deadline = time.monotonic() + timeout
    while not future.done():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        wait([future], min(left, WAKE_SECONDS))
    return True


async def _next(stream: AsyncScanStream) -> pa.RecordBatch | None:
    return await anext(stream, None)


def stream_once(config: ClientConfig, spec: ScanSpec) -> ScanStream:
    """Starts a scan over its own connection, which is closed with the stream."""
    runner = Runner(config)
    return ScanStream(runner, runner.client.scan(spec).stream(), closes_runner=True)
