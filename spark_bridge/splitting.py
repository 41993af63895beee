"""Divides the scan of a snapshot into one scan for each task.

The division depends on how the server would read the scan, which `explain` returns:

- Single keys are one task.
- Complete buckets need no split points, and hashing makes them about equal.
- If buckets are uneven or too few, or if the scan reads a key range, the server computes split points.

Rule: *the time of planning does not depend on the size of the table*.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aio_client import ScanSpec, sync
    from spark_bridge.options import ReadOptions

# Complete buckets are handed out only if the largest task has at most this many times the average number of rows ...
_MOST_OVER_SHARE: Final = 1.25
# ... and only if at most this many times as many tasks are wanted as there are buckets.
_MOST_TASKS_PER_BUCKET: Final = 2


def split(table: sync.Table, snapshot: sync.Snapshot, options: ReadOptions) -> list[ScanSpec]:
    """Returns the scans of the tasks, at least one. Together they return each selected row of the snapshot once."""
    scan = options.build_scan(table).as_of(snapshot)
    if options.limit is not None:
        return [scan.spec]
    read = scan.explain()
    if not read.buckets or (not read.range_count and options.splits is None):
        return [scan.spec]
    # These statistics are newer than the snapshot. They decide only how even the tasks are, not what the tasks read.
    counted = {each.bucket: each.rows for each in table.stats() if each.bucket in read.buckets}
    splits = options.splits or _max_splits(counted, snapshot.rows, options)
    if splits <= 1:
        return [scan.spec]
    if read.all_keys or options.splits is not None:
        groups = group_buckets(counted, splits)
        if groups is not None and (options.splits is None or len(groups) == splits):
            return [replace(scan.spec, buckets=group, part=number) for number, group in enumerate(groups)]
    rows_per_split = options.rows_per_split if options.splits is None else None
    return [part.spec for part in scan.splits(splits, rows_per_split=rows_per_split)]


def _max_splits(counted: Mapping[int, int | None], rows: int | None, options: ReadOptions) -> int:
    """Returns the most tasks that `rows_per_split` allows, from the number of rows in the buckets to read."""
    known = [count for count in counted.values() if count is not None]
    if len(known) == len(counted):
        rows = sum(known) if rows is None else min(rows, max(sum(known), 1))
    if rows is None:
        return options.max_partitions
    return min(-(-rows // options.rows_per_split), options.max_partitions)


def group_buckets(rows: Mapping[int, int | None], splits: int) -> list[tuple[int, ...]] | None:
    """Assigns complete buckets to about `splits` tasks. Returns None if the tasks would be uneven or far too few.

    Args:
        rows: The number of rows by bucket; None if it is not known.
        splits: How many tasks there should be, at least 1.
    """
    counted = [(count, bucket) for bucket, count in rows.items() if count is not None]
    if len(counted) < len(rows) or splits > _MOST_TASKS_PER_BUCKET * len(rows):
        return None
    groups: list[list[int]] = [[] for _ in range(min(splits, len(rows)))]
    sizes = [0] * len(groups)
    for count, bucket in sorted(counted, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(bucket)
        sizes[smallest] += count
    if max(sizes) > _MOST_OVER_SHARE * sum(sizes) / len(sizes):
        return None
    return [tuple(sorted(group)) for group in groups if group]
