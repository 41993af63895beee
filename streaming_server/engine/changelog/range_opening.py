"""Opens key ranges of the live buckets of a table, for streams of changes that read ranges again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.expressions import BoundPredicate
from streaming_server.engine.bucket.locking import wait_until_readable
from streaming_server.scan.changes.range_rescan import OpenedRanges

if TYPE_CHECKING:
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.engine.bucket.table_state import TableState


class LiveRanges:
    """The key ranges of one table: a `RangeOpener`."""

    def __init__(self, table: TableState) -> None:
        self._table = table

    async def open(self, bucket: int, ranges: KeyRanges) -> OpenedRanges:
        """See `RangeOpener`."""
        live = self._table.buckets[bucket]
        async with live.mutex:
            opened = await live.open()
            codec, offset = self._table.codec, opened.state.log_offset
            expiry = codec.definition.expiry
            now = None if expiry is None else expiry.unexpired(opened.commit_time())
            columns = codec.rows.schema.names if expiry is None or not expiry.by_write else codec.rows.timed_columns
            cursor = opened.ranges_cursor(codec.rows.decoder(columns), ranges)
        try:
            await wait_until_readable(self._table.buckets, {bucket: offset})
        except BaseException:
            cursor.close()
            raise
        unexpired = None if expiry is None or now is None else BoundPredicate(now, (expiry.column.name,))
        return OpenedRanges(cursor, codec.definition, unexpired, codec.keys.encode_stored, live.record_error)
