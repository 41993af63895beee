"""The progress of a scan over all its attempts, and the check that they are parts of one answer."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from aio_client._scan.protocol import ScanLedger, violation
from aio_client._scan.resume import Resumption
from scankv.model.changes.log_offsets import LogOffsets

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from aio_client._transport.framing import ScanMessage
    from scankv.model.errors import ScanKvError
    from scankv.model.scans.scan_spec import ScanSpec
    from scankv.v1.scan_pb2 import ScanHeader

_log: Final = logging.getLogger("aio_client")


def _now() -> datetime:
    return datetime.now(UTC)


class ScanProgress:
    """Adds up the attempts of one scan, each of which has a `ScanLedger`.

    A chunk counts as soon as it is booked, so the caller must get its rows before anything else is awaited. Pure except
    for the given clock and the log.

    Attributes:
        spec: The scan.
        attempts: Attempts so far.
        header: The last header that arrived. None before the first.
        schema: The Arrow schema of the rows, the same in all attempts. None before the first header.
        resumptions: Where the scan resumed.
    """

    def __init__(self, spec: ScanSpec, now: Callable[[], datetime] = _now) -> None:
        self.spec = spec
        self.attempts = 0
        self.header: ScanHeader | None = None
        self.schema: pa.Schema | None = None
        self.resumptions: tuple[Resumption, ...] = ()
        self._now = now
        self._cause: ScanKvError | None = None
        # After a token, only the server knows what is left of the limit.
        self._limit = spec.limit if spec.resume_token is None else None
        self._ledger = ScanLedger(spec, token=spec.resume_token)
        self._rows = self._bytes = self._chunks = self._rows_scanned = self._watermark = 0

    @property
    def rows(self) -> int:
        """Rows received."""
        return self._rows + self._ledger.rows

    @property
    def chunks(self) -> int:
        """Chunks received."""
        return self._chunks + self._ledger.chunks

    @property
    def rows_scanned(self) -> int:
        """Rows that the server read from storage, as last reported in each attempt."""
        return self._rows_scanned + self._ledger.rows_scanned

    @property
    def token(self) -> bytes | None:
        """The token that continues after the rows received. None before the first chunk of a new scan."""
        return self._ledger.token

    @property
    def fence(self) -> int:
        """The fence of the consumer's stream, from the header. 0 before it, and without a consumer."""
        return 0 if self.header is None else self.header.consumer_fence

    @property
    def next_offsets(self) -> LogOffsets:
        """For changes: the offset of the next change of each bucket."""
        incarnation = "" if self.header is None else self.header.table_incarnation
        return LogOffsets.of(self._ledger.next_offsets, incarnation)

    @property
    def bucket(self) -> int | None:
        """The bucket of the last chunk. None before the first chunk of an attempt."""
        return self._ledger.bucket

    @property
    def scanning(self) -> bool:
        """For changes: whether rows of the table are still to come."""
        return self._ledger.scanning

    @property
    def watermark_micros(self) -> int:
        """For changes: all changes committed before this time have arrived. 0 if not known."""
        self._watermark = max(self._watermark, self._ledger.watermark_micros)
        return self._watermark

    @property
    def complete(self) -> bool:
        """Whether all rows have arrived, even if the stream has not ended."""
        return self._ledger.trailer is not None or self.rows == self._limit

    # Must stand below `token`, because it hides the type `bytes` in the rest of the class.
    @property
    def bytes(self) -> int:
        """Bytes of Arrow data received."""
        return self._bytes + self._ledger.bytes

    def as_of(self, spec: ScanSpec, log_offsets: LogOffsets, view_micros: int) -> ScanProgress:
        """Returns the progress of another scan, which has the same columns and another instant, before its first row.

        Args:
            spec: The scan.
            log_offsets: The offsets of the first changes that it does not show.
            view_micros: Its instant, in microseconds since 1970 UTC.
        """
        found = self._with_header_of(spec)
        assert found.header is not None
        found.header.log_offsets.clear()
        found.header.log_offsets.update(log_offsets)
        found.header.view_micros, found.header.version = view_micros, b""
        return found

    def followed_later(self, spec: ScanSpec, fence: int) -> ScanProgress:
        """Returns the progress of a scan whose first attempt will continue from `token`, before its first row.

        Args:
            spec: The scan.
            fence: The fence of its consumer. 0: it has none.
        """
        found = self._with_header_of(spec)
        assert found.header is not None
        found.header.consumer_fence = fence
        found._ledger.token, found._ledger.next_offsets = self.token, dict(found.header.log_offsets)
        return found

    def _with_header_of(self, spec: ScanSpec) -> ScanProgress:
        """Returns the progress of another scan, with a copy of the header."""
        assert self.header is not None
        header = type(self.header)()
        header.CopyFrom(self.header)
        found = ScanProgress(spec, self._now)
        found.header, found.schema = header, self.schema
        return found

    def begin_attempt(self) -> None:
        """Begins the next attempt, which continues from `token`."""
        ledger = self._ledger
        self._rows, self._bytes, self._chunks = self.rows, self.bytes, self.chunks
        self._rows_scanned = self.rows_scanned
        left = None if self._limit is None else self._limit - self._rows
        self._ledger = ScanLedger(self.spec, token=ledger.token, limit=left)
        # Until the next header arrives, what is known stays known.
        self._ledger.next_offsets, self._ledger.scanning = ledger.next_offsets, ledger.scanning
        self.attempts += 1

    def cut(self, cause: ScanKvError) -> None:
        """Records why the scan has to resume. The first cause counts until it has resumed."""
        if self._cause is None and self.header is not None:
            self._cause = cause

    def book(self, message: ScanMessage) -> pa.RecordBatch | None:
        """Books the next message of the current attempt. Returns the rows of a chunk, and None for other messages.

        Raises:
            ProtocolViolation: The message breaks the contract, within the attempt or across attempts.
        """
        rows = self._ledger.book(message)
        header = self._ledger.header
        if header is not None and header is not self.header:
            self._take_header(header)
        return rows

    def close(self) -> None:
        """Books the end of the current attempt.

        Raises:
            EndedWithoutTrailer: The trailer is missing.
        """
        self._ledger.close()

    def _take_header(self, header: ScanHeader) -> None:
        earlier = self.header
        if self.spec.log is not None and earlier is not None and earlier.scan_id == header.scan_id:
            # A second header of the same scan of changes: columns were added to the table.
            self.header, self.schema = header, self._ledger.schema
            return
        before = self._offsets_before(header)
        after = LogOffsets.of(header.log_offsets, header.table_incarnation)
        if earlier is not None and self.spec.log is None and self._ledger.schema != self.schema:
            raise violation("the schema of the rows before the cut", "another")
        if self.spec.snapshot_id is not None:
            if before is not None and before != after:
                raise violation("the log offsets of the pinned snapshot", "others after a cut")
            if earlier is not None and earlier.table_incarnation != header.table_incarnation:
                raise violation("the table of the pinned snapshot", "another one after a cut")
        if header.HasField("limit_left"):
            self._limit = self._rows + header.limit_left
        self.header = header
        self.schema = self._ledger.schema
        if before is not None:
            self._add_resumption(before, after)

    def _offsets_before(self, header: ScanHeader) -> LogOffsets | None:
        """Returns the view of the rows before this header. None if the scan begins with the header."""
        if header.HasField("resumed_from"):
            # The server refuses tokens of other tables, so the incarnation is the same.
            return LogOffsets.of(header.resumed_from.log_offsets, header.table_incarnation)
        before = self.header
        return None if before is None else LogOffsets.of(before.log_offsets, before.table_incarnation)

    def _add_resumption(self, before: LogOffsets, after: LogOffsets) -> None:
        cause, self._cause = self._cause, None
        if cause is not None:
            # The frames of a traceback hold the stream, which must end as soon as its reader drops it.
            cause = cause.with_traceback(None)
            cause.__cause__ = cause.__context__ = None
        self.resumptions += (
            Resumption(
                resumed_at=self._now(), rows=self.rows, cause=cause, from_log_offsets=before, to_log_offsets=after
            ),
        )
        _log.info(
            "the scan of %s resumes after %d rows: %s",
            self.spec.table,
            self.rows,
            "as asked by resume_from" if cause is None else cause.reason,
        )
