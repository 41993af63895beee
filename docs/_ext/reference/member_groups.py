"""In which order the reference shows the members of large classes: what people use first comes first.

Every method of these classes has a group; properties without one come after all groups. The blocking class of the same
name has the same groups.
"""

from __future__ import annotations

FIRST_CALLS = (
    *("connect", "Client.create_table", "Client.table", "Table.upsert", "Table.get", "Table.scan"),
    *("Scan.to_arrow", "Scan.stream", "Table.count", "Table.delete", "Table.changes", "Client.transaction"),
)
"""What most programs begin with."""

GROUPS = {
    "Table": {
        "First calls": "get upsert scan delete count changes",
        "Reading": "lookup top_n aggregate dataset watch_top_n explain_top_n count_if_changed top_n_if_changed "
        "aggregate_if_changed",
        "Writing": "append retract replace truncate writer lock_columns undo",
        "Snapshots": "snapshot adopt_snapshot",
        "Consumers": "consumers reset_consumer delete_consumer delete_consumers accept_consumer",
        "Partitions": "partitions create_partition drop_partition",
        "State": "stats disk_use index_status log_offsets incarnation owner_port",
        "Definition": "name schema primary_key column_defaults column_comments options indexes merge_engine "
        "version_column sequence_column sequence_groups aggregators partition_by bucket_key buckets tablets",
    },
    "Client": {
        "First calls": "table create_table tables transaction aclose close",
        "Tables": "alter_table drop_table bootstrap check_table damaged_tables table_sizes wait_ready",
        "Reading": "scan sql read_ahead",
        "Transactions": "transaction_part transactions abort_transaction give_up_transaction",
        "Snapshots": "snapshot snapshots adopt_snapshot",
        "What the server does": "live_scans cancel_scan slow_calls column_locks release_column_lock "
        "stats metrics assign_owner",
        "Backups": "create_backup backup_status",
    },
    "Scan": {
        "First calls": "where select limit to_arrow stream to_pylist to_pandas to_polars to_duckdb",
        "Which rows": "key_range prefix with_buckets with_bucket_filter with_shard",
        "Order": "ordered unordered reverse",
        "Which instant": "as_of consistency if_changed_since isolation read_path",
        "Changes": "start_from stop_at with_row_kind with_consumer_id with_source with_catch_up with_untracked "
        "with_unmatched",
        "How it is read": "batches stream_sync splits resume resume_from with_chunk explain",
    },
    "ScanStream": {
        "First calls": "commit resume_token schema aclose close",
        "While it runs": "poll on_heartbeat on_cleared stats",
    },
    "Transaction": {
        "First calls": "upsert delete get get_for_update commit abort",
        "Reading": "lookup",
        "Writing": "append retract replace delete_all",
    },
    "TransactionPart": {
        "First calls": "upsert delete get get_for_update",
        "Reading": "lookup",
        "Writing": "append retract replace delete_all",
    },
    "Writer": {"First calls": "upsert append delete retract flush"},
}
"""The groups of classes, by their names, with the members in the order in which they are shown."""
