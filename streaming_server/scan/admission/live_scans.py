"""The live scans: their clients, their progress, the timeouts that end them, and totals over all scans."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from scankv.model.errors import (
    ScanCancelled,
    ScanKvError,
    ScanNotFound,
    ScanStalled,
    ScanTooLong,
    TooManyScans,
    Unavailable,
)
from scankv.model.names import table_of
from streaming_server.access.callers import STREAM_CALLER, CallerIdentity
from streaming_server.access.grants import Role
from streaming_server.activity import Activity
from streaming_server.current_call import CURRENT_CALL, current_client
from streaming_server.histogram import Histogram
from streaming_server.scan.admission.admission import Holder
from streaming_server.scan.admission.chunk_turns import ChunkTurns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from streaming_server.scan.admission.admission import Admission
    from streaming_server.scan.admission.unread_answers import UnreadAnswer, UnreadAnswers

MAX_LARGE_CHUNKS = 8
"""The most scans with large chunks at the same time."""
MAX_UNPROVEN_LARGE_CHUNKS = 4
"""The same limit for a scan that has sent less than `PROVEN_BYTES`."""
_PART = "#"
_JITTER = 0.1
_RETRY_SECONDS = 0.1
PROVEN_BYTES = 3 * 1024 * 1024
"""More than the usual flow-control window of a client: a scan that has sent this much has a reader that reads."""
_AT_ONCE_SECONDS = 0.5

MAX_UNREAD_ENDINGS = 16
"""The most scans of one connection that are over and have messages that their reader has not taken yet."""

_log = logging.getLogger(__name__)


class Abortable(Protocol):
    """A resource of a scan that can be released early."""

    def abort(self, error: ScanKvError) -> None:
        """Releases everything now. The next request for data raises `error`."""


@dataclass(slots=True, kw_only=True, eq=False)
class RegisteredScan:
    """One call of `ScanKv`, from its admission to the last byte that its reader takes.

    Attributes:
        table: `database.table`.
        buckets: The buckets that it reads, ascending.
        snapshot_id: The snapshot that it reads; empty for the live table.
        peer: The peer of its connection, which identifies the connection.
        follows: Whether it follows the changelog. Such a scan may last forever and has admission limits of its own.
        scan_id: Identifies the scan in logs and listings.
        admitted_at: When the scan was admitted, on the event loop's clock. None before.
        progress_at: When its reader last took a message, or when the scan was admitted.
        sending_since: Since when a message has been waiting for the reader. None if no message is.
        sending_bytes: The bytes of this message.
        built_bytes: The bytes of the next message, which waits until this one is sent.
        last_took: How many seconds the reader needed to take the previous message.
        rows_scanned: Rows read from storage.
        bytes_returned: Bytes of Arrow data produced.
        source: The source that the scan reads, once it is open.
        leave: Releases its place among the live scans. None before admission.
        ended: The error that ended the scan early. None if nothing has.
        caller: Whose stream it is. None: no stream, or no tokens are asked for.
        unread: Counts the messages that its reader has not taken yet, once the scan is over. None before.
        parked_since: Since when its view has been waiting for the call that reads it. None: it is not.
        may_wait: Whether its reader, another worker, may take nothing for as long as it likes.
        is_part: Whether it is a part of another stream, which is admitted, listed and counted in its place.
        is_check: Whether it checks a table, and is no scan of a client's rows.
        client: The address of the reader, for people: the address of a browser if the server's own gateway reads for
            it. All browsers share the connections of the gateway.
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
    sending_bytes: int = 0
    built_bytes: int = 0
    last_took: float = 0.0
    rows_scanned: int = 0
    bytes_returned: int = 0
    source: Abortable | None = None
    leave: Callable[[], None] | None = None
    ended: ScanKvError | None = None
    caller: CallerIdentity | None = field(default_factory=STREAM_CALLER.get)
    unread: UnreadAnswer | None = None
    parked_since: float | None = None
    may_wait: bool = False
    is_part: bool = False
    is_check: bool = False
    client: str = field(default_factory=current_client)

    @property
    def shown_id(self) -> str:
        """Its id for people: all parts of a scan of several tablets have the same one."""
        return self.scan_id.partition(_PART)[0]

    def stalled_since(self) -> float | None:
        """Returns since when it has been waiting for its reader. None: it is not, or has no source to release."""
        if self.source is None:
            return None
        return self.parked_since if self.sending_since is None else self.sending_since

    def hold(self, source: Abortable) -> None:
        """Records the source that the scan reads. Releases it immediately if the scan was ended in the meantime."""
        self.source = source
        if self.ended is not None:
            source.abort(self.ended)


def part_id(scan_id: str, tablet: int | None) -> str:
    """Returns the id of the part of a scan that reads a tablet. An empty scan id: the part is a scan by itself."""
    return f"{scan_id}{_PART}{tablet}" if scan_id else uuid.uuid4().hex


class ScanRegistry:
    """The live scans of a server. Bound to the server's event loop.

    Ending a scan releases its resources immediately, whatever its reader does. The reader gets the error when it takes
    the messages sent before, because a gRPC status cannot overtake a message.

    Attributes:
        turns: Decides when a scan may build its next chunk.
        started: The number of scans that were admitted since the start of the server.
        outcomes: How many scans have ended, by kind (`scan` or `changes`) and outcome: `complete`, `cancelled` by the
            reader, the reason of a typed error in lower case, or `error`.
        chunk_seconds: How long building each message of a scan took.

    Args:
        admission: Admits scans.
        following: Admits scans that follow a changelog.
        stall_timeout: For how many seconds a reader may take nothing.
        max_scan: For how many seconds a scan may last.
        turns_with_events: See `ChunkTurns`.
        unread: Counts the messages of scans that are over, but whose reader has not taken them. None: nothing does.
        activity: Counts the rows that are read of each table. None: nothing does.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        following: Admission,
        stall_timeout: float,
        max_scan: float,
        turns_with_events: Callable[[], int] | None = None,
        unread: UnreadAnswers | None = None,
        activity: Activity | None = None,
    ) -> None:
        self._unread = unread
        self._activity = activity or Activity()
        self._admission = admission
        self._following = following
        self._stall_timeout = stall_timeout
        self._max_scan = max_scan
        self._calls: dict[str, RegisteredScan] = {}
        self._live: dict[str, RegisteredScan] = {}
        self._parts: set[RegisteredScan] = set()
        self._with_large_chunks: set[RegisteredScan] = set()
        self.turns = ChunkTurns(turns_with_events)
        self.started = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.chunk_seconds = Histogram()
        self._rows_scanned = 0
        self._bytes_returned = 0

    @property
    def live(self) -> list[RegisteredScan]:
        """The live scans, oldest first."""
        return list(self._live.values())

    @property
    def waiting(self) -> int:
        """The number of scans that wait to be admitted."""
        return self._admission.waiting + self._following.waiting

    @property
    def stalled(self) -> int:
        """The number of scans that were ended because their reader took nothing."""
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == ScanStalled.reason.lower())

    @property
    def undelivered_errors(self) -> int:
        """The number of scans that are over, but whose reader has not taken all messages."""
        return sum(self._is_over(scan) for scan in self._calls.values())

    @property
    def rows_scanned(self) -> int:
        """The rows read from storage by all scans since the start of the server."""
        return self._rows_scanned + sum(scan.rows_scanned for scan in self._live.values())

    @property
    def bytes_returned(self) -> int:
        """The bytes of Arrow data produced by all scans since the start of the server."""
        return self._bytes_returned + sum(scan.bytes_returned for scan in self._live.values())

    @contextmanager
    def call(self, scan: RegisteredScan) -> Iterator[None]:
        """Tracks a scan for the length of its gRPC call.

        Raises:
            TooManyScans: The connection has too many scans that are over and unread.
        """
        try:
            with self._tracked(scan):
                yield
        except BaseException as error:
            # If the scan was ended early, its reader often gives up before it gets the error.
            self._count_outcome(scan, scan.ended or error)
            raise
        self._count_outcome(scan, scan.ended)

    def _count_outcome(self, scan: RegisteredScan, error: BaseException | None) -> None:
        if scan.is_part:
            return
        if error is None:
            outcome = "complete"
        elif isinstance(error, ScanKvError):
            outcome = error.reason.lower()
        else:
            outcome = "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "error"
        self.outcomes["changes" if scan.follows else "scan", outcome] += 1

    @contextmanager
    def _tracked(self, scan: RegisteredScan) -> Iterator[None]:
        unread = sum(other.peer == scan.peer and self._is_over(other) for other in self._calls.values())
        if unread >= MAX_UNREAD_ENDINGS:
            raise TooManyScans(
                f"this connection has {unread} finished scans that it does not read (at most {MAX_UNREAD_ENDINGS}): "
                "read them to their end, or cancel them",
                retry_after=1.0,
            )
        self._calls[scan.scan_id] = scan
        call = CURRENT_CALL.get()
        if call is not None:
            call.scan_id, call.may_last = scan.scan_id, scan.follows
        try:
            yield
        finally:
            del self._calls[scan.scan_id]
            if scan.unread is not None:
                scan.unread.release()
            self._with_large_chunks.discard(scan)
            if call is not None:
                call.rows_scanned, call.bytes_returned = scan.rows_scanned, scan.bytes_returned

    @asynccontextmanager
    async def admit(self, scan: RegisteredScan) -> AsyncIterator[None]:
        """Admits a scan and lists it as live for the length of the block, in which it may hold iterators.

        Ends the scan when it stalls or takes too long.

        Raises:
            TooManyScans, ServerDraining: The scan was not admitted.
        """
        if scan.is_part:
            with self._as_part(scan):
                yield
            return
        admission = self._following if scan.follows else self._admission
        async with admission.admit(scan.table, scan.buckets, self._holder(scan)) as scan.leave:
            loop = asyncio.get_running_loop()
            scan.admitted_at = scan.progress_at = loop.time()
            self._live[scan.scan_id] = scan
            self.started += 1
            watch = _OverdueTimer(scan, self._overdue, min(self._stall_timeout, self._max_scan))
            try:
                yield
            finally:
                watch.stop()
                self._retire(scan)

    def _holder(self, scan: RegisteredScan) -> Holder:
        table, caller = table_of(scan.table), scan.caller

        def end(reason: str) -> None:
            what = f"the reader of {table} took too long for a message while others wait"
            text = f"{what}: {reason}: resume it, or read faster"
            self.end(scan, ScanStalled(text, table=table))

        return Holder(
            principal="" if caller is None else caller.principal,
            is_admin=caller is not None and caller.grants.allow_everywhere(Role.ADMIN),
            stalled_since=scan.stalled_since,
            end=end,
        )

    @contextmanager
    def _as_part(self, scan: RegisteredScan) -> Iterator[None]:
        scan.leave = lambda: None
        self._parts.add(scan)
        try:
            yield
        finally:
            self._parts.discard(scan)

    def may_have_large_chunk(self, scan: RegisteredScan) -> bool:
        """Whether the next chunk of a scan may be large.

        Memory holds two to four large chunks of a scan until its reader takes them, and a reader may stop at any chunk.
        So only a few scans at a time have large chunks, those whose readers take messages promptly. Scans that have not
        sent much yet get fewer of these places.
        """
        room = MAX_LARGE_CHUNKS if scan.bytes_returned >= PROVEN_BYTES else MAX_UNPROVEN_LARGE_CHUNKS
        if scan.last_took > _AT_ONCE_SECONDS:
            self._with_large_chunks.discard(scan)
        elif len(self._with_large_chunks) < room:
            self._with_large_chunks.add(scan)
        return scan in self._with_large_chunks

    def count_rows(self, table: str, rows: int) -> None:
        """Counts rows and index entries of a table or tablet read by a call that is not a scan."""
        self._rows_scanned += rows
        self._activity.count_read_rows(table_of(table), rows)

    def table_of(self, scan_id: str) -> str | None:
        """Returns the table of a live scan; None if no live scan has this id."""
        return next((table_of(scan.table) for scan in self._parts_of(scan_id)), None)

    def cancel(self, scan_id: str) -> None:
        """Ends a scan, or all parts of it that are here, on behalf of an operator. Raises ScanNotFound."""
        parts = self._parts_of(scan_id)
        if not parts:
            raise ScanNotFound(f"no live scan {scan_id!r} exists: it has ended or never existed; list the live scans")
        for scan in parts:
            table = table_of(scan.table)
            self.end(scan, ScanCancelled(f"an operator cancelled the scan {scan_id} of {table}", table=table))

    def _parts_of(self, scan_id: str) -> list[RegisteredScan]:
        return [scan for scan in self.live if scan.shown_id == scan_id]

    def end(self, scan: RegisteredScan, error: ScanKvError) -> None:
        """Ends a scan with an error: releases its resources and its place, and removes it from the list."""
        if scan.ended is not None:
            return
        _log.info(
            "ending scan %s of %s by %s: %s",
            scan.scan_id,
            scan.table,
            scan.client,
            error.reason,
            extra={"scan_id": scan.scan_id, "table": scan.table, "peer": scan.client, "reason": error.reason},
        )
        scan.ended = error
        self._retire(scan)
        if scan.source is not None:
            scan.source.abort(error)
            # The call lasts until the reader takes the last messages, possibly forever, so its place is released now.
            assert scan.leave is not None
            scan.leave()

    def end_all(self, error: ScanKvError) -> None:
        for scan in (*self.live, *self._parts):
            self.end(scan, error)

    def end_followers(self, error: ScanKvError) -> None:
        """Ends every live scan that follows a changelog, because such scans do not end by themselves."""
        for scan in (*self.live, *self._parts):
            if scan.follows:
                self.end(scan, error)

    def end_older(self, seconds: float) -> None:
        """Ends every live scan that is older than a time, so that its client resumes it over another connection.

        Some scans end up to a tenth of the time earlier, so that they do not all come back together.
        """
        now = asyncio.get_running_loop().time()
        for scan in self.live:
            assert scan.admitted_at is not None
            if now - scan.admitted_at > seconds * (1 - _JITTER * int(scan.scan_id[:4], 16) / 0x10000):
                table = table_of(scan.table)
                self.end(
                    scan,
                    Unavailable(
                        f"the stream of {table} has lasted as long as one may over one connection "
                        "(max_connection_age_seconds), so the server ended it: resume it",
                        table=table,
                        retry_after=_RETRY_SECONDS,
                    ),
                )

    def close(self) -> None:
        """Accepts no new scans."""
        self._admission.close()
        self._following.close()

    def _is_over(self, scan: RegisteredScan) -> bool:
        return scan.admitted_at is not None and scan.scan_id not in self._live

    def _retire(self, scan: RegisteredScan) -> None:
        if self._live.pop(scan.scan_id, None) is not None:
            self._rows_scanned += scan.rows_scanned
            self._bytes_returned += scan.bytes_returned
            if not scan.is_check:
                self._activity.count_read_rows(table_of(scan.table), scan.rows_scanned)
            if self._unread is not None and scan.sending_since is not None:
                # While it was live, the limit of live scans bounded its memory.
                scan.unread = self._unread.answer(scan.peer)
                scan.unread.claim(scan.sending_bytes + scan.built_bytes, may_refuse=False)

    def _overdue(self, scan: RegisteredScan, now: float) -> float | None:
        """Ends an overdue scan and returns None; otherwise returns the seconds until it may be overdue."""
        assert scan.admitted_at is not None
        left = math.inf if scan.follows else self._max_scan - (now - scan.admitted_at)
        table = table_of(scan.table)
        waiting = 0.0 if scan.sending_since is None else now - scan.sending_since
        # A scan that may wait now may lose that right later, so look again after the stall timeout.
        patience = self._stall_timeout - (0.0 if scan.may_wait else waiting)
        if left <= 0:
            self.end(
                scan,
                ScanTooLong(
                    f"the scan of {table} took longer than {self._max_scan:g} s (max_scan_seconds): resume it, or "
                    "read a pinned snapshot in splits",
                    table=table,
                ),
            )
            return None
        if patience <= 0:
            self.end(
                scan,
                ScanStalled(
                    f"the reader of {table} took nothing for {self._stall_timeout:g} s (stall_timeout_seconds), "
                    "so the server ended the scan: resume it, or read faster",
                    table=table,
                ),
            )
            return None
        return min(left, patience)


class _OverdueTimer:
    """A timer for one scan that fires only when the scan may be overdue, not with every message."""

    def __init__(
        self, scan: RegisteredScan, overdue: Callable[[RegisteredScan, float], float | None], first: float
    ) -> None:
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
