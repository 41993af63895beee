"""Cutting the scan of a snapshot into one scan for each task.

Whole buckets cost nothing to hand out, and hashing makes them about equal. Where they are not, or are too few, the
server cuts the snapshot into ranges of keys, for which it reads all of its keys once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aio_client import ScanSpec, sync
    from spark_bridge.options import ReadOptions

# What the largest task may have over its share, and how far tasks of whole buckets may be over `rows_per_split`.
_MOST_OVER_SHARE: Final = 1.25
_MOST_OVER_ROWS: Final = 2


def split(client: sync.Client, table: sync.Table, snapshot: sync.Snapshot, options: ReadOptions) -> list[ScanSpec]:
    """The scans of the tasks, at least one; together they give each row of the snapshot that is asked for once."""
    scan = options.scan_of(table).at(snapshot)
    if options.limit is not None:
        return [scan.spec]
    if options.splits is not None:
        return [part.spec for part in scan.splits(options.splits)]
    rows = table.count(at=snapshot) if snapshot.rows is None else snapshot.rows
    splits = min(-(-rows // options.rows_per_split), options.max_partitions)
    if splits <= 1:
        return [scan.spec]
    if scan.spec.key_range is None:
        # As of now, not of the snapshot: it decides how even the tasks are, not what they read.
        counted = {each.bucket: each.rows for each in table.statistics()}
        groups = bucket_groups(counted, splits)
        if groups is not None:
            return [replace(scan.spec, buckets=group) for group in groups]
    return _key_ranges(client, scan.spec, splits)


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


def _key_ranges(client: sync.Client, spec: ScanSpec, splits: int) -> list[ScanSpec]:
    """Parts of the whole snapshot as far as they are in the scan's range of keys: few where that is narrow."""
    wanted = KeyRange() if spec.key_range is None else spec.key_range
    whole = client.scan(replace(spec, key_range=None)).splits(splits)
    ranges = [(part.spec.key_range or KeyRange()) & wanted for part in whole]
    return [replace(spec, key_range=each) for each in ranges if not each.is_empty] or [spec]
