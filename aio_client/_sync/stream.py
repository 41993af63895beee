"""The rows of a scan for code that blocks; part of `scankv.sync`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from aio_client._input.arguments import timeout_of
from aio_client._sync.runner import WAKE_SECONDS, Runner
from scankv.model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa

    from aio_client._scan.resume import Resumption
    from aio_client._scan.stream import ScanStatistics
    from aio_client._scan.stream import ScanStream as AsyncScanStream
    from aio_client._transport.config import ClientConfig
    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.scans.scan_spec import ScanSpec


class ScanStream:
    """The rows of one scan as Arrow batches, each with at least one row, as of one instant over all its buckets.

    Reading to the end without an exception means that every row arrived: totals and checksum of the server were
    compared. Any error ends the stream, and further reads raise it again; it has the `resume_token` to go on with.

    A scan that is cut (the connection broke, the server stopped or ended it, nothing came in time) goes on by itself
    where that is exact, which is over a pinned snapshot, and where `Resume.LATEST` asked for it; `resumptions` says
    where. It is tried for the operation timeout after the last chunk or heartbeat. Otherwise the cut is an error.

    The scan starts with the first read, or on entering `with`. The server stops when the reader does, and reads ahead
    by `read_ahead_bytes` or `read_ahead_chunks` of the client, whichever is less (and one chunk on its own side): there
    is no queue here, the receive window of the connection is the read-ahead. What is not counted in it: the batch that
    the caller holds, and one message larger than the window.

    To end it early, leave `with`, call `close`, or drop the object, as `break` out of `for` does: each frees the
    server's iterators at once. An interrupt of a read ends the scan, too.

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
        # A read that goes on, and what had been returned when it began.
        self._pending: Future[pa.RecordBatch | None] | None = None
        self._returned: _Returned | None = None
        self._turn = threading.Lock()

    def __del__(self) -> None:
        if (pending := getattr(self, "_pending", None)) is not None:
            pending.cancel()  # It would keep the scan.

    def __enter__(self) -> Self:
        """Starts the scan and reads its header, so that `schema` and `log_offsets` are known."""
        self._runner.call(self._stream.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next rows.

        Raises:
            StopIteration: All rows were returned, and are complete.
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
            UsageError: Another thread is reading this stream, or it was closed. Or an interrupt such as Ctrl-C has
                ended it: `resume_token` is that of the rows before.
        """
        if self._interrupted is not None:
            raise self._interrupted
        token = self.resume_token
        try:
            rows = self._runner.call(_next, self._stream) if self._pending is None else self._polled(None)
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
        """The next rows if they come in time; for a loop that has other things to do.

            while not stream.ended:
                rows = stream.poll(1.0)
                if rows is not None:
                    ...
                    stream.commit()
                report_lag()

        The reading goes on between two polls, and rows that come then are given by the next one. Until then they count
        as not returned: `resume_token`, `commit` and the other properties know nothing of them.

        Args:
            timeout: Seconds to wait at most, 0 or more, for the opening, too, and whatever becomes of the connection.

        Returns:
            Rows; None when there were none in time, and after the end, when `ended` is true.

        Raises:
            UsageError: It is no such number.
            ScanKvError: As the iteration.
        """
        timeout = timeout_of(timeout)
        if self._interrupted is not None:
            raise self._interrupted
        token = self.resume_token
        try:
            rows = self._polled(timeout)
        except ScanKvError:
            raise
        except BaseException:
            self._interrupt(token)
            raise
        if self._closes_runner and self.ended:
            self._runner.close()
        return rows

    def _polled(self, timeout: float | None) -> pa.RecordBatch | None:
        """What a read gives that goes on between polls; None at the end, and when it is not over in time."""
        if not self._turn.acquire(blocking=False):
            raise UsageError("the scan is being read by another thread; give each thread its own stream")
        try:
            if self._pending is None:
                self._returned = _Returned.of(self._stream)
                self._pending = self._runner.start(_next, self._stream)
            if timeout is not None and not _done_within(self._pending, timeout):
                return None
            try:
                return self._runner.result(self._pending)
            finally:
                self._pending = self._returned = None
        except BaseException:
            if self._pending is not None:
                self._pending.cancel()
                self._pending = self._returned = None
            raise
        finally:
            self._turn.release()

    def _interrupt(self, token: bytes | None) -> None:
        """Ends the scan for good: rows that came at that moment are lost, and nothing may go on behind them."""
        self._interrupted = UsageError(
            "a read of the scan was interrupted, which ended it; start it again, or go on with its resume_token"
        )
        self._interrupted.resume_token = token
        with suppress(ScanKvError):
            self.close()

    def commit(self, token: bytes | None = None) -> LogOffsets:
        """Commits what was returned so far, or up to a token, on behalf of the stream's consumer; durable on return.

        Whoever has the consumer next goes on behind it. Reading on commits nothing. May be called between reads and
        after the end, as often as one likes; it is tried for the operation timeout.

        Where one thread reads ahead and others work on its batches, it hands out each batch with the `resume_token` of
        then, and whoever has finished all batches up to one commits that token, while the reading goes on:

            for rows in stream:
                batches.put((rows, stream.resume_token))
            ...
            stream.commit(token)

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
        if self._interrupted is not None:
            raise self._interrupted
        if token is None and self._returned is not None:
            token = self._returned.token
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
        """The schema of the rows, known once the scan has started."""
        return self._stream.schema

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket of the scan, the offset of the first change that the rows do not show; opaque integers.

        Of a scan that went on over a fresh view, those of the last view; `resumptions` has the earlier ones.
        """
        return self._stream.log_offsets

    @property
    def scan_id(self) -> str:
        """The name of this scan in the server's logs and listings."""
        return self._stream.scan_id

    @property
    def incarnation(self) -> str:
        """Of the server that answered last; differs after every start of a server."""
        return self._stream.incarnation

    @property
    def table_incarnation(self) -> str:
        """Of the table that is read; differs for every creation of a table, also of the same name."""
        return self._stream.table_incarnation

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last; None before the first, and of an ordered scan."""
        return self._stream.bucket if self._returned is None else self._returned.bucket

    @property
    def version(self) -> bytes:
        """Names what the rows are of, for `Scan.if_changed_since` and the like; opaque, equal until something changes.

        Of a scan that went on over a fresh view, that of the last view.
        """
        return self._stream.version

    @property
    def unchanged(self) -> bool:
        """Whether nothing has changed since the version of `Scan.if_changed_since`: then there are no rows."""
        return self._stream.unchanged

    @property
    def consistency(self) -> Literal["table", "pinned"]:
        """What the rows of all buckets are one instant of: the live `table`, or a `pinned` snapshot.

        Of a live scan that went on, each part between two `resumptions` is one instant.
        """
        return self._stream.consistency

    @property
    def resume_token(self) -> bytes | None:
        """What goes on behind the last batch that was returned: `scan.resume_from(token)`; opaque.

        None before the first, and that of `resume_from` where the scan began with one.
        """
        if self._interrupted is not None:
            return self._interrupted.resume_token
        return self._stream.resume_token if self._returned is None else self._returned.token

    @property
    def resumptions(self) -> tuple[Resumption, ...]:
        """Where the scan went on after a cut, or by `resume_from`."""
        return self._stream.resumptions

    @property
    def next_offsets(self) -> LogOffsets:
        """Of a scan of the changelog, for every bucket the offset behind what was returned: where to start anew."""
        offsets = self._stream.next_offsets
        if self._returned is None:
            return offsets
        # Before the first rows, where they begin.
        return self._returned.next_offsets or self._stream.log_offsets

    @property
    def phase(self) -> Literal["rows", "changes"]:
        """Whether rows of the table are still to come, as at the beginning of a full start, or changes alone."""
        phase = self._stream.phase
        if self._returned is None:
            return phase
        # Before the first rows, that of the header.
        header = self._stream._progress.header
        return self._returned.phase or ("rows" if header is None or header.full else "changes")

    @property
    def watermark(self) -> datetime | None:
        """Of a scan of the changelog: what was committed before this time was returned; None while changes wait."""
        watermark = self._stream.watermark
        return watermark if self._returned is None else self._returned.watermark

    @property
    def ended(self) -> bool:
        """Whether the stream is over, and all that came was returned: it is complete, it failed, or it was closed."""
        return self._pending is None and self._stream.ended

    def on_heartbeat(self, listener: Callable[[], None]) -> None:
        """Calls a listener in the client's thread whenever the stream is heard from without rows, while it is read."""
        self._stream.on_heartbeat(listener)

    def statistics(self) -> ScanStatistics:
        """What the scan has done so far; final when it has ended."""
        return self._stream.statistics()


@dataclass(frozen=True, slots=True)
class _Returned:
    """What of a stream had been returned to its reader before a read that goes on."""

    token: bytes | None
    bucket: int | None = None
    next_offsets: LogOffsets | None = None
    phase: Literal["rows", "changes"] | None = None
    watermark: datetime | None = None

    @classmethod
    def of(cls, stream: AsyncScanStream) -> _Returned:
        """What has; of a stream that has not started, its token alone is known."""
        token = stream.resume_token
        if stream._progress.header is None:
            return cls(token)
        return cls(token, stream.bucket, stream.next_offsets, stream.phase, stream.watermark)


def _done_within(future: Future[pa.RecordBatch | None], timeout: float) -> bool:
    """Waits for a future, in steps in which an interrupt is noticed; whether it is done."""
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
    """One scan over a connection of its own, which ends with it."""
    runner = Runner(config)
    return ScanStream(runner, runner.client.scan(spec).stream(), closes_runner=True)
