"""How far a scan has come over all its attempts, and that they are parts of one answer."""

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

    A chunk counts once it was booked, so the caller must be handed its rows before anything else is awaited.
    Pure but for the clock that it is given, and the log.

    Attributes:
        spec: The scan.
        attempts: Attempts so far.
        header: The last header that came, None before the first.
        schema: The Arrow schema of the rows, the same in all attempts; None before the first header.
        resumptions: Where the scan went on.
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
        """Rows that the server read from storage, as it said last in each attempt."""
        return self._rows_scanned + self._ledger.rows_scanned

    @property
    def token(self) -> bytes | None:
        """Where to go on behind what was received; None before the first chunk of a scan from the beginning."""
        return self._ledger.token

    @property
    def fence(self) -> int:
        """Which stream of its consumer it is, as the server said; 0 before that, and for one of none."""
        return 0 if self.header is None else self.header.consumer_fence

    @property
    def next_offsets(self) -> LogOffsets:
        """Of changes, the offset of the next one of each bucket."""
        incarnation = "" if self.header is None else self.header.table_incarnation
        return LogOffsets.of(self._ledger.next_offsets, incarnation)

    @property
    def bucket(self) -> int | None:
        """That of the last chunk; None before the first of an attempt."""
        return self._ledger.bucket

    @property
    def scanning(self) -> bool:
        """Of changes, whether rows of the table are still to come."""
        return self._ledger.scanning

    @property
    def watermark_micros(self) -> int:
        """Of changes, the time before which all that was committed was received; 0 where that is not known."""
        self._watermark = max(self._watermark, self._ledger.watermark_micros)
        return self._watermark

    @property
    def complete(self) -> bool:
        """Whether all rows have come, be it that the stream has not ended."""
        return self._ledger.trailer is not None or self.rows == self._limit

    # Below `token`, whose type it hides within the class.
    @property
    def bytes(self) -> int:
        """Bytes of Arrow data received."""
        return self._bytes + self._ledger.bytes

    def begin_attempt(self) -> None:
        """Begins the next attempt, which goes on from `token`."""
        ledger = self._ledger
        self._rows, self._bytes, self._chunks = self.rows, self.bytes, self.chunks
        self._rows_scanned = self.rows_scanned
        left = None if self._limit is None else self._limit - self._rows
        self._ledger = ScanLedger(self.spec, token=ledger.token, limit=left)
        self.attempts += 1

    def cut(self, cause: ScanKvError) -> None:
        """Notes why the scan will have to go on; the first cause counts until it has."""
        if self._cause is None and self.header is not None:
            self._cause = cause

    def book(self, message: ScanMessage) -> pa.RecordBatch | None:
        """Takes the next message of the current attempt; the rows of a chunk, None for others.

        Raises:
            ProtocolViolation: It breaks the contract, within the attempt or across them.
        """
        rows = self._ledger.book(message)
        header = self._ledger.header
        if header is not None and header is not self.header:
            self._take_header(header)
        return rows

    def close(self) -> None:
        """Takes the end of the current attempt.

        Raises:
            EndedWithoutTrailer: The trailer is missing.
        """
        self._ledger.close()

    def _take_header(self, header: ScanHeader) -> None:
        earlier = self.header
        if self.spec.log is not None and earlier is not None and earlier.scan_id == header.scan_id:
            # Of changes that have more columns from here on.
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
            self._note_resumption(before, after)

    def _offsets_before(self, header: ScanHeader) -> LogOffsets | None:
        """The view that the rows before this header are of; None where the scan begins with it."""
        if header.HasField("resumed_from"):
            # A token of another table is refused.
            return LogOffsets.of(header.resumed_from.log_offsets, header.table_incarnation)
        before = self.header
        return None if before is None else LogOffsets.of(before.log_offsets, before.table_incarnation)

    def _note_resumption(self, before: LogOffsets, after: LogOffsets) -> None:
        cause, self._cause = self._cause, None
        if cause is not None:
            # Frames hold the stream, which must go as soon as its reader drops it, and the call with its connection.
            cause = cause.with_traceback(None)
            cause.__cause__ = cause.__context__ = None
        self.resumptions += (
            Resumption(at=self._now(), rows=self.rows, cause=cause, from_log_offsets=before, to_log_offsets=after),
        )
        _log.info(
            "the scan of %s goes on after %d rows: %s",
            self.spec.table,
            self.rows,
            "as asked by resume_from" if cause is None else cause.reason,
        )
