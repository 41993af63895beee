"""`AdminService`: statistics of the server, its live scans, and checks of tables."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss
from scankv.model.names import table_of
from scankv.v1 import admin_pb2, admin_pb2_grpc
from streaming_server.access.owners import CALLER
from streaming_server.engine.snapshots.part_ids import shown_id
from streaming_server.engine.tables.owners import assign_owner
from streaming_server.scan.admission.live_scans import RegisteredScan
from streaming_server.services.bases import has_bases, table_bases
from streaming_server.services.errors import map_errors
from streaming_server.services.merged_answers import merge_bases, merge_scans
from streaming_server.services.table import disk_use_to_proto
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.files.file_limit import file_limit, open_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import grpc

    from streaming_server.engine.bucket.bucket_checker import BucketFindings
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.engine.tasks.loop_turns import LoopTurns
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.services.activity import ActivityReader
    from streaming_server.services.calls import LoggedCall
    from streaming_server.services.intake import Intake
    from streaming_server.services.write import WriteService


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Serves statistics, live scans and checks. `protos/scankv/v1/admin.proto` defines them."""

    def __init__(
        self,
        tables: Tables,
        registry: ScanRegistry,
        results: ResultCache,
        waiting: WaitingCalls,
        writes: WriteService,
        intake: Intake,
        loop_turns: LoopTurns | None,
        incarnation: str,
        version: str,
        read_metrics: Callable[[], Awaitable[tuple[str, bytes]]],
        activity: ActivityReader,
    ) -> None:
        self._activity = activity
        self._tables = tables
        self._registry = registry
        self._results = results
        self._waiting = waiting
        self._writes = writes
        self._intake = intake
        self._loop_turns = loop_turns
        self._incarnation = incarnation
        self._version = version
        self._read_metrics = read_metrics
        # Several scrapes at once would only wait for each other.
        self._scraping = asyncio.Lock()
        self._started = time.monotonic()

    async def Stats(
        self,
        request: admin_pb2.StatsRequest,
        context: grpc.aio.ServicerContext[admin_pb2.StatsRequest, admin_pb2.StatsResponse],
    ) -> admin_pb2.StatsResponse:
        async with map_errors(request, context):
            tables = sorted(self._tables.live_tables(), key=lambda table: table.definition.name)
            buckets = [bucket for table in tables for bucket in table.buckets]
            disk, free_disk_bytes = await self._tables.disk_use()
            turns = self._loop_turns
            memory, commits, clock = _memory(), self._tables.transactions.stats, self._tables.clock.status()
            return admin_pb2.StatsResponse(
                version=self._version,
                incarnation=self._incarnation,
                uptime_millis=int((time.monotonic() - self._started) * 1000),
                tables=len(self._tables),
                open_buckets=sum(bucket.is_open for bucket in buckets),
                live_scans=len(self._registry.live),
                waiting_scans=self._registry.waiting,
                undelivered_errors=self._registry.undelivered_errors,
                open_cursors=BucketCursor.open_cursors,
                open_files=open_files(),
                file_limit=file_limit(),
                disk=disk_use_to_proto(disk),
                free_disk_bytes=free_disk_bytes,
                tasks=len(asyncio.all_tasks()),
                snapshot_views=self._tables.snapshots.views,
                snapshot_leases=self._tables.snapshots.leases,
                snapshot_bytes=await self._tables.snapshots.held_bytes(),
                scans_started=self._registry.started,
                stalled_scans=self._registry.stalled,
                calls=self._intake.calls.ended,
                rows_scanned=self._registry.rows_scanned,
                bytes_returned=self._registry.bytes_returned,
                unchanged_results=self._results.unchanged,
                cached_results=self._results.cached,
                computed_results=self._results.computed,
                result_cache_bytes=self._results.cached_bytes,
                waiting_calls=self._waiting.waiting,
                request_bytes_in_flight=self._intake.claimed_bytes,
                refused_requests=self._intake.refused,
                unread_answer_bytes=self._intake.unread.unread_bytes,
                refused_answers=self._intake.unread.refused,
                open_transactions=len(self._tables.transactions.open),
                closed_commit_barriers=commits.closed_commit_barriers,
                commits=commits.commits,
                longest_commit_micros=commits.longest_micros,
                rows_written=self._writes.rows_written + commits.rows,
                log_syncs=sum(bucket.syncs for bucket in buckets),
                clock_offset_millis=clock.offset_millis,
                clock_jumps=clock.jumps,
                resident_bytes=memory.get("VmRSS", 0),
                peak_resident_bytes=memory.get("VmHWM", 0),
                bases=merge_bases(table_bases(table) for table in tables if has_bases(table)),
                loop_turns=() if turns is None else turns.counts,
                longest_loop_turn_micros=0 if turns is None else int(turns.longest * 1_000_000),
                damaged_buckets=[
                    f"{table_of(bucket.table)}/{bucket.number}" for bucket in buckets if bucket.damage is not None
                ],
            )
        raise AssertionError("map_errors ends the call")

    async def Metrics(
        self,
        request: admin_pb2.MetricsRequest,
        context: grpc.aio.ServicerContext[admin_pb2.MetricsRequest, admin_pb2.MetricsResponse],
    ) -> admin_pb2.MetricsResponse:
        async with map_errors(request, context), self._scraping:
            content_type, text = await self._read_metrics()
            return admin_pb2.MetricsResponse(text=text, content_type=content_type)
        raise AssertionError("map_errors ends the call")

    async def Activity(
        self,
        request: admin_pb2.ActivityRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ActivityRequest, admin_pb2.ActivityResponse],
    ) -> admin_pb2.ActivityResponse:
        async with map_errors(request, context):
            caller = CALLER.get()
            assert caller is not None
            return await self._activity.read(request, caller.grants)
        raise AssertionError("map_errors ends the call")

    async def ListScans(
        self,
        request: admin_pb2.ListScansRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ListScansRequest, admin_pb2.ListScansResponse],
    ) -> admin_pb2.ListScansResponse:
        async with map_errors(request, context):
            now = asyncio.get_running_loop().time()
            return admin_pb2.ListScansResponse(scans=merge_scans(_live_scan(scan, now) for scan in self._registry.live))
        raise AssertionError("map_errors ends the call")

    async def ListSlowCalls(
        self,
        request: admin_pb2.ListSlowCallsRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ListSlowCallsRequest, admin_pb2.ListSlowCallsResponse],
    ) -> admin_pb2.ListSlowCallsResponse:
        async with map_errors(request, context):
            now = time.monotonic()
            # A call is logged once its plan is known, which may be after calls that ended later.
            slow = sorted(self._intake.calls.slow, key=lambda call: call.ended_at, reverse=True)
            return admin_pb2.ListSlowCallsResponse(calls=[_slow_call(call, now) for call in slow])
        raise AssertionError("map_errors ends the call")

    async def CancelScan(
        self,
        request: admin_pb2.CancelScanRequest,
        context: grpc.aio.ServicerContext[admin_pb2.CancelScanRequest, admin_pb2.CancelScanResponse],
    ) -> admin_pb2.CancelScanResponse:
        async with map_errors(request, context):
            self._registry.cancel(request.scan_id)
        return admin_pb2.CancelScanResponse()

    async def AssignOwner(
        self,
        request: admin_pb2.AssignOwnerRequest,
        context: grpc.aio.ServicerContext[admin_pb2.AssignOwnerRequest, admin_pb2.AssignOwnerResponse],
    ) -> admin_pb2.AssignOwnerResponse:
        """Gives what belongs to a principal to another one."""
        async with map_errors(request, context):
            table = self._tables.table(request.table)
            given = await assign_owner(self._tables, table, request.current, request.principal)
        return admin_pb2.AssignOwnerResponse(
            snapshots=given.snapshots,
            consumers=given.consumers,
            column_locks=given.locks,
            writers=sorted(given.writers),
        )

    async def CheckTable(  # type: ignore[override]  # gRPC also accepts a handler that writes its responses, which is cancelled at once
        self,
        request: admin_pb2.CheckTableRequest,
        context: grpc.aio.ServicerContext[admin_pb2.CheckTableRequest, admin_pb2.BucketCheck],
    ) -> None:
        """Checks that everything stored for a table is consistent, one bucket after another."""
        async with map_errors(request, context):
            table, loop = self._tables.table(request.table), asyncio.get_running_loop()
            buckets = tuple(table.buckets.numbers)
            scan = RegisteredScan(
                table=request.table, buckets=buckets, snapshot_id="", peer=context.peer(), is_check=True
            )
            with self._registry.call(scan):
                async with self._registry.admit(scan):
                    for bucket in buckets:
                        checked = await _check_bucket(table, bucket, scan)
                        scan.sending_since = loop.time()
                        await context.write(checked)
                        scan.sending_since, scan.progress_at = None, loop.time()


async def _check_bucket(table: LiveTable, bucket: int, scan: RegisteredScan) -> admin_pb2.BucketCheck:
    """Checks one bucket, as part of a scan that may be cancelled. Damage is reported, not raised."""
    try:
        check = await table.open_check(bucket)
    except DataLoss as error:
        indexes = [admin_pb2.IndexCheck(columns=index.columns) for index in table.definition.indexes]
        return admin_pb2.BucketCheck(bucket=bucket, indexes=indexes, problem=error.message)
    scanned = scan.rows_scanned
    scan.hold(check)
    try:
        found = await check.run()
    finally:
        scan.rows_scanned = scanned + check.rows_scanned
    return _bucket_check(bucket, found)


def _bucket_check(bucket: int, found: BucketFindings) -> admin_pb2.BucketCheck:
    return admin_pb2.BucketCheck(
        bucket=bucket,
        rows=found.rows,
        indexes=[
            admin_pb2.IndexCheck(columns=index.columns, entries=index.entries, ready=index.ready, problem=index.problem)
            for index in found.indexes
        ],
        problem=found.problem,
    )


def _live_scan(scan: RegisteredScan, now: float) -> admin_pb2.LiveScan:
    assert scan.admitted_at is not None
    return admin_pb2.LiveScan(
        scan_id=scan.shown_id,
        table=table_of(scan.table),
        buckets=scan.buckets,
        snapshot_id=shown_id(scan.snapshot_id),
        peer=scan.client,
        age_millis=int((now - scan.admitted_at) * 1000),
        idle_millis=int((now - scan.progress_at) * 1000),
        rows_scanned=scan.rows_scanned,
        bytes_returned=scan.bytes_returned,
        may_cancel=True,  # Permissions take it back from those who may not.
    )


def _slow_call(call: LoggedCall, now: float) -> admin_pb2.SlowCall:
    return admin_pb2.SlowCall(
        method=call.method,
        table=table_of(call.table),
        age_millis=int((now - call.ended_at) * 1000),
        millis=int(call.seconds * 1000),
        waited_millis=int(call.waited_seconds * 1000),
        code=call.code,
        plan=call.plan,
        request_id=call.request_id,
        peer=call.peer,
    )


def _memory() -> dict[str, int]:
    """Returns the memory fields of `/proc/self/status`, in bytes; empty if the file does not exist."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}
