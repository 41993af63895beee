"""Finds the keys that have changed in their bucket since a log offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import InvalidRequest
from streaming_server.engine.merging.expired_rows import REMOVAL
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached

if TYPE_CHECKING:
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec

_STEP_CHANGES: Final = 65_536
_STEP_BYTES: Final = 16 << 20


def changed_keys(
    bucket: Bucket, offset: int, keys: pa.Array, codec: TableCodec, *, with_removals: bool = True
) -> pa.Array:
    """Returns the encoded keys of a bucket that have a change at this offset or after it, in their order.

    A range marker counts as a change of every key in its range.

    Reads the changelog from the offset to its end, durable or not. Reads nothing if the offset is the end. Hold the
    mutex of the bucket. Blocks. Memory: about 16 MiB of changes at a time.

    Args:
        bucket: The bucket.
        offset: The offset to start at: a next offset, as reads and writes return it.
        keys: The encoded keys.
        codec: The table's current codec, which knows every schema of the changelog.
        with_removals: Whether the removal of an expired row counts as a change.

    Raises:
        InvalidRequest: The table has no changelog.
        PositionExpired, PositionOutOfRange: The changelog no longer has the offset, or never had it.
        DataLoss: A change is damaged.
    """
    definition = codec.definition
    if definition.options.changelog == "none":
        raise InvalidRequest(
            f"table {definition.name} has no changelog, which finds out what has changed since a version: set "
            'changelog="full" or "upsert"'
        )
    start, end = bucket.log.span.resolve(offset, location=bucket.location), bucket.state.log_offset
    changed = np.zeros(len(keys), bool)
    while count_of(start) < count_of(end):
        try:
            records = bucket.log.read(start, end, definition, max_changes=_STEP_CHANGES, max_bytes=_STEP_BYTES)
        except MarkerReached as reached:
            marker = reached.record.marker
            # Each key of the range may have changed.
            within = pc.greater_equal(keys, marker.start).to_numpy(zero_copy_only=False)
            if marker.end is not None:
                within &= pc.less(keys, marker.end).to_numpy(zero_copy_only=False)
            changed |= within
            start = reached.record.offset + len(marker)
            continue
        for record in records:
            start = record.offset + len(record.changes)
            if not with_removals and record.changes.origin.writer == REMOVAL.writer:
                continue
            seen = codec.keys.encode_stored(record.changes.rows)
            changed |= pc.is_in(keys, value_set=seen).to_numpy(zero_copy_only=False)
    return keys.filter(pa.array(changed))
