"""Statistics of a server, its live scans, and its slow calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aio_client._admin.bases import TableBases
from aio_client._admin.disk_use import DiskUse

if TYPE_CHECKING:
    from scankv.v1 import admin_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """Statistics of a server, since its start unless stated otherwise.

    Attributes:
        version: The server's version.
        incarnation: Identifies the run of the server: every start has another value.
        uptime: How long the server has been running, in seconds.
        tables: The number of tables.
        open_buckets: Buckets that are open now.
        live_scans: Scans that hold an iterator now.
        waiting_scans: Scans that wait to be admitted now.
        open_cursors: Cursors of the live scans now: one for each bucket that a scan is reading, or that was written to
            since the scan began.
        undelivered_errors: Scans that the server ended while their reader took nothing, and whose reader has not
            fetched the error yet.
        calls: Calls that have ended, successfully or not; 0 from a server of version 0.1.
        scans_started: Scans started.
        stalled_scans: Scans that the server ended because their reader took nothing; 0 from a server of version 0.1.
        rows_scanned: Rows that scans read from storage.
        bytes_returned: Bytes of Arrow data that scans returned.
        open_transactions: Transactions that are neither committed nor aborted now.
        closed_commit_barriers: Transactions that are being applied now, behind a closed commit barrier.
        commits: Transactions committed.
        longest_commit: The longest time that the commit barrier of a transaction was closed, in seconds.
        rows_written: Rows in upserts and deletes that were acknowledged.
        log_syncs: Syncs of write-ahead logs; one sync may serve many writers.
        resident_bytes: Resident memory now.
        peak_resident_bytes: The highest resident memory.
        open_files: File descriptors open now; 0 if the server's system does not report them.
        file_limit: The most file descriptors that the server may open.
        tasks: Tasks of the server's event loop now.
        snapshot_views: Views kept for pinned snapshots now.
        snapshot_leases: Leases on these views now.
        snapshot_bytes: Bytes on disk that only these views keep.
        unchanged_results: Counts, aggregates, top-N and scans that were answered with "nothing has changed".
        cached_results: Counts, aggregates and top-N that another call had computed, before or at the same time.
        computed_results: Counts, aggregates and top-N that were computed.
        result_cache_bytes: Memory of the result cache now.
        waiting_calls: Calls that wait for a change now, such as those of watches.
        clock_offset: How far the clock of the server's machine is ahead of the commit times, in seconds;
            negative if it is behind. Beyond `max_clock_step_seconds`, the clock has jumped and needs attention.
        clock_jumps: How often that clock has jumped.
        request_bytes_in_flight: Memory of requests larger than 64 KiB now.
        refused_requests: Requests refused with `ServerBusy`, because too many of these were in memory.
        unread_answer_bytes: Memory of answers that their clients have not read yet.
        refused_answers: Calls refused with `ServerBusy`, because too many of these were in memory.
        free_disk_bytes: Free bytes on the disk of the data directory.
        disk: What the data directory takes on disk.
        loop_turns: How many turns of the server's event loop took less than 0.25 ms, then 0.25 to 0.5 ms, and so on by
            factors of two up to 64 ms, and how many took longer: 10 numbers. A request that arrives during a turn waits
            for its end. Empty if the server runs in an event loop that does not count its turns.
        longest_loop_turn: The longest of these turns, in seconds.
        damaged_buckets: The buckets found damaged, as `database.table/bucket`.
        bases: The columnar bases of each table that has some, or had some since the start, or whose option
            `columnar_base` is "eager", in order of table names.
    """

    version: str
    incarnation: str
    uptime: float
    tables: int
    open_buckets: int
    live_scans: int
    waiting_scans: int
    open_cursors: int
    undelivered_errors: int
    calls: int
    scans_started: int
    stalled_scans: int
    rows_scanned: int
    bytes_returned: int
    open_transactions: int
    closed_commit_barriers: int
    commits: int
    longest_commit: float
    rows_written: int
    log_syncs: int
    resident_bytes: int
    peak_resident_bytes: int
    open_files: int
    file_limit: int
    tasks: int
    snapshot_views: int
    snapshot_leases: int
    snapshot_bytes: int
    unchanged_results: int
    cached_results: int
    computed_results: int
    result_cache_bytes: int
    waiting_calls: int
    clock_offset: float
    clock_jumps: int
    request_bytes_in_flight: int
    refused_requests: int
    unread_answer_bytes: int
    refused_answers: int
    free_disk_bytes: int
    disk: DiskUse
    loop_turns: tuple[int, ...]
    longest_loop_turn: float
    damaged_buckets: tuple[str, ...]
    bases: tuple[TableBases, ...]

    @classmethod
    def of(cls, message: admin_pb2.StatsResponse) -> Self:
        """Decodes the statistics in an answer."""
        return cls(
            version=message.version,
            incarnation=message.incarnation,
            uptime=message.uptime_millis / 1000,
            tables=message.tables,
            open_buckets=message.open_buckets,
            live_scans=message.live_scans,
            waiting_scans=message.waiting_scans,
            open_cursors=message.open_cursors,
            undelivered_errors=message.undelivered_errors,
            calls=message.calls,
            scans_started=message.scans_started,
            stalled_scans=message.stalled_scans,
            rows_scanned=message.rows_scanned,
            bytes_returned=message.bytes_returned,
            open_transactions=message.open_transactions,
            closed_commit_barriers=message.closed_commit_barriers,
            commits=message.commits,
            longest_commit=message.longest_commit_micros / 1_000_000,
            rows_written=message.rows_written,
            log_syncs=message.log_syncs,
            resident_bytes=message.resident_bytes,
            peak_resident_bytes=message.peak_resident_bytes,
            open_files=message.open_files,
            file_limit=message.file_limit,
            tasks=message.tasks,
            snapshot_views=message.snapshot_views,
            snapshot_leases=message.snapshot_leases,
            snapshot_bytes=message.snapshot_bytes,
            unchanged_results=message.unchanged_results,
            cached_results=message.cached_results,
            computed_results=message.computed_results,
            result_cache_bytes=message.result_cache_bytes,
            waiting_calls=message.waiting_calls,
            clock_offset=message.clock_offset_millis / 1000,
            clock_jumps=message.clock_jumps,
            request_bytes_in_flight=message.request_bytes_in_flight,
            refused_requests=message.refused_requests,
            unread_answer_bytes=message.unread_answer_bytes,
            refused_answers=message.refused_answers,
            free_disk_bytes=message.free_disk_bytes,
            disk=DiskUse.of(message.disk),
            loop_turns=tuple(message.loop_turns),
            longest_loop_turn=message.longest_loop_turn_micros / 1_000_000,
            damaged_buckets=tuple(message.damaged_buckets),
            bases=tuple(TableBases.of(each) for each in message.bases),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveScan:
    """A scan that held iterators when the server was asked.

    Attributes:
        scan_id: The scan's id, as in `stream.scan_id` and the server's log.
        table: `database.table`.
        buckets: The buckets that the scan reads, ascending.
        age: Seconds since the scan was admitted.
        rows: Rows that it has read from storage.
        bytes: Bytes of Arrow data that it has produced.
        peer: The network address of its client, or of the browser for which the server's own gateway reads.
        idle: Seconds since its reader last took a message.
        snapshot_id: The snapshot that it reads. None: the live table.
        may_cancel: Whether the caller may cancel it; false from a server of version 0.1.
    """

    scan_id: str
    table: str
    buckets: tuple[int, ...]
    age: float
    rows: int
    bytes: int
    peer: str
    idle: float
    snapshot_id: str | None
    may_cancel: bool

    @classmethod
    def of(cls, message: admin_pb2.LiveScan) -> Self:
        """Decodes a scan in an answer."""
        return cls(
            scan_id=message.scan_id,
            table=message.table,
            buckets=tuple(message.buckets),
            age=message.age_millis / 1000,
            rows=message.rows_scanned,
            bytes=message.bytes_returned,
            peer=message.peer,
            idle=message.idle_millis / 1000,
            snapshot_id=message.snapshot_id or None,
            may_cancel=message.may_cancel,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCall:
    """A call that kept the server busy for longer than its setting `slow_request_seconds`.

    Attributes:
        method: Its method, as `SERVICE/METHOD`.
        table: The table that it reads. None: it reads no table.
        age: Seconds since its end.
        elapsed: How long it took.
        waited: For how much of that it waited for its client or for changes.
        code: The name of its status code, such as "OK".
        plan: How it read the table, without values of rows, keys or predicates. None: it is no scan or query.
        request_id: The id by which the server's log has it.
        peer: The network address of its client, or of the browser for which the server's own gateway has made it. None
            from an earlier server.
    """

    method: str
    table: str | None
    age: float
    elapsed: float
    waited: float
    code: str
    plan: str | None
    request_id: str
    peer: str | None

    @classmethod
    def of(cls, message: admin_pb2.SlowCall) -> Self:
        """Decodes a call in an answer."""
        return cls(
            method=message.method,
            table=message.table or None,
            age=message.age_millis / 1000,
            elapsed=message.millis / 1000,
            waited=message.waited_millis / 1000,
            code=message.code,
            plan=message.plan or None,
            request_id=message.request_id,
            peer=message.peer or None,
        )
