"""The span of one scan, from its first read to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client._transport.call_traces import ATTEMPTS, record_failure
from scankv.model.errors import ScanKvError, UsageError
from scankv.model.tracing import RPC_STATUS, error_type

if TYPE_CHECKING:
    from aio_client._scan.progress import ScanProgress
    from scankv.model.tracing import Headers, TracedSpan


class ScanTrace:
    """Records a scan over all its attempts in one span, which ends with the scan, or when the scan is dropped."""

    def __init__(self, span: TracedSpan, progress: ScanProgress) -> None:
        self._span = span
        self._progress = progress
        self._resumptions = len(progress.resumptions)
        self._has_ended = False
        self.headers: Headers = span.headers

    def __del__(self) -> None:
        self._end("CANCELLED", None)

    def fail_attempt(self, error: ScanKvError) -> None:
        """Records that an attempt has failed, and that another one follows."""
        record_failure(self._span, self._progress.attempts, error)

    def begin_rows(self) -> None:
        """Records that an attempt has begun to return rows, if it continues an earlier one."""
        found = self._progress.resumptions
        if len(found) > self._resumptions:
            self._resumptions = len(found)
            self._span.add_event("resumed", {"scankv.scan.rows": self._progress.rows})

    def end(self, failure: BaseException | None) -> None:
        """Ends the span. Closing a scan before its end is no error."""
        if failure is None:
            self._end("OK", None)
        elif isinstance(failure, ScanKvError) and not isinstance(failure, UsageError):
            self._end(failure.code, error_type(failure))
        else:
            self._end("CANCELLED", None)

    def _end(self, code: str, error: str | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        progress = self._progress
        self._span.set(
            {
                RPC_STATUS: code,
                ATTEMPTS: progress.attempts,
                "scankv.scan.id": "" if progress.header is None else progress.header.scan_id,
                "scankv.scan.rows": progress.rows,
                "scankv.scan.rows_scanned": progress.rows_scanned,
                "scankv.scan.bytes": progress.bytes,
                "scankv.scan.chunks": progress.chunks,
                "scankv.scan.resumptions": len(progress.resumptions),
            }
        )
        self._span.end(error)
