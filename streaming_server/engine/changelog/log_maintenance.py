"""Background maintenance of buckets: makes segments of small records, trims old changes, removes expired writers.

It compacts key ranges whose rows were deleted, and the part of the changelog that was removed. On a disk that is almost
full, it also flushes, so that deleted rows free their space.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DiskFull, ScanKvError
from streaming_server.engine.bucket.live_bucket import REPAIR_SECONDS
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.files.disk_reserve import DiskReserve

_MANY_FLUSHES: Final = 8
"""After how many flushes on demand the small files that each of them leaves are compacted."""

_LEAST_FLUSHED_BYTES: Final = 32 * 1024
"""A bucket with fewer unflushed bytes is not flushed to free space."""

_log: Final = logging.getLogger(__name__)


class LogMaintenance(Background):
    """Keeps the changelogs of the tables in use fast to read and within their retention. Bound to the event loop.

    A table that was not used since the start of the server gets no maintenance before its first use.

    Args:
        tables: Returns the tables in use.
        seconds: The interval of the maintenance.
        max_held_bytes: How many bytes of one bucket's changelog retention holds may keep beyond its retention.
        clock: The server's clock.
        reserve: The disk space that writes leave free.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[TableState]],
        *,
        seconds: float,
        max_held_bytes: int,
        clock: ServerClock,
        reserve: DiskReserve,
    ) -> None:
        self._tables = tables
        self._reserve = reserve
        self._clock = clock
        self._max_held_bytes = max_held_bytes
        super().__init__(
            partial(repeat, seconds, self._maintain_all), partial(repeat, REPAIR_SECONDS, self._repair_all)
        )

    async def _maintain_all(self) -> None:
        for table in list(self._tables()):
            for live in table.buckets:
                try:
                    await self.maintain(table, live)
                except ScanKvError as error:
                    # The bucket was closed; or it is damaged, and its readers get an error.
                    _log.warning("changelog of bucket %s of %s: %s", live.number, live.table, error.message)
                except Exception:
                    _log.exception("changelog of bucket %s of %s", live.number, live.table)

    async def _repair_all(self) -> None:
        """Reopens buckets that wait for space. Not in `_maintain_all`, which may wait as they do."""
        for table in list(self._tables()):
            for live in table.buckets:
                if live.lacks_space:
                    self._reserve.drop_ballast()
                    with suppress(ScanKvError):  # `open` has logged it.
                        await live.end_waiting()

    async def maintain(self, table: TableState, live: LiveBucket) -> None:
        """Does the due maintenance of one bucket, if it was opened since the start. Raises DataLoss.

        Opens a closed bucket only if all of its changelog is beyond the retention.
        """
        # Most buckets of a large server are closed, and each costs time every second.
        if live.open_bucket is None and not self._is_expired(table, live):
            return
        while await self._rewrite(table, live):
            pass
        await _compact(live, self._clock.monotonic())
        if self._reserve.is_low:
            await self._flush(live)
        async with live.mutex:
            bucket = live.open_bucket
            if bucket is None and self._is_expired(table, live):
                bucket = await live.open()
            if bucket is not None:
                now = self._clock.service_micros()
                if await live.run(_trim, bucket, table.definition, self._max_held_bytes, now):
                    live.notify()  # The rows may have been those of a table without a primary key.
                if bucket.writers.is_sweep_due():
                    await live.run(bucket.writers.sweep)

    def _is_expired(self, table: TableState, live: LiveBucket) -> bool:
        """Returns whether changes exist, and all of them are older than the retention."""
        state, seconds = live.state, table.definition.options.log_retention_seconds
        if state is None or state.log_first == state.count or not seconds:
            return False
        return state.log_micros <= self._clock.service_micros() - seconds * 1_000_000

    async def _flush(self, live: LiveBucket) -> None:
        """Flushes a bucket, if that fits into the reserve.

        Deleted rows free their space only when a compaction finds their tombstones, and it finds none in memory.
        """
        async with live.maintenance:
            bucket = live.open_bucket
            if bucket is not None and bucket.is_writable:
                size = bucket.unflushed_bytes
                if _LEAST_FLUSHED_BYTES <= size <= self._reserve.free // 2:
                    await live.run(bucket.flush)

    async def _rewrite(self, table: TableState, live: LiveBucket) -> bool:
        """Makes one segment, or skips records that are large enough. Returns False if too few records are left."""
        # Reading takes long, and writers need not wait for it: durable records no longer change.
        async with live.maintenance:
            bucket = live.open_bucket
            if bucket is None or not bucket.log.is_rewrite_due:
                return False
            segment = await live.run(bucket.log.next_segment, live.durable_offset, table.definition)
        if segment is None:
            return False
        async with live.mutex:
            if live.open_bucket is bucket:
                await live.run(bucket.put_segment, segment)
        return True


async def _compact(live: LiveBucket, now: float) -> None:
    """Compacts deleted ranges, and the small files of flushes once there are enough of them."""
    async with live.mutex:
        emptied = live.open_bucket
        deleted = emptied.take_deleted_ranges(now) if emptied is not None and emptied.is_writable else None
    async with live.maintenance:
        bucket = live.open_bucket
        if deleted is not None and bucket is not None and bucket is emptied:
            try:
                await live.run(bucket.compact_ranges, deleted)
            except DiskFull:
                bucket.return_deleted_ranges(deleted)
                raise
        if bucket is not None and bucket.flushes >= _MANY_FLUSHES:
            bucket.flushes = 0
            await live.run(bucket.compact_small_files)


def _trim(bucket: Bucket, definition: TableDefinition, max_held_bytes: int, now: int) -> bool:
    """Trims changes beyond the retention at a service time. Releases holds that retain too much.

    Returns whether rows were removed, as in a table without a primary key.
    """
    options, log, state = definition.options, bucket.log, bucket.state
    target = 0
    if options.log_retention_seconds:
        oldest = now - options.log_retention_seconds * 1_000_000
        target = count_of(log.offset_of_age(oldest, now))
    if options.log_retention_bytes and state.log_bytes > options.log_retention_bytes:
        # Rows are not removed before they have to be; changes are, by up to a mark.
        end = log.offset_of_bytes(state.log_bytes - options.log_retention_bytes, round_down=not definition.has_key)
        target = max(target, count_of(end))
    if target <= state.log_first:
        return False
    offset = log.span.offset_of(target)
    total_bytes = log.bytes_before(offset)
    while (held := log.holds.oldest()) is not None and total_bytes - log.bytes_before(held[1]) > max_held_bytes:
        _log.warning(
            "%s: %s holds over %d bytes of old changes and loses them", bucket.location, held[0], max_held_bytes
        )
        log.holds.release(held[0])
    return bucket.trim_log(offset, definition) and not definition.has_key
