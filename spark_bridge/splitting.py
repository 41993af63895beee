"""Cutting the scan of a snapshot into one scan for each task.

What the server says that it will read decides. Single keys are one task. Whole buckets cost nothing to hand out, and
hashing makes them about equal. Where they are not, or are too few, or only a range of keys is read, the server cuts
within that. The rule: planning takes a time that does not depend on the size of the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aio_client import ScanSpec, sync
    from spark_bridge.options import ReadOptions

# What the largest task may have over its share, and how far tasks of whole buckets may be over `rows_per_split`.
_MOST_OVER_SHARE: Final = 1.25
_MOST_OVER_ROWS: Final = 2


def split(table: sync.Table, snapshot: sync.Snapshot, options: ReadOptions) -> list[ScanSpec]:
    """The scans of the tasks, at least one; together they give each row of the snapshot that is asked for once."""
    scan = options.scan_of(table).at(snapshot)
    if options.limit is not None:
        return [scan.spec]
    read = scan.explain()
    if not read.buckets or (not read.range_count and options.splits is None):
        return [scan.spec]
    # As of now, not of the snapshot: it decides how even the tasks are, not what they read.
    counted = {each.bucket: each.rows for each in table.statistics() if each.bucket in read.buckets}
    splits = options.splits or _most_splits(counted, snapshot.rows, options)
    if splits <= 1:
        return [scan.spec]
    if read.all_keys or options.splits is not None:
        groups = bucket_groups(counted, splits)
        if groups is not None and (options.splits is None or len(groups) == splits):
            return [replace(scan.spec, buckets=group) for group in groups]
    rows_per_split = options.rows_per_split if options.splits is None else None
    return [part.spec for part in scan.splits(splits, rows_per_split=rows_per_split)]


def _most_splits(counted: Mapping[int, int | None], rows: int | None, options: ReadOptions) -> int:
    """The most tasks that there can be, by the rows of the buckets that are read."""
    known = [count for count in counted.values() if count is not None]
    if len(known) == len(counted):
        rows = sum(known) if rows is None else min(rows, max(sum(known), 1))
    if rows is None:
        return options.max_partitions
    return min(-(-rows // options.rows_per_split), options.max_partitions)


def bucket_groups(rows: Mapping[int, int | None], splits: int) -> list[tuple[int, ...]] | None:
    """Whole buckets for each of about so many tasks, or None where that would be uneven, or far too few tasks.

    Args:
        rows: The rows of each bucket; None where they are not counted.
        splits: How many tasks there should be, at least 1.
    """
    counted = [(count, bucket) for bucket, count in rows.items() if count is not None]
    if len(counted) < len(rows) or splits > _MOST_OVER_ROWS * len(rows):
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
