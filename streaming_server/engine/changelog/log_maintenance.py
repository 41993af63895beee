"""What is done to buckets in the background: small records become segments, old changes and expired writers go."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ScanKvError
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_state import BucketState

_MANY_FLUSHES: Final = 8
"""Flushes on demand, each of which leaves a small file of each kind behind, before these are made one."""

_log: Final = logging.getLogger(__name__)


class LogMaintenance(Background):
    """Keeps the changelogs of the tables in use fast to read and within their retention. Bound to the event loop.

    What nobody has used since the start of the server is looked at when it is.

    Args:
        tables: The tables in use, at any time.
        seconds: How often each is looked at.
        max_held_bytes: How much of one bucket's changelog may be kept beyond its retention for those who hold it.
        clock: The server's.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[TableState]],
        *,
        seconds: float,
        max_held_bytes: int,
        clock: ServerClock,
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._max_held_bytes = max_held_bytes
        super().__init__(partial(repeat, seconds, self._look))

    async def _look(self) -> None:
        for table in list(self._tables()):
            for live in table.buckets:
                try:
                    await self.look_after(table, live)
                except ScanKvError as error:
                    # The bucket is damaged, which whoever reads it is told, or was closed.
                    _log.warning("changelog of bucket %s of %s: %s", live.number, live.table, error.message)
                except Exception:
                    _log.exception("changelog of bucket %s of %s", live.number, live.table)

    async def look_after(self, table: TableState, live: LiveBucket) -> None:
        """Does what is due for one bucket of a table, if it was opened since the start. Raises DataLoss.

        One that is at rest is opened for it only when all of its changelog is beyond the retention.
        """
        while await self._rewrite(table, live):
            pass
        await _compact(live)
        async with live.mutex:
            bucket = live.open_bucket
            if bucket is None and _is_expired(live.state, table.definition, self._clock.service_micros()):
                bucket = await live.open()
            if bucket is not None:
                await live.run(_trim, bucket, table.definition, self._max_held_bytes, self._clock.service_micros())
                if bucket.writers.is_sweep_due():
                    await live.run(bucket.writers.sweep)

    async def _rewrite(self, table: TableState, live: LiveBucket) -> bool:
        """Makes one segment, or passes over records that are large enough; False when there are too few."""
        # Reading takes long, and writers need not wait for it: what is durable no longer changes.
        async with live.maintenance:
            bucket = live.open_bucket
            if bucket is None or bucket.state.count - bucket.state.log_rewritten <= MAX_CHANGES_PER_RECORD:
                return False
            start = bucket.log.span.offset_of(bucket.state.log_rewritten)
            segment = await live.run(bucket.log.next_segment, start, live.durable_offset, table.definition)
        if segment is None:
            return False
        async with live.mutex:
            if live.open_bucket is bucket:
                await live.run(bucket.put_segment, segment)
        return True


async def _compact(live: LiveBucket) -> None:
    """Makes the small files one that flushes have left, once there are some."""
    async with live.maintenance:
        bucket = live.open_bucket
        if bucket is not None and bucket.flushes >= _MANY_FLUSHES:
            bucket.flushes = 0
            await live.run(bucket.compact_small_files)


def _is_expired(state: BucketState | None, definition: TableDefinition, now: int) -> bool:
    """Whether there are changes, and all of them are older than the retention, as of a service time."""
    if state is None or state.log_first == state.count:
        return False
    return state.log_micros <= now - definition.options.log_retention_seconds * 1_000_000


def _trim(bucket: Bucket, definition: TableDefinition, max_held_bytes: int, now: int) -> None:
    """Removes what is beyond the retention as of a service time; who holds too much of it loses its hold."""
    options, log, state = definition.options, bucket.log, bucket.state
    oldest = now - options.log_retention_seconds * 1_000_000
    target = state.count if state.log_micros <= oldest else count_of(log.offset_of_age(oldest, now))
    if options.log_retention_bytes and state.log_bytes > options.log_retention_bytes:
        target = max(target, count_of(log.offset_of_bytes(state.log_bytes - options.log_retention_bytes)))
    if target <= state.log_first:
        return
    offset = log.span.offset_of(target)
    behind = log.bytes_before(offset, state.log_bytes)
    while (held := log.holds.oldest()) is not None and _held_bytes(bucket, held[1], behind) > max_held_bytes:
        _log.warning(
            "%s: %s holds over %d bytes of old changes and loses them", bucket.location, held[0], max_held_bytes
        )
        log.release(held[0])
    bucket.trim_log(offset)


def _held_bytes(bucket: Bucket, offset: int, behind: int) -> int:
    """How many bytes of old changes are kept for who needs them from an offset on."""
    return behind - bucket.log.bytes_before(offset, bucket.state.log_bytes)
