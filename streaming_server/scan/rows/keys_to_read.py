"""Which keys of which buckets a scan still has to read: pure arithmetic on encoded keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.keys.buckets import KeyPlaces
from scankv.model.keys.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.chunk_source import Position
    from streaming_server.scan.row_reader import RowReader


def keys_to_read(
    reader: RowReader,
    definition: TableDefinition,
    buckets: Iterable[int],
    position: Position | None,
    *,
    reverse: bool,
    ordered: bool,
) -> dict[int, KeyRanges]:
    """What of each bucket is to be read, ascending by bucket; those in which nothing can be are not in it.

    A position is a key, and the list is cut there: so a scan goes on exactly, in whichever of its ranges it was.

    Args:
        reader: Says which keys can hold rows that are asked for.
        definition: The table.
        buckets: The buckets asked for.
        position: Where the scan goes on. None at its beginning.
        reverse: Whether it reads in descending order.
        ordered: Whether all buckets are read at once, so that each goes on behind the position.
    """
    asked = sorted(bucket for bucket in buckets if position is None or ordered or bucket >= position.bucket)
    ranges = reader.ranges
    if position is not None and ordered:
        ranges = ranges.behind(position.key, reverse=reverse)
    if reader.indexed is not None:
        keys = reader.indexed.keys
        left = {bucket: KeyRanges.of_keys(keys[bucket]) & ranges for bucket in asked if bucket in keys}
    else:
        places = KeyPlaces(definition.key_schema, definition.bucket_key, definition.buckets)
        left = places.of_ranges(ranges, asked)
    if position is not None and not ordered and position.bucket in left:
        left[position.bucket] = left[position.bucket].behind(position.key, reverse=reverse)
    return {bucket: keys for bucket, keys in left.items() if keys}
