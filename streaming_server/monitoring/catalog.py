"""Every metric of the server: its name, its kind, its labels and its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The name, which ends with the unit, and with `_total` for a counter.
        kind: A gauge goes up and down. A counter counts from the start of the server. A histogram counts durations.
        help: What the value is.
        labels: The names of the labels.
        combines_by: How the values of the tables that share the label `other` are combined.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    combines_by: Literal["sum", "max"] = "sum"


_TABLE: Final = ("table",)

SERVER_METRICS: Final = (
    Metric("scankv_server_info", "gauge", "1. The labels name the version and this start.", ("version", "incarnation")),
    Metric("scankv_uptime_seconds", "gauge", "The time since the start."),
    Metric("scankv_ready", "gauge", "1 if the server is ready for calls, 0 while it starts or drains."),
    Metric("scankv_tables", "gauge", "All tables."),
    Metric("scankv_damaged_tables", "gauge", "The tables of which all or some buckets cannot be used."),
    Metric("scankv_calls_running", "gauge", "The calls that run now.", ("method",)),
    Metric(
        "scankv_call_seconds",
        "histogram",
        "The duration of calls, from their beginning until their end, by method and gRPC status.",
        ("method", "code"),
    ),
    Metric("scankv_scans_live", "gauge", "The scans that hold iterators, streams of changes included."),
    Metric("scankv_scans_waiting", "gauge", "The scans that wait for admission."),
    Metric("scankv_scans_stalled", "gauge", "The live scans whose reader has taken nothing for more than a second."),
    Metric("scankv_scans_undelivered_errors", "gauge", "The scans that were ended and whose reader takes nothing."),
    Metric(
        "scankv_scan_oldest_iterator_age_seconds",
        "gauge",
        "The age of the oldest live scan that does not follow a changelog. Its iterators keep old files on disk.",
    ),
    Metric(
        "scankv_scans_total",
        "counter",
        "The scans that have ended. The outcome is complete, cancelled or error, or the reason of a typed error in "
        "lower case, such as scan_stalled or too_many_scans. The kind is scan or changes.",
        ("kind", "outcome"),
    ),
    Metric("scankv_scan_rows_total", "counter", "The rows that scans and queries have read from storage."),
    Metric("scankv_scan_bytes_total", "counter", "The bytes of Arrow data that scans have returned."),
    Metric("scankv_scan_chunk_seconds", "histogram", "The time to build one message of a scan."),
    Metric(
        "scankv_open_cursors",
        "gauge",
        "The open cursors of live scans, one for each bucket that is being read.",
    ),
    Metric("scankv_rows_written_total", "counter", "The rows and keys in acknowledged upserts and deletes."),
    Metric("scankv_storage_write_seconds", "histogram", "The time of a RocksDB write, which may include a stall."),
    Metric("scankv_storage_sync_seconds", "histogram", "The time of a sync (fsync) of a write-ahead log."),
    Metric(
        "scankv_query_results_total",
        "counter",
        "The answers of queries: unchanged, cached (from the result cache) or computed.",
        ("source",),
    ),
    Metric("scankv_result_cache_bytes", "gauge", "The memory of the result cache."),
    Metric("scankv_calls_waiting", "gauge", "The calls that wait for a change of their result."),
    Metric("scankv_request_bytes_in_flight", "gauge", "The bytes of requests over 64 KiB in memory."),
    Metric("scankv_requests_refused_total", "counter", "The requests that were refused for lack of memory."),
    Metric(
        "scankv_caller_limit_refusals_total",
        "counter",
        "The calls that were refused because of a limit of their caller: scans, requests or bytes.",
        ("limit",),
    ),
    Metric(
        "scankv_caller_limit_delay_seconds_total",
        "counter",
        "The time for which streams were held back because of a limit of their caller.",
    ),
    Metric(
        "scankv_audit_lines_total",
        "counter",
        "The lines written to each output of the audit log: file, stdout or syslog.",
        ("output",),
    ),
    Metric(
        "scankv_audit_lines_lost_total",
        "counter",
        "The lines of the audit log that are lost in each output. Should be 0.",
        ("output",),
    ),
    Metric("scankv_unread_answer_bytes", "gauge", "The bytes of answers that clients have not read yet."),
    Metric("scankv_answers_refused_total", "counter", "The calls that were refused for unread answers in memory."),
    Metric("scankv_transactions_open", "gauge", "The transactions that are neither committed nor aborted."),
    Metric("scankv_transactions_committed_total", "counter", "The committed transactions."),
    Metric("scankv_commit_barriers_closed", "gauge", "The transactions that are being applied behind a barrier."),
    Metric("scankv_commit_longest_seconds", "gauge", "The longest time that a commit barrier was closed."),
    Metric("scankv_event_loop_turn_seconds", "histogram", "The turns of the event loop. A call may wait for one."),
    Metric("scankv_event_loop_longest_turn_seconds", "gauge", "The longest turn of the event loop."),
    Metric("scankv_snapshot_views", "gauge", "The views that pinned snapshots keep."),
    Metric("scankv_snapshot_leases", "gauge", "The leases on snapshots."),
    Metric("scankv_snapshot_held_bytes", "gauge", "The bytes on disk that only snapshots keep."),
    Metric(
        "scankv_disk_bytes",
        "gauge",
        "The disk use of the data directory by content. The value may be old: at most 20 times as old as the time that "
        "measuring takes.",
        ("content",),
    ),
    Metric("scankv_disk_free_bytes", "gauge", "The free space on the disk of the data directory."),
    Metric("scankv_disk_reserve_bytes", "gauge", "The free space below which the server refuses writes."),
    Metric(
        "scankv_backup_completed_timestamp_seconds",
        "gauge",
        "The instant of the last complete backup, in seconds since 1970 UTC. 0: none is known.",
    ),
    Metric(
        "scankv_archive_reached_timestamp_seconds",
        "gauge",
        "Every commit before this instant is in the archive, in seconds since 1970 UTC. 0: nothing is archived.",
    ),
    Metric("scankv_archive_failures_total", "counter", "The segments of the archive that could not be stored."),
    Metric("scankv_backups_failed_total", "counter", "The backups that have failed."),
    Metric("scankv_clock_offset_seconds", "gauge", "How far the machine's clock is ahead of the commit time."),
    Metric("scankv_clock_jumps_total", "counter", "The jumps of the machine's clock."),
    Metric("scankv_rocksdb_memtable_bytes", "gauge", "The memory of unflushed writes."),
    Metric("scankv_rocksdb_table_readers_bytes", "gauge", "The estimated memory for indexes and filters of SST files."),
    Metric("scankv_rocksdb_block_cache_bytes", "gauge", "The memory that the block cache uses."),
    Metric("scankv_rocksdb_pending_compaction_bytes", "gauge", "The estimated bytes that compactions have to rewrite."),
    Metric("scankv_rocksdb_running_compactions", "gauge", "The compactions that run now."),
    Metric("scankv_rocksdb_running_flushes", "gauge", "The flushes that run now."),
    Metric("scankv_rocksdb_stopped_buckets", "gauge", "The buckets in which RocksDB has stopped writes."),
    Metric("scankv_rocksdb_background_errors", "gauge", "The failed flushes and compactions of open buckets."),
)
"""The metrics of the whole server."""

TABLE_METRICS: Final = (
    Metric("scankv_table_rows", "gauge", "The rows in buckets that count their rows.", _TABLE),
    Metric("scankv_table_buckets_open", "gauge", "The open buckets.", _TABLE),
    Metric("scankv_table_buckets_damaged", "gauge", "The buckets that are damaged or cannot be used.", _TABLE),
    Metric("scankv_table_disk_bytes", "gauge", "The bytes of SST files with rows.", _TABLE),
    Metric("scankv_table_syncs_total", "counter", "The syncs of write-ahead logs.", _TABLE),
    Metric("scankv_changelog_changes", "gauge", "The changes that the changelog retains.", _TABLE),
    Metric("scankv_changelog_disk_bytes", "gauge", "The bytes of SST files with changes.", _TABLE),
    Metric("scankv_changelog_written_bytes_total", "counter", "The bytes of changes, retained or not.", _TABLE),
    Metric("scankv_retention_holds", "gauge", "The retention holds on the changelog, by distinct owners.", _TABLE),
    Metric("scankv_retention_held_changes", "gauge", "The changes from the oldest retention hold on.", _TABLE),
    Metric("scankv_consumers", "gauge", "The consumers.", _TABLE),
    Metric("scankv_consumers_live", "gauge", "The consumers that a stream owns.", _TABLE),
    Metric("scankv_consumer_lag_changes", "gauge", "The lag of the consumer that lags most.", _TABLE, "max"),
    Metric("scankv_indexes", "gauge", "The indexes.", _TABLE),
    Metric("scankv_indexes_building", "gauge", "The indexes that are not ready in some open bucket.", _TABLE),
    Metric("scankv_index_disk_bytes", "gauge", "The bytes of SST files with index entries.", _TABLE),
    Metric("scankv_bases", "gauge", "The buckets of which scans read a columnar base.", _TABLE),
    Metric("scankv_base_disk_bytes", "gauge", "The bytes of columnar bases.", _TABLE),
    Metric("scankv_base_delta_bytes", "gauge", "The memory of deltas.", _TABLE),
    Metric("scankv_base_changes", "gauge", "The changes since the columnar bases were built.", _TABLE),
    Metric("scankv_base_oldest_age_seconds", "gauge", "The age of the oldest columnar base.", _TABLE, "max"),
    Metric("scankv_base_builds_total", "counter", "The builds of columnar bases.", _TABLE),
    Metric("scankv_base_build_cpu_seconds_total", "counter", "The CPU time of these builds.", _TABLE),
    Metric("scankv_base_drops_total", "counter", "The bases dropped for lack of memory or disk space.", _TABLE),
    Metric("scankv_base_written_bytes_total", "counter", "The bytes that these builds have written.", _TABLE),
    Metric("scankv_expired_rows_removed_total", "counter", "The expired rows that the sweep has removed.", _TABLE),
    Metric(
        "scankv_expired_rows_share",
        "gauge",
        "The share of the stored rows that had expired when the last pass came to them. Should be at most 0.1.",
        _TABLE,
        "max",
    ),
    Metric(
        "scankv_expiry_pass_age_seconds",
        "gauge",
        "The time since the sweep has last passed through all rows of a table whose rows expire.",
        _TABLE,
        "max",
    ),
)
"""The metrics of each table that was used since the start of the server."""

METRICS: Final = {metric.name: metric for metric in (*SERVER_METRICS, *TABLE_METRICS)}

STANDARD_METRICS: Final = {
    "process_cpu_seconds_total": "The processor time of the server.",
    "process_resident_memory_bytes": "The resident memory.",
    "process_virtual_memory_bytes": "The virtual memory.",
    "process_start_time_seconds": "When the process started, since 1970 UTC.",
    "process_open_fds": "The open file descriptors.",
    "process_max_fds": "The limit of open file descriptors.",
}
"""Metrics that every process reports under the same names, with their meanings. Only Linux has them."""
