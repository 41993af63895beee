"""Which keys of which buckets a scan still has to read. Pure computation on encoded keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.keys.buckets import KeyPlaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.keys.key_ranges import KeyRanges
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.chunk_source import ScanPosition
    from streaming_server.scan.row_reader import RowReader


def keys_to_read(
    reader: RowReader,
    definition: TableDefinition,
    buckets: Iterable[int],
    position: ScanPosition | None,
    *,
    reverse: bool,
    ordered: bool,
) -> dict[int, KeyRanges]:
    """Returns the remaining key ranges of each bucket, ascending; omits buckets that cannot have matching rows.

    A position is a key, and the ranges are cut there. So a scan resumes exactly, in whichever range it was.

    Args:
        reader: Has the ranges of keys that can hold matching rows.
        definition: The table.
        buckets: The requested buckets.
        position: Where the scan resumes. None: at its beginning.
        reverse: Whether the scan reads in descending order.
        ordered: Whether the scan merges all buckets by key, so that each bucket resumes after the position.
    """
    asked = sorted(bucket for bucket in buckets if position is None or ordered or bucket >= position.bucket)
    ranges = reader.ranges
    if position is not None and ordered:
        ranges = ranges.after(position.key, reverse=reverse)
    if reader.indexed is not None:
        left = {bucket: ranges for bucket in asked if reader.indexed.may_have_rows(bucket)}
    elif reader.by_bucket is not None and ranges is reader.ranges:
        left = {bucket: reader.by_bucket[bucket] for bucket in asked if bucket in reader.by_bucket}
    elif not definition.has_key:
        left = dict.fromkeys(asked, ranges)
    else:
        places = KeyPlaces(definition.key_schema, definition.bucket_key, definition.buckets)
        left = places.of_ranges(ranges, asked)
    if position is not None and not ordered and position.bucket in left:
        left[position.bucket] = left[position.bucket].after(position.key, reverse=reverse)
    return {bucket: keys for bucket, keys in left.items() if keys}
