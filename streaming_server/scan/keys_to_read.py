"""Which keys of which buckets a scan still has to read: pure arithmetic on encoded keys."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

from table_model.buckets import KeyPlaces
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from streaming_server.scan.chunk_source import Position
    from streaming_server.scan.row_reader import RowReader
    from table_model.schema import TableDefinition

Keys: TypeAlias = KeyRange | tuple[bytes, ...]
"""A range, or single encoded keys, ascending."""


def keys_to_read(
    reader: RowReader,
    definition: TableDefinition,
    buckets: Iterable[int],
    position: Position | None,
    *,
    reverse: bool,
    ordered: bool,
) -> dict[int, Keys]:
    """What of each bucket is to be read, ascending by bucket; those in which nothing can be are not in it.

    Args:
        reader: Says which keys can hold rows that are asked for.
        definition: The table.
        buckets: The buckets asked for.
        position: Where the scan goes on. None at its beginning.
        reverse: Whether it reads in descending order.
        ordered: Whether all buckets are read at once, so that each goes on behind the position.
    """
    places = KeyPlaces(definition.key_schema, definition.bucket_key, definition.buckets)
    ranges = _left_to_read(sorted(buckets), reader.key_range, position, reverse=reverse, ordered=ordered)
    by_bucket: Mapping[int, tuple[bytes, ...]]
    if reader.indexed is not None:
        by_bucket = reader.indexed.keys
    elif reader.points is not None:
        by_bucket = places.of_points(reader.points)
    else:
        only = places.of_range(reader.key_range)
        return {bucket: keys for bucket, keys in ranges.items() if only in (None, bucket)}
    points = {bucket: _within(keys, ranges[bucket]) for bucket, keys in by_bucket.items() if bucket in ranges}
    return {bucket: points[bucket] for bucket in ranges if points.get(bucket)}


def _left_to_read(
    buckets: Iterable[int], key_range: KeyRange, position: Position | None, *, reverse: bool, ordered: bool
) -> dict[int, KeyRange]:
    if key_range.is_empty:
        return {}
    if position is None:
        return dict.fromkeys(buckets, key_range)
    rest = key_range.behind(position.key, reverse=reverse)
    left = {
        bucket: rest if ordered or bucket == position.bucket else key_range
        for bucket in buckets
        if ordered or bucket >= position.bucket
    }
    return {bucket: keys for bucket, keys in left.items() if not keys.is_empty}


def _within(points: tuple[bytes, ...], keys: KeyRange) -> tuple[bytes, ...]:
    first = bisect_left(points, keys.start or b"")
    return points[first:] if keys.end is None else points[first : bisect_left(points, keys.end)]
