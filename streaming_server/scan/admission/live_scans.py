"""Which scans are live: whose, how far; what ends each of them in time; and the totals of all there ever were."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from scankv.model.errors import ScanCancelled, ScanNotFound, ScanStalled, ScanTooLong, TooManyScans

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from scankv.model.errors import ScanKvError
    from streaming_server.scan.admission.admission import Admission

MAX_LARGE_CHUNKS = 8
"""Scans that have large chunks at the same time."""
MAX_UNPROVEN_LARGE_CHUNKS = 4
"""How many of them there may be when one that has sent less than `PROVEN_BYTES` joins them."""
PROVEN_BYTES = 3 * 1024 * 1024
"""More than the usual window of a client: a reader that was sent so much has taken some of it."""
_AT_ONCE_SECONDS = 0.5

MAX_UNREAD_ENDINGS = 16
"""Scans of one connection that may be over without their reader having taken what was sent."""

_log = logging.getLogger(__name__)


class Abortable(Protocol):
    """What a scan holds, as far as its ending is concerned."""

    def abort(self, error: ScanKvError) -> None:
        """Frees everything now; whoever asks for more gets the error."""


@dataclass(slots=True, kw_only=True, eq=False)
class LiveScan:
    """One call of `ScanKv`, from its admission to the last byte that its reader takes.

    Attributes:
        table: `database.table`.
        buckets: The buckets it reads, ascending.
        snapshot_id: The snapshot it reads; empty for the live table.
        peer: The client's address, which is that of one connection.
        follows: Whether it follows the changelog: it may last for ever, and is admitted among its kind.
        scan_id: Names it in logs and listings.
        admitted_at: When it was admitted, on the event loop's clock. None before.
        progress_at: When its reader last took a message, or when it was admitted.
        sending_since: Since when a message is on its way that the reader has not taken. None when there is none.
        last_took: For how long the message before that was on its way.
        rows_scanned: Rows read from storage.
        bytes_returned: Bytes of Arrow data made.
        source: What it holds, once that is open.
        leave: Gives its place among the live scans back. None before it was admitted.
        ended: Why it was ended before its time. None as long as it was not.
    """

    table: str
    buckets: tuple[int, ...]
    snapshot_id: str
    peer: str
    follows: bool = False
    scan_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    admitted_at: float | None = None
    progress_at: float = 0.0
    sending_since: float | None = None
    last_took: float = 0.0
    rows_scanned: int = 0
    bytes_returned: int = 0
    source: Abortable | None = None
    leave: Callable[[], None] | None = None
    ended: ScanKvError | None = None

    def hold(self, source: Abortable) -> None:
        """Notes what the scan holds; frees it at once when the scan was ended meanwhile."""
        self.source = source
        if self.ended is not None:
            source.abort(self.ended)


class ScanRegistry:
    """The live scans of a server. Bound to the server's event loop.

    Ending a scan frees what it holds at once, whatever its reader does. The reader gets the error as soon as it takes
    what was sent before: a status cannot overtake a message.

    Args:
        admission: Lets scans in.
        following: Lets those in that follow a changelog.
        stall_timeout: Seconds that a reader may take nothing.
        max_scan: Seconds that a scan may last.
    """

    def __init__(self, admission: Admission, *, following: Admission, stall_timeout: float, max_scan: float) -> None:
        self._admission = admission
        self._following = following
        self._stall_timeout = stall_timeout
        self._max_scan = max_scan
        self._calls: dict[str, LiveScan] = {}
        self._live: dict[str, LiveScan] = {}
        self._with_large_chunks: set[LiveScan] = set()
        self.started = 0
        self._rows_scanned = 0
        self._bytes_returned = 0

    @property
    def live(self) -> list[LiveScan]:
        """The live scans, the oldest first."""
        return list(self._live.values())

    @property
    def waiting(self) -> int:
        """Scans that wait to be admitted."""
        return self._admission.waiting + self._following.waiting

    @property
    def undelivered_errors(self) -> int:
        """Scans that are over, but whose reader has not taken what was sent."""
        return sum(self._is_over(scan) for scan in self._calls.values())

    @property
    def rows_scanned(self) -> int:
        """Rows read from storage by all scans there ever were."""
        return self._rows_scanned + sum(scan.rows_scanned for scan in self._live.values())

    @property
    def bytes_returned(self) -> int:
        """Bytes of Arrow data made by all scans there ever were."""
        return self._bytes_returned + sum(scan.bytes_returned for scan in self._live.values())

    @contextmanager
    def call(self, scan: LiveScan) -> Iterator[None]:
        """Knows of a scan for the length of its gRPC call.

        Raises:
            TooManyScans: The connection has too many scans that are over and that it does not read.
        """
        unread = sum(other.peer == scan.peer and self._is_over(other) for other in self._calls.values())
        if unread >= MAX_UNREAD_ENDINGS:
            raise TooManyScans(
                f"this connection has {unread} scans that were ended or sent, and that it does not read: read them to "
                "their end, or cancel them",
                retry_after=1.0,
            )
        self._calls[scan.scan_id] = scan
        try:
            yield
        finally:
            del self._calls[scan.scan_id]
            self._with_large_chunks.discard(scan)

    @asynccontextmanager
    async def admitted(self, scan: LiveScan) -> AsyncIterator[None]:
        """Lists a scan as live for the length of the block, in which it may hold iterators, and ends it in time.

        Raises:
            TooManyScans, ServerDraining: It was not let in.
        """
        admission = self._following if scan.follows else self._admission
        async with admission.admitted(scan.table, scan.buckets) as scan.leave:
            loop = asyncio.get_running_loop()
            scan.admitted_at = scan.progress_at = loop.time()
            self._live[scan.scan_id] = scan
            self.started += 1
            watch = _Watch(scan, self._overdue, min(self._stall_timeout, self._max_scan))
            try:
                yield
            finally:
                watch.stop()
                self._retire(scan)

    def may_have_large_chunk(self, scan: LiveScan) -> bool:
        """Whether the next chunk of a scan may be large: memory holds two to four of it until the reader takes it.

        So they are for a few scans at a time, since a reader may stop at any chunk, and for those whose readers take at
        once what they are sent. Where there are more, for those that have shown it.
        """
        room = MAX_LARGE_CHUNKS if scan.bytes_returned >= PROVEN_BYTES else MAX_UNPROVEN_LARGE_CHUNKS
        if scan.last_took > _AT_ONCE_SECONDS:
            self._with_large_chunks.discard(scan)
        elif len(self._with_large_chunks) < room:
            self._with_large_chunks.add(scan)
        return scan in self._with_large_chunks

    def note_rows(self, rows: int) -> None:
        """Counts rows and index entries that a call has read without being a scan."""
        self._rows_scanned += rows

    def cancel(self, scan_id: str) -> None:
        """Ends a scan on an operator's behalf. Raises ScanNotFound."""
        scan = self._live.get(scan_id)
        if scan is None:
            raise ScanNotFound("no live scan has this id: it has ended, or never was; list the live ones")
        self.end(scan, ScanCancelled(f"an operator cancelled the scan {scan_id} of {scan.table}", table=scan.table))

    def end(self, scan: LiveScan, error: ScanKvError) -> None:
        """Ends a scan with an error: frees what it holds, its place included, and takes it off the list."""
        if scan.ended is not None:
            return
        _log.info("ending scan %s of %s by %s: %s", scan.scan_id, scan.table, scan.peer, error.reason)
        scan.ended = error
        self._retire(scan)
        if scan.source is not None:
            scan.source.abort(error)
            # Its call goes on until the reader takes what is on its way, and that may be never: others may come in now.
            assert scan.leave is not None
            scan.leave()

    def end_all(self, error: ScanKvError) -> None:
        """Ends every live scan."""
        for scan in self.live:
            self.end(scan, error)

    def end_followers(self, error: ScanKvError) -> None:
        """Ends every live scan that follows a changelog: none of them would end by itself."""
        for scan in self.live:
            if scan.follows:
                self.end(scan, error)

    def close(self) -> None:
        """Takes no new scans from now on."""
        self._admission.close()
        self._following.close()

    def _is_over(self, scan: LiveScan) -> bool:
        return scan.admitted_at is not None and scan.scan_id not in self._live

    def _retire(self, scan: LiveScan) -> None:
        if self._live.pop(scan.scan_id, None) is not None:
            self._rows_scanned += scan.rows_scanned
            self._bytes_returned += scan.bytes_returned

    def _overdue(self, scan: LiveScan, now: float) -> float | None:
        """Ends a scan that is overdue; else the seconds until it may be."""
        assert scan.admitted_at is not None
        left = math.inf if scan.follows else self._max_scan - (now - scan.admitted_at)
        waiting = 0.0 if scan.sending_since is None else now - scan.sending_since
        patience = self._stall_timeout - waiting
        if left <= 0:
            self.end(
                scan,
                ScanTooLong(
                    f"the scan of {scan.table} took longer than {self._max_scan:g} s (max_scan_seconds): resume it, or "
                    "read a pinned snapshot in splits",
                    table=scan.table,
                ),
            )
            return None
        if patience <= 0:
            self.end(
                scan,
                ScanStalled(
                    f"the reader of {scan.table} took nothing for {self._stall_timeout:g} s (stall_timeout_seconds), "
                    "so the server ended the scan: resume it, or read on sooner",
                    table=scan.table,
                ),
            )
            return None
        return min(left, patience)


class _Watch:
    """A timer for one scan that looks only as often as something may be due, not with every message."""

    def __init__(self, scan: LiveScan, overdue: Callable[[LiveScan, float], float | None], first: float) -> None:
        self._scan = scan
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(first, self._look)

    def _look(self) -> None:
        wait = self._overdue(self._scan, self._loop.time())
        if wait is not None:
            self._timer = self._loop.call_later(wait, self._look)

    def stop(self) -> None:
        self._timer.cancel()
