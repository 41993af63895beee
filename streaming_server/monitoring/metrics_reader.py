"""Reads the values of all metrics from the statistics that the server keeps. Nothing is measured twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from scankv.model.names import table_of
from streaming_server.engine.columnar.base_stats import base_stats_of
from streaming_server.engine.tasks.loop_turns import BOUNDS_SECONDS
from streaming_server.engine.tasks.throttled_value import ThrottledValue
from streaming_server.histogram import Distribution
from streaming_server.monitoring.catalog import METRICS
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.rocks.store import RocksStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.access.audit_log import AuditLog
    from streaming_server.access.limits import CallerLimiter
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.engine.tasks.loop_turns import LoopTurns
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.services.intake import Intake
    from streaming_server.services.write import WriteService

OTHER_TABLES: Final = "other"
"""The label of all tables beyond the limit. No table has this name, because each has a database in its name."""

_SLICE_SECONDS: Final = 0.001
_STALLED_SECONDS: Final = 1.0

Values = dict[str, dict[tuple[str, ...], float | Distribution]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSources:
    """The parts of a server that keep statistics."""

    tables: Tables
    registry: ScanRegistry
    results: ResultCache
    waiting: WaitingCalls
    writes: WriteService
    intake: Intake
    limiter: CallerLimiter | None
    audit_logs: Sequence[AuditLog]
    loop_turns: LoopTurns | None
    incarnation: str
    version: str


class MetricsReader:
    """Reads the values of all metrics, in steps of about a millisecond on the event loop.

    Args:
        sources: The parts of the server.
        max_tables: The most tables with values of their own.
    """

    def __init__(self, sources: StatsSources, max_tables: int) -> None:
        self._sources = sources
        self._max_tables = max_tables
        self._started = time.monotonic()
        self._held_bytes = ThrottledValue(sources.tables.snapshots.held_bytes)

    async def read(self, *, is_ready: bool) -> Values:
        """Returns the values by metric and by the values of its labels. Opens no bucket."""
        values: Values = {name: {} for name in METRICS}
        self._read_server(values, is_ready=is_ready)
        self._read_calls(values)
        await self._read_disk(values)
        await self._read_tables(values)
        return values

    def _read_server(self, values: Values, *, is_ready: bool) -> None:
        sources, tables, registry = self._sources, self._sources.tables, self._sources.registry
        now, clock, commits = asyncio.get_running_loop().time(), tables.clock.status(), tables.transactions.stats
        scans = registry.live
        held_up = [scan for scan in scans if scan.sending_since and now - scan.sending_since > _STALLED_SECONDS]
        ages = [now - scan.admitted_at for scan in scans if scan.admitted_at is not None and not scan.follows]
        resources = tables.storage_resources
        limiter = sources.limiter
        single: dict[str, float | Distribution] = {
            "scankv_uptime_seconds": time.monotonic() - self._started,
            "scankv_ready": is_ready,
            "scankv_tables": len(tables),
            "scankv_damaged_tables": len(tables.find_damaged()),
            "scankv_scans_live": len(scans),
            "scankv_scans_waiting": registry.waiting,
            "scankv_scans_stalled": len(held_up),
            "scankv_scans_undelivered_errors": registry.undelivered_errors,
            "scankv_scan_oldest_iterator_age_seconds": max(ages, default=0.0),
            "scankv_scan_rows_total": registry.rows_scanned,
            "scankv_scan_bytes_total": registry.bytes_returned,
            "scankv_scan_chunk_seconds": registry.chunk_seconds.read(),
            "scankv_open_cursors": BucketCursor.open_cursors,
            "scankv_rows_written_total": sources.writes.rows_written + commits.rows,
            "scankv_storage_write_seconds": resources.write_seconds.read(),
            "scankv_storage_sync_seconds": resources.sync_seconds.read(),
            "scankv_result_cache_bytes": sources.results.cached_bytes,
            "scankv_calls_waiting": sources.waiting.waiting,
            "scankv_request_bytes_in_flight": sources.intake.claimed_bytes,
            "scankv_requests_refused_total": sources.intake.refused,
            "scankv_caller_limit_delay_seconds_total": 0 if limiter is None else limiter.delayed_seconds,
            "scankv_unread_answer_bytes": sources.intake.unread.unread_bytes,
            "scankv_answers_refused_total": sources.intake.unread.refused,
            "scankv_transactions_open": len(tables.transactions.open),
            "scankv_transactions_committed_total": commits.commits,
            "scankv_commit_barriers_closed": commits.closed_commit_barriers,
            "scankv_commit_longest_seconds": commits.longest_micros / 1_000_000,
            "scankv_snapshot_views": tables.snapshots.views,
            "scankv_snapshot_leases": tables.snapshots.leases,
            "scankv_backup_completed_timestamp_seconds": tables.backups.progress.completed_micros / 1_000_000,
            "scankv_archive_reached_timestamp_seconds": tables.archive.reached_micros / 1_000_000,
            "scankv_archive_failures_total": tables.archive.failed,
            "scankv_backups_failed_total": tables.backups.failed,
            "scankv_clock_offset_seconds": clock.offset_millis / 1000,
            "scankv_clock_jumps_total": clock.jumps,
            "scankv_rocksdb_block_cache_bytes": resources.block_cache.get_usage(),
        }
        if (turns := sources.loop_turns) is not None:
            counted = Distribution(BOUNDS_SECONDS, tuple(turns.counts), turns.total)
            single |= {
                "scankv_event_loop_turn_seconds": counted,
                "scankv_event_loop_longest_turn_seconds": turns.longest,
            }
        for name, value in single.items():
            values[name][()] = value
        values["scankv_server_info"][sources.version, sources.incarnation] = 1
        if limiter is not None:
            values["scankv_caller_limit_refusals_total"] = {(name,): n for name, n in limiter.refusals.items()}
        for log in sources.audit_logs:
            values["scankv_audit_lines_total"][log.kind,] = log.lines_written
            values["scankv_audit_lines_lost_total"][log.kind,] = log.lines_lost
        results = sources.results
        for source, count in (
            ("unchanged", results.unchanged),
            ("cached", results.cached),
            ("computed", results.computed),
        ):
            values["scankv_query_results_total"][source,] = count
        values["scankv_scans_total"] = {labels: count for labels, count in registry.outcomes.items()}  # noqa: C416  # widens the types

    def _read_calls(self, values: Values) -> None:
        calls = self._sources.intake.calls
        values["scankv_calls_running"] = {(method,): count for method, count in calls.running.items()}
        values["scankv_call_seconds"] = {labels: histogram.read() for labels, histogram in calls.seconds.items()}

    async def _read_disk(self, values: Values) -> None:
        disk, free = await self._sources.tables.disk_use()
        for field in fields(disk):
            values["scankv_disk_bytes"][field.name,] = getattr(disk, field.name)
        values["scankv_disk_free_bytes"][()] = free
        values["scankv_disk_reserve_bytes"][()] = self._sources.tables.disk_reserve_bytes
        values["scankv_snapshot_held_bytes"][()] = await self._held_bytes.get()

    async def _read_tables(self, values: Values) -> None:
        rocks: Counter[str] = Counter({field.name: 0 for field in fields(RocksStats)})
        began = time.perf_counter()
        # In the order of their first use, so that a table keeps its label while others come and go.
        # A table with tablets has no buckets by itself.
        tables = [table for table in self._sources.tables.live_tables() if len(table.buckets)]
        for number, table in enumerate(tables):
            label = (table_of(table.definition.name) if number < self._max_tables else OTHER_TABLES,)
            found = self._measure_table(table)
            for live in table.buckets:
                _add_bucket(found, live)
                if (bucket := live.open_bucket) is not None:
                    stats = bucket.rocks_stats()
                    rocks.update({field.name: getattr(stats, field.name) for field in fields(stats)})
                if time.perf_counter() - began > _SLICE_SECONDS:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
            for name, value in found.items():
                before = values[name].get(label, 0.0)
                assert not isinstance(before, Distribution)
                combine = max if METRICS[name].combines_by == "max" else _add
                values[name][label] = combine(before, value)
        names = {"is_write_stopped": "stopped_buckets"}
        for name, count in rocks.items():
            values[f"scankv_rocksdb_{names.get(name, name)}"][()] = count

    def _measure_table(self, table: LiveTable) -> defaultdict[str, float]:
        """Returns the values of a table that do not come from its buckets one by one."""
        found: defaultdict[str, float] = defaultdict(float)
        now_micros = table.state.clock.commit_micros()
        lags = self._sources.tables.consumers.lags(table.state)
        bases = [base_stats_of(live, now_micros) for live in table.buckets]
        owners: set[str] = set()
        building: set[int] = set()
        for live in table.buckets:
            if (bucket := live.open_bucket) is not None:
                bucket.log.holds.oldest()  # which forgets expired ones
                owners |= bucket.log.holds.owners
            if (state := live.state) is not None:
                building |= {*state.indexes} - {*state.ready_indexes}
        found["scankv_retention_holds"] = len(owners)
        found["scankv_consumers"] = lags.consumers
        found["scankv_consumers_live"] = lags.live
        found["scankv_consumer_lag_changes"] = lags.most
        found["scankv_indexes"] = 0 if table.definition.tablet else len(table.definition.indexes)
        found["scankv_indexes_building"] = len(building)
        found["scankv_bases"] = sum(not base.unused_reason for base in bases)
        found["scankv_base_disk_bytes"] = sum(base.disk_bytes for base in bases)
        found["scankv_base_delta_bytes"] = sum(base.delta_bytes for base in bases)
        found["scankv_base_changes"] = sum(base.changes_since for base in bases)
        found["scankv_base_oldest_age_seconds"] = max(base.age_millis for base in bases) / 1000
        found["scankv_base_builds_total"] = sum(base.record.builds for base in bases)
        found["scankv_base_build_cpu_seconds_total"] = sum(base.record.cpu_seconds for base in bases)
        found["scankv_base_drops_total"] = sum(base.record.drops for base in bases)
        found["scankv_base_written_bytes_total"] = sum(base.record.written_bytes for base in bases)
        sweep, now = table.state.sweep, table.state.clock.monotonic()
        found["scankv_expired_rows_removed_total"] = sweep.removed
        found["scankv_expired_rows_share"] = sweep.share(now) if table.definition.expiry is not None else 0.0
        found["scankv_expiry_pass_age_seconds"] = 0.0 if sweep.pass_ended is None else now - sweep.pass_ended
        return found


def _add_bucket(found: defaultdict[str, float], live: LiveBucket) -> None:
    """Adds the values of one bucket to those of its table. Takes microseconds."""
    state, held, use = live.state, 0, live.family_bytes
    if (bucket := live.open_bucket) is not None and state is not None:
        oldest = bucket.log.holds.oldest()
        held = 0 if oldest is None else max(0, state.count - count_of(oldest[1]))
    found["scankv_retention_held_changes"] += held
    found["scankv_table_buckets_open"] += live.is_open
    found["scankv_table_buckets_damaged"] += live.problem is not None
    found["scankv_table_syncs_total"] += live.syncs
    found["scankv_table_rows"] += 0 if state is None else state.rows or 0
    found["scankv_changelog_changes"] += 0 if state is None else state.count - state.log_first
    found["scankv_changelog_written_bytes_total"] += 0 if state is None else state.log_bytes
    found["scankv_table_disk_bytes"] += 0 if use is None else use.rows
    found["scankv_changelog_disk_bytes"] += 0 if use is None else use.changelog
    found["scankv_index_disk_bytes"] += 0 if use is None else use.indexes


def _add(first: float, second: float) -> float:
    return first + second
